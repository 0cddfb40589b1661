"""Which networks certainly use all of their parameters in every forward."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import classes, project, sites
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.project import Project
from oomlint.analysis.state import World

# Layers that use all of their parameters whenever they are called.
LAYERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?("
    r"Linear|Bilinear|Conv[123]d|ConvTranspose[123]d|Embedding|(Layer|Group|RMS)Norm"
    r"|(Sync)?BatchNorm([123]d)?|InstanceNorm[123]d|LSTM|GRU|RNN|MultiheadAttention"
    r"|Transformer(Encoder|Decoder)?(Layer)?"
    r"|\w*ReLU6?|ELU|GELU|SiLU|Sigmoid|Tanh|Softmax|Softplus|Hardswish|Identity|Flatten|Unflatten"
    r"|Dropout([123]d)?|(Adaptive)?(Max|Avg)Pool[123]d|Upsample|PixelShuffle|ZeroPad2d)"
)
# Networks of torchvision that have one way through them: no second head, nothing dropped.
PLAIN_NETWORKS = re.compile(
    r"torchvision\.models\.(\w+\.)?(resnet|resnext|wide_resnet|vgg|densenet|mobilenet_v|alexnet|mnasnet"
    r"|shufflenet_v|squeezenet|regnet_|efficientnet_|convnext_|vit_)\w*"
)
HOLDERS = re.compile(r"torch\.nn\.(modules\.\w+\.)?(Sequential|ModuleList)")
SEQUENCE = re.compile(r"torch\.nn\.(modules\.\w+\.)?Sequential")
PARAMETER = re.compile(r"torch\.nn\.(parameter\.)?Parameter")
MODULE = re.compile(r"torch\.nn\.(modules\.module\.)?Module")
# Calls that end a graph, or say that a forward is not as plain as it looks.
ENDS_GRAPH = frozenset(
    "detach no_grad item argmax round sign data checkpoint numpy tolist bool long".split()
)
# Calls in a constructor that give a network parts which no assignment shows.
ADDS_PARTS = frozenset(
    "add_module register_parameter register_module setattr append extend".split()
)
MAX_DEPTH = 5


def is_whole(
    scope: Project, module: Module, node: ast.expr, function: Function | None, depth: int = 0
) -> bool:
    """Whether an expression makes a network of which each forward uses every parameter."""
    if depth > MAX_DEPTH or not isinstance(node, ast.Call):
        return False
    called = sites.qualified_name(module, node.func, function)
    if LAYERS.fullmatch(called) or PLAIN_NETWORKS.fullmatch(called):
        return True
    if SEQUENCE.fullmatch(called):
        return not node.keywords and all(
            is_whole(scope, module, part, function, depth + 1) for part in node.args
        )
    cls = class_of(scope, module, node.func)
    return cls is not None and uses_all_parts(scope, cls, depth + 1)


def class_of(scope: Project, module: Module, node: ast.expr) -> Class | None:
    """The class of the project that is called; another file's is read with all of its methods."""
    found = classes.resolve_class(World(scope, module), module, node)
    if found is None or found.module is module:
        return found
    whole = project.load_whole(found.module.source.path)
    return whole.classes.get(found.name) if whole is not None else None


def uses_all_parts(scope: Project, cls: Class, depth: int) -> bool:
    module = cls.module
    bases = [sites.qualified_name(module, base, None) for base in cls.node.bases]
    maker, forward = cls.methods.get("__init__"), cls.methods.get("forward")
    if maker is None or forward is None or len(bases) != 1 or not MODULE.fullmatch(bases[0]):
        return False
    if ADDS_PARTS & maker.words or ENDS_GRAPH & forward.words:
        return False
    parts = parts_of(scope, maker, depth)
    used = used_in(forward, set(cls.methods))
    return bool(parts) and used is not None and parts <= used


