"""Sees every operator below autograd and places what it returns on the emulated device."""

from __future__ import annotations

import functools
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from oomlint.verify import places, random_numbers
from oomlint.verify.device import (
    CPU,
    KEY,
    KEYS,
    PINNED,
    TAG,
    UNSURE,
    Device,
    on_device,
    storages,
    tensors_in,
)
from oomlint.verify.device_names import target
from oomlint.verify.variants import VARIANTS

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
NON_FUNCTIONAL = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional
HOST_IS_FULL = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
LOWER = (torch.float16, torch.bfloat16)
aten: Any = torch.ops.aten
# `item()`, `float()`, `if tensor:`: the host needs a number that the device computes.
READS_NUMBER = aten._local_scalar_dense.default
FILLS = aten.copy_.default
ADDS, ADDS_IN_PLACE = aten.add.Tensor, aten.add_.Tensor
DROPOUT = aten.native_dropout.default
LENGTHS = (aten._pack_padded_sequence.default, aten._pad_packed_sequence.default)
QUIET: AbstractContextManager[None] = nullcontext()
ENGINE = "_engine_run_backward"  # the Python function that calls the engine
# Of a gradient on its way here: autograd, the call, Python; the storage and its tag.
OWNERS, STORAGE_OWNERS = 3, 2
# CUDA multiplies halves and adds in float32; CPUs do so too, but many times slower than this.
PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addbmm.default,
    }
)


def multiplied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A product of halves, computed in float32 and rounded."""
    dtypes = {value.dtype for value in args if isinstance(value, torch.Tensor)}
    if len(dtypes) != 1 or not dtypes <= set(LOWER) or "out" in kwargs:
        return func(*args, **kwargs)
    wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
    result, dtype = func(*wide, **kwargs), dtypes.pop()
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    return tuple(None if value is None else value.to(dtype) for value in result)


def convolved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Without cuDNN results are contiguous, however the pixels came."""
    made = multiplied(func, args, kwargs)
    if torch.backends.cudnn.enabled:
        return made
    if isinstance(made, torch.Tensor):
        return made.contiguous()
    return tuple(None if one is None else one.contiguous() for one in made)


