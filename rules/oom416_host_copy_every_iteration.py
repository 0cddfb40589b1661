"""OOM416: a tensor that never changes is copied to the device again in every iteration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, copies, edits
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.copies import Attribute, Copy
from oomlint.analysis.modules import Module, written
from oomlint.layout import CLASS, LOOP
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import BATCH_LOOP, UPDATE
from oomlint.token_patterns import AllOf, AnyOf, InOneBlock, NamePlaced, Unless

TO_A_DEVICE = rb"\.(?:cuda\(|to\((?![ ]*(?:torch\.(?!device)\w+|(?:[\w.]*\.)?dtype)[ ]*\)))"
MAKER = rb"[\s(\\]*(?:\w+\.)*(?:tri[lu]|" + "|".join(sorted(copies.MAKERS)).encode() + rb")\s*\("
# What may be a tensor is moved: no batch, no model.
MOVED = Unless(
    (b".to(", b".cuda("),
    re.compile(rb"(?<![\w.])([\w.]*)" + TO_A_DEVICE),
    re.compile(copies.NO_TENSOR.pattern.encode(), re.IGNORECASE),
)
# An attribute is moved that torch made.
ATTRIBUTE_MOVED = AnyOf(
    (
        NamePlaced(
            (b".to(", b".cuda("),
            re.compile(rb"\w\.(\w+)" + TO_A_DEVICE),
            re.compile(rb"\.\0\s*(?::[^=]*)?=(?!=)(?:" + MAKER + rb"|[\s(\\]*$)"),
        ),
        re.compile(rb"\.(?=(\w+))\1[ \t]*,[^=\n]*=(?!=)(?:[^=\n]*,)?" + MAKER),
    )
)


class HostCopyEveryIteration(Rule):
    """
    ## What it does
    Checks for a tensor on the host that stays the same and is moved to the device in every pass
    through a training or evaluation loop, or in every forward of a module.

    ## Why is this bad?
    Each move allocates device memory and copies the same bytes again; from pageable memory the
    host waits until the copy is done. Once before the loop, or as a buffer of the module, is
    enough.

    ## Example
    ```python
    import torch

    def train(model, loader, optimizer, device):
        weights = torch.tensor([0.2, 0.3, 0.5])
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs.to(device))
            loss = torch.nn.functional.cross_entropy(
                outputs, targets.to(device), weight=weights.to(device)
            )
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, optimizer, device):
        weights = torch.tensor([0.2, 0.3, 0.5])
        weights_on_device = weights.to(device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs.to(device))
            loss = torch.nn.functional.cross_entropy(
                outputs, targets.to(device), weight=weights_on_device
            )
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: every iteration shares one tensor then, and a buffer is moved and cast together with
    its module.

    ## Measured
    One tensor fewer is copied to the device in each step.

    ## References
    - [PyTorch: Module.register_buffer](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer)
    """

    code = "OOM416"
    name = "host-copy-every-iteration"
    severity = Severity.WARNING
    tokens = (
        (".to(", ".cuda("),
        (".backward(", "def forward"),
        ("torch",),
    )
    token_pattern = AllOf(
        (
            MOVED,
            AnyOf(
                (
                    AllOf((UPDATE, InOneBlock(LOOP, (MOVED,)))),
                    InOneBlock(CLASS, (MOVED, re.compile(rb"def[ \t]+forward\b"), ATTRIBUTE_MOVED)),
                    InOneBlock(LOOP, (MOVED, *BATCH_LOOP)),
                )
            ),
        )
    )
    claims = (Claim.COPIES_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        found: list[Copy | Attribute] = [*copies.in_loops(module), *copies.in_forwards(module)]
        if not found or copies.has_default_device(module):
            return
        for copy in found:
            receiver = copy.site.receiver
            assert receiver is not None
            subject = short(module, receiver, 40)
            if isinstance(copy, Copy):
                message = f"`{subject}` never changes, and is copied to the device in every pass"
                yield finding(model, self, copy.site.node, message, hoisted(module, copy))
                continue
            message = f"`{subject}` stays on the host: every forward copies it to the device"
            path = [(copy.made, "it is made on the host and is no buffer of the module")]
            yield finding(model, self, copy.site.node, message, buffer(module, copy), path)


def hoisted(module: Module, copy: Copy) -> Fix | None:
    try:
        found = moved_up(module, copy)
    except edits.NoFix:
        return None
    return make_fix("Move it to the device before the loop", found, Safety.UNSAFE)


def moved_up(module: Module, copy: Copy) -> list[Edit]:
    """Puts the move before the loop, with the name that it is bound to. Raises NoFix."""
    node, loop = copy.site.node, copy.loop
    statement = module.statement_of(node)
    if module.source.text[slice(*module.span(node))].count("\n"):
        raise edits.NoFix
    if copies.depends_on(node, copies.changed(loop)):
        raise edits.NoFix
    if isinstance(statement, ast.Assign) and statement.value is node and is_only(statement, loop):
        lines = edits.lines_of(module, statement)
        return [edits.insert_before(module, loop, lines), edits.delete(module, statement)]
    receiver = copy.site.receiver
    if not isinstance(receiver, ast.Name | ast.Attribute):
        raise edits.NoFix
    name = f"{written(receiver).rsplit('.', 1)[-1].strip('_').lower()}_on_device"
    if name in module.source.text:
        raise edits.NoFix
    line = f"{name} = {module.segment(node)}"
    return [edits.insert_before(module, loop, [line]), edits.replace(module, node, name)]


def is_only(statement: ast.Assign, loop: ast.stmt) -> bool:
    """Whether a loop binds the one target of a statement nowhere else, and never writes to it."""
    if len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    rest = [part for part in ast.walk(loop) if isinstance(part, ast.stmt) and part is not loop]
    others = [p for p in rest if p is not statement and not hasattr(p, "body")]
    if name in copies.changed(getattr(loop, "target", ast.Pass())):
        return False
    return statement in getattr(loop, "body", ()) and not any(
        name in copies.changed(part) for part in others
    )


def buffer(module: Module, copy: Attribute) -> Fix | None:
    """`self.x = ...` becomes a buffer that no checkpoint needs to hold."""
    statement = module.statement_of(copy.made)
    assert isinstance(copy.made, ast.Call)
    # Which dtype is concatenated is not known: casting a module takes the imaginary part away.
    if written(copies.maker(copy.made).func).endswith(("cat", "stack")):
        return None
    if not copies.is_module(module, copy.owner) or not isinstance(statement, ast.Assign):
        return None
    body = copy.constructor.node.body
    if statement.value is not copy.made or len(statement.targets) > 1 or statement not in body:
        return None
    before = body[: body.index(statement)]
    if not any("__init__(" in written(earlier) for earlier in before):
        return None
    target = statement.targets[0]
    assert isinstance(target, ast.Attribute)
    start, end = module.span(statement)
    made = module.segment(copy.made)
    text = f'{written(target.value)}.register_buffer("{target.attr}", {made}, persistent=False)'
    edit = Edit(start, end, text)
    return make_fix("Register it as a buffer of the module", [edit], Safety.UNSAFE)
