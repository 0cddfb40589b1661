"""DataLoaders of a file: their datasets, their workers, and the code that these run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, classes, project, sites
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.project import Project
from oomlint.analysis.sites import MAX_ALIASES, Site
from oomlint.analysis.state import World

LOADER = re.compile(
    r"(torch\.utils\.data|torch_geometric\.(loader|data)|monai\.data)\.(\w+\.)*\w*DataLoader"
)
DATASET = re.compile(r"(\w+\.)*\w*Dataset|(\w+\.)*VisionDataset|(\w+\.)*(Image|Dataset)Folder")
# What gives back a dataset that reads from the one that it was given.
VIEWS = re.compile(
    r"torch\.utils\.data\.(dataset\.)?(Subset|ConcatDataset|ChainDataset|random_split)"
)
POSITIONS = {"dataset": 0, "num_workers": 5, "collate_fn": 6, "pin_memory": 7}
FETCHING = ("__getitem__", "__getitems__", "__iter__", "__next__")


@dataclass(frozen=True, slots=True)
class Loader:
    """One call that builds a DataLoader. `has_workers` is None where it cannot be told."""

    module: Module
    site: Site
    has_workers: bool | None

    def given(self, keyword: str) -> ast.expr | None:
        return argument(self.module, self.site, keyword)


def loaders(module: Module) -> tuple[Loader, ...]:
    """Every loader that a file builds, computed once."""
    known: tuple[Loader, ...] | None = module.__dict__.get("loaders")
    if known is None:
        known = module.__dict__["loaders"] = tuple(
            Loader(module, site, workers(module, site))
            for site in sites.called(module, *loader_names(module))
            if LOADER.fullmatch(site.qualified)
        )
    return known


def loader_names(module: Module) -> set[str]:
    found = set(re.findall(r"\b(\w*DataLoader)\s*\(", module.source.text))
    local = {name for name, qualified in module.imports.items() if LOADER.fullmatch(qualified)}
    return found | local | {"DataLoader"}


def argument(module: Module, site: Site, keyword: str) -> ast.expr | None:
    """What a loader is given, also by `**options` where the file says what these are."""
    found = site.argument(POSITIONS.get(keyword, -1), keyword)
    if found is not None:
        return found
    for part in site.node.keywords:
        if part.arg is None:
            for value in (part.value, *values(module, part.value, site.function)):
                if keyword in (options := entries(value)):
                    return options[keyword]
    return None


def values(module: Module, node: ast.expr, function: Function | None) -> list[ast.expr]:
    return [value for value, _ in sites.values_of(module, node, function)]


def entries(node: ast.expr) -> dict[str, ast.expr]:
    """The items of `dict(a=1)` and `{"a": 1}`."""
    if isinstance(node, ast.Call) and written(node.func) == "dict":
        return {part.arg: part.value for part in node.keywords if part.arg is not None}
    if isinstance(node, ast.Dict):
        return {
            key.value: value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant) and isinstance(key.value, str)
        }
    return {}


def workers(module: Module, site: Site) -> bool | None:
    """Whether a loader has worker processes: a number, or a setting that exists to ask for them."""
    given = argument(module, site, "num_workers")
    if given is None:
        return None if site.is_open else False
    found = number(module, given, site.function, 0)
    return found > 0 if found is not None else wanted(given, site.function)


def number(module: Module, node: ast.expr, function: Function | None, depth: int) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) else None
    if depth > MAX_ALIASES:
        return None
    known = sites.values_of(module, node, function)
    numbers = [number(module, value, where, depth + 1) for value, where in known]
    return max((n for n in numbers if n is not None), default=None)


def wanted(node: ast.expr, function: Function | None) -> bool | None:
    """A setting asks for workers; a parameter only where its default does."""
    if not isinstance(node, ast.Name):
        return True
    default = default_of(node.id, function)
    if isinstance(default, ast.Constant):
        return bool(default.value) if default.value is not None else None
    return None


def default_of(name: str, function: Function | None) -> ast.expr | None:
    while function is not None:
        arguments = function.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        first = len(positional) - len(arguments.defaults)
        for index, parameter in enumerate(positional):
            if parameter.arg == name:
                return arguments.defaults[index - first] if index >= first else None
        for parameter, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if parameter.arg == name:
                return value
        function = function.parent
    return None


def dataset_class(
    scope: Project, module: Module, node: ast.expr | None, function: Function | None, depth: int = 0
) -> Class | None:
    """The class of the project that a dataset is an object of."""
    if node is None or depth > MAX_ALIASES:
        return None
    if isinstance(node, ast.Call):
        found = classes.resolve_class(World(scope, module), module, node.func)
        if found is not None:
            return found
        called = sites.qualified_name(module, node.func, function)
        if VIEWS.fullmatch(called) and node.args:
            return dataset_class(scope, module, node.args[0], function, depth + 1)
        return None
    if isinstance(node, ast.List | ast.Tuple) and node.elts:
        return dataset_class(scope, module, node.elts[0], function, depth + 1)
    if isinstance(node, ast.Subscript):
        return dataset_class(scope, module, node.value, function, depth + 1)
    for value, where in sites.values_of(module, node, function):
        found = dataset_class(scope, module, value, where, depth + 1)
        if found is not None:
            return found
    return None


def is_dataset(scope: Project, cls: Class) -> bool:
    bases = classes.base_names(World(scope, cls.module), cls)
    return any(DATASET.fullmatch(base) for base in bases)


def loader_of(scope: Project, cls: Class) -> Loader | None:
    """A loader with workers for objects of a class: in its file, else anywhere in the project."""
    own = [loader for loader in loaders(cls.module) if loader.has_workers]
    for loader in own:
        if dataset_of(scope, loader) is cls:
            return loader
    if own and is_only_dataset(scope, cls):
        return own[0]
    return loader_elsewhere(scope, cls)


def dataset_of(scope: Project, loader: Loader) -> Class | None:
    given = loader.given("dataset")
    return dataset_class(scope, loader.module, given, loader.site.function)


def is_only_dataset(scope: Project, cls: Class) -> bool:
    """Whether loaders of a file that are given an unknown dataset can only be given this one."""
    others = [c for c in cls.module.class_by_node.values() if is_dataset(scope, c)]
    given = [dataset_of(scope, loader) for loader in loaders(cls.module)]
    return others == [cls] and not any(given)


def loader_elsewhere(scope: Project, cls: Class) -> Loader | None:
    scope.asked_callers = True
    name = cls.name.encode()
    for path, data in project.project_texts(scope.root).items():
        if name not in data or b"num_workers" not in data or path == cls.module.path:
            continue
        module = project.load_whole(path)
        if module is None:
            continue
        for loader in loaders(module):
            found = dataset_of(scope, loader) if loader.has_workers else None
            if found is not None and same(found, cls):
                return loader
    return None


def same(one: Class, other: Class) -> bool:
    return one.name == other.name and one.module.path == other.module.path


def run_by_workers(module: Module, first: Function) -> list[Function]:
    """A function and those of its file that it calls."""
    found = [first]
    for function in found:
        for site in sites.found_in(module, function.node, function):
            called = cadence.local_function(module, site)
            if called is not None and called not in found and len(found) < 20:
                found.append(called)
    return found


def fetching(cls: Class) -> Iterator[Function]:
    for name in FETCHING:
        if name in cls.methods:
            yield cls.methods[name]
