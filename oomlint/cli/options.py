"""The options of `oomlint check`, and how they become overrides of the settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from oomlint.errors import OomlintError
from oomlint.keys import FAIL_ON, FORMATS, Table, checked_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says, under the names of the options."""

    paths: tuple[str, ...]
    config: tuple[str, ...]
    isolated: bool
    color: str | None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    fixable: tuple[str, ...] = ()
    unfixable: tuple[str, ...] = ()
    extend_fixable: tuple[str, ...] = ()
    per_file_ignores: tuple[str, ...] = ()
    extend_per_file_ignores: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    extend_exclude: tuple[str, ...] = ()
    force_exclude: bool | None = None
    respect_gitignore: bool | None = None
    preview: bool | None = None
    torch_version: str | None = None
    extension: tuple[str, ...] = ()
    ignore_noqa: bool = False
    fix: bool = False
    unsafe_fixes: bool | None = None
    fix_only: bool = False
    diff: bool = False
    show_fixes: bool = False
    output_format: str | None = None
    output_file: str | None = None
    baseline: str | None = None
    write_baseline: str | None = None
    statistics: bool = False
    show_files: bool = False
    show_settings: bool = False
    watch: bool = False
    add_noqa: bool = False
    noqa_reason: str | None = None
    stdin_filename: str | None = None
    exit_zero: bool = False
    exit_non_zero_on_fix: bool = False
    fail_on: str | None = None
    no_cache: bool = False
    cache_dir: str | None = None
    jobs: int | None = None
    verbose: bool = False
    quiet: bool = False
    silent: bool = False

    @property
    def changes_text(self) -> bool:
        return self.fix or self.fix_only or self.diff


