"""Losses that CUDA's autocast refuses: where they are called, and which autocast is around them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import sites
from oomlint.analysis.activations import BINARY, Reader
from oomlint.analysis.autocast import OLD_ORDER, ORDER
from oomlint.analysis.knowledge import AUTOCAST
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.tracing import Place

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Refused:
    """A call of binary_cross_entropy under autocast; `call` is the way in from another function."""

    site: Site
    autocast: ast.Call
    call: ast.Call | None = None


def refused(model: Model) -> Iterator[Refused]:
    module = model.module
    reader = Reader(model.project)
    for site in sites.sites(module):
        if len(site.node.args) + len(site.node.keywords) < 2:
            continue
        if reader.loss_of(Place(site.node.func, site.function, module))[0] != BINARY:
            continue
        around = autocast_around(module, site.node, site.function)
        if around is not None:
            if is_on(module, around, site.function) and not is_island(module, around, site):
                yield Refused(site, around)
            continue
        for call in calls_of(module, site.function):
            caller = module.function_of(call)
            around = autocast_around(module, call, caller)
            if around is not None and is_on(module, around, caller):
                yield Refused(site, around, call)
                break


def autocast_around(module: Module, node: ast.AST, function: Function | None) -> ast.Call | None:
    """The innermost autocast of a place: a `with`, or a decorator of its function."""
    decorators = function.decorators if function is not None else []
    for context in (*sites.contexts_around(module, node), *decorators):
        if isinstance(context, ast.Call):
            qualified = sites.qualified_name(module, context.func, function)
            if AUTOCAST.search(qualified):
                return context
    return None


def is_on(module: Module, autocast: ast.Call, function: Function | None) -> bool:
    """Whether an autocast is CUDA's and not switched off for good."""
    given = arguments(module, autocast, function)
    enabled, device = given.get("enabled"), given.get("device_type")
    if isinstance(enabled, ast.Constant) and not enabled.value:
        return False
    qualified = sites.qualified_name(module, autocast.func, function)
    if qualified.startswith("torch.cpu."):
        return False
    return not isinstance(device, ast.Constant) or str(device.value).startswith("cuda")


def is_island(module: Module, autocast: ast.Call, site: Site) -> bool:
    """Whether an option that is off by default is about the loss alone, with no network inside."""
    enabled = arguments(module, autocast, site.function).get("enabled")
    if not isinstance(enabled, ast.Name) or not is_off_by_default(site.function, enabled.id):
        return False
    block = next((p for p in module.enclosing(autocast) if isinstance(p, ast.With)), None)
    inside = [part for node in (block.body if block else ()) for part in ast.walk(node)]
    return all(
        written(part.func) == written(site.node.func) or not is_network_call(part)
        for part in inside
        if isinstance(part, ast.Call)
    )


def is_network_call(call: ast.Call) -> bool:
    """A call of an object: `model(x)`, `self.net(x)`; methods of tensors and torch's are not."""
    if isinstance(call.func, ast.Name):
        return True
    return isinstance(call.func, ast.Attribute) and written(call.func.value) == "self"


def is_off_by_default(function: Function | None, name: str) -> bool:
    if function is None:
        return False
    given = function.node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [
        *zip(reversed(plain), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return any(
        parameter.arg == name and isinstance(default, ast.Constant) and not default.value
        for parameter, default in defaults
    )


def arguments(module: Module, call: ast.Call, function: Function | None) -> dict[str, ast.expr]:
    old = sites.qualified_name(module, call.func, function).split(".")[1] in ("cuda", "cpu")
    found = dict(zip(OLD_ORDER if old else ORDER, call.args, strict=False))
    found.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
    return found


def calls_of(module: Module, function: Function | None) -> Iterator[ast.Call]:
    """Calls of a function of this file by its name, of a method by `self`."""
    if function is None or function.parent is not None:
        return
    for site in sites.sites(module):
        if function.name == "forward" and function.owner is not None:
            if is_made_by(module, site, function.owner.name):
                yield site.node
        if site.method != function.name:
            continue
        if function.owner is None and site.receiver is None:
            yield site.node
        elif function.owner is not None and sites.class_of(site.function) is function.owner:
            if site.receiver is not None and written(site.receiver) in ("self", "cls"):
                yield site.node


def is_made_by(module: Module, site: Site, name: str) -> bool:
    """Whether a call runs an object that the file makes of a class of its own."""
    called = site.node.func
    values = sites.values_of(module, called, site.function) if written(called) != name else ()
    made = (value for value, _ in values)
    return any(
        isinstance(part, ast.Call) and written(part.func) == name
        for value in made
        for part in ast.walk(value)
    )


def island(module: Module, refused: Refused) -> str:
    """`with autocast(...)` that switches off what is around the loss, as the file writes it."""
    autocast = refused.autocast
    device = arguments(module, autocast, refused.site.function).get("device_type")
    name = module.segment(autocast.func)
    text = module.segment(device) if device is not None else ""
    by_name = any(keyword.arg == "device_type" for keyword in autocast.keywords)
    given = f"device_type={text}" if by_name else text
    return f"with {name}({given + ', ' if given else ''}enabled=False):"
