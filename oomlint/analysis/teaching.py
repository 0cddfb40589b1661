"""What the settings teach about functions and classes: which call it is said of."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from oomlint.analysis import classes
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.project import Project
from oomlint.analysis.state import World
from oomlint.analysis.values import (
    Callable,
    ClassValue,
    External,
    Instance,
    Super,
    Thing,
    Unknown,
    Value,
)
from oomlint.effects import EVENTFUL, Effect, Taught

MODES = {Effect.NO_GRAD: False, Effect.ENABLE_GRAD: True}


class Teaching:
    """The taught names of a project, asked by what is called."""

    def __init__(self, project: Project, module: Module, taught: Iterable[Taught]) -> None:
        self.project, self.module = project, module
        self.by_name = {item.name: item for item in taught}
        self.by_last: dict[str, list[Taught]] = {}
        for item in self.by_name.values():
            self.by_last.setdefault(item.last, []).append(item)
        # Classes outside the project whose objects are told from others.
        self.owners = frozenset(item.name.rpartition(".")[0] for item in self.by_name.values())

        # The words by which the module says them: imports may rename.
        self.words: dict[str, set[Effect]] = {}
        for item in self.by_name.values():
            self.words.setdefault(item.last, set()).add(item.effect)
        for local, qualified in module.imports.items():
            for item in self.by_last.get(qualified.rpartition(".")[2], ()):
                self.words.setdefault(local, set()).add(item.effect)

    @property
    def eventful(self) -> frozenset[str]:
        """Words by which an event can be reached."""
        return frozenset(word for word, effects in self.words.items() if effects & EVENTFUL)

    def of_value(self, target: Value) -> Taught | None:
        """What is taught about a function or class that is called."""
        if isinstance(target, External):
            return self.by_name.get(target.qualified)
        definition = target.function if isinstance(target, Callable) else None
        if isinstance(target, ClassValue):
            return self.of_definition(target.cls) if target.cls is not None else None
        return self.of_definition(definition) if definition is not None else None

    def of_definition(self, definition: Function | Class) -> Taught | None:
        for item in self.by_last.get(definition.name, ()):
            if self.is_named(definition, item.name):
                return item
        return None

    def is_named(self, definition: Function | Class, name: str) -> bool:
        """Whether a qualified name means a definition, by its own place or by a re-export."""
        inner = definition.qualname if isinstance(definition, Function) else definition.name
        if f"{definition.module.name}.{inner}" == name:
            return True
        return self.project.find(name, self.module) is definition

    def of_method(self, world: World, receiver: Value, name: str) -> Taught | None:
        """What is taught about a method of the receiver's class, or of one that it inherits."""
        candidates = self.by_last.get(name, ())
        for item in candidates:
            owner = item.name.rpartition(".")[0]
            if owner and self.is_of(world, receiver, owner):
                return item
        return None

    def is_of(self, world: World, value: Value, owner: str) -> bool:
        if isinstance(value, Super):
            value = value.this if value.this is not None else value
        if isinstance(value, Instance | ClassValue) and value.cls is not None:
            if owner in classes.base_names(world, value.cls):
                return True
            return any(self.is_named(kin, owner) for kin in classes.lineage(world, value.cls))
        if not isinstance(value, Unknown | Thing) or not value.qualified:
            return False
        if owner in (value.qualified, f"{self.module.name}.{value.qualified}"):
            return True
        found = self.project.find(value.qualified, self.module)
        found = found or self.module.class_(value.qualified)
        if not isinstance(found, Class):
            return False
        return owner in classes.base_names(world, found) or any(
            self.is_named(kin, owner) for kin in classes.lineage(world, found)
        )

    def mode_of(self, module: Module, decorators: Iterable[ast.expr]) -> bool | None:
        """The grad mode in which one of these decorators runs a function; None for no such."""
        for decorator in decorators:
            call = decorator.func if isinstance(decorator, ast.Call) else decorator
            text = classes.dotted(call)
            if text is None or text.rpartition(".")[2] not in self.words_of_decorators(module):
                continue
            head, _, rest = text.partition(".")
            qualified = module.imports.get(head, f"{module.name}.{head}")
            qualified += f".{rest}" if rest else ""
            item = self.by_name.get(qualified)
            if item is None:
                found = self.project.find(qualified, module)
                found = found or module.function(text) or module.class_(text)
                item = self.of_definition(found) if isinstance(found, Function | Class) else None
            if item is not None and item.effect in MODES:
                return MODES[item.effect]
        return None

    def words_of_decorators(self, module: Module) -> frozenset[str]:
        """Last names of what turns gradients on or off, and what imports rename it to."""
        words = {item.last for item in self.by_name.values() if item.effect in MODES}
        renamed = {k for k, v in module.imports.items() if v.rpartition(".")[2] in words}
        return frozenset(words | renamed)
