"""Takes apart what an analysis has made, so that it is gone without a garbage collection.

What refers to each other in a circle would wait for one, and those were a tenth of the time that
a large tree takes.
"""

from __future__ import annotations

from oomlint.analysis import project as projects
from oomlint.analysis.modules import Module
from oomlint.analysis.project import Project
from oomlint.analysis.state import Frame, World
from oomlint.analysis.values import Callable, Container, Instance, Super, Value


def forget(project: Project, module: Module) -> None:
    """Forgets the worlds of a project, its checked file, and the files that are no longer kept."""
    for world in project.followed:
        forget_world(world)
    for known in project.constructed.values():
        for built in known:
            forget_values([built.this, *built.attributes.values(), *built.reads.values()])
    forget_module(module)
    project.__dict__.clear()
    while projects.evicted:
        old = projects.evicted.pop()
        if old is not None:
            forget_module(old)


def forget_module(module: Module) -> None:
    for part in (*module.class_by_node.values(), *module.all_functions, module):
        part.__dict__.clear()


def forget_world(world: World) -> None:
    held: list[Value] = [*world.attributes.values(), *world.reads.values()]
    for frame in world.entered:
        held += forget_frame(frame)
    forget_values(held)
    # The answers may lead back to the world, and functions do so by what was given to them.
    world.answers.clear()
    for made in (world.events, world.frames, world.entered):
        made.clear()


def forget_frame(frame: Frame) -> list[Value]:
    """Empties a frame; what it held."""
    held = list(frame.names.values())
    if frame.this is not None:
        held.append(frame.this)
    frame.names.clear()
    frame.returns.clear()
    return held


def forget_values(held: list[Value]) -> None:
    """Takes apart what values can lead back to themselves by: objects, containers, closures."""
    while held:
        value = held.pop()
        if isinstance(value, Instance):
            held.extend(value.attributes.values())
            value.attributes.clear()
        elif isinstance(value, Container):
            held.extend(value.items)
            held.extend(value.names.values())
            value.items.clear()
            value.names.clear()
        elif isinstance(value, (Callable, Super)) and value.this is not None:
            held.append(value.this)
            value.this = None
