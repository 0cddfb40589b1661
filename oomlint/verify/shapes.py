"""Runs a script without its values: tensors on the device and large ones have shapes only.

Tensors of torch's FakeTensorMode stand for them, which take no memory and compute nothing. What
the script makes of small tensors on the host, such as the order of samples, keeps its values.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomlint.verify.compiler import Dormant
from oomlint.verify.device import CUDA, KEY, Device, on_device, tensors_in
from oomlint.verify.dispatch import (
    ADDS,
    ADDS_IN_PLACE,
    READS_NUMBER,
    Sight,
    sums_gradients,
)
from oomlint.verify.user_lines import Places

LARGEST = 1024**2  # bytes of a tensor on the host that keeps its values
STALE = "_oomlint_stale"  # a storage whose values were computed from shapes
SCALER = os.path.join("torch", "amp", "grad_scaler.py")


def preload() -> None:
    """Makes the settings of torch's compiler importable without the compiler.

    FakeTensorMode reads a few of them, and importing it whole takes longer than most runs.
    """
    name = "torch._dynamo.config"
    if name in sys.modules or not isinstance(sys.modules.get("torch._dynamo"), Dormant):
        return
    place = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "config.py")
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    sys.modules["torch._dynamo"].config = module  # type: ignore[attr-defined]


class Inside(threading.local):
    """Whether this thread is in the kernel of an operator on shapes."""

    depth: int = 0


class Shapes:
    """Runs operators on shapes where a tensor has no values; `refuse` ends the process."""

    def __init__(
        self, device: Device, refuse: Callable[[str, str], Any], assumed: float | None
    ) -> None:
        from torch._subclasses import fake_tensor

        self.device, self.refuse, self.assumed = device, refuse, assumed
        self.fake: Any = fake_tensor.FakeTensor
        self.unknown = (
            fake_tensor.DataDependentOutputException,
            fake_tensor.DynamicOutputShapeException,
        )
        self.mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
        self.inside = Inside()
        self.sight = Sight(device, {})
        self.places = Places()

    def install(self) -> None:
        self.device.runner = self.run
        # Tensors without values are a subclass, which Python's own dispatch sees first.
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)
        ShapesMode(self.device, self.sight).__enter__()
        self.patch_device()
        self.patch_values()
        self.patch_parameters()
        for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"):
            sys.modules[name]._foreach_supported_types.append(self.fake)
        torch.save = lambda *args, **kwargs: None
        loader: Any = torch.utils.data.DataLoader
        loader.__init__ = in_this_process(loader.__init__)

    def run(self, func: Any, asked: Any, args: Any, kwargs: Any) -> Any:
        """What the operator returns; a tensor with a shape only where it has no values."""
        given = list(tensors_in((*args, *kwargs.values())))
        fakes = any(isinstance(tensor, self.fake) for tensor in given)
        if func is READS_NUMBER:
            return self.number(func, args, fakes)
        placed = fakes or self.sight.placed(asked, args, kwargs)
        if not placed and (given or not large(args, kwargs)):
            return func(*args, **kwargs)
        if kwargs.get("generator") is not None:
            kwargs = {**kwargs, "generator": None}
        if fakes and func._schema.is_mutable and type(args[0]) is torch.Tensor:
            setattr(args[0].untyped_storage(), STALE, True)
        try:
            with self.mode:
                return func(*args, **kwargs)
        except self.unknown:
            return self.refuse(self.places.line(), called(func))

    def number(self, func: Any, args: Any, fake: bool) -> Any:
        if not fake and not hasattr(args[0].untyped_storage(), STALE):
            return func(*args)
        scaling = scaler_method()
        if scaling:
            # No gradient is infinite; the scale is the one that it begins with.
            return 0.0 if scaling == "_maybe_opt_step" else 65536.0
        if self.assumed is None:
            return self.refuse(self.places.line(), "a number that is read from a tensor")
        dtype = args[0].dtype
        if dtype is torch.bool:
            return bool(self.assumed)
        return self.assumed if dtype.is_floating_point else int(self.assumed)

    def patch_device(self) -> None:
        """Tensors with shapes only say where they are, but not to the kernels that compute them."""
        inside, base, dispatch = self.inside, self.fake.device.fget, self.mode.__class__.dispatch
        plain: Any = torch.Tensor.device
        tensor: Any = torch.Tensor

        def device(tensor: Any) -> torch.device:
            real: torch.device = base(tensor)
            if inside.depth or real.type != "cpu" or not on_device(tensor):
                return real
            return CUDA

        def plain_device(tensor: torch.Tensor) -> torch.device:
            found: torch.device = plain.fget(tensor)
            return torch.device("cpu") if inside.depth and found.type == "cuda" else found

        @functools.wraps(dispatch)
        def inner(*args: Any, **kwargs: Any) -> Any:
            inside.depth += 1
            try:
                return dispatch(*args, **kwargs)
            finally:
                inside.depth -= 1

        self.fake.device = property(device)
        tensor.device = property(plain_device)
        tensor.is_cuda = property(lambda self: self.device.type == "cuda")
        tensor.is_cpu = property(lambda self: self.device.type == "cpu")
        self.mode.__class__.dispatch = inner

    def patch_values(self) -> None:
        tensor: Any = torch.Tensor

        def guard(original: Callable[..., Any], what: str) -> Callable[..., Any]:
            @functools.wraps(original)
            def reading(value: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
                if isinstance(value, self.fake) and not on_device(value):
                    return self.refuse(self.places.line(), what)
                return original(value, *args, **kwargs)

            return reading

        def formatted(value: torch.Tensor, spec: str) -> str:
            if value.dim():
                return object.__format__(value, spec)
            return format(value.item(), spec)

        self.fake.__format__ = formatted
        tensor.numpy = guard(tensor.numpy, "a tensor as an array of NumPy")
        tensor.__array__ = guard(tensor.__array__, "a tensor as an array of NumPy")

    def patch_parameters(self) -> None:
        """Parameters never have values, so that moving a model keeps them the same objects."""
        parameter: Any = torch.nn.Parameter
        base = parameter.__new__

        def new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            if type(data) is torch.Tensor:
                with self.device.paused(), self.mode:
                    data = torch.empty_strided(data.shape, data.stride(), dtype=data.dtype)
            return base(cls, data, requires_grad)

        parameter.__new__ = new
        module: Any = torch.nn.Module
        module._apply = apply_to_all


class ShapesMode(TorchDispatchMode):  # type: ignore[misc]
    """Sees every operator of the running thread, below autograd."""

    def __init__(self, device: Device, sight: Sight) -> None:
        super().__init__()
        self.device, self.sight = device, sight

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        state = self.device.state
        if (
            func is ADDS
            and state.backward
            and not state.paused
            and sums_gradients(*args, owners=OWNERS, storage_owners=STORAGE_OWNERS)
        ):
            func = ADDS_IN_PLACE
        self.sight.parts[func] = None  # seen whole: its parts would not come by here
        return self.sight.dispatch(func, *args, **(kwargs or {}))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


# As `dispatch` has them: on its way through a mode a gradient has one more.
OWNERS, STORAGE_OWNERS = 4, 2


def apply_to_all(module: Any, function: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`Module.to` and its kin; torch's own swaps such tensors, which weak references forbid."""
    if recurse:
        for child in module.children():
            apply_to_all(child, function)
    for parameter in module._parameters.values():
        for tensor in (parameter, None if parameter is None else parameter.grad):
            if tensor is not None:
                with torch.no_grad():
                    tensor.data = function(tensor)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            module._buffers[name] = function(buffer)
    return module


def large(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a constructor makes a tensor of more than LARGEST bytes."""
    sizes = [value for value in (*args, kwargs.get("size")) if isinstance(value, (list, tuple))]
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return any(
        all(isinstance(n, int) for n in size) and math.prod(size) * dtype.itemsize > LARGEST
        for size in sizes
    )


def called(func: Any) -> str:
    return f"{func._schema.name.partition('::')[2]}, whose result depends on values"


def scaler_method() -> str:
    """The method of the gradient scaler that asks for a number, or nothing."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename.endswith(SCALER) and not code.co_name.startswith("<"):
            return str(code.co_name)
        frame = frame.f_back
    return ""


def in_this_process(init: Callable[..., None]) -> Callable[..., None]:
    """A loader without workers: tensors without values cannot be sent from one to another."""

    @functools.wraps(init)
    def made(*args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_workers"):
            kwargs["num_workers"] = 0
            for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context"):
                kwargs.pop(name, None)
            kwargs["timeout"] = 0
        init(*args, **kwargs)

    return made
