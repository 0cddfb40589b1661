"""Finds training code that wastes GPU memory or computes wrong gradients, and proves it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Where each public name is defined: nothing of it is imported before it is asked for.
PUBLIC = {
    "Checked": "oomlint.api",
    "Edit": "oomlint.rule",
    "Finding": "oomlint.rule",
    "Fix": "oomlint.rule",
    "Fixed": "oomlint.api",
    "OomlintError": "oomlint.errors",
    "Safety": "oomlint.rule",
    "Severity": "oomlint.rule",
    "Waypoint": "oomlint.rule",
    "check": "oomlint.api",
    "check_paths": "oomlint.api",
    "fix": "oomlint.api",
}
__all__ = [
    "Checked",
    "Edit",
    "Finding",
    "Fix",
    "Fixed",
    "OomlintError",
    "Safety",
    "Severity",
    "Waypoint",
    "check",
    "check_paths",
    "fix",
]

if TYPE_CHECKING:
    from oomlint.api import Checked, Fixed, check, check_paths, fix
    from oomlint.errors import OomlintError
    from oomlint.rule import Edit, Finding, Fix, Safety, Severity, Waypoint


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'oomlint' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
