"""Builds what stands in for a function's parameters, by the plan and one guess at the shapes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from oomlint.analysis.knowledge import Role
from oomlint.verify import batches, networks
from oomlint.verify.batches import SHOWN, TARGETS, built
from oomlint.verify.conditions import ABSENT, PRESENT
from oomlint.verify.networks import LAYERS, RATE
from oomlint.verify.permissive import Answers, Permissive, plain_value, satisfying
from oomlint.verify.plan import (
    CONFIG,
    DATASET,
    DEVICE,
    INSTANCE,
    SETTING,
    TENSOR,
    UNKNOWN,
    Part,
    Plan,
    names_of,
)
from oomlint.verify.values_by_name import ACCUMULATED, BATCH, CLASSES, VOCABULARY, kinds_of

MAX_GUESSES = 60
# What a call of a model may be used as where its use does not say.
OUTPUTS: tuple[Any, ...] = (
    networks.BY_POSITION,
    networks.FLAT,
    "loss",
    ["output", "hidden"],
    {"loss": "loss", "logits": "output"},
)
MADE_LAST = {Role.OPTIMIZER.value: 1, Role.SCHEDULER.value: 2, INSTANCE: 3}
TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}


@dataclass(frozen=True, slots=True)
class Guess:
    """The kind of every tensor by name, and what a call of the model gives (None: as planned).

    With `filled` parameters do not keep their defaults; `shape` is that of a model's first output,
    where a failure told it; with `group` there is a process group of one.
    """

    kinds: dict[str, str] = field(default_factory=dict)
    output: Any = None
    filled: bool = False
    shape: tuple[int, ...] = ()
    group: bool = False


@dataclass(frozen=True, slots=True)
class StoodIn:
    """One sentence's worth: the parameter, what stands in for it, how its part is known."""

    name: str
    what: str
    why: str


def guesses(parts: Iterable[Part], targets: str = "", filled: bool = False) -> list[Guess]:
    """Combinations of kinds and outputs, the likeliest first."""
    parts = tuple(parts)
    named: dict[str, tuple[str, ...]] = {}
    position = 0
    for part in parts:
        if part.role not in (Role.LOADER.value, DATASET, TENSOR):
            continue
        for name in names_of(part.batch):
            sure = part.kinds.get(name)
            named.setdefault(name, (sure,) if sure else kinds_of(name, position, targets))
            position += 1
    models = [part for part in parts if part.role in (Role.MODEL.value, Role.ENGINE.value)]
    plain = any(isinstance(part.outputs.get("", "output"), str) for part in models)
    outputs = (None, *OUTPUTS) if plain and models else (None,)
    sizes = [len(kinds) for kinds in named.values()] + [len(outputs)]
    found = []
    for choice in islice(by_rank(sizes), MAX_GUESSES):
        kinds = {name: kinds[at] for (name, kinds), at in zip(named.items(), choice, strict=False)}
        found.append(Guess(kinds, outputs[choice[-1]], filled))
    return found


def by_rank(sizes: list[int]) -> Iterator[tuple[int, ...]]:
    """All index vectors below `sizes`, by their sum."""

    def of_sum(total: int, sizes: list[int]) -> Iterator[tuple[int, ...]]:
        if not sizes:
            if total == 0:
                yield ()
            return
        for first in range(min(total, sizes[0] - 1) + 1):
            for rest in of_sum(total - first, sizes[1:]):
                yield (first, *rest)

    for total in range(sum(sizes) - len(sizes) + 1):
        yield from of_sum(total, sizes)


