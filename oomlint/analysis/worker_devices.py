"""What a loader's worker processes run, and where that moves tensors to the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import cadence, loaders, placement, sites
from oomlint.analysis.loaders import Loader
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site

if TYPE_CHECKING:
    from oomlint.analysis import Model

WORDS = (".cuda(", ".to(", "device")


def run_in_workers(model: Model) -> Iterator[tuple[Function, Loader]]:
    """Functions of this file that may use the device, with a loader whose workers run them."""
    module = model.module
    for cls in module.class_by_node.values():
        first = [f for f in loaders.fetching(cls) if not f.is_generator or f.name == "__iter__"]
        chain = {f: None for one in first for f in loaders.run_by_workers(module, one)}
        if not any(cuda_words(function) for function in (*chain, *constructor(cls))):
            continue
        used = [f for f in (*chain, *constructor(cls)) if any(moves(module, f))]
        loader = loaders.loader_of(model.project, cls) if used else None
        if loader is not None:
            yield from ((function, loader) for function in used)
    for loader in loaders.loaders(module):
        if loader.has_workers:
            for function in collating(loader):
                yield from ((f, loader) for f in loaders.run_by_workers(module, function))


def bound_device(module: Module, site: Site) -> Place | None:
    """Where the device leads that `partial` gives the function that puts samples together."""
    given = site.argument(0 if site.method == "to" else -1, "device")
    if not isinstance(given, ast.Name) or site.function is None:
        return None
    for loader in loaders.loaders(module):
        made = loader.given("collate_fn")
        if loader.has_workers and isinstance(made, ast.Call) and site.function in collating(loader):
            for keyword in made.keywords:
                if keyword.arg == given.id:
                    return placement.place(module, keyword.value, loader.site.function)
    return None


def inline(module: Module) -> Iterator[tuple[Site, Loader]]:
    """Moves in a lambda that puts samples together."""
    for loader in loaders.loaders(module):
        given = loader.given("collate_fn")
        if loader.has_workers and isinstance(given, ast.Lambda):
            for site in sites.found_in(module, given, loader.site.function):
                where = placement.destination(module, site) or placement.made_on(module, site)
                if where is Place.DEVICE:
                    yield site, loader


def cuda_words(function: Function) -> bool:
    return any(word in function.code for word in WORDS)


def constructor(cls: Class) -> list[Function]:
    return [cls.methods["__init__"]] if "__init__" in cls.methods else []


def collating(loader: Loader) -> Iterator[Function]:
    """The function that puts samples together, where it stands in this file."""
    given = loader.given("collate_fn")
    if isinstance(given, ast.Call) and given.args and written(given.func).endswith("partial"):
        given = given.args[0]
    if given is None:
        return
    call = ast.Call(given, [], [])
    site = Site(loader.module, call, last_name(given), None, loader.site.function)
    found = cadence.local_function(loader.module, site)
    if found is not None:
        yield found


def last_name(node: ast.expr) -> str:
    return written(node).rsplit(".", 1)[-1]


def moves(module: Module, function: Function) -> Iterator[Site]:
    """What a function always puts on a GPU; a constructor only where the others use it."""
    for site in sites.found_in(module, function.node, function):
        where = placement.destination(module, site) or placement.made_on(module, site)
        if where is Place.OPEN:
            where = given_place(module, site) or bound_device(module, site)
        if where is not Place.DEVICE or is_asked_for(module, site):
            continue
        if function.name != "__init__" or is_kept_for_fetching(module, site, function):
            yield site


def is_asked_for(module: Module, site: Site) -> bool:
    """Whether a flag decides about the move: who sets it may know that there are no workers."""
    tests = sites.conditions_around(module, site.node)
    return any("is_available" not in written(test) for test, _ in tests)


def is_kept_for_fetching(module: Module, site: Site, function: Function) -> bool:
    statement = module.statement_of(site.node)
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return False
    target = statement.targets[0]
    if not sites.is_self_attribute(target, function) or function.owner is None:
        return False
    name = last_name(target)
    return any(name in f.words for f in loaders.fetching(function.owner))


def given_place(module: Module, site: Site) -> Place | None:
    """Where the device leads that the constructor of a dataset is given in this file."""
    owner = sites.class_of(site.function)
    first = 0 if site.method == "to" else -1
    given = site.argument(first, "device") or site.argument(-1, "device")
    if owner is None or given is None or "__init__" not in owner.methods:
        return None
    maker = owner.methods["__init__"]
    names = [written(v) for v, _ in sites.values_of(module, given, site.function)] or [
        written(given)
    ]
    parameters = [a.arg for a in maker.node.args.args]
    for made in sites.sites(module):
        if made.method != owner.name:
            continue
        for name in names:
            if name in parameters:
                value = made.argument(parameters.index(name) - 1, name)
                value = value or loaders.default_of(name, maker)
                return placement.place(module, value, made.function)
    return None
