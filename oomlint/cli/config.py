"""`oomlint config`: the keys of settings files, and what each is for."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
from click.shell_completion import CompletionItem

from oomlint.errors import OomlintError
from oomlint.key_help import HELP, KeyHelp


def complete_key(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [
        CompletionItem(key, help=entry.text.partition(". ")[0])
        for key, entry in sorted(HELP.items())
        if key.startswith(incomplete)
    ]


@click.command()
@click.argument("key", required=False, shell_complete=complete_key)
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def config(key: str | None, output_format: str) -> None:
    """List the keys of settings files, or explain one of them."""
    if key is not None and key not in HELP:
        raise OomlintError(f"there is no key `{key}`; the keys are {', '.join(sorted(HELP))}")
    if output_format == "json":
        found = {name: as_object(HELP[name]) for name in ([key] if key else sorted(HELP))}
        click.echo(json.dumps(found[key] if key else found, indent=2))
    elif key is None:
        click.echo("\n".join(sorted(HELP)))
    else:
        click.echo("\n".join(explained(HELP[key])))


def as_object(entry: KeyHelp) -> dict[str, str]:
    return {
        "doc": entry.text,
        "default": entry.default,
        "value_type": entry.kind,
        "example": entry.example,
    }


def explained(entry: KeyHelp) -> Iterator[str]:
    yield click.wrap_text(entry.text, 88)
    yield ""
    yield f"Default: {entry.default}"
    yield f"Value:   {entry.kind}"
    yield "Example:"
    yield ""
    yield "    [tool.oomlint]"
    yield f"    {entry.example}"
