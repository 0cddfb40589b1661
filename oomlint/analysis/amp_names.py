"""Names of torch.cuda.amp and torch.cpu.amp: where a file uses them and how torch.amp writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import edits, sites
from oomlint.analysis.edits import NoFix
from oomlint.analysis.knowledge import AUTOCAST
from oomlint.analysis.modules import Function, Module, written
from oomlint.rule import Edit

# Which release brought what stands in place of the old name.
SINCE = {"autocast": (1, 12), "GradScaler": (2, 3), "custom_fwd": (2, 4), "custom_bwd": (2, 4)}
OLD = re.compile(
    r"torch\.(?P<device>cuda|cpu)\.amp\.((?:grad_scaler|autocast_mode)\.)?"
    rf"(?P<name>{'|'.join(SINCE)})"
)
PACKAGE = re.compile(r"torch\.(cuda|cpu)\.amp(\.(grad_scaler|autocast_mode))?")
# Not deprecated itself, and torch.amp.grad_scaler has it too.
ALIKE = frozenset({"OptState"})
POSITIONS = {"autocast": ("enabled", "dtype", "cache_enabled")}

# What may stand before an argument, so that its name can be written there.
GAP = re.compile(r"(?:\s|#[^\n]*\n)*")
NEXT = re.compile(rf"{GAP.pattern},{GAP.pattern}")

# Code that asks which torch it runs on knows what it does.
VERSION = re.compile(
    r"version|hasattr\(\s*torch|is_torch_|find_spec|torch_?(ge|gt|lt|le)_|TORCH_\w*\d",
    re.IGNORECASE,
)
MISSING = re.compile(r"AttributeError|ImportError|ModuleNotFoundError|TypeError")
MODERN = re.compile(r"torch\.amp\b|torch\.autocast\b|from torch import amp")


@dataclass(frozen=True, slots=True)
class Binding:
    """A name that an import binds to an old name or to the package that holds it."""

    statement: ast.Import | ast.ImportFrom
    alias: ast.alias
    local: str
    qualified: str
    function: Function | None


@dataclass(frozen=True, slots=True)
class Use:
    """One place that mentions an old name; `how` is call, decorator, base, type or value."""

    node: ast.Name | ast.Attribute
    how: str
    name: str
    device: str
    function: Function | None
    binding: Binding | None


def uses(module: Module) -> list[Use]:
    """Every mention of an old name in source order, those behind a version test left out."""
    known: list[Use] | None = module.__dict__.get("amp_uses")
    if known is None:
        known = module.__dict__["amp_uses"] = found_uses(module)
    return known


def found_uses(module: Module) -> list[Use]:
    bound = list(bindings(module))
    # What ends with an old name, or is bound to one.
    named: list[ast.AST] = [
        node
        for node in module.index.by_kind.get(ast.Attribute, ())
        if node.attr in SINCE  # type: ignore[attr-defined] # its kind says so
    ]
    meant = [(binding.local, binding.qualified) for binding in bound]
    for name, qualified in (*module.imports.items(), *meant):
        if OLD.fullmatch(qualified):
            named += names_of(module).get(name, ())
    found = [use for node in dict.fromkeys(named) for use in used_at(module, node, bound)]
    found.sort(key=lambda use: (use.node.lineno, use.node.col_offset))
    return [use for use in found if not is_guarded(module, use)]


def names_of(module: Module) -> dict[str, list[ast.Name]]:
    """All names of a file, with the places that read or bind them."""
    known: dict[str, list[ast.Name]] | None = module.__dict__.get("names")
    if known is None:
        known = module.__dict__["names"] = {}
        for node in module.parents:
            if type(node) is ast.Name:
                known.setdefault(node.id, []).append(node)
    return known


def import_statements(module: Module) -> list[ast.Import | ast.ImportFrom]:
    """Those of blocks behind the others of the block around it."""
    known: list[ast.Import | ast.ImportFrom] | None = module.__dict__.get("import_statements")
    if known is None:
        kinds = (ast.Import, ast.ImportFrom)
        known = [node for node in module.parents if isinstance(node, kinds)]
        module.__dict__["import_statements"] = known
    return known


def bindings(module: Module) -> Iterator[Binding]:
    for node in import_statements(module):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                qualified = f"{node.module}.{alias.name}"
                if OLD.fullmatch(qualified) or PACKAGE.fullmatch(qualified):
                    local = alias.asname or alias.name
                    yield Binding(node, alias, local, qualified, module.function_of(node))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname and PACKAGE.fullmatch(alias.name):
                    function = module.function_of(node)
                    yield Binding(node, alias, alias.asname, alias.name, function)


def used_at(module: Module, node: ast.AST, bound: list[Binding]) -> Iterator[Use]:
    if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return
    root: ast.expr = node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return
    function = module.function_of(node)
    if sites.bindings(module, root.id, function):
        return
    binding = binding_of(root.id, function, bound)
    head = binding.qualified if binding else module.imports.get(root.id, "")
    match = OLD.fullmatch(head + written(node)[len(root.id) :])
    if match is not None:
        how = how_used(module, node)
        yield Use(node, how, match["name"], match["device"], function, binding)


def binding_of(name: str, function: Function | None, bound: list[Binding]) -> Binding | None:
    """The import that a name means in a function: the innermost one."""
    scope = function
    while True:
        found = [b for b in bound if b.local == name and b.function is scope]
        if found:
            return found[-1]
        if scope is None:
            return None
        scope = scope.parent


def how_used(module: Module, node: ast.expr) -> str:
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and parent.func is node:
        return "call"
    if isinstance(parent, ast.ClassDef) and node in parent.bases:
        return "base"
    if node in getattr(parent, "decorator_list", ()):
        return "decorator"
    child: ast.AST = node
    for outer in module.enclosing(node):
        if child in (getattr(outer, "annotation", None), getattr(outer, "returns", None)):
            return "type"
        if isinstance(outer, ast.Call) and written(outer.func) in ("isinstance", "issubclass"):
            return "type"
        if isinstance(outer, ast.stmt):
            break
        child = outer
    return "value"


def is_guarded(module: Module, use: Use) -> bool:
    if use.binding is not None:
        others = [
            s for s in imports_of(module, use.binding.local) if s is not use.binding.statement
        ]
        scope = use.binding.function
        if any(module.function_of(other) is scope for other in others):
            return True
        if is_under_test(module, use.binding.statement):
            return True
    if is_under_test(module, use.node):
        return True
    code = use.function.code if use.function is not None else ""
    return bool(VERSION.search(code) and MODERN.search(code))


def imports_of(module: Module, name: str) -> Iterator[ast.AST]:
    for node in import_statements(module):
        if any((alias.asname or alias.name) == name for alias in node.names):
            yield node


def is_under_test(module: Module, node: ast.AST) -> bool:
    """Whether the code stands under a version test, or where a missing name is caught."""
    for parent in module.enclosing(node):
        if isinstance(parent, ast.If | ast.IfExp) and VERSION.search(written(parent.test)):
            return True
        if isinstance(parent, ast.Try):
            caught = [written(h.type) if h.type is not None else "" for h in parent.handlers]
            if any(MISSING.search(text) for text in caught):
                return True
            if caught and MODERN.search(module.segment(parent)):
                return True
    return False


def is_available(use: Use, version: tuple[int, int] | None) -> bool:
    """Whether the oldest torch that must run the code has the new name."""
    return version is None or version >= SINCE[use.name]


def import_group(module: Module, statement: ast.AST) -> tuple[list[Use], bool]:
    """All uses of what an import statement binds, and whether nothing else is done with it."""
    bound = list(bindings(module))
    names = {binding.local for binding in bound if binding.statement is statement}
    group = [u for u in uses(module) if u.binding and u.binding.statement is statement]
    known = {id(part) for use in group for part in ast.walk(use.node)}
    for node in (node for name in names for node in names_of(module).get(name, ())):
        if id(node) not in known:
            function = module.function_of(node)
            binding = binding_of(node.id, function, bound)
            if binding is not None and binding.statement is statement:
                if not sites.bindings(module, node.id, function):
                    return group, False
    exported = {
        part.value
        for value in module.globals.get("__all__", ())
        if value is not None
        for part in ast.walk(value)
        if isinstance(part, ast.Constant)
    }
    return group, not names & exported and module.path.name != "__init__.py"


def migration(module: Module, use: Use, version: tuple[int, int] | None) -> list[Edit]:
    """Everything that must change so that this use is of torch.amp. Raises NoFix."""
    if use.binding is None:
        return [*renamed(module, use), *adapted(module, use)]
    statement = use.binding.statement
    group, whole = import_group(module, statement)
    if not whole or not all(is_available(other, version) for other in group):
        raise NoFix
    found = [edit for other in group for edit in adapted(module, other)]
    return [*new_import(module, statement), *found]


def renamed(module: Module, use: Use) -> list[Edit]:
    root: ast.expr = use.node
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name) or use.how == "value":
        raise NoFix
    if module.imports.get(root.id) == "torch":
        return [edits.replace(module, use.node, f"{root.id}.amp.{use.name}")]
    text, extra = edits.name_in_file(module, f"torch.amp.{use.name}")
    return [*extra, edits.replace(module, use.node, text)]


def new_import(module: Module, statement: ast.Import | ast.ImportFrom) -> list[Edit]:
    """The same import from torch.amp."""
    start, end = module.span(statement)
    text = module.source.text[start:end]
    if isinstance(statement, ast.Import):
        found = [
            Edit(start + m.start(), start + m.end(), "torch.amp")
            for m in re.finditer(r"\btorch\.(cuda|cpu)\.amp\b", text)
        ]
        if len(found) != len([a for a in statement.names if PACKAGE.fullmatch(a.name)]):
            raise NoFix
        return found
    named = {alias.name for alias in statement.names}
    if PACKAGE.fullmatch(statement.module or ""):
        if not named <= SINCE.keys() | ALIKE:
            raise NoFix
        match = re.match(r"from\s+(torch\.(?:cuda|cpu)\.amp)\b", text)
    else:
        match = re.match(r"from\s+(torch\.(?:cuda|cpu))\b", text) if named == {"amp"} else None
        if match is not None:
            return [Edit(start + match.start(1), start + match.end(1), "torch")]
    if match is None:
        raise NoFix
    return [Edit(start + match.start(1), start + match.end(1), "torch.amp")]


def adapted(module: Module, use: Use) -> list[Edit]:
    """The arguments as torch.amp takes them. Raises NoFix."""
    if is_scripted(use.function):
        raise NoFix
    if use.how == "type" or (use.how == "value" and use.name == "GradScaler"):
        return []
    device = f'"{use.device}"'
    end = module.span(use.node)[1]
    if use.how == "decorator" and use.name.startswith("custom_"):
        return [Edit(end, end, f"(device_type={device})")]
    call = module.parents[use.node]
    if use.how != "call" or not isinstance(call, ast.Call):
        raise NoFix
    if use.name == "autocast":
        return [*device_first(module, call, device), *by_name(module, call, POSITIONS[use.name])]
    if use.name == "GradScaler":
        return device_first(module, call, device)
    return device_by_name(module, call, device)


def is_scripted(function: Function | None) -> bool:
    return function is not None and any("jit" in written(d) for d in function.decorators)


def opening(module: Module, call: ast.Call) -> int:
    """The offset behind the parenthesis that opens a call's arguments."""
    start = module.span(call.func)[1]
    match = re.compile(r"\s*\(").match(module.source.text, start)
    if match is None:
        raise NoFix
    return match.end()


