"""Turns selectors into rules: which are on, which fixes may be applied, what a file ignores."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from oomlint import registry
from oomlint.errors import OomlintError
from oomlint.rule import FAMILIES, Finding, Rule, Safety
from oomlint.settings import Layer, Settings


@dataclass(frozen=True, slots=True)
class Selection:
    """The rules that are on under some settings, and how their fixes are treated (by code)."""

    rules: tuple[type[Rule], ...]
    fixable: frozenset[str]
    made_safe: frozenset[str]
    made_unsafe: frozenset[str]
    # For each per-file ignore of the settings, the codes that it ignores.
    ignored: tuple[frozenset[str], ...]
    warnings: tuple[str, ...]

    def rules_for(self, path: str, settings: Settings) -> tuple[type[Rule], ...]:
        """The rules that are on for the file at this absolute path."""
        off: set[str] = set()
        for item, codes in zip(settings.per_file_ignores, self.ignored, strict=True):
            if codes and item.applies(path):
                off |= codes
        return tuple(rule for rule in self.rules if rule.code not in off) if off else self.rules

    def adjusted(self, finding: Finding) -> Finding:
        """The finding with its fix dropped or its safety changed as the settings say."""
        if finding.fix is None:
            return finding
        if finding.code not in self.fixable:
            return replace(finding, fix=None)
        safety = finding.fix.safety
        if finding.code in self.made_safe:
            safety = Safety.SAFE
        if finding.code in self.made_unsafe:
            safety = Safety.UNSAFE
        if safety is finding.fix.safety:
            return finding
        return replace(finding, fix=replace(finding.fix, safety=safety))


@dataclass(frozen=True, slots=True)
class Selector:
    text: str
    # 0 for ALL, then the length of the prefix; a code or name is the most specific.
    specificity: int
    codes: frozenset[str]


def selector(text: str, origin: str) -> Selector:
    """Resolves one selector. Raises OomlintError for one that can never match."""
    rules = registry.all_rules()
    if text == "ALL":
        return Selector(text, 0, frozenset(rule.code for rule in rules))
    exact = [rule.code for rule in rules if text in (rule.code, rule.name)]
    if exact:
        return Selector(text, 99, frozenset(exact))
    matched = frozenset(rule.code for rule in rules if rule.code.startswith(text))
    is_family = text == "OOM" or (text[:3] == "OOM" and text[3:] in FAMILIES)
    if re.fullmatch(r"[A-Z]{3}\d{0,2}", text) and (matched or is_family):
        return Selector(text, len(text), matched)
    raise OomlintError(
        f"{origin}: unknown rule selector `{text}`; use a code or a name of `oomlint rule --all`,"
        " a prefix such as `OOM1`, or `ALL`"
    )


def select(settings: Settings) -> Selection:
    """Resolves all selectors of the settings. Raises OomlintError."""
    resolved = RESOLVED.get(settings.fingerprint)
    if resolved is None:
        resolved = RESOLVED[settings.fingerprint] = resolve(settings)
    return resolved


RESOLVED: dict[str, Selection] = {}


def resolve(settings: Settings) -> Selection:
    rules = registry.all_rules()
    allowed = {rule.code for rule in rules if settings.preview or not rule.preview}
    enabled = {rule.code for rule in rules if rule.default and rule.code in allowed}
    fixable = {rule.code for rule in rules}
    safe: set[str] = set()
    unsafe: set[str] = set()
    warnings: list[str] = []
    for layer in settings.layers:
        chosen = (*(layer.select or ()), *layer.extend_select)
        on = [selector(text, layer.origin) for text in chosen]
        off = [selector(text, layer.origin) for text in layer.ignore]
        warnings += preview_warnings(on, settings)
        on = [without_preview(item, settings) for item in on]
        enabled = layered(enabled, layer.select is not None, on, off)
        can = [selector(t, layer.origin) for t in (*(layer.fixable or ()), *layer.extend_fixable)]
        cannot = [selector(text, layer.origin) for text in layer.unfixable]
        fixable = layered(fixable, layer.fixable is not None, can, cannot)
        safe, unsafe = safeties(layer, safe, unsafe)
    return Selection(
        rules=tuple(rule for rule in rules if rule.code in enabled),
        fixable=frozenset(fixable),
        made_safe=frozenset(safe),
        made_unsafe=frozenset(unsafe),
        ignored=tuple(codes_of(item.selectors, item.origin) for item in settings.per_file_ignores),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def layered(
    before: set[str], replaces: bool, on: Iterable[Selector], off: Iterable[Selector]
) -> set[str]:
    """More specific selectors beat less specific ones; at a tie, off wins."""
    votes = [(item.specificity, False, item.codes) for item in on]
    votes += [(item.specificity, True, item.codes) for item in off]
    after = set() if replaces else set(before)
    for _, is_off, codes in sorted(votes, key=lambda vote: vote[:2]):
        after = after - codes if is_off else after | codes
    return after


def safeties(layer: Layer, safe: set[str], unsafe: set[str]) -> tuple[set[str], set[str]]:
    to_safe = [selector(text, layer.origin) for text in layer.extend_safe_fixes]
    to_unsafe = [selector(text, layer.origin) for text in layer.extend_unsafe_fixes]
    return layered(safe, False, to_safe, to_unsafe), layered(unsafe, False, to_unsafe, to_safe)


def codes_of(texts: Iterable[str], origin: str) -> frozenset[str]:
    return frozenset(code for text in texts for code in selector(text, origin).codes)


def without_preview(item: Selector, settings: Settings) -> Selector:
    """Drops preview rules that this selector may not switch on."""
    if settings.preview and (not settings.explicit_preview_rules or item.specificity == 99):
        return item
    stable = {rule.code for rule in registry.all_rules() if not rule.preview}
    return replace(item, codes=item.codes & stable)


def preview_warnings(on: Iterable[Selector], settings: Settings) -> list[str]:
    if settings.preview:
        return []
    preview = {rule.code for rule in registry.all_rules() if rule.preview}
    return [
        f"Selection `{item.text}` has no effect because preview is not enabled."
        for item in on
        if item.codes and item.codes <= preview
    ]
