"""Which expressions are modules of torch: by construction, by use, or as a part of one."""

from __future__ import annotations

import ast
import re

from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import (
    SCOPES,
    class_of,
    conditions_around,
    is_self_attribute,
    role,
    sites,
)
from oomlint.analysis.state import World

# Only modules have these methods.
MODULE_METHODS = frozenset(
    "parameters named_parameters children named_children modules named_modules load_state_dict"
    " state_dict eval train register_forward_hook get_submodule".split()
)
# Attributes of models that are modules in torchvision, timm, transformers and most projects.
PART = re.compile(
    r"(fc|classifier|heads?|lm_head|backbone|encoder|decoder|features|neck|pooler|stem"
    r"|embeddings?|embed_tokens|patch_embed|transformer|blocks|layers"
    r"|(layer|conv|bn|block|stage|downsample)\d|(base|vision|text)_(model|encoder)|\w+_tower|"
    r"distilbert|roberta|bert|deberta|feature_extractor|avgpool|cls_head|projector)"
)
PARTS_OF = re.compile(r"\.(named_)?(children|modules)\(\)|\.(layers?|blocks|stages|features)(\[|$)")


def is_module(world: World, node: ast.expr, function: Function | None) -> Evidence | None:
    """How certain it is that an expression is a module; None where nothing says so."""
    found, evidence = role(world, node, function)
    if found in (Role.MODEL, Role.CRITERION) and evidence is not Evidence.NAMED:
        return evidence
    module = world.subject
    if is_asked_for_tensor(module, node):
        return None
    if used_as_module(module, node, function) or walks_parts(module, node):
        return Evidence.USED
    if isinstance(node, ast.Subscript):
        return part_by_index(world, node, function)
    if isinstance(node, ast.Attribute) and PART.fullmatch(node.attr):
        whole, _ = role(world, node.value, function)
        if whole is Role.MODEL or is_module(world, node.value, function):
            return Evidence.USED
    return None


def is_asked_for_tensor(module: Module, node: ast.expr) -> bool:
    """Whether an `isinstance` around a node says that it is a tensor here."""
    asked = re.compile(rf"isinstance\({re.escape(written(node))}, [^)]*(Parameter|Tensor)\b")
    return any(truth and asked.search(written(t)) for t, truth in conditions_around(module, node))


def part_by_index(world: World, node: ast.Subscript, function: Function | None) -> Evidence | None:
    """`model.features[0]`: a part of a ModuleList or a Sequential; slices are containers too."""
    if isinstance(node.value, ast.Attribute) and PARTS_OF.search(written(node.value)):
        return Evidence.USED if is_module(world, node.value, function) else None
    return None


def used_as_module(module: Module, node: ast.expr, function: Function | None) -> bool:
    """Whether the same expression is called, or asked for its parameters, where it means the same.

    For an attribute of `self` that is the class, for a name its function, outer ones included.
    """
    text = written(node)
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    attribute = is_self_attribute(node, function)
    owner = class_of(function)
    outer: list[Function | None] = [function]
    while outer[-1] is not None:
        outer.append(outer[-1].parent)
    for site in sites(module):
        called = site.node.func
        if isinstance(called, ast.Attribute) and called.attr in MODULE_METHODS:
            called = called.value
        if written(called) != text:
            continue
        if attribute and class_of(site.function) is owner:
            return True
        if not attribute and site.function in outer:
            return True
    return False


def walks_parts(module: Module, node: ast.expr) -> bool:
    """Whether a name is the variable of a loop over the parts of a model."""
    if not isinstance(node, ast.Name):
        return False
    for parent in module.enclosing(node):
        if isinstance(parent, SCOPES):
            return False
        if isinstance(parent, ast.For) and PARTS_OF.search(written(parent.iter)):
            target = parent.target
            if isinstance(target, ast.Tuple):
                target = target.elts[-1]
            if isinstance(target, ast.Name) and target.id == node.id:
                return True
    return False
