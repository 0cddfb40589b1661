"""Ignite's engines: the functions that they call once an iteration, and their handlers."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace

from oomlint.analysis import classes
from oomlint.analysis.conditions import Atom, decide
from oomlint.analysis.following import follow
from oomlint.analysis.iteration import ITERATIONS
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.state import Frame, Guard, Kind, World
from oomlint.analysis.training import backward, forward, loss_of
from oomlint.analysis.values import (
    NONE,
    Arguments,
    Callable,
    Instance,
    Keywords,
    Number,
    Unknown,
    Value,
    settled,
    unknown,
)

ENGINE = re.compile(r"ignite\.engine\.(engine\.)?Engine")
SUPERVISED = re.compile(r"ignite\.engine\.create_supervised_(trainer|evaluator)")
EVENT = re.compile(r"\bEvents\.([A-Z_]+)\b")
# What an engine calls, in this order (ignite.engine.events.Events); `process` is its function.
BEFORE = ("STARTED",)
EPOCH_BEFORE = ("EPOCH_STARTED",)
ITERATION_BEFORE = (
    "GET_BATCH_STARTED",
    "GET_BATCH_COMPLETED",
    "ITERATION_STARTED",
)
ITERATION_AFTER = ("ITERATION_COMPLETED",)
EPOCH_AFTER = ("EPOCH_COMPLETED",)
AFTER = ("COMPLETED",)
EVERY_BATCH = frozenset({*ITERATION_BEFORE, *ITERATION_AFTER})
EVERY_EPOCH = EVERY_BATCH.union(EPOCH_BEFORE, EPOCH_AFTER)


@dataclass(frozen=True, slots=True)
class Handler:
    """A function that an engine calls at an event."""

    event: str
    function: Callable
    arguments: tuple[Value, ...]
    named: Keywords
    # What says at which of the events it is called; None where at all of them.
    filter: ast.expr | None


@dataclass(eq=False, slots=True)
class Engine(Unknown):
    """An `ignite.engine.Engine`; `process` is called with the engine and a batch."""

    process: Value = NONE
    node: ast.Call | None = None
    handlers: list[Handler] = field(default_factory=list)
    # What `create_supervised_trainer` or `_evaluator` was given: it makes the process itself.
    supervised: tuple[str, Arguments, Keywords] | None = None
    has_run: bool = False


def is_engine_maker(qualified: str) -> bool:
    return bool(ENGINE.fullmatch(qualified) or SUPERVISED.fullmatch(qualified))


def make_engine(
    world: World, node: ast.Call, qualified: str, arguments: Arguments, keywords: Keywords
) -> Value:
    key = f"engine@{world.frame.module.name}:{node.lineno}:{node.col_offset}:{world.marks}"
    found = SUPERVISED.fullmatch(qualified)
    process: Value = NONE
    if found is None:
        given = arguments[0] if arguments else keywords.get("process_function", NONE)
        process = callable_of(world, settled(given))
    engine = Engine(key, name="process", process=process, node=node)
    if found is not None:
        engine.supervised = (found.group(1), list(arguments), dict(keywords))
    world.engines.append(engine)
    return engine


def callable_of(world: World, value: Value) -> Value:
    """An object that is called is called by its `__call__`."""
    if not isinstance(value, Instance) or value.cls is None:
        return value
    method = classes.find_method(world, value.cls, "__call__")
    return Callable(f"{value.key}()", function=method, this=value) if method else value


def is_process(world: World, function: Function) -> bool:
    """Whether an engine that is known by now calls a function, and so runs it in its loop."""
    return any(
        isinstance(engine, Engine)
        and isinstance(engine.process, Callable)
        and engine.process.function is function
        for engine in world.engines
    )


def call_engine(
    world: World,
    node: ast.Call,
    engine: Engine,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value | None:
    """What a method of an engine does to the order of events; None for one that is unknown."""
    if name == "run":
        return run_engine(world, engine, node)
    if name == "add_event_handler" and len(node.args) > 1 and len(arguments) > 1:
        add_handler(engine, node.args[0], arguments[1], tuple(arguments[2:]), keywords)
        return unknown(f"{engine.key}.handler@{node.lineno}", "")
    if name == "on":
        return unknown(f"{engine.key}.on@{node.lineno}", "")
    return None


def decorate(call: ast.Call, engine: Value, function: Callable) -> None:
    """`@trainer.on(Events.EPOCH_COMPLETED)` above a function."""
    if isinstance(engine, Engine) and call.args:
        add_handler(engine, call.args[0], function, (), {})


def add_handler(
    engine: Engine,
    event: ast.expr,
    function: Value,
    arguments: tuple[Value, ...],
    named: Keywords,
) -> None:
    function = settled(function)
    if not isinstance(function, Callable):
        return
    filtered = event if isinstance(event, ast.Call) and event.keywords else None
    for name in EVENT.findall(written(event)):
        engine.handlers.append(Handler(name, function, arguments, named, filtered))


def run_rest(world: World) -> None:
    """Runs the engines that are made here and run elsewhere, and one around what is returned for
    one."""
    made = engine_elsewhere(world) if not world.engines else None
    if made is not None:
        world.engines.append(made)
    if not world.engines:
        return
    frames, world.frames = world.frames, world.frames[:1]
    for engine in list(world.engines):
        if isinstance(engine, Engine) and not engine.has_run and engine.node is not None:
            run_engine(world, engine, engine.node)
    world.frames = frames


def engine_elsewhere(world: World) -> Engine | None:
    """The engine that another file makes of a function with ignite's parameters, returned here."""
    process = settled(world.returned) if world.returned is not None else None
    function = process.function if isinstance(process, Callable) else None
    if process is None or function is None or function.parent is None:
        return None
    if function.parent is not world.root:
        return None
    if not is_called_by_engine(function):
        return None
    node = function.__dict__.get("engine_elsewhere")
    if node is None:
        node = ast.Call(func=ast.Name(id="Engine", ctx=ast.Load()), args=[], keywords=[])
        function.__dict__["engine_elsewhere"] = ast.copy_location(node, function.node)
    key = f"engine@{function.module.name}:{function.node.lineno}"
    return Engine(key, name="process", process=process, node=node)