class Builder:
    """Makes one set of stand-ins; models before what needs their parameters."""

    def __init__(self, guess: Guess, count: int, cls: type | None, plan: Plan) -> None:
        self.guess, self.count, self.cls, self.wanted = guess, count, cls, plan.wanted
        self.device = torch.device("cuda")
        self.answers = Answers(self.device, wanted=plan.wanted, sections=frozenset(plan.sections))
        self.made: dict[str, Any] = {}
        self.models: dict[str, torch.nn.Module] = {}
        self.stood: list[StoodIn] = []

    def build(self, parts: Iterable[Part], given: dict[str, Any]) -> dict[str, Any]:
        """Values by name, those that were given among them."""
        self.made.update(given)
        self.models.update(
            {name: made for name, made in given.items() if isinstance(made, torch.nn.Module)}
        )
        parts = tuple(parts)
        for part in sorted(parts, key=lambda part: MADE_LAST.get(part.role, 0)):
            value, what = self.value_of(part)
            self.made[part.name] = value
            whose = ", as a global name" if part.is_global else ""
            self.stood.append(StoodIn(part.name, what + whose, part.why))
        if self.guess.group:
            alone()
            self.stood.append(StoodIn("torch.distributed", "a group of one process", "its use"))
        order = [part.name for part in parts] + ["torch.distributed"]
        self.stood.sort(key=lambda one: order.index(one.name))
        return self.made

    def value_of(self, part: Part) -> tuple[Any, str]:
        """What stands in for a part: None where the rows ask for it, or nothing else is known."""
        asked = self.wanted.get(part.name)
        if asked == ABSENT or (asked is False and part.role not in (SETTING, CONFIG)):
            return None, "None, for the line to be reached"
        if part.role == UNKNOWN and part.may_be_none and part.name not in self.wanted:
            return None, "None, which it allows"
        if part.role in (SETTING, UNKNOWN) and asked is not None and asked != PRESENT:
            value = satisfying(asked, self.setting(part)[0])
            return value, f"{value!r}, for the line to be reached"
        return MAKERS[part.role](self, part)

    def other(self, name: str, holds_settings: bool = False) -> Permissive:
        return Permissive(name, self.answers, holds_settings)

    def goal(self, parts: Iterable[str] = ()) -> str | None:
        kinds = list(self.guess.kinds.values())
        return next((kind for kind in kinds[1:] if kind in TARGETS), None)

    # -- one method a role

    def model(self, part: Part) -> tuple[Any, str]:
        outputs = dict(part.outputs)
        if self.guess.output is not None and isinstance(outputs.get("", "output"), str):
            outputs[""] = self.guess.output
        kind = networks.Engine if part.role == Role.ENGINE.value else networks.Network
        made = kind(outputs, self.goal(), self.other(part.name), tuple(self.guess.shape))
        made = made.to(self.device)
        self.models[part.name] = made
        shape = "x".join(str(size) for size in self.guess.shape)
        shown = shape or shown_output(outputs.get("", "output"), self.goal())
        return made, f"a network of {LAYERS} layers, called for {shown}"

    def optimizer(self, part: Part) -> tuple[Any, str]:
        model = self.model_of(part.name)
        chosen = [self.models[model]] if model else list(self.models.values())
        parameters = [parameter for one in chosen for parameter in one.parameters()]
        if not parameters:
            parameters = [torch.nn.Parameter(torch.zeros(1, device=self.device))]
        whose = model or (" and ".join(self.models) or "one number")
        return torch.optim.SGD(parameters, lr=RATE), f"SGD over {whose}"

    def model_of(self, name: str) -> str:
        """The model that shares the end of an optimizer's name: netD of optimizer_d."""
        end = name.rstrip("0123456789").lower().rpartition("_")[2][-1:]
        numbered = name[-1] if name[-1].isdigit() else ""
        fits = [one for one in self.models if one.lower().endswith(numbered or end)]
        return fits[0] if len(fits) == 1 and len(self.models) > 1 else ""

    def scheduler(self, part: Part) -> tuple[Any, str]:
        kinds = torch.optim.Optimizer
        optimizers = [one for one in self.made.values() if isinstance(one, kinds)]
        optimizer = optimizers[0] if optimizers else self.optimizer(part)[0]
        made = networks.schedule(optimizer, self.other(part.name))
        return made, "a learning rate that falls by a twentieth a step"

    def scaler(self, part: Part) -> tuple[Any, str]:
        if part.called or part.role == Role.STEPPER.value:
            return networks.Stepper(), "a call that goes backward, clips and steps, as timm's"
        return torch.amp.GradScaler("cuda"), "torch.amp.GradScaler"

    def criterion(self, part: Part) -> tuple[Any, str]:
        made = networks.Loss(part.outputs, self.other(part.name)).to(self.device)
        return made, "cross entropy for integer targets, else mean squared error"

    def loader(self, part: Part) -> tuple[Any, str]:
        count = self.count * ACCUMULATED  # where every batch is a step, the rest is not asked for
        made = batches.loader(part.batch, self.guess.kinds, count, self.other(part.name))
        what = f"{count} batches of {BATCH}: {self.shown(part.batch)}"
        if part.is_iterator:
            return forever(made), what
        return made, what

    def dataset(self, part: Part) -> tuple[Any, str]:
        count = self.count * ACCUMULATED * BATCH
        made = batches.Drawn(part.batch, self.guess.kinds, count)
        return made, f"{count} samples: {self.shown(part.batch)}"

    def tensor(self, part: Part) -> tuple[Any, str]:
        kinds = self.guess.kinds
        made = built(part.batch, lambda name: placed(batches.batch_of(kinds[name]), self.device))
        return made, f"a batch of {BATCH}: {self.shown(part.batch)}"

    def shown(self, structure: Any) -> str:
        parts = [(name, SHOWN[self.guess.kinds[name]]) for name in names_of(structure)]
        if isinstance(structure, str):
            return parts[0][1]
        return ", ".join(what if name == "_" else f"{name} {what}" for name, what in parts)

    def place(self, part: Part) -> tuple[Any, str]:
        return self.device, "cuda"

    def setting(self, part: Part) -> tuple[Any, str]:
        value = plain_value(part.name.rpartition(".")[2], self.device)
        wanted = TYPES.get(part.annotation)
        if wanted is not None and (type(value) is not wanted):
            value = part.name if wanted is str else wanted(bool(value)) if value else wanted(1)
        return (1 if value is None else value), repr(1 if value is None else value)

    def permissive(self, part: Part) -> tuple[Any, str]:
        return self.other(part.name), "an object that allows everything"

    def settings(self, part: Part) -> tuple[Any, str]:
        return self.other(part.name, holds_settings=True), "settings that allow everything"

    def accelerator(self, part: Part) -> tuple[Any, str]:
        made = networks.Accelerator(self.device, self.other(part.name))
        return made, "one process of Accelerate's kind"

    def instance(self, part: Part) -> tuple[Any, str]:
        """An object of the class whose constructor did not run."""
        assert self.cls is not None
        made: Any = object.__new__(self.cls)
        if isinstance(made, torch.nn.Module):
            torch.nn.Module.__init__(made)
        names = [name for name in self.made if name.startswith("self.")]
        for name in names:
            try:
                setattr(made, name.removeprefix("self."), self.made[name])
            except AttributeError:  # a property
                continue
        return made, f"a {self.cls.__name__} without its constructor"


