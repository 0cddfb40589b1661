"""Calls that have to do with the caching allocator, and functions that do nothing else."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import cadence, sites
from oomlint.analysis.modules import Function, Module
from oomlint.analysis.sites import Site

FLUSH = re.compile(
    r"torch\.(cuda|mps|xpu|npu|accelerator)\.(memory\.)?empty_cache"
    r"|accelerate\.utils\.(memory\.)?(clear_device_cache|release_memory)"
    r"|diffusers\.training_utils\.free_memory"
    r"|(\w+\.)*torch_device_module\.empty_cache"
)
# What a method is called that does either.
NAMES = frozenset("empty_cache clear_device_cache release_memory free_memory collect".split())
COLLECT = re.compile(r"gc\.collect")
# What a function may do beside flushing and still do nothing else.
BESIDE = re.compile(
    r"torch\.(cuda|mps|xpu|npu)\.(ipc_collect|synchronize|is_available|reset_peak_memory_stats)"
    r"|torch\.(cuda|mps|xpu|npu)|gc\.collect|print|torch\.backends\.mps\.is_available"
)


def is_flush(site: Site) -> bool:
    """Whether a call gives cached memory back to the device."""
    return FLUSH.fullmatch(site.qualified) is not None


def is_collect(site: Site) -> bool:
    return COLLECT.fullmatch(site.qualified) is not None


def flushes_only(module: Module, function: Function) -> bool:
    """Whether a function is a longer name for `empty_cache()`."""
    if cadence.STEP_HOOK.fullmatch(function.name):
        return False
    inside = sites.sites_in(module, function)
    if not any(is_flush(site) for site in inside):
        return False
    known = all(is_flush(site) or BESIDE.fullmatch(site.qualified) for site in inside)
    kinds = ast.Expr | ast.If | ast.Import | ast.ImportFrom | ast.Delete | ast.Return | ast.Pass
    statements = [node for node in sites.own_nodes(function.node) if isinstance(node, ast.stmt)]
    return known and all(isinstance(node, kinds) for node in statements)


def flushers(module: Module) -> list[Function]:
    """All functions of a file that do nothing but flush."""
    known: list[Function] | None = module.__dict__.get("flushers")
    if known is None:
        flushing = {
            site.function
            for site in sites.sites(module)
            if (site.receiver is None or site.method in NAMES) and is_flush(site)
        }
        known = module.__dict__["flushers"] = [
            function
            for function in flushing
            if function is not None and flushes_only(module, function)
        ]
    return known


def flusher(module: Module, site: Site) -> Function | None:
    """The function of this file that a call runs, where it does nothing but flush."""
    called = cadence.local_function(module, site) if flushers(module) else None
    return called if called in flushers(module) else None