def widened(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator that the CPU has in float32 only; raises what it raises for other tensors."""
    dtypes = {t.dtype for t in tensors_in(args)} & set(LOWER)
    if len(dtypes) != 1:
        return func(*args, **kwargs)
    dtype = dtypes.pop()
    wide = [v.float() if isinstance(v, torch.Tensor) and v.dtype is dtype else v for v in args]
    result = func(*wide, **kwargs)
    if isinstance(result, torch.Tensor):
        return result.to(dtype) if result.dtype is torch.float32 else result
    return tuple(v.to(dtype) if is_single(v) else v for v in result)


# How operators run that do not as the CPU runs them.
RUNS = {
    **dict.fromkeys(PRODUCTS, multiplied),
    aten.convolution.default: convolved,
    aten.convolution_backward.default: convolved,
    **VARIANTS,
}


def is_single(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype is torch.float32


def apply(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


# Operators of other operators that hold nothing beside their output: seen as one.
PLAIN = re.compile(
    r"aten::(_?(to_)?copy|clone|contiguous|lift\w*|detach\w*|fill|zero|.*_like|new_.*|empty.*|zeros|ones"
    r"|full|rand\w*|arange|eye|linspace|scalar_tensor|item|equal|is_\w+|size|stride|numel|convolution\w*|_pack_padded_sequence)_?$"
)

# Of those with a kernel for any device that writes into its arguments, the ones that hold more.
TAKING_MORE = frozenset({"aten::_trilinear", "aten::logsumexp.out"})


class Sight:
    """While it is entered, the running thread's operators go through `dispatch`."""

    def __init__(self, device: Device, kernels: dict[Any, Any]) -> None:
        self.device = device
        # How an operator is taken apart, None if it is not. Where autograd is, `kernels` is there.
        self.parts: dict[Any, Any] = dict(kernels)

    def __enter__(self) -> Sight:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)
        return self

    def __exit__(self, *error: object) -> None:
        torch._C._dispatch_tls_set_dispatch_key_included(KEY, False)

    def install(self) -> torch.library.Library:
        """The registration ends with the object that is returned."""
        library: Any = torch.library.Library("_", "IMPL")
        library.m.fallback("Fake", self.dispatch, False)
        base: Any = torch.Tensor
        for name in ("_make_subclass", "as_subclass"):
            setattr(base, name, unseen(getattr(base, name)))
        base._make_subclass = staticmethod(base._make_subclass)
        return library

    def dispatch(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.device.state
        try:
            parts = self.parts[func]
        except KeyError:
            parts = self.parts[func] = parts_of(func)
        if parts is not None and not state.paused:
            with self.device.within(any(map(on_device, tensors_in((*args, *kwargs.values()))))):
                return parts(*args, **kwargs)
        asked = kwargs.get("device")
        if asked is not None and asked.type == "cuda":
            target(asked)
            kwargs["device"] = CPU
        pinned = kwargs.get("pin_memory")
        if pinned:
            if asked is not None and asked.type == "cuda":
                raise RuntimeError("Only dense CPU tensors can be pinned")
            kwargs["pin_memory"] = False
        if state.paused:
            with torch._C._ExcludeDispatchKeyGuard(KEYS):
                return func(*args, **kwargs)
        out = kwargs.get("out")
        given = args if out is None else (*args, out)
        if state.placement is None and self.mixed(given):
            places.check(func, given)
        if func is ADDS and state.backward and sums_gradients(*args):
            func = ADDS_IN_PLACE
        run = RUNS.get(func, apply)
        called = func
        if any(type(args[at]) in NUMBERS for at in tensors_of(func) if at < len(args)):
            called = func.overloadpacket  # a composed operator calls it with a wrapped number
        try:
            with torch._C._ExcludeDispatchKeyGuard(KEYS), self.dice(func, asked, args, kwargs):
                if self.device.runner is not None:
                    result = self.device.runner(func, asked, args, kwargs)
                else:
                    result = run(called, args, kwargs)
        except NotImplementedError:
            with torch._C._ExcludeDispatchKeyGuard(KEYS):
                result = widened(called, args, kwargs)
        except RuntimeError as error:
            self.explain(error, asked, args, kwargs)
            raise
        if func is READS_NUMBER and on_device(args[0]):
            self.device.wait()
        if func is FILLS and on_device(args[0]) and not on_device(args[1]):
            self.device.copies += 1
        if not self.placed(asked, args, kwargs):
            if pinned:
                setattr(result.untyped_storage(), PINNED, True)
            if asked is not None and "pin_memory" not in kwargs and not has_tensor(args):
                for storage in storages(result):
                    setattr(storage, UNSURE, True)
            return result
        self.device.note_launch()
        outputs = (result,) if isinstance(result, torch.Tensor) else result
        if not isinstance(outputs, (list, tuple)):
            return result
        if func is DROPOUT:
            outputs = outputs[::-1]  # CUDA makes the mask first
        elif func in LENGTHS:
            outputs = outputs[:1]  # the lengths stay on the host
        inputs: set[int] | None = None
        for output in tensors_in(outputs):
            for storage in storages(output):
                if not hasattr(storage, TAG):
                    # A view of a host tensor, or a host tensor written in place, stays there.
                    if inputs is None:
                        given = (*args, *kwargs.values())
                        inputs = {s._cdata for t in tensors_in(given) for s in storages(t)}
                    if storage._cdata in inputs and not hasattr(storage, UNSURE):
                        continue
                self.device.tag_storage(storage)
        self.device.note_work(func, args, result, kwargs)
        return result

    def dice(
        self, func: Any, asked: torch.device | None, args: Any, kwargs: dict[str, Any]
    ) -> AbstractContextManager[None]:
        """What an operator draws random numbers from while the context lasts."""
        if not random_numbers.draws(func):
            return QUIET
        given = random_numbers.generator_in((*args, *kwargs.values()))
        return random_numbers.drawing(self.device, given, self.placed(asked, args, kwargs))

    def mixed(self, args: Any) -> bool:
        """Whether some of the tensors are on the device and some are not."""
        places = {on_device(tensor) for tensor in tensors_in(args)}
        return len(places) > 1

    def explain(
        self, error: RuntimeError, asked: torch.device | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Raises CUDA's error where the host's memory ends before the device's would have."""
        found = HOST_IS_FULL.search(str(error))
        if found and self.placed(asked, args, kwargs):
            self.device.hold(int(found[1]))

    def placed(self, asked: torch.device | None, args: Any, kwargs: dict[str, Any]) -> bool:
        state = self.device.state
        if state.placement is not None:
            return bool(state.placement.type == "cuda")
        if asked is not None and asked.type == "cuda":
            return True
        given = False
        for tensor in tensors_in((*args, *kwargs.values())):
            if on_device(tensor):
                return True
            given = True
        # Composed operators and formulas of the backward pass make tensors out of nothing, where
        # their arguments are by the CPU's name. Python itself always says whether memory is pinned.
        return (state.within or state.backward) and not given and "pin_memory" not in kwargs


NUMBERS = frozenset((int, float, bool, complex))


@functools.cache
def tensors_of(func: Any) -> tuple[int, ...]:
    """Positions at which an operator takes tensors and cannot take Python's numbers for them."""
    if torch._C._should_allow_numbers_as_tensors(func._schema.name.partition("::")[2]):
        return ()
    tensors = torch._C.TensorType.get()
    schema = enumerate(func._schema.arguments)
    return tuple(at for at, argument in schema if argument.type.isSubtypeOf(tensors))


def sums_gradients(
    first: Any,
    second: Any,
    *_: Any,
    owners: int = OWNERS,
    storage_owners: int = STORAGE_OWNERS,
) -> bool:
    """Whether autograd adds to a gradient that nothing else holds, which it then does in place.

    It takes the tag of a storage for another owner, so that here it asks for a new tensor. The
    numbers are the owners, of the tensor and of its storage, that a gradient has on its way here.
    """
    return (
        sys._getframe(2).f_code.co_name == ENGINE
        and isinstance(second, torch.Tensor)
        and first.shape == second.shape
        and first.dtype == second.dtype
        and not torch.is_grad_enabled()
        and dense(first)
        and first._use_count() <= owners
        and torch._C._storage_Use_Count(first.untyped_storage()._cdata) <= storage_owners
    )


def dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie side by side in some order of its dimensions."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def unseen(original: Any) -> Any:
    """Runs what the emulated device must not see: a fresh tensor of C++, or what has no memory."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(KEYS):
            return original(*args, **kwargs)

    return call


def has_tensor(args: Any) -> bool:
    return next(tensors_in(args), None) is not None


def parts_of(func: Any) -> Any:
    """What runs an operator as the operators that it is made of; None for one that is seen whole.

    Autograd takes most of these apart, but there is none in inference mode.
    """
    name, has = func.name(), torch._C._dispatch_has_kernel_for_dispatch_key
    if has(name, "CPU"):
        return None
    if has(name, "CompositeImplicitAutograd"):
        return lambda *args, **kwargs: func._op_dk(COMPOSITE, *args, **kwargs)
    if func.is_view or PLAIN.match(name.partition(".")[0]):
        return None
    if has(name, "CompositeExplicitAutograd"):
        return lambda *args, **kwargs: func._op_dk(EXPLICIT, *args, **kwargs)
    if name in TAKING_MORE:
        return lambda *args, **kwargs: func._op_dk(NON_FUNCTIONAL, *args, **kwargs)
    return None
