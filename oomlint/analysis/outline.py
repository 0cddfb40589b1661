"""A file that is only looked into: definitions found by their lines, parsed when asked for."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from oomlint.analysis import members, parsing
from oomlint.analysis.modules import LazyModule, Module, Walker, module_name
from oomlint.source import Source

DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]+(\w+)", re.MULTILINE)
IMPORT = re.compile(
    r"[ \t]*(?:from[ \t]+[\w.]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n(]+)|import[ \t]+[^\n]+)"
)
ANY_DEFINITION = re.compile(r"^[ \t]*(?:async[ \t]+def|def)[ \t]+(\w+)", re.MULTILINE)
HEADER = re.compile(r"class[ \t]+\w+[ \t]*(\([^()]*\))?[ \t]*:")
MODULE = re.compile(r"Module\b|Model\b|Layer\b|Loss\b")
GRADIENTS = tuple("backward autograd no_grad inference_mode zero_grad optim requires_grad".split())
# What makes a function of another file worth reading: it may change modes or gradients, keep or
# make a loss. Any other is a call that cannot be followed.
TELLING = tuple(
    "backward grad unscale_ clip_ .eval( .train( .step( loss Loss += .append( optim scaler nn."
    " entropy".split()
)
# A line in the first column that does not belong to the definition above it.
OUTSIDE = re.compile(r"^[^\s#)\]}]", re.MULTILINE)


def sketch(source: Source) -> Module:
    """A module whose definitions are parsed when they are asked for."""
    name, is_package = module_name(source.path)
    module = LazyModule(source, ast.Module([], []), name, is_package)
    add_imports(module, source.text)
    for match in DEFINITION.finditer(source.text):
        module.pending.setdefault(match[1], match.start())
    module.define = define
    return module


def add_imports(module: Module, text: str) -> None:
    found = [textwrap.dedent(match.group()) for match in imports_of(text)]
    walker = Walker(module)
    try:
        walker.visit_body(ast.parse("\n".join(found)).body, None, None, "")
    except SyntaxError:
        for line in found:
            try:
                walker.visit_body(ast.parse(line).body, None, None, "")
            except SyntaxError:
                continue


def imports_of(text: str) -> Iterator[re.Match[str]]:
    """The import statements, by the lines that hold the word at all."""
    end, place = 0, text.find("import")
    while place >= 0:
        start = text.rfind("\n", 0, place) + 1
        match = IMPORT.match(text, start) if start >= end else None
        if match is not None:
            yield match
            end = match.end()
        place = text.find("import", max(end, place + 6))


def define(module: LazyModule, start: int) -> None:
    """Parses one definition in its place; the whole file where its lines deceive."""
    text = module.source.text
    body = text.find("\n", start) + 1 or len(text)
    after = OUTSIDE.search(text, body)
    end = after.start() if after else len(text)
    following = DEFINITION.search(text, body)
    # A docstring may have text in the first column: look as far as the next definition.
    limit = following.start() if following else len(text)
    is_class = text.startswith("class", start)
    header = HEADER.match(text, start) if is_class else None
    if header and not holds(text, GRADIENTS, start, limit):
        # Of a network only that it is one matters; of a class without a base nothing.
        if not header[1] and not holds(text, TELLING, start, limit):
            return
        if header[1] and MODULE.search(header[1]):
            stub = "\n" * module.source.rows_before(start) + header.group() + " pass"
            Walker(module).visit_body(parsing.parse_here(stub).body, None, None, "")
            return
    if not is_class and not holds(text, TELLING, start, limit):
        return
    first = start
    while first > 0:
        above = text.rfind("\n", 0, first - 1) + 1
        if not text.startswith("@", above):
            break
        first = above
    if is_class and members.sketch_class(module, first, start, end):
        return
    padding = "\n" * module.source.rows_before(first)
    try:
        parsed = parsing.parse_here(padding + text[first:end]).body
    except (SyntaxError, ValueError):
        define_all(module)
        return
    Walker(module).visit_body(parsed, None, None, "")


def holds(text: str, words: tuple[str, ...], start: int, end: int) -> bool:
    return any(text.find(word, start, end) >= 0 for word in words)


def define_all(module: LazyModule) -> None:
    module.pending.clear()
    try:
        tree = parsing.parse(module.source.text)
    except parsing.SyntaxProblem:
        return
    Walker(module).visit_body(tree.body, None, None, "")


def eventful_by_text(text: str, words: frozenset[str]) -> frozenset[str]:
    """Names of functions from whose lines a training event can be reached, read off the text."""
    places = list(ANY_DEFINITION.finditer(text))
    pieces = [
        (match[1], text[match.end() : following.start() if following else len(text)])
        for match, following in zip(places, [*places[1:], None], strict=True)
    ]
    calls = [f"{word}(" for word in words]
    names = {name for name, piece in pieces if any(call in piece for call in calls)}
    for _ in range(2):
        names |= {
            name
            for name, piece in pieces
            if any(f"{other}(" in piece for other in names if other != name)
        }
    return frozenset(names - {"__init__"})
