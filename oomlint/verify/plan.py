"""What a function needs: each parameter's part in the training step, and how that is known."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oomlint.analysis.knowledge import Role, role_of_name
from oomlint.verify.conditions import tested_for_none, wanted
from oomlint.verify.free_names import free_names
from oomlint.verify.targets import Function, definitions
from oomlint.verify.uses import OF_TENSORS, Reader, Structure, Uses, dotted, written
from oomlint.verify.values_by_name import KINDS, setting

if TYPE_CHECKING:
    from oomlint.analysis.parts_played import Played

# Parts beside the roles of the analysis.
TENSOR, DEVICE, SETTING, CONFIG, UNKNOWN = "tensor", "device", "setting", "config", "unknown"
INSTANCE, DATASET = "instance", "dataset"
DATASETS = re.compile(r"(^|_)(data_?set|ds)$|^(train|val(id)?|test)_?set$", re.IGNORECASE)

CONFIG_NAMES = frozenset(
    "args arg cfg config conf opt opts options hparams hps params flags settings hyp hypers"
    " hyperparams p c".split()
)

# The last name of an annotation.
ANNOTATIONS = {
    **dict.fromkeys(("Module", "PreTrainedModel", "DistributedDataParallel"), Role.MODEL.value),
    **dict.fromkeys(("Optimizer", "SGD", "Adam", "AdamW"), Role.OPTIMIZER.value),
    **dict.fromkeys(("DataLoader", "Iterable", "Iterator"), Role.LOADER.value),
    **dict.fromkeys(("LRScheduler", "_LRScheduler", "LambdaLR"), Role.SCHEDULER.value),
    **dict.fromkeys(("GradScaler",), Role.SCALER.value),
    **dict.fromkeys(("_Loss", "CrossEntropyLoss", "MSELoss"), Role.CRITERION.value),
    **dict.fromkeys(("Tensor", "FloatTensor", "LongTensor"), TENSOR),
    **dict.fromkeys(("Namespace", "DictConfig", "EasyDict", "Config"), CONFIG),
    **dict.fromkeys(("int", "float", "bool", "str"), SETTING),
    "Accelerator": Role.ACCELERATOR.value,
    "device": DEVICE,
}


@dataclass(frozen=True, slots=True)
class Part:
    """One parameter, or `self.name` for what a method asks of its object.

    `batch` are the parts of a loader's batch or of a tensor argument by the names that the
    function gives them, with their `kinds` where the use says them; `outputs` is what calls of a
    model or criterion are used as. One that `is_global` is a name that the file is to define.
    """

    name: str
    role: str
    why: str
    optional: bool = False
    called: bool = False
    is_iterator: bool = False
    annotation: str = ""
    batch: Any = None
    kinds: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    is_global: bool = False
    may_be_none: bool = False  # the function asks whether it is


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that may have to be stood in for, and the rows that a call should reach.

    `wanted` says by dotted name what the tests around the rows ask for; `sections` are dotted names
    of which something is asked.
    """

    parts: tuple[Part, ...]
    rows: tuple[int, ...] = ()
    targets: str = ""  # `integer` or `float` where the losses that are called say so
    wanted: dict[str, Any] = field(default_factory=dict)
    sections: tuple[str, ...] = ()


def as_entry(plan: Plan) -> dict[str, Any]:
    return asdict(plan)


def from_entry(entry: dict[str, Any]) -> Plan:
    parts = tuple(Part(**part) for part in entry["parts"])
    read = {"parts": parts, "rows": tuple(entry["rows"]), "sections": tuple(entry["sections"])}
    return Plan(**{**entry, **read})


