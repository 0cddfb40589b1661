"""Which worlds of a file are followed: from which function, under which assumptions."""

from __future__ import annotations

import re
from collections import deque

from oomlint.analysis import calls, classes, evaluation, execution, knowledge
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.project import Project
from oomlint.analysis.state import Frame, Stop, World
from oomlint.analysis.values import Instance, Value

# Worlds of one root; most training functions have fewer than ten.
MAX_WORLDS = 20
# Statements over all worlds of one root and of one file.
ROOT_BUDGET = 7_000
FILE_BUDGET = 14_000


def worlds_of(project: Project, module: Module) -> list[World]:
    """Every world that is followed for a file, roots in source order."""
    found: list[World] = []
    reached: set[Function] = set()
    spent = 0
    if any_code(module):
        found, spent = explore(project, module, None, reached)
    for function in roots(module):
        if function in reached or spent > FILE_BUDGET:
            continue
        more, cost = explore(project, module, function, reached)
        found.extend(more)
        spent += cost
    return found


def any_code(module: Module) -> bool:
    """Whether the module does something itself besides defining things."""
    import ast

    skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return any(
        not isinstance(node, skipped) and any(isinstance(part, ast.Call) for part in ast.walk(node))
        for node in module.tree.body
    )


def roots(module: Module) -> list[Function]:
    """Functions from which a training event can be reached, those that nobody here calls first."""
    chosen = [f for f in module.all_functions if f.parent is None and can_matter(module, f)]
    referenced: set[str] = set()
    for function in module.all_functions:
        if function.parent is None:
            referenced |= function.words - {function.name}
    chosen = [f for f in chosen if f.name != "__init__"]
    return [f for f in chosen if f.name not in referenced] + [
        f for f in chosen if f.name in referenced
    ]


LOOP = re.compile(r"\b(for|while)\b")
BACKWARD = frozenset({"backward", "manual_backward"})


def can_matter(module: Module, function: Function) -> bool:
    """Whether a function reaches what a rule could judge: backward and step, or evaluation."""
    words = reach(module, function)
    if function.name == "training_step" and any("clip_grad" in word for word in words):
        return True
    if "step" in words and words & BACKWARD:
        return True
    if words & BACKWARD and words & {"append", "extend"}:
        return True
    return "eval" in words or ("train" in words and "False" in words) or "env" in words


def reach(module: Module, function: Function) -> frozenset[str]:
    """The words of a function and of everything in the file that it may call."""
    table: dict[str, list[Function]] = module.__dict__.setdefault("by_name", {})
    if not table:
        for other in module.all_functions:
            if other.parent is None:
                table.setdefault(other.name, []).append(other)
    found = set(function.words)
    pending = [name for name in found if name in table]
    seen = set(pending)
    while pending:
        for other in table[pending.pop()]:
            found |= other.words
            more = [name for name in other.words if name in table and name not in seen]
            seen.update(more)
            pending.extend(more)
    return frozenset(found)


def explore(
    project: Project, module: Module, root: Function | None, reached: set[Function]
) -> tuple[list[World], int]:
    """The worlds of one root, by flipping one choice of a known world at a time."""
    queue: deque[dict[str, bool]] = deque([{}])
    seen: set[frozenset[tuple[str, bool]]] = set()
    found: list[World] = []
    spent = 0
    while queue and len(found) < MAX_WORLDS and spent < ROOT_BUDGET:
        assumptions = queue.popleft()
        world = run_world(project, module, root, assumptions)
        spent += world.statements
        reached |= world.visited
        found.append(world)
        made = dict(assumptions)
        for key, choice in world.choices:
            other = {**made, key: not choice}
            made[key] = choice
            identity = frozenset(other.items())
            if identity not in seen:
                seen.add(identity)
                queue.append(other)
    return found, spent


def run_world(
    project: Project, module: Module, root: Function | None, assumptions: dict[str, bool]
) -> World:
    world = World(project, module, assumptions=dict(assumptions), root=root)
    try:
        if root is None:
            world.frames.append(Frame(module, None))
            execution.run_block(world, module.tree.body)
        else:
            run_root(world, module, root)
    except Stop:
        pass
    except RecursionError:
        pass
    return world


def run_root(world: World, module: Module, root: Function) -> None:
    world.frames.append(Frame(module, None))
    this: Value | None = None
    if root.owner is not None and not is_static(root):
        this = instance_of(world, root.owner)
    frame = Frame(root.module, root, this=this)
    if this is not None:
        frame.names[evaluation.first_argument(root)] = this
    calls.bind_unknown(world, frame, root)
    world.visited.add(root)
    mode = calls.decorated_mode(world, root)
    if mode is not None:
        world.grad = mode if isinstance(mode, bool) else None
    world.frames.append(frame)
    world.returned = execution.run_body(world, root.node.body)


def is_static(function: Function) -> bool:
    import ast

    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorators)


def instance_of(world: World, cls: Class) -> Instance:
    """`self` as its constructor leaves it, whoever calls it."""
    bases = classes.base_names(world, cls)
    is_module = any(knowledge.MODULE_BASE.fullmatch(base) for base in bases)
    instance = Instance("self", cls=cls, is_module=is_module)
    constructor = classes.find_method(world, cls, "__init__")
    if constructor is None:
        return instance
    frame = Frame(constructor.module, constructor, this=instance)
    frame.names[evaluation.first_argument(constructor)] = instance
    calls.bind_unknown(world, frame, constructor)
    world.frames.append(frame)
    try:
        execution.run_body(world, constructor.node.body)
    except Stop:
        if world.statements > execution.MAX_STATEMENTS:
            raise
    finally:
        world.frames.pop()
        world.events.clear()
        world.loops.clear()
        world.guards.clear()
        world.calls.clear()
    return instance
