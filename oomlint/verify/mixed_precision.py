"""autocast("cuda") on the CPU: the same switch, CUDA's choice of precision for each operator."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from oomlint.verify.device import tensors_in

# CUDA's policy, by the lists of torch's `autocast_mode.h`. In float32:
FLOAT32 = tuple(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan"
    " pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm rms_norm"
    " group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity"
    " poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div"
    " l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss"
    " soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist"
    " pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d"
    " _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d"
    " upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d"
    " _upsample_bicubic2d_aa".split()
)
# With a result in float32, unless the caller says which.
FLOAT32_RESULT = tuple(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm"
    " linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList".split()
)
# The same by another overload of the operator.
WITH_DTYPE = {"norm.Scalar": "ScalarOpt_dtype", "norm.ScalarOpt_dim": "ScalarOpt_dim_dtype"}
# In the widest precision of the arguments.
WIDEST = tuple(
    "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot"
    " scatter_add".split()
)
# In the lower precision, and not on the lists of the CPU.
LOWERED = tuple(
    "addmv addr mv chain_matmul einsum linalg_multi_dot lstm_cell gru_cell"
    " rnn_tanh_cell rnn_relu_cell".split()
)
# On the CPU's lists, and on none of CUDA's.
AS_GIVEN = tuple(
    "cat stack index_copy adaptive_avg_pool3d adaptive_max_pool3d avg_pool3d"
    " cholesky cholesky_inverse cholesky_solve"
    " cross_entropy_loss ctc_loss.IntList ctc_loss.Tensor fake_quantize_per_tensor_affine"
    " fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft"
    " fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn fractional_max_pool2d"
    " fractional_max_pool3d geqrf inverse linalg_inv linalg_cholesky linalg_qr linalg_solve"
    " linalg_svd linalg_eigh max_pool3d max_unpool2d max_unpool3d nanquantile"
    " nanquantile.scalar pinverse polar quantile quantile.scalar reflection_pad1d reflection_pad2d"
    " replication_pad1d replication_pad2d replication_pad3d stft stft.center trace"
    " view_as_complex".split()
)
LOWER = (torch.float16, torch.bfloat16)
# What CUDA's autocast says of binary_cross_entropy, whatever its inputs are.
UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "binary_cross_entropy_with_logits and BCEWithLogits are safe to autocast."
)


class Chosen(threading.local):
    """The lower precision of each device type in this thread."""

    cuda: torch.dtype = torch.float16
    cpu: torch.dtype = torch.bfloat16
    on_cuda: bool = False  # whether the autocast that is on is CUDA's


chosen = Chosen()
Kernel = Callable[..., Any]
Policy = Callable[[Any], Kernel]
KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
registrations: list[Any] = []


def install() -> None:
    patch_switches()
    library = torch.library.Library("aten", "IMPL")
    registrations.append(library)
    policies: tuple[tuple[Iterable[str], Policy], ...] = (
        (FLOAT32, in_float32),
        (FLOAT32_RESULT, with_float32_result),
        (WITH_DTYPE, with_dtype),
        (WIDEST, in_widest),
        (LOWERED, lowered),
        (AS_GIVEN, as_given),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for names, policy in policies:
            for name in names:
                library.impl(name, policy(operator_named(name)), "AutocastCPU")
        library.impl("binary_cross_entropy", refused_on_cuda, "AutocastCPU")


def operator_named(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def refused_on_cuda(*args: Any, **kwargs: Any) -> Any:
    if chosen.on_cuda:
        raise RuntimeError(UNSAFE)
    return in_float32(operator_named("binary_cross_entropy"))(*args, **kwargs)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating-point tensors in another precision, in lists too; doubles stay what they are."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if eligible(value) and value.dtype is not dtype else value
    if isinstance(value, (list, tuple)):
        return type(value)(cast(item, dtype) for item in value)
    return value


def cast_once(value: Any, dtype: torch.dtype) -> Any:
    """The same to a lower precision: what is cast of a parameter is kept until autocast ends."""
    if isinstance(value, (list, tuple)):
        return type(value)(cast_once(item, dtype) for item in value)
    if not (isinstance(value, torch.Tensor) and is_kept(value) and dtype in LOWER):
        return cast(value, dtype)
    known = casts.get(id(value))
    if known is None or known[0]() is not value or known[1].dtype is not dtype:
        known = casts[id(value)] = weakref.ref(value), value.to(dtype)
    return known[1]


def is_kept(value: torch.Tensor) -> bool:
    """By `cached_cast` of torch's `autocast_mode.cpp`."""
    leaf = value.is_leaf and value.requires_grad and not value._is_view()
    return leaf and value.dtype is torch.float32 and torch.is_autocast_cache_enabled()


casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}


def eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.dtype is torch.float32 or value.dtype in LOWER
    )


def without_autocast() -> Any:
    return torch._C._ExcludeDispatchKeyGuard(KEYS)


def in_float32(operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            wide = {key: cast(value, torch.float32) for key, value in kwargs.items()}
            return operator(*cast(args, torch.float32), **wide)

    return kernel


def with_float32_result(operator: Any) -> Kernel:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            given = dict(zip(names, args, strict=False)) | kwargs
            if eligible(args[0]) and given.get("dtype") is None:
                given["dtype"] = torch.float32
            return operator(**given)

    return kernel


def with_dtype(operator: Any) -> Kernel:
    other = operator_named(f"norm.{WITH_DTYPE[f'norm.{operator._overloadname}']}")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            if not eligible(args[0]):
                return operator(*args, **kwargs)
            if operator._overloadname == "Scalar":
                power = args[1] if len(args) > 1 else kwargs.get("p", 2)
                return other(args[0], power, dtype=torch.float32)
            names = ("p", "dim", "keepdim")
            given = {"keepdim": False} | dict(zip(names, args[1:], strict=False)) | kwargs
            return other(args[0], *(given[name] for name in names), dtype=torch.float32)

    return kernel


def in_widest(operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            wide = any(t.dtype is torch.float32 for t in tensors_in(args) if eligible(t))
            return operator(*(cast(args, torch.float32) if wide else args), **kwargs)

    return kernel


def lowered(operator: Any) -> Kernel:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("cuda" if chosen.on_cuda else "cpu")
        with without_autocast():
            return operator(*cast_once(args, dtype), **kwargs)

    return kernel


def as_given(operator: Any) -> Any:
    return torch.library.fallthrough_kernel


def patch_switches() -> None:
    """The CPU has one switch in C++: cuda and cpu share it, each with its own default precision."""
    module: Any = torch
    enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    set_dtype = torch.set_autocast_dtype

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return bool(enabled("cpu" if device_type == "cuda" else device_type))

    def set_autocast_enabled(*args: Any) -> None:
        device_type, value = args if len(args) == 2 else ("cuda", args[0])
        chosen.on_cuda = device_type == "cuda" and value
        set_enabled("cpu" if device_type == "cuda" else device_type, value)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if device_type in ("cuda", "cpu"):
            return chosen.cuda if device_type == "cuda" else chosen.cpu
        return base_dtype(device_type)

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type not in ("cuda", "cpu"):
            set_dtype(device_type, dtype)
            return
        setattr(chosen, device_type, dtype)
        set_dtype("cpu", dtype)

    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        casts.clear()
        clear()

    base_dtype = torch.get_autocast_dtype
    module.clear_autocast_cache = clear_autocast_cache
    module.is_autocast_enabled = is_autocast_enabled
    module.set_autocast_enabled = set_autocast_enabled
    module.get_autocast_dtype = get_autocast_dtype
    module.set_autocast_dtype = set_autocast_dtype
    module.get_autocast_gpu_dtype = lambda: get_autocast_dtype("cuda")
    module.set_autocast_gpu_dtype = lambda dtype: set_autocast_dtype("cuda", dtype)
    module.amp.autocast_mode.is_autocast_available = lambda device_type: (
        device_type
        in (
            "cuda",
            "cpu",
        )
    )
    module.amp.is_autocast_available = module.amp.autocast_mode.is_autocast_available
