"""OOM402: a setting of the allocator that comes after the allocator has read its settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, environment
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.environment import Setting
from oomlint.analysis.modules import Module, written
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class AllocConfTooLate(Rule):
    """
    ## What it does
    Checks for `PYTORCH_CUDA_ALLOC_CONF` and `PYTORCH_ALLOC_CONF` that are set after CUDA was
    initialised, and for their key `backend` after `import torch`.

    ## Why is this bad?
    The allocator reads its settings once, when CUDA is initialised: by the first tensor on the
    device, or a question like `torch.cuda.get_device_name()`. What is set later has no effect, and
    nothing says so. Between `import torch` and that is early enough, except for `backend`.

    ## Example
    ```python
    import os

    import torch

    model = torch.nn.Linear(8, 8).cuda()
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    ```

    Use instead:
    ```python
    import os

    import torch

    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    model = torch.nn.Linear(8, 8).cuda()
    ```

    ## Fix safety
    Unsafe: the setting begins to work.

    ## Measured
    With `roundup_power2_divisions` batches of growing length ask the device for memory in every
    step before and in none after. Other settings only a GPU can show.

    ## References
    - [PyTorch: optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF](https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)
    """

    code = "OOM402"
    name = "alloc-conf-too-late"
    severity = Severity.WARNING
    tokens = (("environ", "putenv"), ("torch",))
    texts = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    claims = (Claim.DEVICE_ALLOCATIONS_FALL, Claim.PEAK_FALLS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for setting in environment.settings(module):
            if setting.name not in self.texts:
                continue
            early = environment.first_use(module, setting)
            if early is not None:
                what = f"`{setting.name}` has no effect here: the allocator read it at line "
                message = f"{what}{early.node.lineno}"
                path = [(early.node, "the device is in use")]
                fix = remedy(module, setting, module.statement_of(early.node))
                yield finding(model, self, setting.node, message, fix, path)
                continue
            loaded = torch_import(module) if sets_backend(setting) else None
            if loaded is not None and comes_before(loaded, setting):
                message = "`backend` has no effect here: it is read when torch is imported"
                fix = remedy(module, setting, loaded)
                yield finding(
                    model, self, setting.node, message, fix, [(loaded, "torch is imported")]
                )


def sets_backend(setting: Setting) -> bool:
    return setting.value is not None and re.search(r"backend:", written(setting.value)) is not None


def torch_import(module: Module) -> ast.stmt | None:
    """The first import of torch at the top of the file."""
    for statement in module.tree.body:
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and not statement.level:
            names = [statement.module or ""]
        if any(name.split(".")[0] == "torch" for name in names):
            return statement
    return None


def comes_before(statement: ast.stmt, setting: Setting) -> bool:
    return setting.function is not None or statement.lineno < setting.statement.lineno


def remedy(module: Module, setting: Setting, before: ast.stmt) -> Fix | None:
    """Moves a literal setting above a statement of the same block, below `import os`."""
    parent = module.parents[setting.statement]
    body = getattr(parent, "body", [])
    while before not in body and module.parents.get(before) not in (None, module.tree):
        holder = module.parents[before]
        if not isinstance(holder, ast.stmt):
            break
        before = holder
    if setting.statement not in body or before not in body:
        return None
    names = {n.id for n in ast.walk(setting.statement) if isinstance(n, ast.Name)}
    if not names <= {"os", "environ", "putenv"} or not reaches(module, before):
        return None  # what the value is computed from may not be there yet
    try:
        lines = edits.lines_of(module, setting.statement)
        changes = [
            edits.insert_before(module, before, lines),
            edits.delete(module, setting.statement),
        ]
    except edits.NoFix:
        return None
    return make_fix("Set it before the device is used", changes, Safety.UNSAFE)


def reaches(module: Module, before: ast.stmt) -> bool:
    """Whether `os` is imported above a statement."""
    return any(
        isinstance(node, ast.Import | ast.ImportFrom)
        and node.lineno < before.lineno
        and any(alias.name.split(".")[0] in ("os", "environ") for alias in node.names)
        for node in ast.walk(module.tree)
    )