def plan_for(path: Path, text: str, name: str, root: Path, rows: tuple[int, ...]) -> Plan:
    """Reads one function of a file; `rows` are those of the findings that are to be measured."""
    from oomlint.analysis import SyntaxProblem, analyse
    from oomlint.analysis.parts_played import parts_played
    from oomlint.source import read

    model = analyse(read(path), root)
    by_name = {found.qualname: found.node for found in model.module.all_functions}
    tree = ast.parse(text)
    known = definitions(tree)
    reached = methods_reached(known, name)
    try:
        nodes = tuple(by_name[key] for key in reached if key in by_name)
        played = parts_played(model, nodes)
    except (SyntaxProblem, RecursionError):
        played = {}
    reader = Reader(known)
    function = known[name]
    assert isinstance(function, Function)
    parts = [
        part(reader, (function,), argument.arg, argument.annotation, optional, played)
        for argument, optional in parameters(function)
    ]
    if is_method(known, name, function):
        own, parts = parts[0], parts[1:]
        functions = tuple(node for key in reached if isinstance(node := known[key], Function))
        attributes = attributes_of(known, name.rpartition(".")[0], functions)
        parts = [
            Part(own.name, INSTANCE, "it is a method"),
            *(part(reader, functions, f"self.{key}", None, False, played) for key in attributes),
            *parts,
        ]
    called = called_by(reader, [known[key] for key in reached])
    parts += [
        replace(part(reader, called, key, None, False, played), is_global=True)
        for key in free_names(tree, called)
        if key not in {one.name for one in parts}
    ]
    optional = tested_for_none(called)
    parts = [replace(one, may_be_none=one.name in optional) for one in parts]
    rows = tuple(sorted({row_of(tree, row) for row in rows} - {0}))
    targets, asked = targets_of(reader, function), wanted(called, rows)
    return Plan(tuple(parts), rows, targets, asked, sections_in(called))


def sections_in(functions: Iterable[Function]) -> tuple[str, ...]:
    """Dotted names of which the functions ask something: `config.train` of `config.train.lr`."""
    whole = {
        dotted(node.value)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute | ast.Subscript)
    }
    return tuple(sorted(name for name in whole if "." in name))


INTEGER = re.compile(r"(^|\.)(\w*(?<!binary_)cross_entropy|nll_loss|CrossEntropyLoss|NLLLoss)$")
FLOAT = re.compile(
    r"(^|\.)(binary_cross_entropy\w*|(smooth_)?(mse|l1)_loss|huber_loss|BCE\w*|MSELoss)$"
)


def targets_of(reader: Reader, function: Function) -> str:
    """What kind of targets the losses take that the function calls, directly or in its file."""
    known = set[str]()
    for node in called_by(reader, [function]):
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            whole = written(call.func)
            known |= {"integer"} if INTEGER.search(whole) else set()
            known |= {"float"} if FLOAT.search(whole) else set()
    return known.pop() if len(known) == 1 else ""


def called_by(reader: Reader, functions: Iterable[Any]) -> tuple[Function, ...]:
    """These functions, and those of their file that they call, directly or not."""
    waiting = [node for node in functions if isinstance(node, Function)]
    for node in waiting:
        for call in (part for part in ast.walk(node) if isinstance(part, ast.Call)):
            callee = reader.callee(written(call.func), node)
            if callee is not None and callee not in waiting:
                waiting.append(callee)
    return tuple(waiting)


def parameters(function: Function) -> list[tuple[ast.arg, bool]]:
    """The parameters, each with whether it has a default."""
    plain = [*function.args.posonlyargs, *function.args.args]
    first = len(plain) - len(function.args.defaults)
    found = [(argument, number >= first) for number, argument in enumerate(plain)]
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return found + [(argument, default is not None) for argument, default in pairs]


def is_method(known: dict[str, Any], name: str, function: Function) -> bool:
    decorators = {written(decorator) for decorator in function.decorator_list}
    in_class = isinstance(known.get(name.rpartition(".")[0]), ast.ClassDef)
    return in_class and not decorators & {"staticmethod", "classmethod"}


def methods_reached(known: dict[str, Any], name: str) -> tuple[str, ...]:
    """The function and the methods that it calls on its own object, directly or not."""
    owner = name.rpartition(".")[0]
    waiting, reached = [name], []
    while waiting:
        key = waiting.pop(0)
        if key in reached or not isinstance(known.get(key), Function):
            continue
        reached.append(key)
        for node in ast.walk(known[key]) if owner else ():
            if isinstance(node, ast.Attribute) and written(node.value) == "self":
                waiting.append(f"{owner}.{node.attr}")
    return tuple(reached)


