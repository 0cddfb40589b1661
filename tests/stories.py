"""Training code in, what happens in it out: the events of a text's worlds as short words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

from oomlint.analysis import Model, analyse
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Container, Sequence, Value
from oomlint.linter import check_source
from oomlint.rule import Finding
from oomlint.settings import Layer, Settings, settings_for
from oomlint.source import Source

NOWHERE = Path("/nowhere/project")

WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.ZERO_GRAD: "zero",
    Kind.UNSCALE: "unscale",
    Kind.CLIP: "clip",
    Kind.STEP: "step",
    Kind.SCALER_STEP: "scaler-step",
    Kind.SCALER_UPDATE: "scaler-update",
    Kind.SCHEDULER_STEP: "scheduler-step",
    Kind.ENGINE_STEP: "engine-step",
    Kind.EVAL_MODE: "eval",
    Kind.TRAIN_MODE: "train",
    Kind.GRADIENT_TAKEN: "grad-taken",
    Kind.GRADIENT_TOUCHED: "grad-touched",
    Kind.KEEP: "keep",
    Kind.ENVIRONMENT_STEP: "env-step",
    Kind.OPAQUE_CALL: "opaque",
    Kind.DETACH: "detach",
}
# What is asked for by name only: almost every line has one.
QUIET = frozenset({Kind.OPAQUE_CALL, Kind.DETACH})
MODES = {True: "", False: " [off]", None: " [unsure]"}


def model_of(text: str, path: Path = NOWHERE / "train.py", root: Path | None = None) -> Model:
    return analyse(Source(path, dedent(text)), root or path.parent)


def word(event: Event) -> str:
    """`clip`, `step SGD`, `backward scaled`, `forward model [off]`: the event in a few words."""
    parts = [WORDS[event.kind]]
    if event.kind is Kind.BACKWARD:
        parts += [how for how in (event.detail.get("wrapper"),) if isinstance(how, str) and how]
        if is_scaled(event.value):
            parts.append("scaled")
        return " ".join(parts)
    name = name_of(event.subject) or name_of(event.value if event.kind is Kind.UNSCALE else None)
    if event.kind is Kind.KEEP:
        name = str(event.detail["how"])
    if name and event.kind is not Kind.CLIP:
        parts.append(name)
    mode = MODES[event.grad] if event.kind in (Kind.FORWARD, Kind.KEEP) else ""
    return " ".join(parts) + mode


def is_scaled(value: Value | None) -> bool:
    from oomlint.analysis.values import Tensor, members

    waiting = [value] if value is not None else []
    while waiting:
        current = waiting.pop()
        if isinstance(current, Tensor):
            if current.scaled:
                return True
            if current.barrier:
                continue
        waiting += members(current)
    return False


def name_of(value: Value | None) -> str:
    """The constructor or the name of an object, without the place where it was made."""
    if value is None or isinstance(value, Container | Sequence):
        return ""
    return value.key.split("@")[0].split(":")[-1].split("#")[0].split("(")[0]


def words(events: Iterable[Event], *kinds: Kind) -> list[str]:
    return [
        word(event)
        for event in events
        if (event.kind in kinds if kinds else event.kind not in QUIET)
    ]


def is_first(event: Event) -> bool:
    return all(loop.iteration == 1 for loop in event.loops)


def events(text: str, *kinds: Kind) -> list[str]:
    """The first world's events, each loop once; all that are loud, or those of the kinds given."""
    world = model_of(text).worlds[0]
    return words([event for event in world.events if is_first(event)], *kinds)


def both_iterations(text: str, *kinds: Kind) -> list[str]:
    """The first world's events, each loop twice as it is followed."""
    return words(model_of(text).worlds[0].events, *kinds)


def worlds(text: str, *kinds: Kind) -> list[list[str]]:
    """What happens in each world, each loop once, in the order in which worlds are followed."""
    return [
        words([event for event in world.events if is_first(event)], *kinds)
        for world in model_of(text).worlds
    ]


def happening(world: World, kind: Kind) -> Event:
    """The first event of a kind."""
    return next(event for event in world.events if event.kind is kind)


def result(text: str, name: str) -> Value:
    """What a local name holds at the end of the first world."""
    return model_of(text).worlds[0].frames[-1].names[name]


# files


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), "utf-8", newline="")


def all_on(settings: Settings) -> Settings:
    return replace(settings, layers=(Layer("the test", select=("ALL",)),), preview=True)


def findings(path: Path, text: str) -> tuple[Finding, ...]:
    """Every rule's findings in a text that lies, or could lie, at a path."""
    result = check_source(Source(path, text), all_on(settings_for(path)))
    assert result.problem is None, result.problem
    return result.findings


def marks(path: Path, text: str) -> list[str]:
    """`OOM301@12:5` for each finding."""
    return [f"{item.code}@{item.row}:{item.column}" for item in findings(path, text)]
