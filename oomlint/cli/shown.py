"""`--show-settings`: what holds for a file, written as TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from oomlint.keys import shown_path
from oomlint.selection import select
from oomlint.settings import Settings


def settings_lines(path: str, settings: Settings) -> Iterator[str]:
    """What was resolved: selectors as the rules that are on, paths as absolute ones."""
    selection = select(settings)
    rules = selection.rules_for(path, settings)
    source = shown_path(settings.source) if settings.source else "defaults and options"
    yield f"# The settings of {shown_path(Path(path))}, from {source}"
    torch = settings.torch_version
    values: dict[str, object] = {
        "project": str(settings.root),
        "rules": [rule.code for rule in rules],
        "fixable": [rule.code for rule in rules if rule.code in selection.fixable],
        "extend-safe-fixes": sorted(selection.made_safe),
        "extend-unsafe-fixes": sorted(selection.made_unsafe),
        "exclude": [pattern.glob for pattern in settings.exclude],
        "force-exclude": settings.force_exclude,
        "respect-gitignore": settings.respect_gitignore,
        "extension": list(settings.extension),
        "preview": settings.preview,
        "explicit-preview-rules": settings.explicit_preview_rules,
        "unsafe-fixes": bool(settings.unsafe_fixes),
        "fail-on": settings.fail_on,
        "output-format": settings.output_format,
        "torch-version": f"{torch[0]}.{torch[1]}" if torch else None,
        "cache-dir": str(settings.cache_dir) if settings.cache_dir else None,
        "baseline": str(settings.baseline) if settings.baseline else None,
        "effects": [taught.name for taught in settings.effects],
    }
    for key, value in values.items():
        if value is not None:
            # JSON's booleans, strings and lists are TOML's, too.
            yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