def is_called_by_engine(function: Function) -> bool:
    """Whether a function has the form of those that ignite calls for every batch."""
    given = [parameter.arg for parameter in function.node.args.args]
    return given[-2:] == ["engine", "batch"]


def run_engine(world: World, engine: Engine, node: ast.Call) -> Value:
    engine.has_run = True
    process = engine.process
    function = process.function if isinstance(process, Callable) else None
    state = unknown(f"{engine.key}.state", "state")
    if function is None and engine.supervised is not None:
        function = world.frame.function
    if function is None:
        return state
    world.reads[(engine.key, "state")] = state
    call_all(world, engine, BEFORE)
    epochs = loop_of(function, node, "epoch", engine)
    batches = loop_of(function, engine.node or node, "batch", engine)
    world.serial += 1
    serial, depth = world.serial, len(world.loops)
    for epoch in range(1, ITERATIONS + 1 if world.trains else 2):
        enter(world, function.module, epochs, serial, epoch)
        call_all(world, engine, EPOCH_BEFORE)
        run_epoch(world, engine, process, function.module, batches, node)
        call_all(world, engine, EPOCH_AFTER)
        del world.loops[depth:]
    call_all(world, engine, AFTER)
    return state


def run_epoch(
    world: World,
    engine: Engine,
    process: Value,
    module: Module,
    loop: ast.For,
    node: ast.Call,
) -> None:
    world.serial += 1
    serial, depth = world.serial, len(world.loops)
    for iteration in range(1, ITERATIONS + 1):
        enter(world, module, loop, serial, iteration)
        call_all(world, engine, ITERATION_BEFORE)
        batch = unknown(f"batch#{serial}.{iteration}", "batch")
        marks = "".join(f"#{run}.{number}" for run, number in world.marks)
        world.attributes[(f"{engine.key}.state", "iteration")] = Number(f"iteration{marks}+1")
        if isinstance(process, Callable):
            output = call(world, process, [engine, batch], {})
        else:
            output = run_supervised(world, engine, engine.node or node, batch)
        world.attributes[(f"{engine.key}.state", "output")] = output
        call_all(world, engine, ITERATION_AFTER)
        del world.loops[depth:]


