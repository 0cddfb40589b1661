"""OOM412: a large tensor that importing a module puts on the device."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, copies
from oomlint.analysis.answers import finding
from oomlint.analysis.import_tensors import is_large_on_device, is_script, kept_values
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AllOf, AnyOf, Calls, Exactly, OutsideFunctions

MAKING = Calls(frozenset(map(str.encode, (*copies.MAKERS, "load"))))
MADE = b"|".join(sorted(MAKING.names))


ON_DEVICE = Exactly((b".cuda(", b".to(", b"device", b"load("))
ASSIGNED = re.compile(rb"\n[ \t]*\w+[^=\n(]*=(?!=)[^=]{0,120}?\b(?:" + MADE + rb")\(")
DEFAULT = re.compile(rb"def \w+\([^)]*=[^)]{0,60}\b(?:" + MADE + rb")\(")


class ModuleLevelDeviceTensor(Rule):
    """
    ## What it does
    Checks for large tensors that a module puts on the GPU when it is imported.

    ## Why is this bad?
    The import holds the memory until the process ends, whether the tensor is used or not, and
    opens a CUDA context in every process that imports the module: in spawned workers, too. After
    it no forked worker can use CUDA.

    ## Example
    ```python
    import torch

    TABLE = torch.randn(4096, 1024, device="cuda")

    def embed(indices):
        return TABLE[indices]
    ```

    Use instead:
    ```python
    import functools

    import torch

    @functools.cache
    def table():
        return torch.randn(4096, 1024, device="cuda")

    def embed(indices):
        return table()[indices]
    ```

    ## Measured
    Fewer bytes stay allocated: those of a tensor that only the setup needs.

    ## References
    - [PyTorch: CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)
    """

    code = "OOM412"
    name = "module-level-device-tensor"
    severity = Severity.WARNING
    tokens = ((".cuda(", ".to(", "device=", "load("), ("torch",))
    # A tensor that is made outside of all functions, or as a default.
    token_pattern = AnyOf((OutsideFunctions(AllOf((ON_DEVICE, MAKING, ASSIGNED))), DEFAULT))
    texts = ("cuda",)
    claims = (Claim.BYTES_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        if model.source.path.suffix == ".ipynb" or module.path.name.startswith("test_"):
            return
        found = [v for v in kept_values(module.tree.body) if is_large_on_device(module, v)]
        if not found or is_script(module):
            return
        for value in found:
            message = "importing this module puts the tensor on the device, where it stays"
            yield finding(model, self, value, message)
