"""Comments that silence findings: `noqa`, `oomlint: ignore[...]` and `oomlint: noqa`."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from oomlint.rule import Edit, Finding
from oomlint.source import Source

CODE = r"[A-Z]+[0-9]+"
MENTION = re.compile(r"noqa|oomlint:", re.IGNORECASE)
NOQA = re.compile(r"#\s*noqa\b(?!-)(?P<colon>\s*:)?\s*(?P<rest>[^#]*)", re.IGNORECASE)
CODES = re.compile(rf"({CODE})(?![\w-])(?:[,\s]+(?={CODE}(?![\w-])))?")
IGNORE = re.compile(r"#\s*oomlint:\s*ignore\b\s*(?:\[(?P<codes>[^\]]*)\])?")
WHOLE_FILE = re.compile(r"#\s*oomlint:\s*noqa\b(?P<colon>\s*:)?\s*(?P<rest>[^#]*)", re.IGNORECASE)
SELECTOR = re.compile(r"[A-Z]{3}\d{3}|[a-z]+(?:-[a-z0-9]+)+")
OURS = re.compile(r"oom\d", re.IGNORECASE)

# Codes and names that are silenced; None stands for all of them.
Silenced = frozenset[str] | None


@dataclass(frozen=True, slots=True)
class Directive:
    """One comment that names what it silences; offsets count code points of the whole text.

    `named` holds each code or name with its place; `rows` is None for the whole file.
    """

    start: int
    end: int
    row: int
    named: tuple[tuple[str, int, int], ...]
    rows: frozenset[int] | None

    def covers(self, rows: Iterable[int]) -> bool:
        return self.rows is None or not self.rows.isdisjoint(rows)


@dataclass(slots=True)
class Suppressions:
    """What the comments of one file silence, by 1-based row."""

    whole_file: list[Silenced] = field(default_factory=list)
    rows: dict[int, list[Silenced]] = field(default_factory=dict)
    # The row whose comment counts for a finding that starts on the key.
    moved: dict[int, int] = field(default_factory=dict)
    # Comments that mean nothing, as (row, what is wrong, whether it names one of our codes).
    invalid: list[tuple[int, str, bool]] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)

    def rows_of(self, finding: Finding) -> tuple[int, ...]:
        """The rows whose comments count for a finding."""
        return self.moved.get(finding.row, finding.row), finding.row

    def silences(self, finding: Finding) -> bool:
        row = self.moved.get(finding.row, finding.row)
        found = [*self.whole_file, *self.rows.get(row, ())]
        if row != finding.row:
            found += self.rows.get(finding.row, ())
        return any(item is None or finding.code in item or finding.name in item for item in found)

    def warnings(self, source: Source, findings: tuple[Finding, ...]) -> tuple[str, ...]:
        """One `row: sentence` for each comment that its author must think silences something."""
        starts = {self.moved.get(finding.row, finding.row) for finding in findings}
        return tuple(
            f"{source.place(row)}: {what}"
            for row, what, is_ours in self.invalid
            if is_ours or row in starts
        )


def suppress(
    source: Source, findings: tuple[Finding, ...]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings that no comment silences, and warnings about comments that mean nothing."""
    if not findings or not MENTION.search(source.text):
        return findings, ()
    found = read_suppressions(source)
    kept = tuple(finding for finding in findings if not found.silences(finding))
    return kept, found.warnings(source, findings)


def noqa_row(source: Source, row: int) -> int:
    """The row whose end a `noqa` comment for a finding on `row` belongs to."""
    line = source.line(row)
    if not line.endswith("\\") and '"""' not in line and "'''" not in line:
        return row
    return read_suppressions(source).moved.get(row, row)


def ignore_edit(source: Source, row: int, codes: Iterable[str], reason: str = "") -> Edit:
    """Silences codes on a row by a comment of oomlint's own, or by one that is there already.

    Other tools remove codes that they do not know from a `noqa` comment.
    """
    line, listed = source.line(row), ", ".join(codes)
    comment = IGNORE.search(line, comment_start(source, row)) if IGNORE.search(line) else None
    if comment and comment["codes"]:
        end = source.line_starts[row - 1] + comment.end("codes")
        return Edit(end, end, f", {listed}")
    end = source.line_starts[row - 1] + len(line.rstrip())
    why = f" {reason}" if reason else ""
    return Edit(end, end, f"  # oomlint: ignore[{listed}]{why}")


def comment_start(source: Source, row: int) -> int:
    """The column, from 0, at which the comment of a row begins; the row's length for none."""
    for token in tokens(source):
        if token.type == tokenize.COMMENT and token.start[0] == row:
            return token.start[1]
    return len(source.line(row))