def run_supervised(world: World, engine: Engine, node: ast.Call, batch: Value) -> Value:
    """One iteration of what `create_supervised_trainer(model, optimizer, loss_fn)` makes."""
    kind, given, named = engine.supervised or ("", [], {})
    names = ("model", "optimizer", "loss_fn") if kind == "trainer" else ("model",)
    parts = [
        given[i] if i < len(given) else named.get(name, unknown(name, name))
        for i, name in enumerate(names)
    ]
    inputs, target = unknown(f"{batch.key}[0]", "x"), unknown(f"{batch.key}[1]", "y")
    transform = named.get("output_transform")
    if kind != "trainer":
        grad, world.grad = world.grad, False
        output = forward(world, node, parts[0], [inputs], {})
        made: Arguments = [inputs, target, output]
    else:
        grad = world.grad
        world.emit(Kind.ZERO_GRAD, node, parts[1])
        output = forward(world, node, parts[0], [inputs], {})
        loss = loss_of(world, node, parts[2], [output, target], {}, "")
        scaled = named.keys() & {"amp_mode", "scaler", "gradient_accumulation_steps"}
        backward(world, node, loss, wrapper="engine" if scaled else "")
        world.emit(Kind.ENGINE_STEP if scaled else Kind.STEP, node, parts[1])
        made = [inputs, target, output, loss]
    returned: Value = NONE
    if isinstance(transform, Callable):
        returned = follow(world, transform, made, {}, node)
    world.grad = grad
    return returned


def enter(world: World, module: Module, loop: ast.For, serial: int, iteration: int) -> None:
    world.enter_loop(loop, serial, iteration)
    if world.loops[-1].module is not module:
        world.loops[-1] = replace(world.loops[-1], module=module)


def call_all(world: World, engine: Engine, events: tuple[str, ...]) -> None:
    for event in events:
        for handler in list(engine.handlers):
            if handler.event == event:
                call_handler(world, engine, handler)


def call_handler(world: World, engine: Engine, handler: Handler) -> None:
    depth = len(world.guards)
    if handler.filter is not None:
        key = f"{written(handler.filter)}:{world.marks}"
        if not decide(world, Atom(key, False, None), True):
            return
        world.guards.append(Guard(handler.filter, True, key, world.frame.module))
    function = handler.function
    given = [*handler.arguments]
    if takes_engine(function, len(given)):
        given.insert(0, engine)
    call(world, function, given, handler.named)
    del world.guards[depth:]


def call(world: World, target: Callable, arguments: Arguments, named: Keywords) -> Value:
    """A call that the framework makes: no line of the project is the call."""
    function = target.function
    node: ast.AST = function.node if function is not None else ast.Pass()
    module = function.module if function is not None else world.frame.module
    world.enter(Frame(module, None, this=target.this))
    try:
        return follow(world, target, arguments, named, node)
    finally:
        world.frames.pop()


def takes_engine(function: Callable, given: int) -> bool:
    """Whether a handler has a place for the engine before what it is given: ignite asks, too."""
    node = function.lambda_node or (function.function.node if function.function else None)
    if node is None:
        return True
    bound = 1 if function.this is not None else 0
    parameters = node.args
    places = len(parameters.posonlyargs) + len(parameters.args) - bound
    return parameters.vararg is not None or places > given


def loop_of(function: Function, node: ast.AST, kind: str, engine: Engine | None) -> ast.For:
    """The loop around a process, which is nowhere in the text: it stands at its function.

    What is called in it is its body.
    """
    module = function.module
    known: dict[tuple[int, str], ast.For] = module.__dict__.setdefault("driven_loops", {})
    loop = known.get((id(node), kind))
    if loop is None:
        target = ast.Name(id=kind, ctx=ast.Store())
        loop = ast.For(target=target, iter=ast.Name(id="data"), body=[], orelse=[])
        ast.copy_location(loop, function.node)
        known[(id(node), kind)] = loop
        module.parents[loop] = function.node
    handlers = engine.handlers if engine is not None else []
    inside = EVERY_BATCH if kind == "batch" else EVERY_EPOCH
    called = [handler.function.function for handler in handlers if handler.event in inside]
    if engine is None or engine.supervised is None:
        called.insert(0, function)
    loop.body = [one.node for one in called if one is not None]
    return loop
