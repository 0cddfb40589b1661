"""In which activation an output ends, and to which loss it is fed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis.answers import waypoint_at
from oomlint.analysis.classes import dotted, is_outside
from oomlint.analysis.knowledge import TRANSPARENT
from oomlint.analysis.layers import last_layer
from oomlint.analysis.modules import Class, Function, written
from oomlint.analysis.project import Project
from oomlint.analysis.sites import (
    Site,
    bound_names,
    called,
    class_of,
    is_self_attribute,
    sites,
)
from oomlint.analysis.tracing import (
    MAX_DEPTH,
    Place,
    calls,
    class_at,
    definitions,
    is_network,
    method_of,
    qualified,
    returned,
)
from oomlint.rule import Waypoint

if TYPE_CHECKING:
    from oomlint.analysis import Model

# What an output ends in. LINEAR is the bare result of a layer: it can be any number.
SOFTMAX, LOG_SOFTMAX, SIGMOID, LOG_SIGMOID, LINEAR = (
    "softmax",
    "log_softmax",
    "sigmoid",
    "logsigmoid",
    "linear",
)
FUNCTIONS = re.compile(
    r"torch\.(nn\.functional\.|special\.)?(softmax|log_softmax|sigmoid|expit|logsigmoid)"
)
METHODS = frozenset({SOFTMAX, LOG_SOFTMAX, SIGMOID})
LAYERS = {
    "Softmax": SOFTMAX,
    "Softmax2d": SOFTMAX,
    "LogSoftmax": LOG_SOFTMAX,
    "Sigmoid": SIGMOID,
    "LogSigmoid": LOG_SIGMOID,
    "Linear": LINEAR,
    "LazyLinear": LINEAR,
    "Bilinear": LINEAR,
    **{f"Conv{n}d": LINEAR for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": LINEAR for n in (1, 2, 3)},
}
LAYER = re.compile(r"torch\.nn\.(modules\.\w+\.)?(\w+)")
# What leaves the values as they are, and at most picks some of them.
SHAPING = frozenset(
    "view reshape squeeze unsqueeze flatten float double half to cpu cuda contiguous clone permute"
    " transpose view_as reshape_as type_as masked_select t movedim swapaxes".split()
)
CHAINED = frozenset("to cuda cpu half float double bfloat16 train eval requires_grad_".split())

CROSS_ENTROPY, NEGATIVE_LOG, BINARY, BINARY_LOGITS = "cross_entropy", "nll", "bce", "bce_logits"
LOSSES = {
    "cross_entropy": CROSS_ENTROPY,
    "CrossEntropyLoss": CROSS_ENTROPY,
    "nll_loss": NEGATIVE_LOG,
    "NLLLoss": NEGATIVE_LOG,
    "NLLLoss2d": NEGATIVE_LOG,
    "binary_cross_entropy": BINARY,
    "BCELoss": BINARY,
    "binary_cross_entropy_with_logits": BINARY_LOGITS,
    "BCEWithLogitsLoss": BINARY_LOGITS,
}
LOSS = re.compile(r"torch\.(nn\.functional\.|nn\.(modules\.\w+\.)?)?(\w+)")


@dataclass(frozen=True, slots=True)
class Ending:
    """The last thing that makes an output: which activation, and the node that says so.

    `inner` is what the activation is applied to, None for a layer of a Sequential.
    """

    kind: str
    place: Place
    inner: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class Fed:
    """A loss and everything that its first argument may be."""

    site: Site
    loss: str
    # Where the loss is constructed; None for a functional one.
    made: Place | None
    output: Place
    endings: tuple[Ending, ...]

    @property
    def kind(self) -> str:
        kinds = {ending.kind for ending in self.endings}
        return kinds.pop() if len(kinds) == 1 else ""


def fed(model: Model, wanted: frozenset[str]) -> Iterator[Fed]:
    """Every call of one of the wanted losses whose input is known on every way to it."""
    reader = Reader(model.project)
    for site, loss, made in losses(model):
        if loss not in wanted:
            continue
        output = site.argument(0, "input")
        if output is None:
            continue
        where = Place(output, site.function, model.module)
        endings = reader.endings(where)
        if endings:
            yield Fed(site, loss, made, where, tuple(dict.fromkeys(endings)))


def losses(model: Model) -> list[tuple[Site, str, Place | None]]:
    """The calls that may be of a loss, with which one it is and where it is constructed."""
    module = model.module
    known: list[tuple[Site, str, Place | None]] | None = module.__dict__.get("losses")
    if known is None:
        reader = Reader(model.project)
        known = module.__dict__["losses"] = [
            (site, *reader.loss_of(Place(site.node.func, site.function, module)))
            for site in sites(module)
            if len(site.node.args) + len(site.node.keywords) >= 2
            and not is_known_otherwise(site.qualified)
        ]
    return known


def is_known_otherwise(qualified: str) -> bool:
    """Whether a callee is known by its name, and is no loss: most calls are such."""
    if not qualified or ("." in qualified and not is_outside(qualified)):
        return False
    found = LOSS.fullmatch(qualified)
    return found is None or found[3] not in LOSSES


def users(model: Model, made: Place) -> int:
    """How many calls of the file are calls of the loss that is constructed there."""
    reader = Reader(model.project)
    places = (Place(site.node.func, site.function, model.module) for site in sites(model.module))
    return sum(
        found is not None and found.node is made.node
        for found in (reader.loss_of(place)[1] for place in places)
    )


def way_to_the_loss(model: Model, found: Fed) -> tuple[Waypoint, ...]:
    """What the output ends in, in whichever file, and the loss that gets it."""
    ends = [
        waypoint_at(model, ending.place.module, ending.place.node, said(ending))
        for ending in found.endings
    ]
    return (*ends, waypoint_at(model, model.module, found.site.node, "loss"))


def said(ending: Ending) -> str:
    return "bare output of a layer" if ending.kind == LINEAR else ending.kind


def losses_of(place: Place) -> str:
    found = LOSS.fullmatch(qualified(place, place.node))
    return LOSSES.get(found[3], "") if found else ""


class Reader:
    """Reads outputs and losses backwards to what makes them."""

    def __init__(self, project: Project) -> None:
        self.project = project

    # -- losses

    def loss_of(self, place: Place, depth: int = 0) -> tuple[str, Place | None]:
        """Which loss a callee is, and where it is constructed."""
        node = place.node
        if isinstance(node, ast.Call):
            found = losses_of(place.at(node.func))
            if found:
                return found, place
            if isinstance(node.func, ast.Attribute) and node.func.attr in CHAINED:
                return self.loss_of(place.at(node.func.value), depth + 1)
            builder = function_called(place, node) if depth <= MAX_DEPTH else None
            built = returned(builder) or [] if builder is not None else []
            return one_of(
                self.loss_of(Place(value, builder, place.module), depth + 1) for value in built
            )
        if isinstance(node, ast.Subscript):
            held = entry_of(place, node)
            return self.loss_of(held, depth + 1) if held is not None else ("", None)
        if not isinstance(node, ast.Name | ast.Attribute) or depth > MAX_DEPTH:
            return "", None
        found = losses_of(place)
        if found:
            return found, None
        return one_of(
            self.loss_of(value, depth + 1) if index is None else ("", None)
            for value, index in definitions(place) or ()
        )

    # -- outputs

    def endings(
        self, place: Place, index: int | None = None, depth: int = 0
    ) -> list[Ending] | None:
        """Everything that may have made a value last; None where one way cannot be told."""
        node = place.node
        if depth > MAX_DEPTH:
            return None
        if index is not None:
            if isinstance(node, ast.Tuple | ast.List) and index < len(node.elts):
                return self.endings(place.at(node.elts[index]), None, depth + 1)
            if not isinstance(node, ast.Call | ast.Name):
                return None
        if isinstance(node, ast.Call):
            return self.of_call(place, node, index, depth)
        if isinstance(node, ast.IfExp):
            return together(
                self.endings(place.at(arm), index, depth + 1) for arm in (node.body, node.orelse)
            )
        if isinstance(node, ast.Subscript) and index is None:
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
                return self.endings(place.at(node.value), node.slice.value, depth + 1)
            return self.endings(place.at(node.value), None, depth + 1)
        if isinstance(node, ast.Name):
            known = definitions(place)
            if not known or (index is not None and any(i is not None for _, i in known)):
                return None
            return together(
                self.endings(value, index if part is None else part, depth + 1)
                for value, part in known
            )
        return None

    def of_call(
        self, place: Place, node: ast.Call, index: int | None, depth: int
    ) -> list[Ending] | None:
        name = qualified(place, node.func)
        found = FUNCTIONS.fullmatch(name)
        if found and node.args:
            kind = SIGMOID if found[2] == "expit" else found[2]
            return [Ending(kind, place, node.args[0])] if index is None else None
        head, _, last = name.rpartition(".")
        if head == "torch" and last in SHAPING and node.args:
            return self.endings(place.at(node.args[0]), index, depth + 1)
        if isinstance(node.func, ast.Attribute) and not name:
            receiver = node.func.value
            own = isinstance(receiver, ast.Name) and receiver.id == "self"
            if node.func.attr in METHODS and not own:
                return [Ending(node.func.attr, place, receiver)] if index is None else None
            if node.func.attr in SHAPING and not own:
                return self.endings(place.at(receiver), index, depth + 1)
        return self.of_callee(place, node, index, depth)

    def of_callee(
        self, place: Place, node: ast.Call, index: int | None, depth: int
    ) -> list[Ending] | None:
        called = node.func
        function = function_called(place, node)
        if function is not None:
            return self.of_function(function, index, depth)
        if isinstance(called, ast.Attribute) and called.attr == "forward":
            called = called.value
        if isinstance(called, ast.Name) and called.id == "self":
            owner = class_of(place.function)
            return self.of_class(owner, index, depth) if owner is not None else None
        if not isinstance(called, ast.Call) and not dotted(called):
            return None
        return self.of_network(place.at(called), place, index, depth + 1)

    def of_function(self, function: Function, index: int | None, depth: int) -> list[Ending] | None:
        values = returned(function)
        if not values:
            return None
        if index is None and any(isinstance(value, ast.Tuple) for value in values):
            return None
        return together(
            self.endings(Place(value, function, function.module), index, depth + 1)
            for value in values
        )

    def of_class(self, cls: Class, index: int | None, depth: int) -> list[Ending] | None:
        found = method_of(self.project, cls, "forward")
        if found is None or not is_network(self.project, cls):
            return None
        return self.of_function(found[0], index, depth + 1)

    def of_network(
        self, place: Place, call: Place, index: int | None, depth: int
    ) -> list[Ending] | None:
        """What a module gives where it is called, by where it is constructed."""
        node = place.node
        if depth > MAX_DEPTH:
            return None
        if isinstance(node, ast.Name | ast.Attribute):
            known = definitions(place)
            if not known or any(part is not None for _, part in known):
                return None
            if is_lengthened(place, node):
                return None
            return together(self.of_network(value, call, index, depth + 1) for value, _ in known)
        if not isinstance(node, ast.Call):
            return None
        name = qualified(place, node.func)
        if TRANSPARENT.fullmatch(name) and node.args:
            return self.of_network(place.at(node.args[0]), call, index, depth + 1)
        if isinstance(node.func, ast.Attribute) and not name and node.func.attr in CHAINED:
            return self.of_network(place.at(node.func.value), call, index, depth + 1)
        layer = LAYER.fullmatch(name)
        if layer and layer[2] == "Sequential":
            last = last_layer(node, place.function)
            return self.of_layer(place.at(last), index, depth + 1) if last is not None else None
        if layer:
            kind = LAYERS.get(layer[2])
            if kind is None or index is not None:
                return None
            given = call.node.args if isinstance(call.node, ast.Call) else []
            return [Ending(kind, call, given[0] if given else None)]
        cls = class_at(self.project, place, node.func)
        return self.of_class(cls, index, depth + 1) if cls is not None else None

    def of_layer(self, place: Place, index: int | None, depth: int) -> list[Ending] | None:
        """What a layer that is written inside a Sequential gives."""
        node = place.node
        if not isinstance(node, ast.Call) or index is not None:
            return None
        layer = LAYER.fullmatch(qualified(place, node.func))
        if layer and layer[2] != "Sequential":
            kind = LAYERS.get(layer[2])
            return [Ending(kind, place)] if kind else None
        return self.of_network(place, place, None, depth + 1)


def one_of(losses: Iterator[tuple[str, Place | None]]) -> tuple[str, Place | None]:
    """The loss that all of them are, with where it is constructed if there is one such place."""
    known = list(losses)
    if not known or len({loss for loss, _ in known}) > 1:
        return "", None
    return known[0] if len(known) == 1 else (known[0][0], None)


def is_lengthened(place: Place, node: ast.expr) -> bool:
    """Whether layers are added to a network after it was built: its last one is not known."""
    return any(
        site.receiver is not None and written(site.receiver) == written(node)
        for site in called(place.module, "append", "extend", "insert", "add_module")
    )


def entry_of(place: Place, node: ast.Subscript) -> Place | None:
    """What a dict display holds under a constant key: `losses["ce"]`."""
    if not isinstance(node.slice, ast.Constant):
        return None
    known = definitions(place.at(node.value)) or ()
    for value, index in known:
        if index is not None or not isinstance(value.node, ast.Dict) or len(known) > 1:
            return None
        for key, held in zip(value.node.keys, value.node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == node.slice.value:
                return value.at(held)
    return None


def function_called(place: Place, node: ast.Call) -> Function | None:
    """The function or method of the same file that a call runs, if it is one."""
    called = node.func
    if isinstance(called, ast.Name):
        local = place.function is not None and called.id in bound_names(place.function)
        return None if local else place.module.functions.get(called.id)
    if is_self_attribute(called, place.function) and isinstance(called, ast.Attribute):
        owner = class_of(place.function)
        method = owner.methods.get(called.attr) if owner is not None else None
        if method is not None and calls(node, place.function, method):
            return method
    return None


def together(parts: Iterator[list[Ending] | None]) -> list[Ending] | None:
    """All of them, or None where one is not known."""
    found: list[Ending] = []
    for part in parts:
        if part is None:
            return None
        found.extend(part)
    return found or None