def attributes_of(
    known: dict[str, Any], owner: str, functions: tuple[Function, ...]
) -> tuple[str, ...]:
    """What the methods read of their object that its class does not define."""
    defined = {key.rpartition(".")[2] for key in known if key.rpartition(".")[0] == owner}
    for base in known[owner].bases:
        defined |= {key.rpartition(".")[2] for key in known if key.startswith(written(base) + ".")}
    for node in known[owner].body:
        if isinstance(node, ast.Assign):
            defined |= {written(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            defined.add(written(node.target))
    asked: dict[str, None] = {}
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and written(node.value) == "self":
                asked[node.attr] = None
    return tuple(key for key in asked if key not in defined and not key.startswith("__"))


def part(
    reader: Reader,
    functions: tuple[Function, ...],
    name: str,
    annotation: ast.expr | None,
    optional: bool,
    played: dict[str, Played],
) -> Part:
    found = Uses()
    for function in functions:
        for node in ast.walk(function):
            reader.note(node, name, found, function)
    noted = last_name(annotation)
    role, why = role_for(name, found, noted, played.get(name))
    called = any(method == "" for method, _ in found.called)
    batch: Structure | None = None
    outputs: dict[str, Structure] = {}
    for function in functions:
        if role == Role.LOADER.value and batch is None:
            batch = reader.items(function, name)
        elif role == TENSOR and (batch is None or isinstance(batch, str)):
            batch = reader.value(function, name)
        elif role in (Role.MODEL.value, Role.CRITERION.value, Role.ENGINE.value):
            outputs = {**outputs, **reader.outputs(function, name)}
    if role in (Role.LOADER.value, DATASET) and batch is None:
        batch = ["input", "target"]
    kinds = {
        leaf: kind
        for function in functions
        for leaf in names_of(batch)
        if (kind := reader.kind(function, leaf)) is not None
    }
    return Part(name, role, why, optional, called, found.is_iterator, noted, batch, kinds, outputs)


def names_of(structure: Structure | None) -> list[str]:
    """The names in a structure, in order."""
    if structure is None or isinstance(structure, str):
        return [structure] if structure else []
    parts = structure.values() if isinstance(structure, dict) else structure
    return [name for inner in parts for name in names_of(inner)]


def last_name(annotation: ast.expr | None) -> str:
    """`Module` of `torch.nn.Module`, `Optional[nn.Module]` and `nn.Module | None`."""
    if annotation is None:
        return ""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return ""
    if isinstance(annotation, ast.Subscript):
        outer = written(annotation.value).rpartition(".")[2]
        return last_name(annotation.slice) if outer == "Optional" else outer
    if isinstance(annotation, ast.BinOp):
        return last_name(annotation.left)
    return written(annotation).rpartition(".")[2]


def role_for(name: str, found: Uses, annotation: str, played: Played | None) -> tuple[str, str]:
    """A role and how it is known: annotation, use, then name."""
    last = name.rpartition(".")[2]
    plain = last.strip("_").lower()
    named = role_of_name(last)
    if annotation == "Module" and named is Role.CRITERION:
        return named.value, "its name"
    if annotation in ANNOTATIONS:
        return ANNOTATIONS[annotation], "its annotation"
    is_config = plain in CONFIG_NAMES or plain.endswith(("config", "cfg", "args", "hparams"))
    trains = found.methods & {"step", "zero_grad"}
    if is_config and not trains and not found.called and not found.looped:
        return CONFIG, "its name"
    if setting(last) == "device" or (found.moved_to and not found.attributes):
        return DEVICE, "its use" if found.moved_to else "its name"
    if played is not None and played.role is not None and not played.named:
        return played.role.value, "its use"
    if named is Role.SCHEDULER and found.indexed and "step" not in found.methods:
        return UNKNOWN, "nothing"
    if named is not None:
        return named.value, "its name"
    if (found.looped or found.is_iterator) and not found.called:
        return Role.LOADER.value, "its use"
    if played is not None and played.role is not None:
        return played.role.value, "its name"
    if setting(last) not in (None, "text", "path") and not found.attributes and not found.called:
        return SETTING, "its name"
    if DATASETS.search(last) and not found.called:
        return DATASET, "its name"
    if any(pattern.search(last) for pattern, _ in KINDS) and not found.called:
        return TENSOR, "its name"
    fed = {role_of_name(callee) for callee in found.fed if callee.count(".") < 2}
    if fed & {Role.MODEL, Role.CRITERION} and not found.called and not found.looped:
        return TENSOR, "its use"
    if found.methods and found.methods <= OF_TENSORS:
        return TENSOR, "its use"
    if found.methods & {"train", "eval", "parameters", "state_dict"}:
        return Role.MODEL.value, "its use"
    if played is not None and played.role is None and not found.called and len(last) <= 5:
        return TENSOR, "its use"
    return UNKNOWN, "nothing"


def row_of(tree: ast.Module, row: int) -> int:
    """The row at which Python says that it runs the statement on a row; 0 outside of functions."""
    best = 0
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or isinstance(node, Function | ast.ClassDef):
            continue
        if node.lineno <= row <= (node.end_lineno or node.lineno):
            best = max(best, node.lineno)
    return best