def read_suppressions(source: Source) -> Suppressions:
    found = Suppressions()
    pending: list[Silenced] = []
    waiting: list[Directive] = []
    logical_start = 0
    string_starts: list[int] = []
    previous: tokenize.TokenInfo | None = None
    for token in tokens(source):
        name = tokenize.tok_name[token.type]
        row = token.start[0]
        if previous is not None and row > previous.end[0] and not ends_line(previous):
            move(found.moved, previous.end[0], row)
        if name == "FSTRING_START":
            string_starts.append(row)
        elif name == "FSTRING_END" and string_starts:
            move(found.moved, string_starts.pop(), token.end[0])
        elif name == "STRING":
            move(found.moved, row, token.end[0])
        if name == "COMMENT":
            own_line = not source.line(row)[: token.start[1]].strip()
            read_comment(found, token.string, row, pending if own_line else None)
            at = source.line_starts[row - 1] + token.start[1]
            for directive in directives_in(token.string, at, row, own_line):
                (found.directives if directive.rows != frozenset() else waiting).append(directive)
        elif name == "NEWLINE":
            for covered in range(logical_start, row + 1) if pending else ():
                found.rows.setdefault(covered, []).extend(pending)
            covered_rows = frozenset(range(logical_start, row + 1))
            found.directives += [replace(item, rows=covered_rows) for item in waiting]
            waiting.clear()
            pending.clear()
            logical_start = 0
        elif name not in ("NL", "INDENT", "DEDENT", "ENCODING", "ENDMARKER") and not logical_start:
            logical_start = row
        previous = token
    found.directives += waiting
    return found


def directives_in(comment: str, at: int, row: int, own_line: bool) -> Iterator[Directive]:
    """What a comment that begins at the offset `at` names; of an own line the rows are yet open."""
    for pattern in (WHOLE_FILE,) if WHOLE_FILE.search(comment) else (IGNORE, NOQA):
        for match in pattern.finditer(comment):
            named = tuple(
                (text, at + start, at + end) for text, start, end in named_in(match, pattern)
            )
            rows: frozenset[int] | None = frozenset((row,))
            if pattern is WHOLE_FILE:
                rows = None
            elif pattern is IGNORE and own_line:
                rows = frozenset()
            # A reason may follow, up to the next comment.
            stop = comment.find("#", match.end())
            end = len(comment) if stop < 0 else stop
            if named:
                yield Directive(at + match.start(), at + end, row, named, rows)


def named_in(match: re.Match[str], pattern: re.Pattern[str]) -> Iterator[tuple[str, int, int]]:
    """Each code or name of one directive, with its place in the comment."""
    if pattern is IGNORE:
        for word in re.finditer(r"[^,\s][^,]*(?<!\s)", match["codes"] or ""):
            if SELECTOR.fullmatch(word[0]):
                yield (
                    word[0],
                    match.start("codes") + word.start(),
                    match.start("codes") + word.end(),
                )
        return
    first, position = match.start("rest"), 0
    while match["colon"] is not None and (code := CODES.match(match["rest"], position)):
        yield code[1], first + code.start(1), first + code.end(1)
        position = code.end()


def ends_line(token: tokenize.TokenInfo) -> bool:
    return token.type in (
        tokenize.NEWLINE,
        tokenize.NL,
        tokenize.COMMENT,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
    )


def move(moved: dict[int, int], first: int, last: int) -> None:
    """Rows `first` to `last` are read as one: a comment can only stand at the end of the last."""
    if first == last:
        return
    for row, target in list(moved.items()):
        if target == first:
            moved[row] = last
    for row in range(first, last):
        moved[row] = last


def tokens(source: Source) -> Iterator[tokenize.TokenInfo]:
    """The tokens up to the first that the running Python's tokenizer refuses."""
    text = source.text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        yield from tokenize.generate_tokens(io.StringIO(text).readline)
    except (tokenize.TokenError, SyntaxError, IndentationError):
        return


def read_comment(
    found: Suppressions, comment: str, row: int, pending: list[Silenced] | None
) -> None:
    """Adds what one comment says; `pending` collects what an own-line `ignore` says for below."""
    whole = WHOLE_FILE.search(comment)
    if whole:
        silenced = codes_after(found, whole, row, "oomlint: noqa")
        if silenced is not False:
            found.whole_file.append(silenced)
        return
    ignore = IGNORE.search(comment)
    if ignore:
        read_ignore(found, ignore["codes"], row, pending)
    for noqa in NOQA.finditer(comment):
        silenced = codes_after(found, noqa, row, "noqa")
        if silenced is not False:
            found.rows.setdefault(row, []).append(silenced)


def read_ignore(
    found: Suppressions, codes: str | None, row: int, pending: list[Silenced] | None
) -> None:
    listed = [part.strip() for part in (codes or "").split(",") if part.strip()]
    wrong = [part for part in listed if not SELECTOR.fullmatch(part)]
    if not listed or wrong:
        what = f"`{wrong[0]}` is no code or name" if wrong else "no code is named"
        found.invalid.append(
            (row, f"invalid `# oomlint: ignore`: {what}; write `# oomlint: ignore[OOM101]`", True)
        )
    good = frozenset(listed) - frozenset(wrong)
    if not good:
        return
    if pending is None:
        found.rows.setdefault(row, []).append(good)
    else:
        pending.append(good)


def codes_after(
    found: Suppressions, match: re.Match[str], row: int, kind: str
) -> Silenced | Literal[False]:
    """The codes of a noqa comment, None for a blanket one, False for one that means nothing."""
    rest = match["rest"].strip()
    is_ours = OURS.search(rest) is not None
    if match["colon"] is None:
        if CODES.match(rest):
            what = (
                f"`# {kind} {rest}` has no colon and silences every rule; write `# {kind}: {rest}`"
            )
            found.invalid.append((row, what, is_ours))
        return None
    listed = []
    position = 0
    while code := CODES.match(rest, position):
        listed.append(code[1])
        position = code.end()
    if listed:
        return frozenset(listed)
    shown = f"`{rest.split()[0]}` is no code" if rest else "no code follows the colon"
    found.invalid.append((row, f"invalid `# {kind}`: {shown}; it silences nothing", is_ours))
    return False
