"""Which newest torch the project's own metadata lets an installer choose."""

from __future__ import annotations

import re

from oomlint.analysis.modules import Module
from oomlint.analysis.project import Project

METADATA = ("setup.py", "setup.cfg", "pyproject.toml", "requirements.txt")
# `torch>=1.10,<1.13`, as a requirement of its own.
REQUIREMENT = re.compile(
    r"(?:^|[\"'\s])torch\s*\(?((?:[<>=!~]=?\s*[\d.*]+\s*,?\s*)+)", re.MULTILINE
)
BELOW = re.compile(r"<(=?)\s*(\d+)\.?(\d*)")


def torch_below(project: Project, module: Module) -> tuple[int, int] | None:
    """The first version that is too new, as an upper bound says it; None where there is none."""
    folder = module.path.parent
    for place in (folder, *folder.parents):
        for name in METADATA:
            path = place / name
            project.dependencies.add(path)
            bound = bound_in(path.read_text("utf-8", "replace")) if path.is_file() else None
            if bound is not None:
                return bound
        if place == project.root:
            break
    return None


def bound_in(text: str) -> tuple[int, int] | None:
    for requirement in REQUIREMENT.finditer(text):
        found = BELOW.search(requirement[1])
        if found is not None:
            minor = int(found[3] or 0) + (found[1] == "=")
            return int(found[2]), minor
    return None
