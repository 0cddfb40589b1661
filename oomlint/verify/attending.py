"""Attention as CUDA's fused kernels compute it, with what they save and take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from oomlint.verify import attention
from oomlint.verify.attention import (
    BIAS_STEP,
    EFFICIENT,
    FLASH,
    GRADIENT_STEP,
    HALVES,
    HEAD_STEP,
    MATH,
    Shape,
)
from oomlint.verify.device import Device, on_device
from oomlint.verify.sizes import up

aten: Any = torch.ops.aten
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
Gradients = tuple[torch.Tensor | None, ...]


def composed(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator as torch itself composes it."""
    return operator._op_dk(COMPOSITE, *args, **kwargs)


def transformed() -> bool:
    """Whether torch.func looks on: it does not know these kernels."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def kept(device: Device, sizes: Iterable[int]) -> list[torch.Tensor]:
    """Tensors on the device that hold so many bytes."""
    with device.paused():
        made = [torch.empty(size, dtype=torch.uint8, device="cpu") for size in sizes]
    for tensor in made:
        device.tag(tensor)
    return made


@dataclass(frozen=True, slots=True)
class Call:
    """How one attention is computed."""

    device: Device
    kind: str
    causal: bool
    dropout: float
    scale: float | None
    seed: int = 0
    recorded: bool = True  # whether autograd looks on

    def compute(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The values in float32, and what the CPU's own kernel saves."""
        query, key, value = query.float(), key.float(), value.float()
        bias = None if bias is None else bias.float()
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
        if not self.dropout and query.shape[-1] == value.shape[-1] and not grad_of(bias):
            cpu = aten._scaled_dot_product_flash_attention_for_cpu
            return cpu(query, key, value, 0.0, self.causal, attn_mask=bias, scale=self.scale)[:2]  # type: ignore[no-any-return]
        scores = query @ key.mT * (self.scale or 1 / math.sqrt(query.shape[-1]))
        if self.causal:
            above = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cpu").triu(1)
            scores = scores.masked_fill(above, -math.inf)
        weights = (scores if bias is None else scores + bias).softmax(-1)
        if self.dropout:
            dice = torch._C.Generator(device="cpu").manual_seed(self.seed)
            left = torch.rand(weights.shape, generator=dice, device="cpu") >= self.dropout
            weights = weights * left / (1 - self.dropout)
        return weights @ value, None

    def gradients(self, grad: torch.Tensor, inputs: Any, bias_too: bool) -> Gradients:
        """Of query, key, value and, where asked for, of the mask that is added."""
        wide = [None if t is None else t.detach().float() for t in inputs]
        wanted: Any = wide if bias_too else wide[:3]
        for tensor in wanted:
            tensor.requires_grad_()
        with torch.enable_grad():
            values, _ = self.compute(*wide)
        found: Gradients = torch.autograd.grad(values, wanted, grad.float())
        return found


def grad_of(bias: torch.Tensor | None) -> bool:
    return bias is not None and bias.requires_grad


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """One of CUDA's fused kernels."""

    @staticmethod
    def forward(ctx: Any, call: Call, query: Any, key: Any, value: Any, bias: Any) -> Any:
        device, shape = call.device, attention.shape_of(query, key, value)
        with device.paused():
            values = call.compute(query, key, value, bias)[0].to(query.dtype)
            out = laid_out(values, query, call.kind)
        device.tag(out)
        needed = call.recorded and any(ctx.needs_input_grad)
        sums, *state = attention.saved(call.kind, shape, needed)
        marks = kept(device, [sums])
        taken = attention.taken(call.kind, shape, query.dtype, call.dropout, device.profile)
        passing = [device.hold(size) for size in taken]
        marks += kept(device, state)
        passing.clear()
        if needed:
            ctx.save_for_backward(query, key, value, bias, out, *marks)
            ctx.call, ctx.bias_too = call, ctx.needs_input_grad[4]
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        call, bias_too = ctx.call, ctx.bias_too
        device: Device = call.device
        *inputs, out = ctx.saved_tensors[:5]
        copies = [
            device.hold(tensor.numel() * tensor.element_size())
            for tensor in (grad, out)
            if not tensor.transpose(1, 2).is_contiguous()
        ]
        with device.paused():
            found = call.gradients(grad, inputs, bias_too)
            made = [
                laid_out(gradient.to(like.dtype), like, call.kind)
                for gradient, like in zip(found[:3], inputs[:3], strict=True)
            ]
            if bias_too:
                made.append(padded(found[3].to(grad.dtype)))
        for tensor in made:
            device.tag(tensor)
        shape = attention.shape_of(*inputs[:3])
        grouped = inputs[1].shape[1] != shape.heads
        take_backward(device, call.kind, shape, grad.dtype, grouped)
        copies.clear()
        return None, *made, *(() if bias_too else (None,))


