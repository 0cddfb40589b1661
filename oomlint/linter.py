"""Source and rules -> findings: gate, analysis, rules, suppressions, for one file."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from oomlint.analysis import Model, SyntaxProblem, analyse
from oomlint.gate import Gate, uses_taught
from oomlint.rule import PREFIX, REPOSITORY, Edit, Finding, Rule
from oomlint.selection import Selection, select
from oomlint.settings import Settings
from oomlint.source import (
    MAX_BYTES,
    NotPython,
    Source,
    Unreadable,
    from_bytes,
    is_markdown,
    is_notebook,
)
from oomlint.suppressions import suppress
from oomlint.syntax import compiles, is_python, require_python
from oomlint.unused import NAMING, unused


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a file could not be checked (or not whole); row and column are 1-based, 0 for none.

    `kind` is `invalid-syntax`, `unreadable`, `crashed` or `internal-error`.
    """

    kind: str
    message: str
    row: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class FileResult:
    """All that one file's check says; findings are in order of position, then code."""

    path: Path
    findings: tuple[Finding, ...] = ()
    problem: Problem | None = None
    # `row: sentence` about suppression comments that mean nothing, ` sentence` about the file.
    warnings: tuple[str, ...] = ()
    dependencies: tuple[Path, ...] = ()
    depends_on_callers: bool = False


# Where a message names another line of its file.
LINE_NUMBER = re.compile(r"\bline (\d+)\b")

# The line above a cell of a script.
CELLS = re.compile(rb"^#\s?%%", re.MULTILINE)

# Where models go that are taken apart later, by a process whose answer is waited for.
left: list[Model] | None = None
# Whether they stay as they are, in a process that ends before they fill the memory: to take them
# apart is a twentieth of the time that a large tree takes.
stay = False


def let_stay(is_short_lived: bool) -> None:
    """Says at the beginning of a process whether its models need not be taken apart."""
    global stay
    stay = is_short_lived


def leave(model: Model) -> None:
    if stay:
        return
    if left is None:
        model.forget()
    else:
        left.append(model)


GATES: dict[tuple[type[Rule], ...], Gate] = {}


def gate_for(rules: tuple[type[Rule], ...]) -> Gate:
    gate = GATES.get(rules)
    if gate is None:
        gate = GATES[rules] = Gate(rules)
    return gate


def asked(
    rules: tuple[type[Rule], ...], data: bytes, settings: Settings, in_notebook: bool = False
) -> tuple[type[Rule], ...]:
    """The rules that can fire; a taught name may stand for the words of any of them."""
    is_taught = uses_taught(data, settings.taught_words)
    found = rules if is_taught else gate_for(rules).open_rules(data)
    if any(rule.of_cells for rule in found) and not in_notebook and not CELLS.search(data):
        found = tuple(rule for rule in found if not rule.of_cells)
    if any(rule.of_comments for rule in found) and not NAMING.search(data):
        return tuple(rule for rule in found if not rule.of_comments)
    return found


def check_source(source: Source, settings: Settings, *, gate: bool = True) -> FileResult:
    """Checks one text in this process; `gate=False` puts every rule's question (for tests).

    Of a notebook with a cell that is no Python the other cells are checked all the same.
    """
    result = check_text(source, settings, gate)
    if result.problem is None or source.notebook is None:
        return result
    broken = {row for row, text in source.pieces() if not is_python(text)}
    if not broken:
        return result
    rest = check_text(source.without_pieces(broken), settings, gate)
    if rest.problem:
        return rest
    # What a comment silences may rest on the cells that could not be read.
    unsure = {rule.code for rule in select(settings).rules if rule.of_comments}
    findings = tuple(finding for finding in rest.findings if finding.code not in unsure)
    return replace(rest, findings=findings, problem=result.problem)


def check_text(source: Source, settings: Settings, gate: bool) -> FileResult:
    selection = select(settings)
    rules = selection.rules_for(str(source.path), settings)
    if gate:
        data = source.text.encode("utf-8", "replace")
        rules = asked(rules, data, settings, source.notebook is not None)
    if rules:
        return run_rules(source, rules, selection, settings)
    try:
        require_python(source.text)
    except SyntaxProblem as error:
        return FileResult(source.path, problem=syntax_problem(source, error))
    return FileResult(source.path)


def check_bytes(path: Path, data: bytes, settings: Settings, *, syntax: bool = True) -> FileResult:
    """Checks one file's bytes; what no rule can fire in is neither decoded nor analysed.

    `syntax=False` also takes it on trust that such a file is Python.
    """
    if is_notebook(path) or is_markdown(path):
        return check_document(path, data, settings)
    selection = select(settings)
    rules = asked(selection.rules_for(str(path), settings), data, settings)
    if not rules and (not syntax or len(data) > MAX_BYTES or compiles(data)):
        return FileResult(path)
    try:
        source = from_bytes(path, data)
    except Unreadable as error:
        return FileResult(path, problem=Problem("unreadable", str(error)))
    if rules:
        return run_rules(source, rules, selection, settings)
    return check_source(source, settings)


