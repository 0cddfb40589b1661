"""How a function uses what it is given: the parts of a batch, the parts of a model's output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from oomlint.verify.targets import Definition, Function

# A name stands for one tensor; a list for a tuple of parts; a dict for a mapping or an object.
Structure = str | list["Structure"] | dict[str, "Structure"]
DEPTH = 3

# What is asked of a batch that is one tensor, or of any batch.
OF_TENSORS = frozenset(
    "to cuda cpu size shape view reshape float long half double int dim ndim device dtype"
    " numel unsqueeze squeeze permute transpose flatten contiguous clone detach item mean"
    " sum max min argmax T t requires_grad requires_grad_ type new_zeros new_ones new_tensor"
    " expand repeat chunk split unbind bool numpy tolist data grad topk eq ne backward"
    " softmax log_softmax sigmoid pow abs sqrt exp log clamp std var norm any all"
    " masked_fill scatter_ gather index_select is_cuda pin_memory fill_ copy_ zero_ narrow"
    " new_full ge gt le lt masked_select nonzero type_as cumsum retain_grad mul add sub div"
    " mm matmul bmm roll flip sort values_ view_as expand_as register_hook is_floating_point"
    " select".split()
)
OF_MAPPINGS = frozenset("items keys values get pop update copy".split())


@dataclass(slots=True)
class Uses:
    """What a function does with one name, or with `self.name`."""

    attributes: set[str] = field(default_factory=set)
    methods: set[str] = field(default_factory=set)
    keys: list[str] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    patterns: list[ast.expr] = field(default_factory=list)  # it is unpacked into these
    looped: list[ast.expr] = field(default_factory=list)  # its items are bound to these
    called: list[tuple[str, ast.Call]] = field(default_factory=list)  # "" or a method, the call
    spread: bool = False
    handed: list[tuple[Function, str]] = field(default_factory=list)  # on to a parameter of these
    moved_to: bool = False  # it is where something is moved to
    is_iterator: bool = False  # `next` is called on it
    indexed: bool = False  # by something that is computed
    fed: set[str] = field(default_factory=set)  # what is called with it


class Reader:
    """Reads the functions of one file."""

    def __init__(self, known: dict[str, Definition]) -> None:
        self.known = known

    def uses(self, function: Function, name: str) -> Uses:
        found = Uses()
        for node in ast.walk(function):
            self.note(node, name, found, function)
        return found

    def note(self, node: ast.AST, name: str, found: Uses, function: Function) -> None:
        match node:
            case ast.Attribute(value=value, attr=attr) if written(value) == name:
                found.attributes.add(attr)
            case ast.Subscript(value=value, slice=ast.Constant(value=key)) if (
                written(value) == name
            ):
                if isinstance(key, str) and key not in found.keys:
                    found.keys.append(key)
                elif isinstance(key, int):
                    found.positions.add(key)
            case ast.Subscript(value=value) if written(value) == name:
                found.indexed = True
            case ast.Assign(targets=[ast.Tuple() | ast.List() as pattern], value=value) if (
                written(moved(value)) == name
            ):
                found.patterns.append(pattern)
            case (
                ast.For(target=target, iter=source) | ast.comprehension(target=target, iter=source)
            ):
                item = item_of(target, source, name)
                if item is not None:
                    found.looped.append(item)
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name("next"), args=[it])) if (
                name in names_in(it)
            ):
                found.looped.append(target)
            case ast.Call():
                self.note_call(node, name, found, function)
            case _:
                pass

    def note_call(self, node: ast.Call, name: str, found: Uses, function: Function) -> None:
        whole = written(node.func)
        found.is_iterator |= whole == "next" and written(node.args[0]) == name
        if whole == name:
            found.called.append(("", node))
        elif isinstance(node.func, ast.Attribute) and written(node.func.value) == name:
            found.methods.add(node.func.attr)
            found.called.append((node.func.attr, node))
        elif isinstance(node.func, ast.Attribute) and whole.startswith(name + ".module."):
            found.called.append((node.func.attr, node))
        elif whole == f"{name}.module":
            found.called.append(("", node))
        given = (*node.args, *(keyword.value for keyword in node.keywords))
        if any(written(moved(value)) == name for value in given):
            found.fed.add(whole)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda"):
            found.moved_to |= any(written(arg) == name for arg in node.args[:1])
        for keyword in node.keywords:
            if keyword.arg is None and written(keyword.value) == name:
                found.spread = True
            if keyword.arg in ("device", "map_location") and written(keyword.value) == name:
                found.moved_to = True
        callee = self.callee(whole, function)
        if callee is not None:
            parameters = [a.arg for a in (*callee.args.posonlyargs, *callee.args.args)]
            if whole.startswith("self."):
                parameters = parameters[1:]
            pairs = [*zip(parameters, node.args, strict=False)]
            named = [(k.arg, k.value) for k in node.keywords if k.arg]
            for parameter, value in (*pairs, *named):
                if written(value) == name:
                    found.handed.append((callee, parameter))

    def callee(self, whole: str, function: Function) -> Function | None:
        if whole.startswith("self."):
            owner = next((k for k, node in self.known.items() if node is function), "")
            whole = f"{owner.rpartition('.')[0]}.{whole.removeprefix('self.')}"
        node = self.known.get(whole)
        return node if isinstance(node, Function) else None

    # -- batches

    def items(self, function: Function, name: str, depth: int = 0) -> Structure | None:
        """The parts of what a loader of this name yields; None where nobody iterates over it."""
        found = self.uses(function, name)
        if found.looped:
            return self.pattern(function, found.looped[0])
        for callee, parameter in found.handed if depth < DEPTH else ():
            inner = self.items(callee, parameter, depth + 1)
            if inner is not None:
                return inner
        return None

    def pattern(self, function: Function, target: ast.expr, is_part: bool = False) -> Structure:
        if isinstance(target, ast.Tuple | ast.List):
            return [self.pattern(function, part, True) for part in target.elts]
        if isinstance(target, ast.Starred):
            return self.pattern(function, target.value, True)
        name = written(target) or "batch"
        return self.value(function, name, is_part=is_part)

    def value(
        self, function: Function, name: str, depth: int = 0, is_part: bool = False
    ) -> Structure:
        """The parts of one value of this name.

        One index into a part of a batch is a row of it; several are the views of a sample.
        """
        found = self.uses(function, name)
        if found.patterns and not isinstance(found.patterns[0], ast.Starred):
            pattern = found.patterns[0]
            parts = pattern.elts if isinstance(pattern, ast.Tuple | ast.List) else []
            if name not in [written(part) for part in parts]:
                return self.pattern(function, pattern)
        if found.keys:
            return {key: key for key in found.keys}
        if len(found.positions) > is_part:
            count = max(2, max(found.positions) + 1)
            return [name if is_part else f"{name}{number}" for number in range(count)]
        fields = found.attributes - found.methods - OF_TENSORS - OF_MAPPINGS
        if fields:
            return {key: key for key in sorted(fields)}
        if found.spread or found.methods & {"items", "keys"}:
            return {key: key for key in ("input_ids", "attention_mask", "labels")}
        for callee, parameter in found.handed if depth < DEPTH else ():
            inner = self.value(callee, parameter, depth + 1)
            if not isinstance(inner, str):
                return inner
        return name

    def kind(self, function: Function, name: str) -> str | None:
        """The kind that a part of a batch must be of, where its use says so."""
        for item in self.uses(function, name).looped:
            of_item = self.uses(function, written(item))
            if of_item.keys or of_item.methods & {"items", "keys"}:
                return "boxes"
            if of_item.methods & {"to", "cuda"}:
                return "images"
        return None

    # -- outputs

    def outputs(self, function: Function, name: str, depth: int = 0) -> dict[str, Structure]:
        """What calls of a model and of its methods (by name, `` is the call) are used as."""
        results = dict(assigned(function))
        returns: dict[str, Structure] = {}
        found = self.uses(function, name)
        for method, call in found.called:
            if method in OF_MODULES:
                continue
            target = results.get(call)
            shape = self.output(function, target) if target is not None else "output"
            if method not in returns or returns[method] == "output":
                returns[method] = shape
        for callee, parameter in found.handed if depth < DEPTH else ():
            returns = {**self.outputs(callee, parameter, depth + 1), **returns}
        return returns

    def output(self, function: Function, target: ast.expr) -> Structure:
        if isinstance(target, ast.Tuple | ast.List):
            return [written(part) or "output" for part in target.elts]
        name = written(target)
        found = self.uses(function, name)
        if found.patterns and isinstance(found.patterns[0], ast.Tuple | ast.List):
            return [written(part) or "output" for part in found.patterns[0].elts]
        if found.keys:
            return {key: key for key in found.keys}
        fields = found.attributes - found.methods - OF_TENSORS - OF_MAPPINGS
        if fields:
            return {key: key for key in sorted(fields)}
        if found.methods & {"values", "items", "keys"} or name.endswith("dict"):
            return {key: key for key in ("loss_one", "loss_two")}
        return name or "output"


# Methods of every module, whose results are no outputs.
OF_MODULES = frozenset(
    "train eval parameters named_parameters state_dict load_state_dict to cuda cpu half float"
    " zero_grad modules named_modules children named_children apply requires_grad_ double"
    " register_forward_hook bfloat16 buffers named_buffers share_memory compile get_submodule"
    " no_sync save_pretrained".split()
)
# Calls around an output that leave its parts as they are.
AROUND = frozenset(("to", "cuda", "cpu", "float", "detach", "mean", "squeeze"))


def assigned(function: Function) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Each call whose result is bound, also behind `.to(device)` and the like, and to what."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(moved(node.value), ast.Call):
            yield moved(node.value), node.targets[0]  # type: ignore[misc]


def moved(node: ast.expr) -> ast.expr:
    """What stands before `.to(device)`, or inside of `tuple(t.to(device) for t in batch)`."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in AROUND:
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                return node
            node = node.func.value
            continue
        inner = node.args[0] if len(node.args) == 1 else None
        wraps = isinstance(node.func, ast.Name) and node.func.id in ("tuple", "list", "map", "iter")
        if wraps and isinstance(inner, ast.GeneratorExp | ast.ListComp):
            return inner.generators[0].iter
        return node
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return node.generators[0].iter
    return node


