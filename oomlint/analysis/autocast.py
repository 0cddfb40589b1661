"""In which precision code computes: what autocast says, what holds at an event, what was cast."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from oomlint.analysis.ownership import related
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Arguments, Constant, External, Keywords, Value, ancestors

KIND = "autocast"
OFF, UNSURE = "off", "?"
DEFAULTS = {"cuda": "float16", "cpu": "bfloat16"}
LOWER = frozenset({"float16", "half", "bfloat16"})
# The arguments of torch.autocast, and of what torch.cuda.amp and torch.cpu.amp call so.
ORDER = ("device_type", "dtype", "enabled", "cache_enabled")
OLD_ORDER = ("enabled", "dtype", "cache_enabled")


def kind_of(qualified: str, arguments: Arguments, keywords: Keywords) -> str:
    """`autocast float16`, `autocast off`, or `autocast bfloat16 KEY` with the key of `enabled`."""
    old = next((d for d in DEFAULTS if qualified.startswith(f"torch.{d}.")), "")
    given = {**dict(zip(OLD_ORDER if old else ORDER, arguments, strict=False)), **keywords}
    precision = dtype_of(given.get("dtype"), old or device_of(given.get("device_type")))
    enabled = given.get("enabled")
    if isinstance(enabled, Constant):
        return f"{KIND} {precision if enabled.value else OFF}"
    return f"{KIND} {precision}" + (f" {enabled.key}" if enabled is not None else "")


def device_of(value: Value | None) -> str:
    if isinstance(value, Constant) and isinstance(value.value, str):
        return value.value.split(":")[0]
    return ""


def dtype_of(value: Value | None, device: str) -> str:
    if value is None or (isinstance(value, Constant) and value.value is None):
        return DEFAULTS.get(device, UNSURE)
    if isinstance(value, External) and value.qualified.startswith("torch."):
        name = value.qualified.removeprefix("torch.")
        return "float16" if name == "half" else name
    return UNSURE


def perhaps(kind: str) -> str:
    """The kind of a context that only one of two branches makes."""
    return f"{kind} {UNSURE}" if kind.count(" ") == 1 else kind


def precision_at(world: World, event: Event) -> tuple[str, bool]:
    """The precision of the innermost autocast around an event, and whether it is certainly on.

    Empty where there is none, `?` where the dtype cannot be told, `off` where it is disabled.
    """
    for context in reversed(event.contexts):
        name, _, rest = context.partition(" ")
        if name != KIND:
            continue
        precision, _, key = rest.partition(" ")
        if not key:
            return precision or UNSURE, bool(precision)
        on = assumed(world, key)
        return (OFF, True) if on is False else (precision, on is True)
    return "", True


TEST = re.compile(r"cmp\((?P<key>.*) (?P<how>Is|IsNot):None\)")


def assumed(world: World, key: str) -> bool | None:
    """Whether a value is true in a world, as far as its conditions have said."""
    known = {**dict(world.choices), **world.assumptions}
    test = TEST.fullmatch(key)
    if test is not None:
        is_none = known.get(f"none:{test['key']}")
        return None if is_none is None else is_none is (test["how"] == "Is")
    if key in known:
        return known[key]
    is_none = known.get(f"none:{key}")
    return None if is_none is None else not is_none


def forwards_of(world: World, backward: Event) -> list[Event]:
    """The forwards that a loss was computed from."""
    if backward.value is None:
        return []
    made_from = ancestors(backward.value)
    return [
        event
        for event in world.events[: backward.index]
        if event.kind is Kind.FORWARD and id(event.value) in made_from
    ]


CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64"}
DTYPES = frozenset("float16 half bfloat16 float32 float float64 double".split())


def cast(world: World, node: ast.Call, key: str, name: str, inputs: Sequence[Value]) -> None:
    """Notes that an object is cast to float16, or to something else again."""
    precision = CASTS.get(name, "")
    if name == "to":
        given = [dtype_of(value, "") for value in inputs]
        precision = next((dtype for dtype in given if dtype in DTYPES), "")
    if precision == "float16":
        world.halved.setdefault(key, (node, len(world.events)))
    elif precision:
        for other in [other for other in world.halved if related(other, key)]:
            del world.halved[other]
