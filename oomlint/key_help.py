"""What each key of a settings file is for: the text of `oomlint config` and of docs/settings.md."""

from __future__ import annotations

from dataclasses import dataclass

from oomlint.keys import EXTENSIONS, FAIL_ON, FORMATS


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """`kind` says what may stand there, `default` and `example` are TOML."""

    kind: str
    default: str
    text: str
    example: str


SELECTORS = "list of codes, names and prefixes of rules"
GLOBS = "list of patterns"
BOOLEAN = "true or false"

HELP: dict[str, KeyHelp] = {
    "extend": KeyHelp(
        "path",
        "none",
        "A settings file to start from; what stands beside this key counts on top of it. A relative"
        " path starts at the folder of the file in which it stands, `~` and environment variables"
        " are expanded, and the other file may itself extend a further one. Patterns and paths of"
        " each file start at its own folder.",
        'extend = "../oomlint.toml"',
    ),
    "select": KeyHelp(
        SELECTORS,
        "every rule but advice (OOM9) and previews",
        "The rules that are on. A more specific selector beats a less specific one, and `ignore`"
        " wins where both are as specific.",
        'select = ["OOM1", "OOM301", "misplaced-zero-grad"]',
    ),
    "extend-select": KeyHelp(
        SELECTORS, "[]", "Rules that are on besides.", 'extend-select = ["OOM9"]'
    ),
    "ignore": KeyHelp(SELECTORS, "[]", "Rules that are off.", 'ignore = ["OOM204"]'),
    "per-file-ignores": KeyHelp(
        "table of pattern = selectors",
        "{}",
        "Rules that are off in the files that a pattern covers; with `!` before it, in all others.",
        'per-file-ignores = { "tests/**" = ["OOM1"], "!src/**" = ["OOM9"] }',
    ),
    "extend-per-file-ignores": KeyHelp(
        "table of pattern = selectors",
        "{}",
        "More of the same, beside those of the file that is extended.",
        'extend-per-file-ignores = { "legacy/**" = ["OOM2"] }',
    ),
    "exclude": KeyHelp(
        GLOBS,
        "folders of tools, such as .git, .venv, build and node_modules",
        "Files and folders that are left out, instead of the usual ones. A pattern without a slash"
        " matches a name anywhere, one with a slash starts at the folder of the settings file.",
        'exclude = ["build", "third_party/**"]',
    ),
    "extend-exclude": KeyHelp(
        GLOBS, "[]", "Files and folders that are left out besides.", 'extend-exclude = ["*.ipynb"]'
    ),
    "force-exclude": KeyHelp(
        BOOLEAN,
        "false",
        "Leave out excluded files even when they are named on the command line.",
        "force-exclude = true",
    ),
    "respect-gitignore": KeyHelp(
        BOOLEAN, "true", "Leave out what git ignores.", "respect-gitignore = false"
    ),
    "extension": KeyHelp(
        f"list of {', '.join(EXTENSIONS)}",
        "[]",
        "Kinds of files that are looked for in folders beside Python and notebooks: Markdown, whose"
        " blocks of Python are checked. A file that is named is read without this.",
        'extension = ["md"]',
    ),
    "effects": KeyHelp(
        "table of qualified name = effect",
        "{}",
        "What functions and methods do that oomlint cannot see through (docs/effects.md).",
        'effects = { "my.engine.backward_step" = "scaled-backward" }',
    ),
    "torch-version": KeyHelp(
        "release as a string",
        "none: a current PyTorch",
        "The oldest PyTorch on which the code must run; fixes use nothing newer.",
        'torch-version = "2.4"',
    ),
    "fixable": KeyHelp(
        SELECTORS, '["ALL"]', "Rules whose fixes may be applied.", 'fixable = ["OOM1"]'
    ),
    "extend-fixable": KeyHelp(
        SELECTORS, "[]", "More rules whose fixes may be applied.", 'extend-fixable = ["OOM308"]'
    ),
    "unfixable": KeyHelp(
        SELECTORS, "[]", "Rules whose fixes may not be applied.", 'unfixable = ["OOM501"]'
    ),
    "extend-safe-fixes": KeyHelp(
        SELECTORS,
        "[]",
        "Rules whose fixes count as safe here, so that `--fix` applies them.",
        'extend-safe-fixes = ["OOM404"]',
    ),
    "extend-unsafe-fixes": KeyHelp(
        SELECTORS,
        "[]",
        "Rules whose fixes count as unsafe here.",
        'extend-unsafe-fixes = ["OOM101"]',
    ),
    "unsafe-fixes": KeyHelp(
        BOOLEAN,
        "false",
        "Whether `--fix` applies corrections too: fixes that change what the training computes.",
        "unsafe-fixes = true",
    ),
    "preview": KeyHelp(BOOLEAN, "false", "Allow rules that are in preview.", "preview = true"),
    "explicit-preview-rules": KeyHelp(
        BOOLEAN,
        "false",
        "With `preview`: only those rules in preview that are selected by code or name.",
        "explicit-preview-rules = true",
    ),
    "output-format": KeyHelp(
        f"one of {', '.join(FORMATS)}",
        '"full"',
        "How findings are written.",
        'output-format = "concise"',
    ),
    "fail-on": KeyHelp(
        f"one of {', '.join(FAIL_ON)}",
        '"advice"',
        "The mildest severity with which a run exits with 1.",
        'fail-on = "error"',
    ),
    "cache-dir": KeyHelp(
        "path",
        "`.oomlint_cache` in the project",
        "Where results are stored.",
        'cache-dir = "~/.cache/oomlint"',
    ),
    "baseline": KeyHelp(
        "path",
        "none",
        "A file of known findings, which are not reported (docs/ci.md).",
        'baseline = "oomlint-baseline.json"',
    ),
    "verify": KeyHelp(
        "table with the key harness",
        "{}",
        "What gives `oomlint verify FILE::FUNCTION` the function's arguments: a function of yours,"
        " as package.module:function or file.py:function, seen from the settings file's folder.",
        'verify = { harness = "tests/harness.py:make" }',
    ),
}
