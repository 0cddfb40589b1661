"""Recurrent layers step by step, with the cells that CUDA fuses; cuDNN's own are not known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from oomlint.verify.attending import composed, kept, transformed
from oomlint.verify.attention import HALVES
from oomlint.verify.device import Device, on_device
from oomlint.verify.mixed_precision import cast_once

aten: Any = torch.ops.aten
States = tuple[torch.Tensor, ...]
# One step: what it reads, the states before it, its weights and biases; the states after it.
Step = Callable[[torch.Tensor, States, list[torch.Tensor]], States]


def lstm_formula(x: Any, h: Any, cell: Any, bias: Any = None, other: Any = None) -> States:
    gates = x + h if bias is None else x + h + bias + other
    enter, forget, new, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru_formula(x: Any, h: Any, state: Any, bias: Any = None, other: Any = None) -> States:
    x, h = (x, h) if bias is None else (x + bias, h + other)
    (reset, update, new), (hidden, hidden_update, hidden_new) = x.chunk(3, 1), h.chunk(3, 1)
    new = (new + (reset + hidden).sigmoid() * hidden_new).tanh()
    return (new + (update + hidden_update).sigmoid() * (state - new),)


# The width that a fused cell saves for each element of its state.
SAVED = {lstm_formula: 4, gru_formula: 5}


class Cell(torch.autograd.Function):  # type: ignore[misc]
    """A fused cell: it keeps its inputs and one workspace, whatever its formula computes."""

    @staticmethod
    def forward(ctx: Any, device: Device, formula: Any, *given: Any) -> Any:
        state = given[2]
        ctx.set_materialize_grads(False)
        with device.paused():
            wide = (None if one is None else one.float() for one in given)
            made = tuple(one.to(state.dtype).contiguous() for one in formula(*wide))
        marks = kept(device, [state.numel() * state.element_size() * SAVED[formula]])
        for one in made:
            device.tag(one)
        # Beside its inputs an LSTM's cell keeps its new state, which the next one reads.
        ctx.save_for_backward(*given, *made[1:], *marks)
        ctx.device, ctx.formula, ctx.given = device, formula, len(given)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        device: Device = ctx.device
        given = [one for one in ctx.saved_tensors[: ctx.given] if one is not None]
        with device.paused():
            wide: Any = [one.detach().float().requires_grad_() for one in given]
            with torch.enable_grad():
                values = ctx.formula(*wide)
            pairs = [(v, g.float()) for v, g in zip(values, grads, strict=True) if g is not None]
            found = torch.autograd.grad([v for v, _ in pairs], wide, [g for _, g in pairs])
            made = [g.to(one.dtype).contiguous() for g, one in zip(found, given, strict=True)]
        if ctx.formula is lstm_formula:  # both products, and both biases, have one gradient
            made[1] = made[0]
            made[4:] = made[3:4] * len(made[4:])
        for one in made:
            device.tag(one)
        return None, None, *made, *(None,) * (5 - len(made))


def fused(device: Device, formula: Any) -> Step:
    def step(x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        products = x @ weights[0].t(), states[0] @ weights[1].t()
        biases: Any = weights[2:4] if len(weights) > 3 else [None, None]
        state = states[-1]
        if torch.is_autocast_enabled("cuda"):
            state, *biases = cast_once([state, *biases], products[0].dtype)
        made = Cell.apply(device, formula, *products, state, *biases)
        if not isinstance(made, tuple):
            return (made,)
        # A fifth weight, or a third where there are no biases, projects what the next step reads.
        return (made[0] @ weights[-1].t(), *made[1:]) if len(weights) % 2 else made

    return step


def plain(activation: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        linear, biases = torch.nn.functional.linear, weights[2:] or [None, None]
        read = linear(x, weights[0], biases[0])
        return (activation(read + linear(states[0], weights[1], biases[1])),)

    return step


@dataclass(frozen=True, slots=True)
class Direction:
    """One layer in one direction over sequences, which are as long as each other or packed."""

    step: Step
    sizes: list[int] | None  # sequences at each step, where they are packed
    backwards: bool

    def run(
        self, x: Any, states: States, weights: list[torch.Tensor]
    ) -> tuple[torch.Tensor, States]:
        """What all steps made, and the states after the last; `x` is a list of what they read."""
        if self.sizes is None:
            return self.along(x, states, weights)
        return self.over_shrinking(x, self.sizes, states, weights)

    def along(
        self, steps: list[torch.Tensor], states: States, weights: list[torch.Tensor]
    ) -> tuple[torch.Tensor, States]:
        order, made = -1 if self.backwards else 1, []
        for x in steps[::order]:
            states = self.step(x, states, weights)
            made.append(states[0])
        return torch.stack(made[::order]), states

    def over_shrinking(
        self, x: torch.Tensor, sizes: list[int], given: States, weights: list[torch.Tensor]
    ) -> tuple[torch.Tensor, States]:
        """Forwards the shortest sequences leave first, backwards they enter last."""
        ends = list(itertools.accumulate(sizes))
        order, made, ended = -1 if self.backwards else 1, [], []
        states = tuple(one[: sizes[-1]] for one in given) if self.backwards else given
        for end, count in list(zip(ends, sizes, strict=True))[::order]:
            before = len(states[0])
            if count < before:
                ended.append(tuple(one[count:] for one in states))
                states = tuple(one[:count] for one in states)
            elif count > before:
                new = (one[before:count] for one in given)
                states = tuple(torch.cat(pair) for pair in zip(states, new, strict=True))
            states = self.step(x.narrow(0, end - count, count), states, weights)
            made.append(states[0])
        if ended:
            parts = (states, *reversed(ended))
            states = tuple(torch.cat(one) for one in zip(*parts, strict=True))
        return torch.cat(made[::order]), states


def layered(
    step: Step, x: torch.Tensor, sizes: list[int] | None, first: list[Any], network: Network
) -> tuple[torch.Tensor, list[States]]:
    """Layers one after the other, and both directions of each."""
    last = []
    for place in range(network.layers):
        sides = []
        # Both directions read the same steps, whose gradients are put together once.
        read = list(x.unbind(0)) if sizes is None else x
        for way in range(network.ways):
            number = place * network.ways + way
            states = tuple(one[number] for one in first)
            side, states = Direction(step, sizes, bool(way)).run(
                read, states, network.weights(number)
            )
            sides.append(side)
            last.append(states)
            del side, states
        del read
        x = torch.cat(sides, -1) if network.ways > 1 else sides[0]
        del sides
        if network.dropout and place < network.layers - 1:
            x = torch.dropout(x, network.dropout, True)
    return x, last


@dataclass(frozen=True, slots=True)
class Network:
    """The weights of all layers, in torch's order; `dropout` is 0 in evaluation."""

    params: list[torch.Tensor]
    layers: int
    ways: int
    dropout: float

    def weights(self, number: int) -> list[torch.Tensor]:
        width = len(self.params) // (self.layers * self.ways)
        return self.params[number * width : (number + 1) * width]


