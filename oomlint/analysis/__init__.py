"""The model of the training step: what happens in a file, in which order, on which objects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from oomlint.analysis.parsing import SyntaxProblem
from oomlint.analysis.reparsing import LastTree
from oomlint.source import Source

if TYPE_CHECKING:
    from oomlint.analysis.modules import Module
    from oomlint.analysis.project import Project
    from oomlint.analysis.state import World
    from oomlint.effects import Taught

__all__ = ["Model", "SyntaxProblem", "analyse"]


@dataclass(frozen=True)
class Model:
    """What rules ask: one file, understood together with the project files that it depends on."""

    source: Source
    module: Module
    project: Project
    # The oldest torch that the code must run on, where the settings say it.
    torch_version: tuple[int, int] | None = None

    @cached_property
    def worlds(self) -> tuple[World, ...]:
        """All that is followed, when a rule first asks: many need no order of events."""
        from oomlint.analysis.exploration import worlds_of

        return tuple(worlds_of(self.project, self.module))

    @property
    def dependencies(self) -> tuple[Path, ...]:
        """Every other file the answer depended on, present or absent."""
        return tuple(sorted(self.project.dependencies))

    @property
    def depends_on_callers(self) -> bool:
        """Whether the answer also depends on who in the project calls into this file."""
        return self.project.asked_callers

    def forget(self) -> None:
        """Takes the model apart, which nobody may ask any more."""
        from oomlint.analysis.forgetting import forget

        self.__dict__.pop("worlds", None)
        forget(self.project, self.module)


# What a process that checks one text again and again keeps of the last one's tree.
last_tree: LastTree | None = None


def analyse(
    source: Source,
    root: Path | None = None,
    torch_version: tuple[int, int] | None = None,
    effects: tuple[Taught, ...] = (),
) -> Model:
    """Builds the model of one file; `root` is its project's folder. Raises SyntaxProblem.

    `effects` is what the settings teach about the project's own functions.
    """
    from oomlint.analysis import modules, parsing
    from oomlint.analysis.project import Project, keep_apart

    tree = parsing.parse(source.text) if last_tree is None else last_tree.tree_of(source.text)
    if source.markdown is not None:
        tree = parsing.without_heads(tree)
    module = modules.build(source, tree, *modules.module_name(source.path))
    project = Project(root or source.path.parent, module)
    keep_apart(effects)
    if effects:
        from oomlint.analysis.teaching import Teaching

        project.teaching = Teaching(project, module, effects)
        project.taught_words = project.teaching.eventful
    return Model(source, module, project, torch_version)
