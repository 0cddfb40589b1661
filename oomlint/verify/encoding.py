"""The encoder layers that torch runs as one operator in evaluation, as CUDA's kernels run them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from oomlint.verify import attention
from oomlint.verify.device import KEYS, Device, on_device, tensors_in

aten: Any = torch.ops.aten
HEAD_STEP = 8  # width of a head that fused attention asks for here


def attend(
    device: Device,
    query: torch.Tensor,
    heads: int,
    packed: tuple[torch.Tensor, torch.Tensor],
    out: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    kind: int | None,
    need_weights: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Self-attention; the second tensor holds the weights of each head, where they are needed."""
    batch, lines, width = query.shape
    shape = batch, lines, heads, width // heads
    fused = mask is None and not need_weights and fits(device, query.view(shape).transpose(1, 2))
    if fused:
        parts = F.linear(query, *packed).chunk(3, -1)
        made = F.scaled_dot_product_attention(*(one.view(shape).transpose(1, 2) for one in parts))
        return F.linear(made.transpose(1, 2).reshape(query.shape), *out), None
    products = F.linear(query, packed[0])
    q, k, v = aten._transform_bias_rescale_qkv(products, packed[1], heads)
    del products
    weights = q @ k.mT
    if mask is None:
        with device.paused():
            weights.copy_(weights.softmax(-1))
    else:
        weights = aten._masked_softmax(weights, mask.bool(), 3, kind)
    with device.paused():  # into the memory of the queries
        q.copy_(weights @ v)
    if not need_weights:
        del weights
    made = F.linear(q.transpose(1, 2).reshape(query.shape), *out)
    return made, weights if need_weights else None


def fits(device: Device, query: torch.Tensor) -> bool:
    """Whether attention is fused; the kernels that compose it are asked for by the mask alone."""
    if query.shape[-1] % HEAD_STEP:
        return False
    capability = device.profile.capability
    kind = attention.kernel(query, query, query, None, False, False, capability)
    return bool(kind != attention.MATH)


def heads(device: Device) -> Callable[..., Any]:
    """What runs `_native_multi_head_attention`."""
    operator = aten._native_multi_head_attention.default

    def run(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        width: int,
        count: int,
        packed: torch.Tensor,
        packed_bias: torch.Tensor,
        out: torch.Tensor,
        out_bias: torch.Tensor,
        mask: torch.Tensor | None = None,
        need_weights: bool = True,
        average: bool = True,
        kind: int | None = None,
    ) -> Any:
        if query is not key or key is not value or not known(query):
            rest = (width, count, packed, packed_bias, out, out_bias, mask)
            return whole(device, operator, query, key, value, *rest, need_weights, average, kind)
        given = (packed, packed_bias), (out, out_bias)
        made, weights = attend(device, query, count, *given, mask, kind, need_weights)
        if weights is not None and average:
            weights = weights.sum(1).div_(count)
        return made, weights

    return run


def layer(device: Device) -> Callable[..., Any]:
    """What runs `_transformer_encoder_layer_fwd`."""
    operator = aten._transformer_encoder_layer_fwd.default

    def run(
        x: torch.Tensor,
        width: int,
        count: int,
        packed: torch.Tensor,
        packed_bias: torch.Tensor,
        out: torch.Tensor,
        out_bias: torch.Tensor,
        gelu: bool,
        first: bool,
        eps: float,
        *rest: Any,
        mask: torch.Tensor | None = None,
        mask_type: int | None = None,
    ) -> Any:
        if not known(x):
            given = (x, width, count, packed, packed_bias, out, out_bias, gelu, first, eps, *rest)
            return whole(device, operator, *given, mask=mask, mask_type=mask_type)
        norms: Any = rest[:2], rest[2:4]
        up, up_bias, down, down_bias = rest[4:8]
        mask, kind = rest[8] if len(rest) > 8 else mask, rest[9] if len(rest) > 9 else mask_type
        source = x
        if first:
            x = normalize(x, norms[0], eps)
        given = (packed, packed_bias), (out, out_bias)
        x = attend(device, x, count, *given, mask, kind)[0].add_(source)
        if not first:
            x = normalize(x, norms[0], eps)
        source = x
        if first:
            x = normalize(x, norms[1], eps)
        hidden = aten._addmm_activation(up_bias, x.view(-1, width), up.t(), use_gelu=gelu)
        x = F.linear(hidden, down, down_bias).view(source.shape)
        del hidden
        x.add_(source)
        return x if first else normalize(x, norms[1], eps)

    return run


def normalize(x: torch.Tensor, factors: tuple[torch.Tensor, ...], eps: float) -> torch.Tensor:
    weight, bias = factors
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def known(x: torch.Tensor) -> bool:
    return on_device(x) and not x.is_nested


def whole(device: Device, operator: Any, *args: Any, **kwargs: Any) -> Any:
    """The operator as the CPU runs it, seen from outside."""
    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        made = operator(*args, **kwargs)
    if on_device(args[0]):
        for tensor in tensors_in([made]):
            device.tag(tensor)
    return made


def layers(device: Device) -> dict[Any, Callable[..., Any]]:
    """The operators with what runs them."""
    return {
        aten._native_multi_head_attention.default: heads(device),
        aten._transformer_encoder_layer_fwd.default: layer(device),
    }
