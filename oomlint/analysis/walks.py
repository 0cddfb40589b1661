"""Calls that walk an autograd graph, and what they are told to do with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site, sites

# Methods that walk a graph, with the places of retain_graph and create_graph among the arguments.
METHODS = {"backward": (1, 2), "manual_backward": (-1, -1)}
FUNCTION = "torch.autograd.backward"


def backwards(module: Module) -> Iterator[Site]:
    """Every call of a backward: on a tensor, through torch.autograd, through a framework."""
    for site in sites(module):
        named = site.method in METHODS if site.receiver is not None else False
        if named or (site.receiver is None and site.qualified == FUNCTION):
            yield site


def flag(site: Site, name: str) -> ast.expr | None:
    """What `retain_graph` or `create_graph` is given."""
    places = (2, 3) if site.qualified == FUNCTION else METHODS[site.method]
    return site.argument(places[name == "create_graph"], name)
