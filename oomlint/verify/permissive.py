"""An object that allows whatever a function does with it: settings, loggers, unknown helpers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomlint.verify.values_by_name import setting


class Permissive(int):
    """The number one that is false, can be called, entered and indexed, and has every attribute.

    An attribute or a key whose name says what it holds gives a plain value (`lr` a number, `amp`
    False, `device` the device; words and bools only of what `holds_settings`); any other gives
    another such object. `asked` collects what was given out, by dotted name.
    """

    def __new__(
        cls, name: str, asked: dict[str, str], device: Any = "cuda", holds_settings: bool = False
    ) -> Permissive:
        made = super().__new__(cls, 1)
        vars(made).update(own_name=name, asked=asked, own_device=device, words=holds_settings)
        return made

    def give(self, key: str) -> Any:
        known = vars(self)
        value = plain_value(key, known["own_device"])
        name = f"{known['own_name']}.{key}"
        # Elsewhere such names are as often those of methods: `meter.value`, `engine.train()`.
        if value is None or (isinstance(value, (str, bool)) and not known["words"]):
            value = Permissive(name, known["asked"], known["own_device"], known["words"])
            known["asked"].setdefault(name, "")
        else:
            known["asked"][name] = str(value)
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