def take_backward(
    device: Device, kind: str, shape: Shape, dtype: torch.dtype, grouped: bool
) -> None:
    """What the backward of attention takes only while it runs."""
    half = dtype in HALVES
    if kind == FLASH:
        passing = [device.hold(size) for size in attention.flash_backward(shape)]
        if grouped:
            size = shape.batch * shape.keys * shape.heads * shape.width * dtype.itemsize
            passing += [device.hold(size), device.hold(size)]
    elif half:
        passing = [device.hold(shape.rows * 4)]
    else:
        product = [device.hold(shape.rows * shape.value_width * 4), device.hold(shape.rows * 4)]
        passing = [device.hold(shape.rows * 4)]
        product.clear()
    if kind == EFFICIENT:
        passing.append(device.hold(attention.efficient_workspace(shape, half)))
    passing.clear()


def laid_out(values: torch.Tensor, like: torch.Tensor, kind: str) -> torch.Tensor:
    """Values where the kernel puts them: as `like` for flash attention, else by lines.

    No view: what autograd sums in place has a storage of its own.
    """
    lines, rows = values.transpose(1, 2), like.transpose(1, 2)
    as_given = kind == FLASH and rows.shape == lines.shape
    dense = torch.empty_like(rows) if as_given else lines.new_empty(lines.shape)
    batch, line, head, column = dense.stride()
    made = values.new_empty_strided(values.shape, (batch, head, line, column))
    return made.copy_(values)


def padded(gradient: torch.Tensor) -> torch.Tensor:
    """A mask's gradient, in lines that CUDA's kernel can write."""
    *rest, keys = gradient.shape
    whole = gradient.new_empty((*rest, up(keys, GRADIENT_STEP)), device="cpu")
    return whole[..., :keys].copy_(gradient)


def attend(device: Device) -> Callable[..., Any]:
    operator = aten.scaled_dot_product_attention.default

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        options = {"scale": scale, "enable_gqa": enable_gqa}
        given = attn_mask, dropout_p, is_causal
        if not on_device(query) or transformed() or (is_causal and attn_mask is not None):
            return composed(operator, query, key, value, *given, **options)
        kind = attention.kernel(
            query, key, value, attn_mask, is_causal, enable_gqa, device.profile.capability
        )
        bias = attn_mask
        if kind == MATH and is_causal:
            # As the composed kernel does, which would put its mask on the host.
            lines = query.shape[-2], key.shape[-2]
            bias, is_causal = query.new_ones(lines, dtype=torch.bool).tril(), False
        if bias is not None and bias.dtype is torch.bool:
            zero, never = query.new_zeros(()), query.new_full((), -math.inf)
            bias = torch.where(bias, zero, never)
            del zero, never
        if kind == MATH:
            math_kernel = aten._scaled_dot_product_attention_math.default
            given = bias, dropout_p, is_causal
            return math_kernel(query, key, value, *given, **options)[0]
        width = query.shape[-1]
        if bias is not None:
            keys = key.shape[-2]
            if keys % BIAS_STEP:
                bias = F.pad(bias, (0, -keys % BIAS_STEP))[..., :keys]
            bias = bias.expand(*query.shape[:-1], keys)
        if kind == FLASH and width % HEAD_STEP:
            scale = scale or 1 / math.sqrt(width)
            wider = (0, -width % HEAD_STEP)
            query, key, value = (F.pad(tensor, wider) for tensor in (query, key, value))
        seed = device.generator.draw() >> 2 if dropout_p else 0
        call = Call(device, kind, is_causal, dropout_p, scale, seed, torch.is_grad_enabled())
        made = Attention.apply(call, query, key, value, bias)
        return made if query.shape[-1] == width else made[..., :width]

    return attend