def alone() -> None:
    """Makes this process the only one of the default group."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def forever(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def placed(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [placed(inner, device) for inner in value]
    if isinstance(value, dict):
        return {key: placed(inner, device) for key, inner in value.items()}
    return value.to(device)


def shown_output(structure: Any, goal: str | None) -> str:
    if not isinstance(structure, str):
        return ", ".join(names_of(structure))
    if networks.LOSS.search(structure):
        return "a loss"
    if structure in (networks.BY_POSITION, networks.FLAT):
        return f"{VOCABULARY} scores a token"
    if goal in ("label", "boxes", "index"):
        return f"{CLASSES} scores a sample"
    if goal == "tokens":
        return f"{VOCABULARY} scores a token"
    return "what is shaped as its input" if goal is None else "what is shaped as the target"


Maker = Callable[[Builder, Part], tuple[Any, str]]
MAKERS: dict[str, Maker] = {
    Role.MODEL.value: Builder.model,
    Role.ENGINE.value: Builder.model,
    Role.OPTIMIZER.value: Builder.optimizer,
    Role.SCHEDULER.value: Builder.scheduler,
    Role.SCALER.value: Builder.scaler,
    Role.STEPPER.value: Builder.scaler,
    Role.CRITERION.value: Builder.criterion,
    Role.LOADER.value: Builder.loader,
    Role.ACCELERATOR.value: Builder.accelerator,
    Role.ENVIRONMENT.value: Builder.permissive,
    DATASET: Builder.dataset,
    TENSOR: Builder.tensor,
    DEVICE: Builder.place,
    SETTING: Builder.setting,
    CONFIG: Builder.settings,
    UNKNOWN: Builder.permissive,
    INSTANCE: Builder.instance,
}


def needed(
    parts: Iterable[Part], given: Iterable[str], filled: bool, wanted: Iterable[str] = ()
) -> tuple[Part, ...]:
    """What is to be stood in for: a default stays, but for those of devices and of settings.

    One that is `wanted` otherwise is no default, either.
    """
    known, asked = set(given), set(wanted)
    return tuple(
        part
        for part in parts
        if part.name not in known
        and (not part.optional or filled or part.role in (DEVICE, CONFIG) or part.name in asked)
        and not ("self" in known and part.name.startswith("self."))
    )


def arguments(
    function: Any, values: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments: what was given, and stand-ins for the rest."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    for name, parameter in inspect.signature(function).parameters.items():
        if name in bound.arguments or name not in values:
            continue
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            bound.arguments[name] = values[name]
    return bound.args, bound.kwargs