def recur(device: Device, name: str, step: Step) -> dict[Any, Callable[..., Any]]:
    """The operators, of whole sequences and of packed ones, and what runs them."""
    whole, packed = getattr(aten, name).input, getattr(aten, name).data

    def runs(operator: Any, x: torch.Tensor) -> bool:
        if not on_device(x) or transformed() or (name == "lstm" and by_cudnn(x)):
            return False
        if torch.backends.cudnn.enabled:
            device.operators.add(operator)  # and what cuDNN takes for it is not known
        return True

    def run(x: torch.Tensor, sizes: list[int] | None, given: Any, params: Any, *rest: Any) -> Any:
        _, layers, dropout, train, bidirectional = rest
        network = Network(params, layers, 1 + bidirectional, dropout if train else 0.0)
        first = [one.unbind(0) for one in (given if name == "lstm" else [given])]
        x, last = layered(step, x, sizes, first, network)
        return x, *(torch.stack(one) for one in zip(*last, strict=True))

    def run_whole(x: torch.Tensor, given: Any, params: Any, *rest: Any) -> Any:
        if not runs(whole, x):
            return composed(whole, x, given, params, *rest)
        *options, batch_first = rest
        if not batch_first:
            return run(x, None, given, params, *options)
        made, *states = run(x.transpose(0, 1), None, given, params, *options)
        return made.transpose(0, 1), *states

    def run_packed(x: torch.Tensor, sizes: Any, given: Any, params: Any, *rest: Any) -> Any:
        if not runs(packed, x):
            return composed(packed, x, sizes, given, params, *rest)
        return run(x, sizes.tolist(), given, params, *rest)

    return {whole: run_whole, packed: run_packed}


def single(device: Device, operator: Any, step: Step) -> Callable[..., Any]:
    """One step, as the cells of torch.nn take it."""

    def run(x: torch.Tensor, given: Any, *weights: Any) -> Any:
        if not on_device(x) or transformed():
            return composed(operator, x, given, *weights)
        states = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        made = step(x, states, [one for one in weights if one is not None])
        return made if len(made) > 1 else made[0]

    return run


def by_cudnn(x: torch.Tensor) -> bool:
    """What cuDNN saves is nearer to what the CPU's own layer does; that one has no halves."""
    if not torch.backends.cudnn.enabled or x.dtype in HALVES:
        return False
    return not torch.is_autocast_enabled("cuda")


def layers(device: Device) -> dict[Any, Callable[..., Any]]:
    """The recurrent layers and cells by operator."""
    lstm, gru = fused(device, lstm_formula), fused(device, gru_formula)
    steps = {
        "lstm": lstm,
        "gru": gru,
        "rnn_tanh": plain(torch.tanh),
        "rnn_relu": plain(torch.relu),
    }
    cells = {aten.lstm_cell.default: lstm, aten.gru_cell.default: gru}
    found = {operator: single(device, operator, step) for operator, step in cells.items()}
    for name, step in steps.items():
        found |= recur(device, name, step)
    return found