def check_document(path: Path, data: bytes, settings: Settings) -> FileResult:
    """Checks a notebook or Markdown, which is read first: the words around its code are none."""
    try:
        return check_source(from_bytes(path, data), settings)
    except NotPython as error:
        return FileResult(path, warnings=(f" {error}",))
    except Unreadable as error:
        return FileResult(path, problem=Problem("unreadable", str(error)))


def unreadable(path: Path, error: OSError) -> FileResult:
    reason = (error.strerror or type(error).__name__).lower()
    return FileResult(path, problem=Problem("unreadable", f"cannot be read: {reason}"))


def syntax_problem(source: Source, error: SyntaxProblem) -> Problem:
    """The problem, in a notebook that of the first cell that is no Python by itself."""
    for first_row, text in source.pieces() if source.notebook else ():
        try:
            require_python(text)
        except SyntaxProblem as own:
            return Problem("invalid-syntax", own.message, first_row + own.row - 1, own.column)
    return Problem("invalid-syntax", error.message, error.row, error.column)


def run_rules(
    source: Source, rules: Iterable[type[Rule]], selection: Selection, settings: Settings
) -> FileResult:
    """Builds the model once and puts each rule's question to it."""
    asking: type[Rule] | None = None
    about_code = [rule for rule in rules if not rule.of_comments]
    model: Model | None = None
    findings: list[Finding] = []
    try:
        if about_code:
            model = analyse(source, settings.root, settings.torch_version, settings.effects)
            for rule in about_code:
                asking = rule
                findings += answers(rule, model)
        else:
            require_python(source.text)
    except SyntaxProblem as error:
        return FileResult(source.path, problem=syntax_problem(source, error))
    except RecursionError:
        problem = Problem("unreadable", "holds an expression that is nested too deeply to analyse")
        return FileResult(source.path, problem=problem)
    except Exception as error:
        return FileResult(source.path, problem=internal_error(asking, error))
    ordered = sorted(
        (as_written(selection.adjusted(item), source) for item in dict.fromkeys(findings)),
        key=lambda item: (item.start, item.end, item.code),
    )
    kept = tuple(ordered)
    warnings: tuple[str, ...] = ()
    if not settings.ignore_noqa:
        kept, warnings = suppress(source, kept)
        kept += needless(source, ordered, rules, selection, settings)
    result = FileResult(
        source.path,
        tuple(sorted(kept, key=lambda item: (item.start, item.end, item.code))),
        warnings=warnings,
        dependencies=model.dependencies if model else (),
        depends_on_callers=model is not None and model.depends_on_callers,
    )
    if model is not None:
        leave(model)
    return result


def needless(
    source: Source,
    findings: Iterable[Finding],
    rules: Iterable[type[Rule]],
    selection: Selection,
    settings: Settings,
) -> tuple[Finding, ...]:
    """What rules about comments say, once it is known what the comments silence."""
    asked_of: dict[str, str] = {}
    found: list[Finding] = []
    for rule in rules:
        if rule.of_comments:
            for other in selection.rules_for(str(source.path), settings):
                asked_of |= {other.code: other.code, other.name: other.code}
            found += unused(source, findings, asked_of, rule)
    written = tuple(as_written(selection.adjusted(item), source) for item in found)
    return suppress(source, written)[0]


def answers(rule: type[Rule], model: Model) -> Iterator[Finding]:
    """What a rule finds. Raises what reports and fixes would stumble over later."""
    end = len(model.source.text)
    for found in rule().check(model):
        if not isinstance(found, Finding):
            raise TypeError(f"check() yields {type(found).__name__} instead of Finding")
        spans = [(found.start, found.end)]
        spans += [(edit.start, edit.end) for edit in (found.fix.edits if found.fix else ())]
        if not all(0 <= start <= stop <= end for start, stop in spans):
            raise ValueError(f"check() yields a place outside of the text's {end} characters")
        yield found


def internal_error(asking: type[Rule] | None, error: Exception) -> Problem:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    said = " ".join(str(error).split())
    doing = asking.code if asking else "the analysis"
    blame = f"this is a bug in oomlint, please report it at {REPOSITORY}/issues"
    if asking is not None and not asking.code.startswith(PREFIX):
        blame = f"this is a bug in `{asking.__module__}`, which is no part of oomlint"
    failure = f"{doing} failed with {type(error).__name__}: {said} ({where})"
    return Problem("internal-error", f"{failure}; {blame}")


def as_written(finding: Finding, source: Source) -> Finding:
    """The finding in the terms of its file: its line ends in the fix, its cells in the message."""
    if source.notebook:
        message = LINE_NUMBER.sub(lambda m: str(source.place(int(m[1]))), finding.message)
        finding = replace(finding, message=message)
    return with_newlines(finding, source)


def with_newlines(finding: Finding, source: Source) -> Finding:
    """The finding whose fix writes the line ends of the file itself."""
    newline = source.newline
    if finding.fix is None or newline == "\n":
        return finding
    edits = tuple(
        Edit(e.start, e.end, e.content.replace("\r\n", "\n").replace("\n", newline))
        for e in finding.fix.edits
    )
    return replace(finding, fix=replace(finding.fix, edits=edits))