def item_of(target: ast.expr, source: ast.expr, name: str) -> ast.expr | None:
    """What one item of `name` is bound to by a loop over it, through enumerate, zip and others."""
    if written(source) == name:
        return target
    if not isinstance(source, ast.Call):
        return None
    called = written(source.func).rpartition(".")[2]
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else []
    if called == "enumerate" and len(parts) == 2 and source.args:
        return item_of(parts[1], source.args[0], name)
    if called == "zip" and len(parts) == len(source.args):
        pairs = zip(parts, source.args, strict=True)
        return next((p for p, arg in pairs if item_of(p, arg, name) is not None), None)
    if called in ("range", "items", "len", "parameters", "named_parameters"):
        return None
    for argument in (*source.args, *(keyword.value for keyword in source.keywords)):
        if item_of(target, argument, name) is not None:
            return item_of(target, argument, name)
    return None


def names_in(node: ast.AST) -> set[str]:
    return {written(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}


def written(node: ast.AST) -> str:
    """A dotted name as it is written, or nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = written(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""


def dotted(node: ast.AST) -> str:
    """A name as `written`, with constant keys in it: `config.lr` of `config["lr"]`, too."""
    match node:
        case ast.Subscript(value=value, slice=ast.Constant(value=str(key))):
            above = dotted(value)
        case ast.Attribute(value=value, attr=key):
            above = dotted(value)
        case _:
            return written(node)
    return f"{above}.{key}" if above else ""