def device_first(module: Module, call: ast.Call, device: str) -> list[Edit]:
    place = opening(module, call)
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        return [Edit(place, place, device)]
    text = module.source.text
    gap = re.compile(r"[ \t]*(?:#[^\r\n]*)?\r?\n([ \t]*)").match(text, place)
    if gap is None:
        return [Edit(place, place, f"{device}, ")]
    return [Edit(gap.end(), gap.end(), f"{device},\n{gap[1]}")]


def by_name(module: Module, call: ast.Call, names: tuple[str, ...]) -> list[Edit]:
    """Positional arguments get their names: torch.amp has them in another order."""
    if len(call.args) > len(names) or any(isinstance(a, ast.Starred) for a in call.args):
        raise NoFix
    text = module.source.text
    found, before = [], opening(module, call)
    for index, (argument, name) in enumerate(zip(call.args, names, strict=False)):
        start, end = module.span(argument)
        if not (NEXT if index else GAP).fullmatch(text, before, start):
            raise NoFix
        found.append(Edit(start, start, f"{name}="))
        before = end
    if not dtype_given(call) and is_inside_other(module, call):
        raise NoFix
    return found


def dtype_given(call: ast.Call) -> bool:
    return len(call.args) > 1 or any(keyword.arg == "dtype" for keyword in call.keywords)


def is_inside_other(module: Module, call: ast.Call) -> bool:
    """Whether an autocast around it names a dtype, which torch.amp.autocast would take over."""
    for context in sites.contexts_around(module, call):
        if isinstance(context, ast.Call) and context is not call and dtype_given(context):
            qualified = sites.qualified_name(module, context.func, module.function_of(call))
            if AUTOCAST.search(qualified):
                return True
    return False


def device_by_name(module: Module, call: ast.Call, device: str) -> list[Edit]:
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        raise NoFix
    place = opening(module, call)
    if not call.args:
        separator = ", " if call.keywords else ""
        return [Edit(place, place, f"device_type={device}{separator}")]
    end = module.span(call.args[-1])[1]
    if not re.match(r"\s*[,)]", module.source.text[end:]):
        raise NoFix
    return [Edit(end, end, f", device_type={device}")]
