"""Loaders without workers whose items are slow to read, and copies that wait for plain memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import cadence, loaders, placement, sites
from oomlint.analysis.cadence import Loop
from oomlint.analysis.loaders import Loader
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site, is_true

if TYPE_CHECKING:
    from oomlint.analysis import Model


# What makes a sample slow: reading, decoding, transforming.
SLOW = re.compile(
    r"(\w+\.)*Image\.open|cv2\.(imread|resize|VideoCapture)|(\w+\.)*(imread|read_image|decode_\w+)"
    r"|(torch|np|numpy|torchaudio|librosa|soundfile|sf|sio|nib|pickle|json)\.(load|read|loads)"
    r"|open|h5py\.File|(\w+\.)*(transform|transforms|augment|tokenizer|preprocess)\w*"
)

FOLDERS = re.compile(r"torchvision\.datasets\.\w+")


def pins(loader: Loader) -> bool | None:
    """Whether a loader pins its batches; None where it cannot be told."""
    given = loader.given("pin_memory")
    if given is None:
        return None if loader.site.is_open else False
    return given.value is True if isinstance(given, ast.Constant) else None


def own(module: Module, loop: Loop, function: Function | None) -> Iterator[Site]:
    return sites.found_in(module, loop, function)


def loops_over(module: Module, loader: Loader) -> Iterator[tuple[Loop, Function | None]]:
    """Loops over a loader: in its scope, in a method of its class, or in a function it is given."""
    site = loader.site
    statement = module.statement_of(site.node)
    if isinstance(statement, ast.For):
        if site.node in ast.walk(statement.iter):
            yield statement, site.function
        return
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return
    name = written(statement.targets[0])
    yield from loops_in(module, name, site.function)
    owner = sites.class_of(site.function)
    if name.startswith("self.") and owner is not None:
        for method in owner.methods.values():
            yield from loops_in(module, name, method)
        return
    for call in sites.found_in(module, scope_of(module, site.function), site.function):
        called = cadence.local_function(module, call)
        if called is None or called is site.function:
            continue
        parameters = [a.arg for a in called.node.args.args if a.arg not in ("self", "cls")]
        for position, parameter in enumerate(parameters):
            given = call.argument(position, parameter)
            if given is not None and written(given) == name:
                yield from loops_in(module, parameter, called)


def scope_of(module: Module, function: Function | None) -> ast.AST:
    return module.tree if function is None else function.node


def loops_in(
    module: Module, name: str, function: Function | None
) -> Iterator[tuple[Loop, Function | None]]:
    for node in sites.own_nodes(scope_of(module, function)):
        if isinstance(node, ast.For):
            mentioned = {written(p) for p in ast.walk(node.iter) if isinstance(p, ast.expr)}
            if name in mentioned and f"len({name})" not in mentioned:
                yield node, function


def device_copies(module: Module, loop: Loop, function: Function | None) -> Iterator[Site]:
    """Moves of a loop's own variables to the device."""
    names = {p.id for p in ast.walk(getattr(loop, "target", loop)) if isinstance(p, ast.Name)}
    for site in own(module, loop, function):
        if placement.destination(module, site) not in (Place.DEVICE, Place.OPEN):
            continue
        root = site.receiver
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and root.id in names:
            yield site


def is_asynchronous(site: Site) -> bool:
    return is_true(site.argument(-1, "non_blocking"))


def is_slow(model: Model, loader: Loader) -> bool:
    """Whether the dataset reads, decodes or transforms each sample."""
    module = loader.module
    given = loader.given("dataset")
    cls = loaders.dataset_class(model.project, module, given, loader.site.function)
    if cls is not None:
        return reads(cls)
    values = [given] if given is not None else []
    if given is not None:
        values += loaders.values(module, given, loader.site.function)
    return any(
        isinstance(value, ast.Call)
        and FOLDERS.fullmatch(sites.qualified_name(module, value.func, loader.site.function))
        for value in values
    )


def reads(cls: Class) -> bool:
    return any(
        SLOW.fullmatch(written(site.node.func).removeprefix("self."))
        for first in loaders.fetching(cls)
        for function in loaders.run_by_workers(cls.module, first)
        for site in sites.found_in(cls.module, function.node, function)
    )
