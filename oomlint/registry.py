"""Finds rules by importing every module in oomlint.rules and every `oomlint.rules` entry point."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING

import oomlint
from oomlint.errors import OomlintError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from oomlint.rule import Rule

GROUP = "oomlint.rules"
# What can change a finding; command line, reports, server and measurement cannot.
WITHOUT_INFLUENCE = ("cli", "lsp", "reports", "verify")


@lru_cache(maxsize=1)
def all_rules() -> tuple[type[Rule], ...]:
    """Every rule, sorted by code. Raises OomlintError when a third party's rules do not load."""
    package = importlib.import_module(GROUP)
    found: dict[str, type[Rule]] = {}
    for info in pkgutil.iter_modules(package.__path__):
        for rule in rules_in(importlib.import_module(f"{GROUP}.{info.name}")):
            found[rule.code] = rule
    for point in third_party():
        for rule in load(point):
            found[rule.code] = rule
    return tuple(found[code] for code in sorted(found))


def find_rule(text: str) -> type[Rule]:
    """The rule with this code or name. Raises OomlintError."""
    for rule in all_rules():
        if text in (rule.code, rule.name):
            return rule
    known = ", ".join(f"{rule.code} ({rule.name})" for rule in all_rules())
    raise OomlintError(f"there is no rule `{text}`; the rules are {known}")


def rules_in(module: ModuleType) -> Iterator[type[Rule]]:
    from oomlint.rule import Rule

    for value in vars(module).values():
        is_rule = isinstance(value, type) and issubclass(value, Rule)
        # Of a package, what its modules define and it imports; never what it borrows elsewhere.
        if is_rule and f"{value.__module__}.".startswith(f"{module.__name__}."):
            yield value


def third_party() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points

    return tuple(sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value)))


def load(point: EntryPoint) -> tuple[type[Rule], ...]:
    """The rules of an entry point. Raises OomlintError: a check without them would look clean."""
    from oomlint.rule import Rule

    package = f"package `{point.dist.name}`" if point.dist else "its package"
    origin = f"entry point `{point.name} = {point.value}`"
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        raise OomlintError(
            f"the rules of {origin} do not load"
            f" ({type(error).__name__}: {said}); repair or uninstall {package}"
        ) from error
    rules: tuple[type[Rule], ...] = ()
    if isinstance(loaded, ModuleType):
        rules = tuple(rules_in(loaded))
    elif isinstance(loaded, type) and issubclass(loaded, Rule):
        rules = (loaded,)
    if not rules:
        raise OomlintError(
            f"{origin} must name a Rule class or a module that defines some;"
            f" repair or uninstall {package}"
        )
    for rule in rules:
        wrong = defect(rule)
        if wrong is not None:
            raise OomlintError(
                f"rule {rule.code} of {origin} {wrong}; repair or uninstall {package}"
            )
    return rules


def defect(rule: type[Rule]) -> str | None:
    """What a third party's rule declares wrongly, as the end of a sentence; None for nothing."""
    from oomlint.rule import PREFIX, Claim, Rule, Severity

    if rule.code.startswith(PREFIX):
        return f"uses a code of oomlint's own: choose other letters than {PREFIX}"
    missing = [name for name in ("name", "severity", "tokens", "claims") if not hasattr(rule, name)]
    if missing:
        return f"lacks `{missing[0]}`"
    if not isinstance(rule.name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name):
        return f"has the name {rule.name!r}: lower-case words joined by hyphens are needed"
    if not isinstance(rule.severity, Severity):
        return "has a `severity` that is no Severity"
    if not is_tuple_of(rule.tokens, tuple) or not all(is_tuple_of(g, str) for g in rule.tokens):
        return "has `tokens` that are no tuple of tuples of words"
    if not is_tuple_of(rule.texts, str):
        return "has `texts` that are no tuple of words"
    if not is_tuple_of(rule.claims, Claim):
        return "has `claims` that are no tuple of Claims"
    if rule.check is Rule.check:
        return "has no `check`"
    return None


def is_tuple_of(value: object, kind: type) -> bool:
    return isinstance(value, tuple) and all(isinstance(part, kind) for part in value)


@lru_cache(maxsize=1)
def digest() -> str:
    """Names the state of all code that decides findings, without importing any rule."""
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{oomlint.__version__} {sys.version_info[:3]}".encode())
    for library in ("libcst",):
        state.update(f"{library} {installed_version(library)}".encode())
    folders = [*oomlint.__path__, *importlib.import_module(GROUP).__path__]
    for point in third_party():
        version = point.dist.version if point.dist else ""
        state.update(f"{point.name}={point.value} {version}".encode())
        folders += package_places(point.value.partition(":")[0].partition(".")[0])
    for folder in folders:
        for line in stat_lines(folder):
            state.update(line.encode())
    return state.hexdigest()


def installed_version(library: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def package_places(top: str) -> list[str]:
    """The folders or the file of a top-level module, found without importing it."""
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is None:
        return []
    return list(spec.submodule_search_locations or ([spec.origin] if spec.origin else []))


def stat_lines(place: str) -> Iterator[str]:
    if os.path.isfile(place):
        yield stat_line(place)
        return
    for folder, folders, names in os.walk(place):
        if folder in oomlint.__path__:
            folders[:] = [name for name in folders if name not in WITHOUT_INFLUENCE]
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                yield stat_line(os.path.join(folder, name))


def stat_line(path: str) -> str:
    state = os.stat(path)
    return f"{path} {state.st_size} {state.st_mtime_ns}"
