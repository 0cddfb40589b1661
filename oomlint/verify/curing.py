"""Applies remedies inside of the child: what a user would write, put around the script."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.optim.optimizer import register_optimizer_step_pre_hook

from oomlint.verify import remedies


class Cure:
    """One remedy; `changed` counts the places where it made a difference."""

    changed = 0

    def install(self) -> None:
        raise NotImplementedError


class Autocast(Cure):
    """bf16 from the outermost forward of a model to the backward pass, where a script has none."""

    def __init__(self) -> None:
        self.depth = 0
        self.context: Any = None

    def install(self) -> None:
        module: Any = torch.nn.Module
        call, backward = module.__call__, torch.autograd.backward

        @functools.wraps(call)
        def called(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and self.context is None and not torch.is_autocast_enabled("cuda"):
                self.changed += 1
                self.context = torch.autocast("cuda", torch.bfloat16)
                self.context.__enter__()
            self.depth += 1
            try:
                return call(this, *args, **kwargs)
            finally:
                self.depth -= 1
                if self.depth == 0 and not torch.is_grad_enabled():
                    self.leave()

        @functools.wraps(backward)
        def passed(*args: Any, **kwargs: Any) -> Any:
            self.leave()
            return backward(*args, **kwargs)

        module.__call__ = called
        torch.autograd.backward = passed
        register_optimizer_step_pre_hook(lambda *_: self.leave())

    def leave(self) -> None:
        context, self.context = self.context, None
        if context is not None:
            context.__exit__(None, None, None)


class Checkpoint(Cure):
    """Every block of a list of equal ones keeps its input only, and runs again in the backward."""

    def __init__(self) -> None:
        self.depth = 0
        self.seen: set[int] = set()
        self.checkpoint = torch.utils.checkpoint.checkpoint
        self.own = False  # the script checkpoints something itself

    def install(self) -> None:
        module: Any = torch.nn.Module
        call, checkpoint = module.__call__, self.checkpoint

        @functools.wraps(call)
        def called(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth == 0 and id(this) not in self.seen:
                self.seen.add(id(this))
                self.wrap(this)
            self.depth += 1
            try:
                return call(this, *args, **kwargs)
            finally:
                self.depth -= 1

        @functools.wraps(checkpoint)
        def theirs(*args: Any, **kwargs: Any) -> Any:
            self.own = True
            return checkpoint(*args, **kwargs)

        module.__call__ = called
        torch.utils.checkpoint.checkpoint = theirs

    def wrap(self, model: Any) -> None:
        for block in repeated_blocks(model):
            if "forward" not in vars(block):
                block.forward = self.recomputed(block, block.forward)

    def recomputed(self, block: Any, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not (torch.is_grad_enabled() and block.training) or self.own:
                return forward(*args, **kwargs)
            self.changed += 1
            return self.checkpoint(forward, *args, use_reentrant=False, **kwargs)

        return run


def repeated_blocks(model: Any) -> Iterator[Any]:
    """The blocks of the outermost lists whose members, two at least, are built alike."""
    inside: set[int] = set()
    for container in model.modules():
        if id(container) in inside:
            continue
        if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = [child for child in container if next(child.children(), None) is not None]
        shapes = [shape_of(child) for child in children]
        alike = [c for c, s in zip(children, shapes, strict=True) if s and shapes.count(s) > 1]
        for child in alike:
            inside |= {id(part) for part in child.modules()}
            yield child


def shape_of(module: Any) -> tuple[Any, ...]:
    """Equal for modules of one class whose parameters have the same shapes; empty without any."""
    shapes = tuple(tuple(parameter.shape) for parameter in module.parameters())
    return (type(module), *shapes) if shapes else ()


class Attention(Cure):
    """MultiheadAttention without the weights that it returns, which the fused kernel has not.

    Attention that the script writes out is replaced in its text.
    """

    def install(self) -> None:
        attention: Any = torch.nn.MultiheadAttention
        forward = attention.forward

        @functools.wraps(forward)
        def fused(this: Any, *args: Any, **kwargs: Any) -> Any:
            positional = len(args) > 4
            if args[4] if positional else kwargs.get("need_weights", True):
                self.changed += 1
                if positional:
                    args = (*args[:4], False, *args[5:])
                else:
                    kwargs["need_weights"] = False
            return forward(this, *args, **kwargs)

        attention.forward = fused


class NoneGradients(Cure):
    def install(self) -> None:
        optimizer, module = torch.optim.Optimizer, torch.nn.Module
        for owner in (optimizer, module):
            self.patch(owner)

    def patch(self, owner: Any) -> None:
        base = owner.zero_grad

        @functools.wraps(base)
        def zero_grad(this: Any, set_to_none: bool = True) -> None:
            self.changed += not set_to_none
            base(this, True)

        owner.zero_grad = zero_grad


class Built(Cure):
    """Changes every optimizer after it was made."""

    def install(self) -> None:
        optimizer: Any = torch.optim.Optimizer
        base = optimizer.__init__

        @functools.wraps(base)
        def made(this: Any, *args: Any, **kwargs: Any) -> None:
            base(this, *args, **kwargs)
            self.change(this)

        optimizer.__init__ = made

    def change(self, optimizer: Any) -> None:
        raise NotImplementedError


class SingleTensor(Built):
    def change(self, optimizer: Any) -> None:
        if optimizer.defaults.get("foreach", False) is False or optimizer.defaults.get("fused"):
            return
        self.changed += 1
        for group in (optimizer.defaults, *optimizer.param_groups):
            group["foreach"] = False


# What groups of torch.optim.SGD hold.
PLAIN = {
    "momentum": 0.0,
    "dampening": 0.0,
    "nesterov": False,
    "maximize": False,
    "foreach": None,
    "differentiable": False,
    "fused": None,
    "weight_decay": 0.0,
}


class Sgd(Built):
    """The optimizer becomes a plain SGD with its learning rate and weight decay."""

    def change(self, optimizer: Any) -> None:
        sgd: Any = torch.optim.SGD
        own = type(optimizer)
        torchs = own.__module__.startswith("torch.optim")
        stateless = own is sgd and not optimizer.defaults["momentum"]
        if not torchs or stateless or own is torch.optim.LBFGS:
            return
        self.changed += 1
        for group in (optimizer.defaults, *optimizer.param_groups):
            group.update({key: value for key, value in PLAIN.items() if key not in group})
            group.update(momentum=0.0, nesterov=False)
        optimizer.__class__ = sgd
        optimizer._patch_step_function()


class Accumulation(Built):
    """Only every so many steps of an optimizer happen, and gradients add up in between."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.attempts = 0

    def install(self) -> None:
        super().install()
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            self.patch_zeroing(owner)

    def change(self, optimizer: Any) -> None:
        if "step" not in vars(optimizer):
            self.wrap(optimizer)

    def wrap(self, optimizer: Any) -> None:
        plain = type(optimizer).step
        attempts = 0

        def step(this: Any, closure: Any = None, **kwargs: Any) -> Any:
            nonlocal attempts
            attempts += 1
            self.attempts, self.changed = attempts, self.changed + 1
            if attempts % self.every and closure is None:
                return None
            return plain(this, closure, **kwargs) if closure is not None else plain(this, **kwargs)

        optimizer.step = types.MethodType(step, optimizer)

    def patch_zeroing(self, owner: Any) -> None:
        base = owner.zero_grad

        @functools.wraps(base)
        def zero_grad(this: Any, *args: Any, **kwargs: Any) -> None:
            if self.attempts % self.every == 0:
                base(this, *args, **kwargs)

        owner.zero_grad = zero_grad


CURES: dict[str, Callable[[], Cure]] = {
    remedies.AUTOCAST: Autocast,
    remedies.CHECKPOINT: Checkpoint,
    remedies.ATTENTION: Attention,
    remedies.NONE_GRADIENTS: NoneGradients,
    remedies.SINGLE_TENSOR: SingleTensor,
    remedies.SGD: Sgd,
}


def install(parts: tuple[str, ...], every: int) -> list[Cure]:
    """Applies remedies by their names, and accumulation over `every` micro-batches."""
    cures = [CURES[part]() for part in parts]
    if every > 1:
        cures.append(Accumulation(every))
    for cure in cures:
        cure.install()
    return cures
