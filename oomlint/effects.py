"""What users teach about their own framework: the effect of a function, by its qualified name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Misplaced(ValueError):
    """What is wrong with the entry of one name, which stands in a row of its own."""

    def __init__(self, name: str, what: str) -> None:
        super().__init__(f"`{name}` {what}")
        self.name = name


class Effect(Enum):
    """What a call of a taught name does in a training step; the values are written in settings."""

    BACKWARD = "backward"
    SCALED_BACKWARD = "scaled-backward"
    ZERO_GRAD = "zero-grad"
    STEP = "step"
    SCALER_STEP = "scaler-step"
    SCALER_UPDATE = "scaler-update"
    UNSCALE = "unscale"
    CLIP = "clip"
    SCHEDULER_STEP = "scheduler-step"
    FORWARD = "forward"
    DETACH = "detach"  # the result has no graph
    NO_GRAD = "no-grad"  # a context or a decorator
    ENABLE_GRAD = "enable-grad"
    MODEL = "model"  # from here on: the call makes such an object
    OPTIMIZER = "optimizer"
    SCALER = "scaler"
    SCHEDULER = "scheduler"
    CRITERION = "criterion"
    LOADER = "loader"
    OPAQUE = "opaque"  # never followed


# What calls for being followed wherever it is mentioned.
EVENTFUL = frozenset(
    {
        Effect.BACKWARD,
        Effect.SCALED_BACKWARD,
        Effect.ZERO_GRAD,
        Effect.STEP,
        Effect.SCALER_STEP,
        Effect.SCALER_UPDATE,
        Effect.UNSCALE,
        Effect.CLIP,
    }
)
# The arguments that an effect can be told of, the first one positionally where nothing is told.
ARGUMENTS: dict[Effect, tuple[str, ...]] = {
    Effect.BACKWARD: ("loss",),
    Effect.SCALED_BACKWARD: ("loss", "scaler"),
    Effect.ZERO_GRAD: ("optimizer",),
    Effect.STEP: ("optimizer",),
    Effect.SCALER_STEP: ("optimizer", "scaler"),
    Effect.SCALER_UPDATE: ("scaler",),
    Effect.UNSCALE: ("optimizer", "scaler"),
    Effect.CLIP: ("parameters", "limit"),
    Effect.SCHEDULER_STEP: ("scheduler",),
    Effect.FORWARD: ("model",),
}
NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

# An argument by its place, counted from 0 without `self`, or by its name.
Position = int | str


@dataclass(frozen=True, slots=True)
class Taught:
    """A qualified name, what a call of it does, and which of its arguments is what."""

    name: str
    effect: Effect
    arguments: tuple[tuple[str, Position], ...] = ()

    @property
    def last(self) -> str:
        """The word that a file must hold to use it, unless it is renamed on import."""
        return self.name.rpartition(".")[2]

    def position(self, argument: str) -> Position | None:
        return dict(self.arguments).get(argument)


def effects_table(value: object) -> tuple[Taught, ...]:
    """Checks the table `effects` of the settings. Raises ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError('must be a table of "qualified.name" = "effect"')
    return tuple(taught(name, meaning) for name, meaning in value.items())


def taught(name: str, meaning: object) -> Taught:
    if not NAME.fullmatch(name):
        raise Misplaced(name, 'is no qualified name such as "my.module.backward_step"')
    if isinstance(meaning, str):
        return Taught(name, effect_of(name, meaning))
    if not isinstance(meaning, Mapping) or "effect" not in meaning:
        hint = ""
        if isinstance(meaning, Mapping) and meaning:
            hint = f'; a name with dots stands in quotes: "{name}.{next(iter(meaning))}"'
        raise Misplaced(name, f"must be an effect or a table with the key `effect`{hint}")
    effect = effect_of(name, meaning["effect"])
    rest = {key: position for key, position in meaning.items() if key != "effect"}
    known = ARGUMENTS.get(effect, ())
    for key, position in rest.items():
        if key not in known:
            valid = ", ".join(f"`{word}`" for word in ("effect", *known))
            raise Misplaced(name, f"has no key `{key}` for `{effect.value}`; the keys are {valid}")
        right = isinstance(position, int | str) and not isinstance(position, bool)
        if not right or (isinstance(position, int) and position < 0):
            raise Misplaced(
                name, f"needs the place (from 0) or the name of an argument for `{key}`"
            )
    return Taught(name, effect, tuple(rest.items()))


def effect_of(name: str, value: object) -> Effect:
    for effect in Effect:
        if value == effect.value:
            return effect
    valid = ", ".join(f"`{effect.value}`" for effect in Effect)
    raise Misplaced(name, f"has no effect `{value}`; the effects are {valid}")
