"""What a notebook's cell holds beside Python, blanked in place: magics, shell lines, help."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

# Cell magics that run what stands below them as a part of the notebook's own module.
RUN_HERE = frozenset(
    "capture debug filprofile ipytest memit notify prun pyinstrument scalene snakeviz time timeit"
    " viztracer wandb".split()
)
# Line magics whose argument is a statement of the module.
STATEMENT_MAGICS = frozenset(("memit", "prun", "time"))

LINE = re.compile(r"(?P<body>[^\r\n]*)(?P<end>\r\n|\r|\n|\Z)")
HEADER = re.compile(r"(?:[ \t\r\n]*[\r\n])?%%(?P<name>\w*)[^\r\n]*(?:\r\n|\r|\n|\Z)")
# Notebooks of Databricks have cell magics with one sign; other line magics stand among Python.
FOREIGN = re.compile(r"\s*%(?:fs|md|md-sandbox|r|scala|sh)(?:\s|\Z)")
# No statement of Python begins so.
ESCAPED = re.compile(r"(?P<indent>[ \t]*)(?P<magic>[%!?]|[,;/]\S).*")
ASSIGNED = re.compile(r"(?P<target>[ \t]*\w[\w.,* \t]*(?:\[[^\]]*\][ \t]*)?=[ \t]*)[%!].*")
HELP = re.compile(r"(?P<indent>[ \t]*)[%\w(\['\"][%\w.*\[\]()'\"+ -]*\?{1,2}[ \t]*(?:;[ \t]*)?")
# What IPython takes for a command although nothing marks it; as Python it never parses.
COMMAND = re.compile(
    r"(?P<indent>)(?:pip|conda|mamba|cd|mkdir|rm|cp|mv|cat|ls)(?:[ \t]+-\S+)*[ \t]+"
    r"(?!(?:in|is|or|and|if|not|else|for)\b)[\w.~/].*"
)
NAMED = re.compile(r"%(?P<name>\w+)[ \t]+(?P<rest>[^\s-].*)")
TOKEN = re.compile(r"#.*|'''|\"\"\"|['\"]|[()\[\]{}]")


@dataclass(frozen=True, slots=True)
class Code:
    """A cell's text with everything but Python blanked; each character keeps its place."""

    text: str
    # What was blanked, as (start, end).
    blanked: tuple[tuple[int, int], ...] = ()
    # Where the cell's code begins, behind its cell magics.
    begin: int = 0


@dataclass(slots=True)
class Reader:
    """Follows brackets and strings over the lines of a cell, to know where a statement begins."""

    depth: int = 0
    quote: str = ""
    continued: bool = False

    @property
    def at_statement(self) -> bool:
        return not (self.depth or self.quote or self.continued)

    def read(self, line: str) -> None:
        position = 0
        while position < len(line):
            if self.quote:
                position = self.behind_string(line, position)
                continue
            token = TOKEN.search(line, position)
            if token is None or token[0].startswith("#"):
                self.continued = token is None and line.endswith("\\")
                return
            position = token.end()
            if token[0] in "([{":
                self.depth += 1
            elif token[0] in ")]}":
                self.depth = max(0, self.depth - 1)
            else:
                self.quote = token[0]
        self.continued = bool(self.quote) or line.endswith("\\")

    def behind_string(self, line: str, position: int) -> int:
        closing = re.compile(rf"(?:\\.|(?!{self.quote})[^\\])*").match(line, position)
        end = closing.end() if closing else position
        if line.startswith(self.quote, end):
            end += len(self.quote)
            self.quote = ""
            return end
        if len(self.quote) == 1 and not line.endswith("\\"):
            self.quote = ""  # no string of one line goes on in the next
        return len(line)


def python_of(text: str) -> Code | None:
    """The Python of one code cell; None where its cell magic makes it something else."""
    if FOREIGN.match(text):
        return None
    begin = 0
    blanked: list[tuple[int, int, str]] = []
    while header := HEADER.match(text, begin):
        if header["name"] not in RUN_HERE:
            return None
        blanked.append((header.start(), header.end(), ""))
        begin = header.end()
    blanked += magic_lines(text, begin)
    parts, position = [], 0
    for start, end, instead in blanked:
        parts += [text[position:start], instead, spaces(text[start + len(instead) : end])]
        position = end
    spans = tuple((start, end) for start, end, _ in blanked)
    return Code("".join([*parts, text[position:]]), spans, begin)


def spaces(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)


def magic_lines(text: str, begin: int) -> Iterator[tuple[int, int, str]]:
    """What is no Python, as (start, end, what stands at its beginning instead)."""
    reader = Reader()
    in_magic = False
    for line in LINE.finditer(text, begin):
        body, start = line["body"], line.start()
        if in_magic:
            in_magic = body.endswith("\\")
            yield start, line.end("body"), ""
        elif reader.at_statement and (found := instead_of(body)) is not None:
            offset, length, instead = found
            in_magic = body.endswith("\\")
            yield start + offset, start + (len(body) if in_magic else offset + length), instead
            reader.read(body[offset + length :])
        else:
            reader.read(body)
        if line.end() == len(text):
            return


def instead_of(line: str) -> tuple[int, int, str] | None:
    """Which part of a line is no Python, as (offset, length), and what may stand there instead.

    Some statement must, or the block around it could be left without one.
    """
    assigned = ASSIGNED.fullmatch(line)
    if assigned:
        offset = assigned.end("target")
        statement = own_statement(line[offset:], "x = {}")
        if statement:
            return offset, statement, ""
        return offset, len(line) - offset, "..." if len(line) >= offset + 3 else "0"
    found = ESCAPED.fullmatch(line) or COMMAND.fullmatch(line)
    if found is None and "#" not in line:
        found = HELP.fullmatch(line)
    if found is None:
        return None
    offset = found.end("indent")
    statement = own_statement(line[offset:], "{}")
    if statement:
        return offset, statement, "0" + " " * (statement - 2) + ";"
    return offset, len(line) - offset, "pass" if len(line) >= offset + 4 else "0"


def own_statement(magic: str, form: str) -> int:
    """How long the name of a magic is that only runs the Python behind it; else 0."""
    named = NAMED.fullmatch(magic)
    if named is None or named["name"] not in STATEMENT_MAGICS:
        return 0
    try:
        body = ast.parse(form.format(named["rest"])).body
    except (SyntaxError, ValueError, RecursionError):
        return 0
    is_simple = len(body) == 1 and not hasattr(body[0], "body")
    return named.start("rest") if is_simple else 0