def parts_of(scope: Project, maker: Function, depth: int) -> set[str]:
    """The attributes with parameters; empty where one cannot be told."""
    me = maker.node.args.args[0].arg
    found: set[str] = set()
    for node in sites.own_nodes(maker.node):
        if isinstance(node, ast.If | ast.For | ast.While | ast.IfExp | ast.Try):
            return set()
        if not isinstance(node, ast.Assign):
            continue
        target, value = node.targets[0], node.value
        if not isinstance(target, ast.Attribute) or written(target.value) != me:
            if me in {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}:
                return set()
            continue
        kind = has_parameters(scope, value, maker, depth)
        if kind is None:
            return set()
        if kind:
            found.add(target.attr)
    return found


def has_parameters(scope: Project, value: ast.expr, maker: Function, depth: int) -> bool | None:
    """Whether an attribute holds parameters that its use uses; None where it cannot be told."""
    if isinstance(value, ast.Call):
        called = sites.qualified_name(maker.module, value.func, maker)
        if PARAMETER.fullmatch(called) or is_whole(scope, maker.module, value, maker, depth):
            return True
        if HOLDERS.fullmatch(called) and len(value.args) == 1 and not value.keywords:
            return True if holds_whole(scope, value.args[0], maker, depth) else None
        return False if called.split(".")[0] == "math" else None
    if isinstance(value, ast.Constant | ast.BinOp | ast.Tuple | ast.Compare):
        return False
    return False if isinstance(value, ast.Name) and is_number(value.id, maker) else None


def holds_whole(scope: Project, given: ast.expr, maker: Function, depth: int) -> bool:
    if isinstance(given, ast.ListComp | ast.GeneratorExp):
        return is_whole(scope, maker.module, given.elt, maker, depth)
    if isinstance(given, ast.List | ast.Tuple):
        return all(is_whole(scope, maker.module, part, maker, depth) for part in given.elts)
    return False


def is_number(name: str, maker: Function) -> bool:
    """A parameter of the constructor that is no network: by its annotation, or its uses."""
    for parameter in maker.node.args.args:
        if parameter.arg == name and parameter.annotation is not None:
            return written(parameter.annotation) in ("int", "float", "bool", "str")
    return any(
        isinstance(part, ast.Name) and part.id == name
        for node in sites.own_nodes(maker.node)
        if isinstance(node, ast.Call)
        for given in (*node.args, *(k.value for k in node.keywords))
        for part in ast.walk(given)
    )


def used_in(forward: Function, methods: set[str]) -> set[str] | None:
    """The attributes that a forward's result depends on; None where it has branches."""
    me = forward.node.args.args[0].arg
    *before, last = forward.node.body
    if not isinstance(last, ast.Return) or last.value is None:
        return None
    if isinstance(last.value, ast.Tuple | ast.Dict | ast.List):
        return None  # nobody knows which of these the loss takes
    wanted = names_in(last.value)
    used = attributes_of(last.value, me)
    for statement in reversed(before):
        if is_text(statement):
            continue
        if isinstance(statement, ast.For):
            bound = {name for inner in statement.body for name in targets(inner)}
            read: ast.AST = statement
        elif isinstance(statement, ast.Assign | ast.AugAssign | ast.AnnAssign):
            bound, read = targets(statement), statement
        else:
            return None
        if not bound & wanted:
            continue
        wanted |= names_in(read)
        used |= attributes_of(read, me)
    branching = ast.IfExp | ast.If | ast.BoolOp | ast.Lambda | ast.Break | ast.Continue | ast.While
    if used & methods or any(isinstance(part, branching) for part in ast.walk(forward.node)):
        return None
    return used


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def targets(statement: ast.AST) -> set[str]:
    """The names that assignments in a statement bind."""
    return {
        part.id
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def attributes_of(node: ast.AST, me: str) -> set[str]:
    """`layer` in `self.layer(x)`; a part of it, as in `self.layer.weight`, is not all of it."""
    inner = {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.value, ast.Attribute)
    }
    return {
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == me
        and part not in inner
    }
