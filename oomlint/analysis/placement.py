"""Where tensors are put: which expressions name a device, and which calls move to one."""

from __future__ import annotations

import ast
import re
from enum import Enum

from oomlint.analysis import sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import MAX_ALIASES, Site

DEVICE_NAME = re.compile(
    r"(^|_)(device|dev|gpu|cuda|accelerator)(_?(id|no|num|idx|ids|\d))?$", re.I
)
ON_GPU = re.compile(r"cuda(:\d+|:\{.*\})?")
ON_HOST = re.compile(r"(cpu|meta)(:\d+)?")


class Place(Enum):
    """What is known of a device: DEVICE is a GPU, at least where one is available."""

    DEVICE = "device"
    HOST = "host"
    OPEN = "open"


def place(
    module: Module, node: ast.expr | None, function: Function | None, depth: int = 0
) -> Place | None:
    """Where a device expression leads; None for what is no device (a dtype, another tensor)."""
    if node is None or depth > MAX_ALIASES:
        return None
    if isinstance(node, ast.Constant):
        return place_of_constant(node.value)
    if isinstance(node, ast.JoinedStr):
        return Place.DEVICE if "cuda" in written(node) else None
    if isinstance(node, ast.IfExp):
        # `"cuda" if torch.cuda.is_available() else "cpu"`: the GPU is what it is for.
        arms = {place(module, arm, function, depth + 1) for arm in (node.body, node.orelse)}
        return strongest(arms)
    if isinstance(node, ast.Call):
        called = sites.qualified_name(module, node.func, function)
        if called == "torch.device" and node.args:
            return place(module, node.args[0], function, depth + 1) or Place.OPEN
        return Place.DEVICE if called == "torch.cuda.current_device" else named(node.func)
    if isinstance(node, ast.Attribute | ast.Name):
        values = sites.values_of(module, node, function)
        found = {place(module, value, where, depth + 1) for value, where in values}
        return strongest(found) if found else named(node)
    return None


def place_of_constant(value: object) -> Place | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return Place.DEVICE
    if not isinstance(value, str):
        return None
    if ON_GPU.fullmatch(value):
        return Place.DEVICE
    return Place.HOST if ON_HOST.fullmatch(value) else None


def strongest(found: set[Place | None]) -> Place | None:
    return next((p for p in (Place.DEVICE, Place.OPEN, Place.HOST) if p in found), None)


def named(node: ast.expr) -> Place | None:
    """`device`, `self.device`, `x.device`, `args.gpu`: a device, but not known which."""
    last = written(node).rsplit(".", 1)[-1]
    return Place.OPEN if DEVICE_NAME.search(last) else None


def destination(module: Module, site: Site) -> Place | None:
    """Where `.cuda()` and `.to(device)` put their receiver; None for other calls."""
    if site.receiver is None or site.qualified.startswith("torch."):
        return None
    if site.method == "cuda":
        return Place.DEVICE
    if site.method != "to":
        return None
    given = site.argument(0, "device") or site.argument(-1, "device")
    return place(module, given, site.function)


def made_on(module: Module, site: Site) -> Place | None:
    """Where a function of torch puts what it makes, by its `device=`; None where none is given."""
    if not site.qualified.startswith("torch."):
        return None
    return place(module, site.argument(-1, "device"), site.function)
