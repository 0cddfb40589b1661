"""The formula that textbooks give for the memory of a training step, with its sources.

Weights, gradients and the optimizer's state are so many bytes a parameter:

    float32              4 + 4 + 4 for each value that the optimizer keeps
    autocast             4, 2 for a copy in half precision, 4, and the state as in float32
    weights in halves    2 + 2, the state in float32, 4 for a float32 copy of the weights

The first two are the table of Hugging Face's "Model memory anatomy"
(https://huggingface.co/docs/transformers/model_memory_anatomy), the third is section 3.1 of
"ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054).

Activations of a transformer layer are `s b h (34 + 5 a s / h)` bytes in halves, for a length of s,
a batch of b, a width of h and a heads: equation 2 of "Reducing Activation Recomputation in Large
Transformer Models" (arXiv:2205.05198). With values of e bytes and the masks of dropout of one byte,
from which it is derived there, that is `s b h (16 e + 2) + a s s b (2 e + 1)`; the second term goes
where the scores are not kept (its equation 6, and any fused attention). Where no attention was seen
the rule of model summaries such as torchinfo is taken: twice what all layers return.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FLOAT, HALF = 4, 2  # bytes of a value
FLOAT32, AUTOCAST, HALVES = "float32", "autocast", "half precision"
# Bytes that optimizers keep for each parameter: 4 for every value (the pages of torch.optim), and
# one for a value that bitsandbytes keeps in 8 bits. By the name of the class in lower case.
STATE = {
    "sgd": 0,
    "adam": 8,
    "adamw": 8,
    "adamax": 8,
    "nadam": 8,
    "radam": 8,
    "sparseadam": 8,
    "adadelta": 8,
    "rprop": 8,
    "rmsprop": 4,
    "adagrad": 4,
    "asgd": 4,
    "muon": 4,
    "lion": 4,
    "adam8bit": 2,
    "adamw8bit": 2,
    "pagedadam8bit": 2,
    "pagedadamw8bit": 2,
    "lion8bit": 1,
}
# Options with which an optimizer keeps one value more: of that name, or of any.
ONE_MORE = ("amsgrad", "centered", "momentum")
ADDS_MOMENTUM = ("sgd", "rmsprop")
WEIGHTS_SOURCE = "https://huggingface.co/docs/transformers/model_memory_anatomy"
HALVES_SOURCE = "arXiv:1910.02054, section 3.1"
LAYERS_SOURCE = "arXiv:2205.05198, equations 2 and 6"
OUTPUTS_SOURCE = "the rule of model summaries such as torchinfo"


@dataclass(frozen=True, slots=True)
class Layer:
    """An attention that ran: a batch of sequences, their length, the model's width, its heads."""

    batch: int
    length: int
    width: int
    heads: int
    fused: bool  # whether the scores are not kept


@dataclass(frozen=True, slots=True)
class Optimizer:
    """`state` are the textbook's bytes for each of `elements` parameters, None if unknown."""

    name: str
    state: int | None
    elements: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters of one size of element, in elements."""

    size: int  # bytes of one
    trained: int
    frozen: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the formula asks of a run, and what of its parts was held; bytes on the device.

    The parts that were held are the most that there was at any step of an optimizer, the
    activations those of one forward pass by the modules that ran.
    """

    weights: tuple[Weights, ...] = ()
    optimizers: tuple[Optimizer, ...] = ()
    autocast: bool = False
    outputs: int = 0  # bytes that modules returned which called no other module
    layers: tuple[Layer, ...] = ()
    parameters: int = 0
    gradients: int = 0
    state: int = 0
    backward: bool = False  # whether something is trained

    @property
    def trained(self) -> int:
        return sum(one.trained for one in self.weights)

    @property
    def halves(self) -> bool:
        """Whether most of what is trained lies in half precision."""
        return 2 * sum(one.trained for one in self.weights if one.size <= HALF) > self.trained

    @property
    def precision(self) -> str:
        if self.halves:
            return HALVES
        return AUTOCAST if self.autocast else FLOAT32


def facts_from(entry: dict[str, Any]) -> Facts:
    """What a child wrote of them as JSON."""
    kinds: dict[str, Any] = {"weights": Weights, "optimizers": Optimizer, "layers": Layer}
    lists = {name: tuple(kind(**one) for one in entry[name]) for name, kind in kinds.items()}
    return Facts(**{**entry, **lists})


@dataclass(frozen=True, slots=True)
class Formula:
    """The textbook's bytes; None where it has no number."""

    parameters: int
    copies: int  # in half precision, of autocast
    gradients: int
    state: int | None
    activations: int | None

    @property
    def total(self) -> int:
        known = self.parameters + self.copies + self.gradients
        return known + (self.state or 0) + (self.activations or 0)


def formula(facts: Facts) -> Formula:
    elements = facts.trained + sum(one.frozen for one in facts.weights)
    return Formula(
        parameters=sum(one.size * (one.trained + one.frozen) for one in facts.weights),
        copies=HALF * elements if facts.precision == AUTOCAST else 0,
        gradients=sum(one.size * one.trained for one in facts.weights) if facts.backward else 0,
        state=state(facts),
        activations=activations(facts),
    )


def state(facts: Facts) -> int | None:
    if any(one.state is None for one in facts.optimizers):
        return None
    kept = sum((one.state or 0) * one.elements for one in facts.optimizers)
    masters = FLOAT * facts.trained if facts.halves and facts.optimizers else 0
    return kept + masters


def activations(facts: Facts) -> int | None:
    if not facts.backward:
        return 0
    if facts.layers:
        size = FLOAT if facts.precision == FLOAT32 else HALF
        return sum(layer_bytes(layer, size) for layer in facts.layers)
    return 2 * facts.outputs or None


def layer_bytes(layer: Layer, size: int) -> int:
    """What one transformer layer keeps for the backward pass with values of so many bytes."""
    tokens = layer.batch * layer.length
    scores = 0 if layer.fused else layer.heads * layer.length * tokens * (2 * size + 1)
    return tokens * layer.width * (16 * size + 2) + scores


def state_of(name: str, options: dict[str, Any]) -> int | None:
    """Bytes for each parameter that the textbook counts for an optimizer of that class."""
    known = name.lower()
    bytes_kept = STATE.get(known)
    if bytes_kept is None:
        return None
    more = (option for option in ONE_MORE if option != "momentum" or known in ADDS_MOMENTUM)
    return bytes_kept + FLOAT * sum(bool(options.get(option)) for option in more)


def sources(facts: Facts) -> tuple[str, ...]:
    """Where each part of the formula comes from, a sentence each."""
    weights = HALVES_SOURCE if facts.halves else WEIGHTS_SOURCE
    found = [f"parameters, gradients and optimizer state in {facts.precision}: {weights}"]
    if facts.layers:
        kind = "fused attention" if all(layer.fused for layer in facts.layers) else "attention"
        number = len(facts.layers)
        found.append(f"activations of {number} layers with {kind}: {LAYERS_SOURCE}")
    elif facts.outputs and facts.backward:
        found.append(f"activations, twice what the layers return: {OUTPUTS_SOURCE}")
    return tuple(found)
