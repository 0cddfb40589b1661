"""`oomlint rule`: prints what a rule's docstring says, as Markdown or JSON."""

from __future__ import annotations

import json
from typing import Any

import click

from oomlint import registry
from oomlint.cli.options import complete_rules
from oomlint.errors import OomlintError
from oomlint.pages import markdown, measured
from oomlint.rule import FAMILIES, PREFIX, Rule


@click.command()
@click.argument("wanted", required=False, metavar="CODE|NAME", shell_complete=complete_rules)
@click.option("--all", "every", is_flag=True, help="All rules.")
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def rule(wanted: str | None, every: bool, output_format: str) -> None:
    """Explain a rule: what it finds, why that is bad, and what its fix does."""
    if every == bool(wanted):
        raise OomlintError("name one rule, as in `oomlint rule OOM101`, or say `--all`")
    rules = registry.all_rules() if wanted is None else (registry.find_rule(wanted),)
    if output_format == "json":
        objects = [rule_object(item) for item in rules]
        click.echo(json.dumps(objects if every else objects[0], indent=2))
        return
    click.echo("\n\n".join(markdown(item) for item in rules))


def section(item: type[Rule], heading: str) -> str | None:
    _, found, rest = item.explanation().partition(f"## {heading}\n")
    return " ".join(rest.partition("\n## ")[0].split()) if found else None


def rule_object(item: type[Rule]) -> dict[str, Any]:
    return {
        "name": item.name,
        "code": item.code,
        "linter": "oomlint",
        "summary": item.summary(),
        "severity": item.severity.value,
        "category": FAMILIES[item.code[3]] if item.code.startswith(PREFIX) else "third party",
        "default": item.default,
        "preview": item.preview,
        "status": "preview" if item.preview else "stable",
        # Its section of the documentation, where the rule has fixes at all.
        "fix": section(item, "Fix safety"),
        "fix_availability": "sometimes" if section(item, "Fix safety") else "none",
        "measured": list(measured().get(item.code, ())),
        "explanation": item.explanation(),
        "effect": [claim.value for claim in item.claims],
        "url": item.url(),
    }
