"""An object that allows whatever a function does with it: settings, loggers, unknown helpers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from oomlint.verify.conditions import ABSENT, PRESENT
from oomlint.verify.values_by_name import setting


@dataclass(frozen=True, slots=True)
class Answers:
    """What the objects of one call give out, by dotted name.

    `asked` collects it; `wanted` is what a row that is to be reached asks for; `sections` are names
    of which something is asked, so that they are no plain values.
    """

    device: Any = "cuda"
    asked: dict[str, str] = field(default_factory=dict)
    wanted: Mapping[str, Any] = field(default_factory=dict)
    sections: frozenset[str] = frozenset()


class Permissive(int):
    """The number one that is false, can be called, entered and indexed, and has every attribute.

    An attribute or a key whose name says what it holds gives a plain value (`lr` a number, `amp`
    False, `device` the device; words and bools only of what `holds_settings`); any other gives
    another such object.
    """

    def __new__(cls, name: str, answers: Answers, holds_settings: bool = False) -> Permissive:
        made = super().__new__(cls, 1)
        vars(made).update(
            own_name=name, own_answers=answers, own_device=answers.device, own_words=holds_settings
        )
        return made

    def give(self, key: str) -> Any:
        answers: Answers = vars(self)["own_answers"]
        words: bool = vars(self)["own_words"]
        name = f"{vars(self)['own_name']}.{key}"
        value = None if name in answers.sections else plain_value(key, answers.device)
        # Elsewhere such names are as often those of methods: `meter.value`, `engine.train()`.
        if isinstance(value, (str, bool)) and not words:
            value = None
        wanted = answers.wanted.get(name, PRESENT)
        if wanted != PRESENT:
            value = satisfying(wanted, value)
        elif value is None:
            value = Permissive(name, answers, words)
        answers.asked[name] = "" if isinstance(value, Permissive) else str(value)
        vars(self)[key] = value
        return value

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return self.give(key)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return vars(self)[key] if key in vars(self) else self.give(key)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        vars(self)[str(key)] = value

    def get(self, key: str, default: Any = None) -> Any:
        return default

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator or a wrapper gives back what it was given.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __bool__(self) -> bool:
        return False

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __contains__(self, item: object) -> bool:
        return False

    def __enter__(self) -> Permissive:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __fspath__(self) -> str:
        return str(vars(self)["own_name"])

    def __deepcopy__(self, memo: Any) -> Permissive:
        return self

    def __str__(self) -> str:
        return str(vars(self)["own_name"])


def satisfying(wanted: Any, value: Any) -> Any:
    """The value if it is as it is wanted (true, false, absent or a constant), else one that is."""
    if wanted == ABSENT:
        return None
    if isinstance(wanted, bool):
        return value if bool(value) == wanted and value is not None else wanted
    return wanted


def plain_value(name: str, device: Any) -> Any:
    """The value that a name asks for, None where the name does not say."""
    value = setting(name)
    match value:
        case "device":
            return device
        case "path":
            return "stand_in"
        case "text":
            return name
        case "dtype":
            import torch

            return torch.float32
    return value
