"""OOM410: a dataset that keeps its samples as Python objects, read by worker processes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, loaders
from oomlint.analysis.answers import Node, finding
from oomlint.analysis.object_datasets import kept_objects
from oomlint.layout import CLASS
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AllOf, InOneBlock, SameName

FILLED = re.compile(
    rb"\w\.(\w+)[ \t]*(?:,|\)|(?::[^=\n]+)?=(?!=)[\s(\\]*"
    rb"(?:[\[{]|[\w.]*(?:list|sorted|load|lines|to_dict|json)\w*[\s\\]*\(|\w+[ \t)]*(?:\n|;|\"|$)))"
)


class DatasetOfPythonObjects(Rule):
    """
    ## What it does
    Checks for a Dataset that keeps its samples in a list or dict of small Python objects (records,
    tuples, strings, numbers) while a DataLoader reads it in worker processes.

    ## Why is this bad?
    A forked worker shares its parent's memory until it writes to a page, and reading a Python
    object writes to it: its reference count changes. Epoch by epoch each worker gets a copy of
    its own of all samples. One array, tensor or table has one reference count.

    ## Example
    ```python
    import json

    from torch.utils.data import DataLoader, Dataset

    class Captions(Dataset):
        def __init__(self, path):
            with open(path) as file:
                self.rows = [json.loads(line) for line in file]

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return self.rows[index]["caption"]

    def load(path):
        return DataLoader(Captions(path), batch_size=32, num_workers=4)
    ```

    Use instead:
    ```python
    import json

    import numpy as np
    from torch.utils.data import DataLoader, Dataset

    class Captions(Dataset):
        def __init__(self, path):
            with open(path) as file:
                self.rows = np.array([json.loads(line)["caption"] for line in file])

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            return str(self.rows[index])

    def load(path):
        return DataLoader(Captions(path), batch_size=32, num_workers=4)
    ```

    ## Measured
    The bytes that a worker holds of its own fall by about the size of the objects.

    ## References
    - [PyTorch: multi-process data loading](https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading)
    """

    code = "OOM410"
    name = "dataset-of-python-objects"
    severity = Severity.WARNING
    tokens = (
        ("__getitem__",),
        ("Dataset",),
        ("self.",),
        ("torch",),
    )
    # A comprehension, an append or a reader, and a class that indexes what may come of it.
    token_pattern = AllOf(
        (
            re.compile(
                rb"class \w+\([^)]*Dataset[^)]*\)[\s\S]*?(?:\.append\(|\sfor\s+\w+.*\sin\s|\.load"
                rb"|lines\(|to_dict|json|range\(|reader\()"
            ),
            InOneBlock(
                CLASS,
                (
                    re.compile(rb"def[ \t]+__getitem__\b"),
                    re.compile(rb"def[ \t]+__init__\b"),
                    SameName(re.compile(rb"\w\.(\w+)\["), FILLED),
                ),
            ),
        )
    )
    claims = (Claim.WORKER_BYTES_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for cls in module.class_by_node.values():
            if "__getitem__" not in cls.methods or "__init__" not in cls.methods:
                continue
            found = dict(kept_objects(module, cls))
            if not found or not loaders.is_dataset(model.project, cls):
                continue
            loader = loaders.loader_of(model.project, cls)
            if loader is None:
                continue
            path: list[tuple[Node, str]] = []
            if loader.module is module:
                path = [(loader.site.node, "worker processes read it")]
            for attribute, node in found.items():
                message = (
                    f"reading `self.{attribute}` writes to its objects: each worker ends up with "
                    "a copy of them"
                )
                yield finding(model, self, node, message, None, path)
