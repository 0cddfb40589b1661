"""What a name is bound to: in the frames of a world, in its module, in the project."""

from __future__ import annotations

import ast

from oomlint.analysis import classes
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.state import Frame, World
from oomlint.analysis.values import Callable, ClassValue, External, Value, join, unknown


def evaluate_name(world: World, node: ast.Name) -> Value:
    frame = world.frames[-1]
    found = frame.names.get(node.id)
    return found if found is not None else lookup(world, frame, node.id)


def lookup(world: World, frame: Frame, name: str) -> Value:
    scope: Frame | None = frame
    while scope is not None:
        found = scope.names.get(name)
        if found is not None:
            return found
        scope = scope.parent
    script = world.frames[0] if world.frames else frame
    if script.module is frame.module and name in script.names:
        # A function that the script itself calls sees what the script has bound by now.
        return script.names[name]
    return global_name(world, frame.module, name)


def global_name(world: World, module: Module, name: str) -> Value:
    known: dict[str, External] = module.__dict__.setdefault("outside_names", {})
    outside = known.get(name)
    if outside is not None:
        return outside
    found = find_global(world, module, name)
    # What `partial` bound belongs to it: the name of what is called is not all.
    if isinstance(found, External) and not (found.given or found.named):
        if classes.is_outside(found.qualified) or found.qualified in BUILTINS:
            known[name] = External(found.qualified, qualified=found.qualified)
    return found


def find_global(world: World, module: Module, name: str) -> Value:
    function = module.function(name)
    if function is not None:
        return Callable(f"{module.name}:{name}", function=function)
    cls = module.class_(name)
    if cls is not None:
        return ClassValue(f"{module.name}:{name}", cls=cls)
    if name in module.imports:
        return imported(world, module, module.imports[name])
    if name in module.globals:
        return module_variable(world, module, name)
    if name in BUILTINS:
        return External(name, qualified=name)
    for star in module.stars:
        found = world.project.find(f"{star}.{name}", module)
        if found is not None:
            return definition(found, name)
    if any(star.split(".")[0] == "torch" for star in module.stars):
        return External(name, qualified=f"{module.stars[0]}.{name}")
    return unknown(name, name)


def imported(world: World, module: Module, qualified: str) -> Value:
    if classes.is_outside(qualified):
        return External(qualified, qualified=qualified)
    found = world.project.find(qualified, module)
    if found is None:
        return External(qualified, qualified=qualified)
    return definition(found, qualified)


def definition(found: Function | Class | Module, key: str) -> Value:
    if isinstance(found, Module):
        return External(found.name, qualified=found.name)
    if isinstance(found, Class):
        return ClassValue(f"{found.module.name}:{found.name}", cls=found)
    return Callable(f"{found.module.name}:{found.qualname}", function=found)


def module_variable(world: World, module: Module, name: str) -> Value:
    """A module-level name seen from inside a function: what it is bound to last."""
    key = ("global:" + module.name, name)
    known = world.attributes.get(key) or world.reads.get(key)
    if known is not None:
        return known
    world.reads[key] = unknown(name, name)
    if len(world.frames) > 40:
        return world.reads[key]
    world.enter(Frame(module, None))
    loops, world.loops = world.loops, []
    value: Value | None = None
    try:
        for expression in module.globals[name][-2:]:
            result = evaluate(world, expression) if is_simple(expression) else None
            result = result or unknown(name, name)
            value = result if value is None else join(value, result)
    finally:
        world.frames.pop()
        world.loops = loops
    world.reads[key] = value or unknown(name, name)
    return world.reads[key]


def is_simple(node: ast.expr) -> bool:
    return isinstance(node, (ast.Call, ast.Constant, ast.Name, ast.Attribute, ast.List, ast.Dict))


BUILTINS = frozenset(
    "abs all any bool bytes callable dict dir divmod enumerate eval exec filter float format"
    " frozenset getattr hasattr hash id input int isinstance issubclass iter len list map max min"
    " next object open pow print range repr reversed round set setattr slice sorted staticmethod"
    " str sum super tuple type vars zip exit quit".split()
)
