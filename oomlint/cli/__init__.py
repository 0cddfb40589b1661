"""The command line: commands are imported when named, errors become one line and a code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

import oomlint
from oomlint.errors import OomlintError

COMMANDS = ("check", "clean", "config", "explain", "measure", "rule", "server", "verify")

# Conventional: 128 + the number of the signal.
INTERRUPTED = 130
BROKEN_PIPE = 141


class LazyGroup(click.Group):
    """Imports `oomlint.cli.<name>` only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*COMMANDS, *self.commands})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        command = getattr(importlib.import_module(f"oomlint.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


def global_options(function: Any) -> Any:
    """`--config`, `--isolated` and `--color`, understood before and after the command's name."""
    options = (
        click.option(
            "--config",
            multiple=True,
            metavar="PATH|KEY=VALUE",
            help="A settings file to use instead of those found (also as OOMLINT_CONFIG), or one"
            " setting as TOML.",
        ),
        click.option("--isolated", is_flag=True, help="Use no settings file."),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            help="Colour the output; `auto` asks the terminal, NO_COLOR and FORCE_COLOR.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@global_options
@click.version_option(oomlint.__version__, "-V", "--version", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context, config: tuple[str, ...], isolated: bool, color: str | None) -> None:
    """Find training code that wastes GPU memory or computes wrong gradients, and prove it."""
    ctx.obj = {"config": config, "isolated": isolated, "color": color}


@cli.command("version")
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def version(output_format: str) -> None:
    """Print the version."""
    if output_format == "json":
        click.echo(f'{{"version": "{oomlint.__version__}"}}')
    else:
        click.echo(f"oomlint {oomlint.__version__}")


def wants_color(choice: str | None, stream: Any) -> bool:
    """`--color`, then NO_COLOR, then FORCE_COLOR or CLICOLOR_FORCE, then the terminal."""
    if choice in ("always", "never"):
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if any(
        os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


def complain(kind: str, message: str, choice: str | None = None) -> None:
    """One line on stderr."""
    color = wants_color(choice, sys.stderr)
    label = click.style(f"{kind}:", fg="red" if kind == "error" else "yellow", bold=True)
    text = message.encode("utf-8", "replace").decode("utf-8")
    click.echo(f"{label} {text}", err=True, color=color)


def report_bug() -> None:
    import traceback

    traceback.print_exc()
    issues = "https://github.com/oomlint/oomlint/issues"
    complain("error", f"this is a bug in oomlint; please report it with the lines above: {issues}")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and ends the process: 0 clean, 1 findings, 2 usage or own error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(arguments, standalone_mode=False, prog_name="oomlint")
        sys.stdout.flush()
    except OomlintError as error:
        complain("error", str(error))
        code = 2
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    except Exception:
        report_bug()
        code = 2
    sys.exit(code if isinstance(code, int) else 0)