def complete_rules(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Codes and names of rules, behind what a list of them holds already."""
    from oomlint import registry

    before, comma, begun = incomplete.rpartition(",")
    found = [
        CompletionItem(f"{before}{comma}{word}", help=rule.name if word == rule.code else rule.code)
        for rule in registry.all_rules()
        for word in (rule.code, rule.name)
    ]
    return [item for item in found if item.value.removeprefix(before + comma).startswith(begun)]


def codes(*names: str, help: str) -> Callable[[Any], Any]:
    return click.option(
        *names, multiple=True, metavar="RULES", help=help, shell_complete=complete_rules
    )


def complete_path(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def globs(*names: str, help: str, metavar: str = "PATTERNS") -> Callable[[Any], Any]:
    return click.option(
        *names, multiple=True, metavar=metavar, help=help, shell_complete=complete_path
    )


CHECK_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--fix/--no-fix", help="Apply the safe fixes: those that keep all numbers."),
    click.option(
        "--unsafe-fixes/--no-unsafe-fixes",
        default=None,
        help="Apply corrections too: fixes that change what the training computes.",
    ),
    click.option("--fix-only/--no-fix-only", help="Apply fixes and report nothing else."),
    click.option("--diff", is_flag=True, help="Show what would be fixed, and write nothing."),
    click.option("--show-fixes/--no-show-fixes", help="List what was fixed."),
    codes("--select", help="Rules to switch on instead of the default ones: codes, names, ALL."),
    codes("--ignore", help="Rules to switch off."),
    codes("--extend-select", help="Rules to switch on beside those that are on."),
    codes("--fixable", help="Rules whose fixes may be applied."),
    codes("--unfixable", help="Rules whose fixes may not be applied."),
    codes("--extend-fixable", help="More rules whose fixes may be applied."),
    globs("--per-file-ignores", metavar="PATTERN:RULE", help="Rules to switch off in some files."),
    globs("--extend-per-file-ignores", metavar="PATTERN:RULE", help="More of the same."),
    globs("--exclude", help="Files and folders to leave out, instead of the default ones."),
    globs("--extend-exclude", help="More files and folders to leave out."),
    click.option(
        "--force-exclude/--no-force-exclude",
        default=None,
        help="Leave out excluded files even when they are named.",
    ),
    click.option(
        "--respect-gitignore/--no-respect-gitignore",
        default=None,
        help="Leave out what git ignores (default: yes).",
    ),
    globs("--extension", metavar="md", help="Kinds of files to look for in folders besides."),
    click.option("--preview/--no-preview", default=None, help="Allow rules that are in preview."),
    click.option(
        "--torch-version",
        metavar="RELEASE",
        help="The oldest PyTorch on which the code must run, such as 2.4.",
    ),
    click.option(
        "--output-format",
        type=click.Choice(FORMATS),
        envvar="OOMLINT_OUTPUT_FORMAT",
        show_envvar=True,
        help="How findings are written.",
    ),
    click.option(
        "-o",
        "--output-file",
        metavar="FILE",
        type=click.Path(),
        envvar="OOMLINT_OUTPUT_FILE",
        show_envvar=True,
        help="Write the report to a file.",
    ),
    click.option(
        "--baseline",
        metavar="FILE",
        type=click.Path(),
        help="Report only what this file does not know.",
    ),
    click.option(
        "--write-baseline",
        metavar="FILE",
        type=click.Path(),
        help="Write all findings to a file, as known ones.",
    ),
    click.option("--statistics", is_flag=True, help="Count findings by rule."),
    click.option("--show-files", is_flag=True, help="List the files that would be checked."),
    click.option("--show-settings", is_flag=True, help="Print what holds for the first file."),
    click.option("-w", "--watch", is_flag=True, help="Check again whenever a file changes."),
    click.option("--ignore-noqa", is_flag=True, help="Report what comments silence, too."),
    click.option(
        "--add-noqa",
        "--add-ignore",
        is_flag=True,
        help="Silence what is found by comments; `--add-noqa=REASON` says why in each.",
    ),
    click.option("--noqa-reason", hidden=True),
    click.option(
        "--stdin-filename",
        metavar="FILE",
        type=click.Path(),
        help="The name of what comes on stdin.",
    ),
    click.option("-e", "--exit-zero", is_flag=True, help="Exit with 0 even with findings."),
    click.option("--exit-non-zero-on-fix", is_flag=True, help="Exit with 1 if anything was fixed."),
    click.option(
        "--fail-on", type=click.Choice(FAIL_ON), help="The mildest severity that exits with 1."
    ),
    click.option(
        "-n",
        "--no-cache",
        is_flag=True,
        envvar="OOMLINT_NO_CACHE",
        show_envvar=True,
        help="Neither use nor write stored results.",
    ),
    click.option(
        "--cache-dir",
        metavar="FOLDER",
        type=click.Path(),
        envvar="OOMLINT_CACHE_DIR",
        show_envvar=True,
        help="Where results are stored.",
    ),
    click.option(
        "-j",
        "--jobs",
        type=click.IntRange(min=1),
        envvar="OOMLINT_JOBS",
        show_envvar=True,
        help="Worker processes (default: one a core).",
    ),
    click.option("-v", "--verbose", is_flag=True, help="Say more on stderr."),
    click.option("-q", "--quiet", is_flag=True, help="Print findings only."),
    click.option("-s", "--silent", is_flag=True, help="Print nothing; the exit code tells."),
)


class CheckCommand(click.Command):
    """Takes `--add-noqa=REASON`, where without `=` the next word is a path; ruff has both names."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parted = []
        for index, word in enumerate(args):
            name, said, reason = word.partition("=")
            if said and name in ("--add-noqa", "--add-ignore") and "--" not in args[:index]:
                parted += [name, f"--noqa-reason={reason}"]
            else:
                parted.append(word)
        return super().parse_args(ctx, parted)


def check_options(function: Any) -> Any:
    for option in reversed(CHECK_OPTIONS):
        function = option(function)
    return function


def conflict(options: Options) -> str | None:
    """The first two options that exclude each other, as a sentence."""
    pairs = (
        ("--diff", options.diff, "--show-fixes", options.show_fixes),
        ("--diff", options.diff, "--statistics", options.statistics),
        ("--diff", options.diff, "--write-baseline", bool(options.write_baseline)),
        ("--write-baseline", bool(options.write_baseline), "--baseline", bool(options.baseline)),
        ("--add-noqa", options.add_noqa, "--fix", options.fix),
        ("--add-noqa", options.add_noqa, "--fix-only", options.fix_only),
        ("--add-noqa", options.add_noqa, "--diff", options.diff),
        ("--add-noqa", options.add_noqa, "--statistics", options.statistics),
        ("--add-noqa", options.add_noqa, "--write-baseline", bool(options.write_baseline)),
        ("--add-noqa", options.add_noqa, "--stdin-filename", bool(options.stdin_filename)),
        ("--add-noqa", options.add_noqa, "-", options.paths == ("-",)),
        ("--add-noqa", options.add_noqa, "--ignore-noqa", options.ignore_noqa),
        ("--watch", options.watch, "--add-noqa", options.add_noqa),
        ("--watch", options.watch, "--diff", options.diff),
        ("--watch", options.watch, "--write-baseline", bool(options.write_baseline)),
        ("--watch", options.watch, "--show-files", options.show_files),
        ("--watch", options.watch, "--show-settings", options.show_settings),
        ("--watch", options.watch, "--stdin-filename", bool(options.stdin_filename)),
        ("--watch", options.watch, "-", options.paths == ("-",)),
        ("--exit-zero", options.exit_zero, "--exit-non-zero-on-fix", options.exit_non_zero_on_fix),
        ("--quiet", options.quiet, "--verbose", options.verbose),
        ("--silent", options.silent, "--verbose", options.verbose),
    )
    if options.stdin_filename and options.paths not in ((), ("-",)):
        return "`--stdin-filename` names what comes on stdin and cannot be used with paths but `-`"
    for first, has_first, second, has_second in pairs:
        if has_first and has_second:
            return f"`{first}` cannot be used with `{second}`"
    return None


def split_config(values: Iterable[str], isolated: bool) -> tuple[Path | None, list[Table]]:
    """`--config` values as at most one settings file and any number of single settings."""
    path: Path | None = None
    tables = []
    for value in values:
        if "=" in value and not os.path.exists(value):
            tables.append(inline_table(value))
            continue
        if path is not None:
            raise OomlintError("`--config` names two settings files; give one")
        if not os.path.isfile(value):
            raise OomlintError(
                f"`--config {value}` is neither a file nor a setting such as"
                " `--config 'ignore = [\"OOM101\"]'`"
            )
        path = Path(os.path.abspath(value))
    if path is not None and isolated:
        raise OomlintError(
            "`--config` with a settings file cannot be used with `--isolated`; give single settings"
            " as `--config KEY=VALUE`"
        )
    return path or (None if isolated else from_environment()), tables


def from_environment() -> Path | None:
    """The settings file that a variable names. Raises OomlintError when there is none."""
    named = os.environ.get("OOMLINT_CONFIG")
    if not named:
        return None
    if not os.path.isfile(named):
        raise OomlintError(f"OOMLINT_CONFIG names `{named}`, which is no file")
    return Path(os.path.abspath(named))


def inline_table(value: str) -> Table:
    origin = f"--config '{value}'"
    try:
        raw = tomllib.loads(value)
    except tomllib.TOMLDecodeError as error:
        raise OomlintError(f"{origin}: is not valid TOML: {error}") from None
    if "extend" in raw:
        raise OomlintError(f"{origin}: `extend` can only stand in a settings file")
    return checked_table(raw, origin, os.getcwd(), lambda *keys: origin)


def overrides(options: Options) -> Table:
    """What the options say, as the last and strongest table of settings."""
    raw: dict[str, object] = {}
    for name in ("select", "ignore", "extend_select", "fixable", "unfixable", "extend_fixable"):
        raw[name] = split_commas(getattr(options, name))
    for name in ("exclude", "extend_exclude", "extension"):
        raw[name] = split_commas(getattr(options, name))
    for name in ("per_file_ignores", "extend_per_file_ignores"):
        raw[name] = split_pairs(getattr(options, name), "--" + name.replace("_", "-"))
    given: dict[str, object] = {name: value for name, value in raw.items() if value}
    for name in ("force_exclude", "respect_gitignore", "preview", "unsafe_fixes"):
        given[name] = getattr(options, name)
    given |= {"output_format": options.output_format, "fail_on": options.fail_on}
    given["torch_version"] = options.torch_version
    given |= {"cache_dir": options.cache_dir, "baseline": options.baseline}
    keyed = {key.replace("_", "-"): value for key, value in given.items() if value is not None}
    return checked_table(keyed, "command line", os.getcwd(), lambda key, *outer: f"--{key}")


def split_commas(values: Iterable[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def split_pairs(values: Iterable[str], option: str) -> dict[str, list[str]]:
    """`PATTERN:RULE` pairs by pattern. Raises OomlintError."""
    found: dict[str, list[str]] = {}
    for pair in split_commas(values):
        glob, colon, rule = pair.rpartition(":")
        if not colon or not glob or not rule:
            raise OomlintError(f"{option}: `{pair}` is not of the form PATTERN:RULE")
        found.setdefault(glob, []).append(rule)
    return found
