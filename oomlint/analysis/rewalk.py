"""Whether the graph of a backward that keeps it is walked again, as far as can be followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from oomlint.analysis import knowledge
from oomlint.analysis.dispatch import MAX_STATEMENTS
from oomlint.analysis.modules import assigned_to_self, written
from oomlint.analysis.order import STEPS
from oomlint.analysis.sites import Site, class_of, sites
from oomlint.analysis.state import Event, Kind, World, once
from oomlint.analysis.values import (
    Constant,
    Either,
    Instance,
    Number,
    Tensor,
    Unknown,
    Value,
    has_graph,
    members,
    options,
)
from oomlint.analysis.walks import FUNCTION, METHODS, backwards

if TYPE_CHECKING:
    from oomlint.analysis import Model

WALKS = (Kind.BACKWARD, Kind.GRADIENT_TAKEN)
# Names of what is carried from step to step, or was computed by somebody else.
CARRIED = re.compile(
    r"hidden|(^|_)(state|hx|cx|hc|mem|memory|carry|cache|h|c|z)\d?$|feat|logit|pred|loss|fake"
    r"|embed|latent|(^|_)out(put)?s?$|recon|generated",
    re.IGNORECASE,
)
# ... but a coefficient of them: `loss_scale`, `num_features`.
COEFFICIENT = re.compile(
    r"_(scale|weight|coeff?|factor|ratio|dim|size|fn|type|name|rate|lambda|alpha|beta|eps|lr)s?$"
    r"|^(num|n|max|min|use|is|has|lambda|alpha|beta|gamma|w|weight|pad|with|log|save|print)_",
    re.IGNORECASE,
)
# Keys of what a loop runs over, and of what is drawn anew each time.
DATA = re.compile(r"#|sample|batch|loader|next\(")
DRAWN = re.compile(r"(sample|batch|next)\w*$")
# What unknown calls make that is no tensor of a graph, by the name of who makes it: options, paths,
# loaders, data, text, shapes.
WITHOUT_GRAPH = re.compile(
    r"^(argparse|pathlib|os|omegaconf|hydra|gymnasium|gym|logging|json|yaml|numpy|np|random|time"
    r"|tyro|itertools)\.|cycle$|(^|[._:])iter|get_rank|world_size"
    r"|data|batch|sampl|loader|buffer|replay|rollout|trajector|transition|experience|episode|reader"
    r"|collat|tokeni[sz]e|vocab|lexicon|corpus|utterance|sentence|dictionary|manifest|split"
    r"|pars(e|er|ing)|arg(s|ument)|config|cfg|option|setting|hparams|device|schedule|path|open$|env$"
    r"|logger|writer|checkpoint|seed|mask|range|len(gth)?s?$|shape|size|count|weights?$"
    r"|metric|meter|accura|target|label|ground_?truth|noise|time_?steps?",
    re.IGNORECASE,
)
# What counts right answers has no gradient, whatever it is given.
ACCURACY = re.compile(r"(^|[._:])(accuracy|top_?k)\w*$", re.IGNORECASE)
# A class that is called makes an object.
CONSTRUCTOR = re.compile(r"^_?[A-Z]\w*[a-z]|_(class|cls|factory)$")
MADE_FROM = re.compile(r"(from|load|create|build|make|open)(_\w+)?$")
INSTANTIATES = re.compile(r"instantiate")
# States that are made, not remembered.
FRESH = re.compile(r"init|zero|new_|make_|get_initial|reset", re.I)
# Methods of objects that give back what they were given before.
REMEMBERS = re.compile(r"state|hidden|memor|cache|last|prev|pop|recall|stored|history", re.I)
# Calls by somebody unknown that may go through a graph once more.
TRAINS = re.compile(r"backward|grad|step|update|train|optimi|penalty|learn", re.IGNORECASE)


# Networks whose parameters are made from others: the graph of the making is walked each time.
ADAPTED = re.compile(
    r"learn2learn|^\s*(import|from) higher\b|torchmeta|clone_module|\.adapt\(|fast_weights|MAML",
    re.MULTILINE,
)


def is_needless(model: Model, call: ast.Call) -> bool:
    """Whether every world that reaches a backward shows its graph made anew and walked once."""
    if ADAPTED.search(model.module.source.text):
        return False
    reached = False
    for world in model.worlds:
        for event in world.of(Kind.BACKWARD):
            if event.node is not call or event.module is not model.module:
                continue
            reached = True
            if not walked_once(world, event):
                return False
    return reached and sees_all_walks(model, call) and not is_left_for_others(model, call)


def walked_once(world: World, event: Event) -> bool:
    loss = event.value
    if world.statements >= MAX_STATEMENTS:
        return False
    if not isinstance(loss, Tensor | Either) and not is_computed(loss):
        return False
    assert loss is not None
    graph = graph_of(world, loss)
    if not is_followed(world, event, loss):
        return False
    if world.returned is not None and returns_graph(world, event, graph):
        return False
    return not any(
        later.index > event.index and goes_through(later, graph)
        for later in world.of(*WALKS, Kind.OPAQUE_CALL)
    )


def returns_graph(world: World, event: Event, graph: dict[int, Value]) -> bool:
    """Whether a function gives its caller what may be walked again.

    A loss that an optimizer has stepped on is for reports: its graph's parameters have changed.
    """
    assert world.returned is not None and event.value is not None
    stepped = any(step.index > event.index for step in world.of(*STEPS))
    reported = {id(part) for part in loss_chain(event.value)} if stepped else set()
    found: set[int] = set()
    stack = [world.returned]
    while stack:
        current = stack.pop()
        if id(current) in found or id(current) in reported or is_plain(current):
            continue
        if id(current) in graph:
            return True
        found.add(id(current))
        stack.extend(parts_of(current))
    return False


def loss_chain(loss: Value) -> Iterator[Value]:
    """A loss, its terms and what they were before they were weighed or scaled."""
    stack = [loss]
    while stack:
        current = stack.pop()
        yield current
        scaled = isinstance(current, Tensor) and current.made_by in ("+", "-", "*", "/", "neg")
        if scaled or isinstance(current, Either) or getattr(current, "scaler", None) is not None:
            stack.extend(part for part in members(current) if is_loss(part))


def is_loss(value: Value) -> bool:
    if isinstance(value, Either):
        return all(map(is_loss, value.options))
    if not isinstance(value, Tensor):
        return False
    named = value.loss or value.reduction in ("mean", "sum")
    return named or value.made_by in ("+", "-", "*", "/", "neg")


def goes_through(event: Event, graph: dict[int, Value]) -> bool:
    """Whether an event walks a part of a graph, or hands it to somebody who may."""
    if event.kind is not Kind.OPAQUE_CALL:
        return event.value is not None and shares(event.value, graph)
    passed = event.detail.get("passed")
    values = passed if isinstance(passed, list) else []
    called = event.node.func if isinstance(event.node, ast.Call) else event.node
    text = written(called)
    if not TRAINS.search(text) or WITHOUT_GRAPH.search(text):
        return False
    return any(shares(value, graph) for value in values)


def graph_of(world: World, loss: Value) -> dict[int, Value]:
    """What was computed on the way to a loss and may carry a graph, by identity."""
    made = forwards(world)
    return {
        key: value
        for key, value in origins(loss).items()
        if (isinstance(value, Tensor) or is_computed(value)) and has_maker(value, made)
    }


@once
def forwards(world: World) -> dict[int, Event]:
    """The forwards of a world by the identity of their output."""
    return {id(forward.value): forward for forward in world.of(Kind.FORWARD)}


def shares(value: Value, graph: dict[int, Value]) -> bool:
    return any(key in graph for key in origins(value))


def origins(value: Value) -> dict[int, Value]:
    """What a value was computed from, without what is cut off or carries no graph anyway."""
    found: dict[int, Value] = {}
    stack = [value]
    while stack:
        current = stack.pop()
        if id(current) in found or is_plain(current):
            continue
        found[id(current)] = current
        stack.extend(parts_of(current))
    return found


def parts_of(value: Value) -> Iterator[Value]:
    yield from members(value)
    if isinstance(value, Unknown):
        yield from value.made_of


def is_plain(value: Value) -> bool:
    """Whether a value is certainly no tensor with a graph: detached, a number, data, an option."""
    if isinstance(value, Number | Constant):
        return True
    if not isinstance(value, Tensor):
        return False
    if value.graph is not None or value.proven:
        return value.graph is False
    made_of_data = bool(value.parents) and all(is_plain(part) for part in value.parents)
    if not value.barrier and not value.opaque and made_of_data:
        return True
    made_by = value.key.split("(")[0].split("@")[0]
    if value.opaque and ACCURACY.search(made_by):
        return True
    if not (value.opaque or value.entry) or any(has_graph(part) for part in value.parents):
        return False
    owner, last = (["", *re.split(r"[.:]", made_by)])[-2:]
    # An entry or an item has the key of what it was taken from.
    if WITHOUT_GRAPH.search(made_by):
        return True
    if is_called(value.key):
        # `Network(8)(inputs)`, `instantiate(options)(inputs)`: an object that was made is called.
        return False
    if MADE_FROM.match(last) and CONSTRUCTOR.search(owner):
        # `Table.from_file(path)`
        return True
    return bool(CONSTRUCTOR.search(last) or INSTANTIATES.search(made_by))


def is_called(key: str) -> bool:
    """Whether a key calls what a call has returned."""
    depth = 0
    for index, sign in enumerate(key):
        if sign == "(":
            if depth == 0 and key[:index].endswith(")"):
                return True
            depth += 1
        elif sign == ")":
            depth -= 1
    return False


def is_computed(value: Value | None) -> bool:
    """Whether a method of a network or an object of the project made it from what it was given."""
    if not isinstance(value, Unknown) or value.role is not None:
        return False
    if CONSTRUCTOR.search(value.name):
        # `self.network_class(sizes)`
        return False
    return bool(value.made_of) and not REMEMBERS.search(value.name)


def is_followed(world: World, event: Event, loss: Value) -> bool:
    """Whether everything in the graph was made before the backward, in sight, from fresh data."""
    made = forwards(world)
    if not all(has_maker(option, made) for option in options(loss)):
        return False
    for value in origins(loss).values():
        if isinstance(value, Unknown) and may_be_carried(value) and not is_computed(value):
            return False
        if not isinstance(value, Tensor) or value.graph is False:
            continue
        if value.opaque and not is_made_anew(value):
            return False
        if value.barrier and not value.loss and has_graph(value):
            forward = made.get(id(value))
            if forward is None and any(id(part) in made for part in value.parents):
                # `model(x).logits`
                continue
            if forward is None or forward.index > event.index or is_stateful(forward.subject):
                return False
            if not in_same_closure(forward, event):
                return False
    return True


def may_be_carried(value: Unknown) -> bool:
    """Whether a name may stand for a graph of an earlier step, or of somebody else."""
    if value.role is not None or DATA.search(value.key) or COEFFICIENT.search(value.name):
        return False
    if FRESH.match(value.name):
        return False
    return CARRIED.search(value.name) is not None


def has_maker(loss: Value, made: Mapping[int, Event]) -> bool:
    """Whether somebody computes the graph: a network, its method, or a function out of sight."""
    return any(
        key in made or is_computed(value) or (isinstance(value, Tensor) and value.opaque)
        for key, value in origins(loss).items()
    )


def is_made_anew(value: Tensor) -> bool:
    """Whether a call out of sight makes its result of what it is given, and keeps nothing of it.

    What an earlier iteration or another walk has of it is the same value, and is seen.
    """
    if value.entry or DRAWN.search(value.key.split("(")[0]):
        return True
    if not value.parents:
        return False
    name = value.key.split("(")[0].rsplit(".", 1)[-1]
    return not REMEMBERS.search(name) and not CARRIED.fullmatch(name)


def in_same_closure(forward: Event, event: Event) -> bool:
    """Whether a closure that an optimizer calls many times makes the graph that it walks."""
    for index, call in enumerate(event.calls):
        called = call.node.func if isinstance(call.node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "step":
            shared = forward.calls[: index + 1]
            return len(shared) == index + 1 and shared[-1].node is call.node
    return True


def is_stateful(network: Value | None) -> bool:
    """Whether a network of the project keeps something of a forward for the next one."""
    if not isinstance(network, Instance) or network.cls is None:
        return False
    forward = network.cls.methods.get("forward")
    called = forward.words if forward is not None else network.cls.methods.keys()
    return any(
        name != "__init__" and (method is forward or name in called) and assigned_to_self(method)
        for name, method in network.cls.methods.items()
    )


def sees_all_walks(model: Model, call: ast.Call) -> bool:
    """Whether every other walk in the same function was met in some world."""
    function = model.module.function_of(call)
    if any(walks_itself(site) for site in sites(model.module) if site.function is function):
        return False
    met = {id(event.node) for world in model.worlds for event in world.of(*WALKS)}
    gradients = [s for s in sites(model.module) if knowledge.AUTOGRAD_GRAD.fullmatch(s.qualified)]
    return all(
        id(site.node) in met
        for site in (*backwards(model.module), *gradients)
        if site.function is function
    )


def walks_itself(site: Site) -> bool:
    """`optimizer.step(loss, retain_graph=True)`: the optimizer of a framework walks the graph."""
    if site.method in METHODS or site.qualified == FUNCTION:
        return False
    if any(keyword.arg in ("retain_graph", "create_graph") for keyword in site.node.keywords):
        return True
    given = site.node.args[:1] if site.method == "step" else []
    return any(knowledge.LOSS_NAME.search(written(argument)) for argument in given)


def is_left_for_others(model: Model, call: ast.Call) -> bool:
    """Whether another method walks what this one leaves on `self`."""
    function = model.module.function_of(call)
    owner = class_of(function)
    if function is None or owner is None:
        return False
    left = assigned_to_self(function).keys()
    followed = {other for world in model.worlds for other in world.visited}
    return any(
        left & method.words and {"backward", "autograd"} & method.words
        for method in owner.methods.values()
        if method is not function and method not in followed
    )
