"""Classes of the project: their bases, methods and constants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.state import World

# Packages that are never part of the project that is checked, so that no file is looked for.
OUTSIDE = frozenset(
    "torch numpy os sys math time random json logging argparse functools itertools collections"
    " typing pathlib re datetime tqdm abc dataclasses contextlib copy warnings shutil pickle pandas"
    " scipy sklearn matplotlib PIL cv2 wandb yaml omegaconf hydra".split()
)


@lru_cache(maxsize=8192)
def is_outside(qualified: str) -> bool:
    """Whether a name belongs to one of the packages that are never part of the project."""
    return qualified.partition(".")[0] in OUTSIDE


def lineage(world: World, cls: Class) -> list[Class]:
    """The class and its bases inside the project, nearest first."""
    known = world.project.lineages.get(cls)
    if known is None:
        known = world.project.lineages[cls] = trace_lineage(world, cls, 0)
    return known


def trace_lineage(world: World, cls: Class, depth: int) -> list[Class]:
    found = [cls]
    if depth > 6:
        return found
    for base in cls.node.bases:
        resolved = resolve_class(world, cls.module, base)
        if resolved is not None and resolved is not cls:
            found.extend(trace_lineage(world, resolved, depth + 1))
    return found


def resolve_class(world: World, module: Module, base: ast.expr) -> Class | None:
    qualified = dotted(base)
    if qualified is None:
        return None
    known = module.class_(qualified)
    if known is not None:
        return known
    head, _, rest = qualified.partition(".")
    if head not in module.imports:
        return None
    target = module.imports[head] + (f".{rest}" if rest else "")
    if is_outside(target):
        return None
    found = world.project.find(target, module)
    return found if isinstance(found, Class) else None


def base_names(world: World, cls: Class) -> list[str]:
    """The qualified names of all bases, those outside the project among them."""
    known = world.project.base_names.get(cls)
    if known is None:
        known = world.project.base_names[cls] = trace_bases(world, cls)
    return known


def trace_bases(world: World, cls: Class) -> list[str]:
    names = []
    for kin in lineage(world, cls):
        for base in kin.node.bases:
            text = dotted(base)
            if text is not None:
                names.append(kin.module.qualified(text))
    return names


def dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return None


def find_method(world: World, cls: Class, name: str, after: Class | None = None) -> Function | None:
    skipping = after is not None
    for kin in lineage(world, cls):
        if skipping:
            skipping = kin is not after
            continue
        if name in kin.methods:
            return kin.methods[name]
    return None


def reached_from(cls: Class, name: str) -> Iterator[Function]:
    """A method and those of the same class that it leads to, by their words."""
    reached, pending = {name}, [name]
    while pending:
        method = cls.methods[pending.pop()]
        yield method
        more = (cls.methods.keys() & method.words) - reached - {"__init__"}
        reached |= more
        pending.extend(more)
