"""The page of one rule as Markdown, as `oomlint rule` prints it and editors show it."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files

from oomlint.rule import Rule


def markdown(item: type[Rule]) -> str:
    return f"# {item.name} ({item.code})\n\n{status(item)}\n\n{item.explanation()}".rstrip()


def status(item: type[Rule]) -> str:
    facts = [f"Severity: {item.severity.value}."]
    if not item.default:
        facts.append("Off unless selected.")
    if item.preview:
        facts.append("In preview: needs `--preview`.")
    return " ".join(facts)


def with_effect(item: type[Rule]) -> str:
    """The page, led by what repairing the rule's own example was measured to do."""
    effects = measured().get(item.code, ())
    if not effects:
        return markdown(item)
    lines = "\n".join(f"- {effect}" for effect in dict.fromkeys(effects))
    head = f"# {item.name} ({item.code})\n\n{status(item)}"
    body = f"Measured effect of the repair, on the rule's own example:\n{lines}"
    link = f"\n\n[{item.url()}]({item.url()})" if item.url() else ""
    return f"{head}\n\n{body}\n\n{item.explanation()}".rstrip() + link


@lru_cache(maxsize=1)
def measured() -> dict[str, tuple[str, ...]]:
    """Sentences by code, from what `python -m oomlint.docs` took over of bench/proofs.tsv."""
    found: dict[str, tuple[str, ...]] = {}
    text = (files("oomlint") / "measured.tsv").read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        code, device, torch, effect = line.split("\t")
        said = f"{effect} ({device} device, torch {torch})"
        found[code] = (*found.get(code, ()), said)
    return found
