"""Stands for torch's compiler: what would be compiled runs eagerly on the emulated device."""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import Any

import torch


class Dormant(types.ModuleType):
    """Stands for torch's compiler until something wants more of it than a no-op.

    Every optimizer imports it just to say that a graph ends and every process group to clear its
    caches, which takes seconds, and nothing is compiled on the emulated device.
    """

    def graph_break(self, *args: Any, **kwargs: Any) -> None:
        return None

    def disable(self, fn: Any = None, *args: Any, **kwargs: Any) -> Any:
        return (lambda function: function) if fn is None else fn

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self and name in ASLEEP:
            return DormantPart(name)
        return getattr(awake(), name)


def awake() -> Any:
    """The compiler itself."""
    if isinstance(sys.modules.get("torch._dynamo"), Dormant):
        del sys.modules["torch._dynamo"]
    return importlib.import_module("torch._dynamo")


# What is asked of the compiler's modules while there is nothing compiled, and their answers.
ASLEEP: dict[str, dict[str, Any]] = {
    "trace_rules": {"clear_lru_cache": lambda: None},
    "utils": {"get_optimize_ddp_mode": lambda: "ddp_optimizer"},
    "config": {"error_on_nested_fx_trace": True},
}


class DormantPart:
    """A module of the compiler that is not imported for what it would answer anyway."""

    def __init__(self, name: str) -> None:
        vars(self)["name"] = name

    def __getattr__(self, name: str) -> Any:
        if name in ASLEEP[self.name]:
            return ASLEEP[self.name][name]
        return getattr(self.whole(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.whole(), name, value)

    def whole(self) -> Any:
        awake()
        return importlib.import_module(f"torch._dynamo.{self.name}")


def patch_compiler() -> None:
    """Code that would be compiled runs eagerly."""

    told = False

    def compile_eagerly(model: Any = None, **options: Any) -> Any:
        nonlocal told
        if not told:
            told = True
            print("oomlint: the emulated device runs compiled code eagerly", file=sys.stderr)
        return (lambda wrapped: wrapped) if model is None else model

    module: Any = torch
    module.compile = compile_eagerly
    torch.nn.Module.compile = lambda self, *args, **options: None
    for method in vars(torch.optim.Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None:
            plain.__dynamo_disable = plain
    if "torch._dynamo" not in sys.modules:
        dormant = module._dynamo = sys.modules["torch._dynamo"] = Dormant("torch._dynamo")
        # `inspect` asks every module for its file, in the middle of other imports, too.
        dormant.__file__ = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "__init__.py")
