"""Recurrent layers step by step, with the cells that CUDA fuses; cuDNN's own are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.attending import composed, kept, transformed
from oomlint.verify.attention import HALVES
from oomlint.verify.device import Device, on_device
from oomlint.verify.mixed_precision import cast

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
        state, biases = states[-1], weights[2:] or [None, None]
        if torch.is_autocast_enabled("cuda"):
            state, *biases = cast([state, *biases], products[0].dtype)
        made = Cell.apply(device, formula, *products, state, *biases)
        return made if isinstance(made, tuple) else (made,)

    return step


def plain(activation: Callable[[torch.Tensor], torch.Tensor]) -> Step:
    def step(x: torch.Tensor, states: States, weights: list[torch.Tensor]) -> States:
        linear, biases = torch.nn.functional.linear, weights[2:] or [None, None]
        read = linear(x, weights[0], biases[0])
        return (activation(read + linear(states[0], weights[1], biases[1])),)

    return step


def layer(
    step: Step, steps: list[torch.Tensor], states: States, weights: list[torch.Tensor]
) -> tuple[list[torch.Tensor], States]:
    made = []
    for x in steps:
        states = step(x, states, weights)
        made.append(states[0])
    return made, states


def recur(device: Device, name: str, step: Step) -> tuple[Any, Callable[..., Any]]:
    """The operator and what runs it: layers one after the other, and both directions of each."""
    operator = getattr(aten, name).input

    def run(
        x: torch.Tensor,
        given: Any,
        params: list[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        rest = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
        ways, width = 1 + bidirectional, 4 if has_biases else 2
        if (
            not on_device(x)
            or transformed()
            or len(params) != width * num_layers * ways  # with a projection
            or (name == "lstm" and by_cudnn(x))
        ):
            return composed(operator, x, given, params, *rest)
        if torch.backends.cudnn.enabled:
            device.operators.add(operator)  # and what cuDNN takes for it is not known
        first = [one.unbind(0) for one in (given if name == "lstm" else [given])]
        x = x.transpose(0, 1) if batch_first else x
        last = []
        for place in range(num_layers):
            sides = []
            for way in range(ways):
                number = place * ways + way
                weights = params[number * width : (number + 1) * width]
                steps = list(x.unbind(0))
                states = tuple(one[number] for one in first)
                outputs, states = layer(step, steps[:: -1 if way else 1], states, weights)
                sides.append(torch.stack(outputs[:: -1 if way else 1]))
                last.append(states)
                del outputs, states, steps
            x = torch.cat(sides, -1) if bidirectional else sides[0]
            del sides
            if dropout and train and place < num_layers - 1:
                x = torch.dropout(x, dropout, True)
        x = x.transpose(0, 1) if batch_first else x
        return x, *(torch.stack(one) for one in zip(*last, strict=True))

    return operator, run


def by_cudnn(x: torch.Tensor) -> bool:
    """What cuDNN saves is nearer to what the CPU's own layer does; that one has no halves."""
    if not torch.backends.cudnn.enabled or x.dtype in HALVES:
        return False
    return not torch.is_autocast_enabled("cuda")


def layers(device: Device) -> dict[Any, Callable[..., Any]]:
    """The recurrent layers by operator."""
    steps = {
        "lstm": fused(device, lstm_formula),
        "gru": fused(device, gru_formula),
        "rnn_tanh": plain(torch.tanh),
        "rnn_relu": plain(torch.relu),
    }
    return dict(recur(device, name, step) for name, step in steps.items())
