"""OOM407: a loaded checkpoint that stays bound while the training runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits, kept_checkpoints, loading
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.kept_checkpoints import Kept
from oomlint.analysis.modules import Module
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import LOADS_STATE, TRAINING
from oomlint.token_patterns import AllOf


class CheckpointKeptAlive(Rule):
    """
    ## What it does
    Checks for a checkpoint that was loaded onto the device and copied into the model, and whose
    name is still bound, though not used again, when training begins.

    ## Why is this bad?
    `load_state_dict` copies the weights. As long as a name refers to the checkpoint, its own copy
    stays on the device: a function or script that loads and then trains carries it through the
    whole run.

    ## Example
    ```python
    import torch

    def run(model, optimizer, loader, criterion, path, device):
        checkpoint = torch.load(path, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def run(model, optimizer, loader, criterion, path, device):
        checkpoint = torch.load(path, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        del checkpoint
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: the names are not used again. No fix is offered where they are used outside of the block
    that loads them.

    ## Measured
    The bytes that stay allocated between steps fall by the size of the weights.

    ## References
    - [PyTorch: saving and loading models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
    """

    code = "OOM407"
    name = "checkpoint-kept-alive"
    severity = Severity.WARNING
    tokens = (
        ("load(",),
        ("load_state_dict",),
        ("torch",),
        (".backward(", ".step(", "train", "fit("),
    )
    token_pattern = AllOf((TRAINING, LOADS_STATE))
    claims = (Claim.BYTES_FALL, Claim.PEAK_FALLS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for kept in kept_checkpoints.kept_alive(module):
            where = "on the device "
            if loading.is_unmapped(kept.checkpoint.site):
                where = "on the device that they were saved from "
            message = (
                f"`{kept.checkpoint.name}` keeps its own copy of the weights {where}for the "
                "whole training: nothing uses it again"
            )
            node = kept.checkpoint.place.node
            yield finding(
                model,
                self,
                node,
                message,
                remedy(module, kept),
                [
                    (kept.checkpoint.restores[0].node, "the weights are copied into the model"),
                    (kept.training, "training begins with the checkpoint still bound"),
                ],
            )


def remedy(module: Module, kept: Kept) -> Fix | None:
    """Unbinds the names behind their last use, in the block where they are surely bound."""
    block = block_of(module, kept.statement)
    first = kept.statement
    while block is not None and not holds(block, kept.uses):
        outer = module.parents[first]
        if not isinstance(outer, ast.stmt) or not binds(outer, kept.checkpoint.name):
            return None
        first, block = outer, block_of(module, outer)
    if block is None:
        return None
    last = first
    for statement in block[block.index(first) :]:
        if statement is kept.training:
            break
        if loading.mentions(statement, kept.names):
            last = statement
    before = block[block.index(first) : block.index(last) + 1]
    if not all(any(binds(statement, name) for statement in before) for name in kept.names):
        return None
    names = ", ".join(sorted(kept.names, key=lambda name: name != kept.checkpoint.name))
    try:
        edit = edits.insert_after(module, last, [f"del {names}"])
    except edits.NoFix:
        return None
    return make_fix(f"Unbind it: `del {names}`", [edit], Safety.SAFE)


def holds(block: list[ast.stmt], uses: tuple[ast.AST, ...]) -> bool:
    inside = {id(part) for statement in block for part in ast.walk(statement)}
    return all(id(use) in inside for use in uses)


def binds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement binds a name on every path through it."""
    if isinstance(statement, ast.With):
        return any(binds(inner, name) for inner in statement.body)
    if isinstance(statement, ast.If):
        arms = (statement.body, statement.orelse)
        return all(any(binds(inner, name) for inner in arm) for arm in arms)
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in statement.targets
    )


def block_of(module: Module, statement: ast.stmt) -> list[ast.stmt] | None:
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        body = getattr(parent, name, None)
        if isinstance(body, list) and statement in body:
            return body
    return None
