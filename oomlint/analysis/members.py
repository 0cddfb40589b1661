"""A class of another file: its methods are found by their lines, and parsed when asked for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from oomlint.analysis import parsing
from oomlint.analysis.modules import TEXTS, Class, Function, FunctionNode, Module, Walker

# A shorter class is parsed whole sooner than it is taken apart.
LEAST_LINES = 40
METHOD = re.compile(r"(?:async[ \t]+)?def[ \t]+(\w+)")
# What a signature consists of, as far as its end is concerned.
SIGNATURE = re.compile(rf"(?:{TEXTS.pattern})|[()\[\]{{}}:]", re.DOTALL)
INDENT = re.compile(r"^([ \t]+)[^\s#]", re.MULTILINE)
QUOTE = re.compile(r"[\"']")
NOTHING_MORE = re.compile(r"[ \t]*(?:#[^\r\n]*)?\r?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Member:
    """The lines of a method: its decorators, its `def`, and where the next member begins."""

    name: str
    first: int
    start: int
    end: int


class LaterMethod(Function):
    """A method whose words are known from its text and whose tree is made when asked for."""

    def __init__(
        self, member: Member, stub: FunctionNode, qualname: str, module: Module, owner: Class
    ) -> None:
        self.name, self.qualname, self.module, self.owner = member.name, qualname, module, owner
        self.parent, self.inner = None, {}
        self.member, self.stub = member, stub

    @property
    def decorators(self) -> list[ast.expr]:
        return self.stub.decorator_list

    @cached_property
    def node(self) -> FunctionNode:  # type: ignore[override] # the field of a parsed function
        text, member = self.module.source.text, self.member
        row = self.module.source.rows_before(member.first)
        padded = "\n" * (row - 1) + "class _:\n" + text[member.first : member.end]
        node = self.stub
        try:
            parsed = parsing.parse(padded).body[0]
            if isinstance(parsed, ast.ClassDef) and isinstance(parsed.body[0], type(self.stub)):
                node = parsed.body[0]
        except parsing.SyntaxProblem:
            pass
        self.module.by_node[node] = self
        Walker(self.module).visit_body(node.body, self.owner, self, f"{self.qualname}.")
        return node

    @cached_property
    def code(self) -> str:
        text, member = self.module.source.text, self.member
        return TEXTS.sub('""', text[body_start(text, member) : member.end])


class SketchedClass(ast.ClassDef):
    """The tree of a class whose methods are parsed when somebody looks into its body."""

    def __init__(self, skeleton: ast.ClassDef) -> None:
        self.__dict__.update({k: v for k, v in skeleton.__dict__.items() if k != "body"})
        self.statements = skeleton.body
        self.later: dict[ast.stmt, LaterMethod] = {}

    @property
    def body(self) -> list[ast.stmt]:  # type: ignore[override] # the field of a parsed class
        if self.later:
            self.statements = [
                self.later[part].node if part in self.later else part for part in self.statements
            ]
            self.later = {}
        return self.statements


class SketchWalker(Walker):
    """Puts methods that are parsed later where the skeleton of their class has a stub."""

    def __init__(self, module: Module, members: dict[int, Member]) -> None:
        super().__init__(module)
        self.members = members

    def add_function(
        self, node: FunctionNode, owner: Class | None, parent: Function | None, prefix: str
    ) -> None:
        member = self.members.get(node.lineno)
        if member is None or owner is None or not isinstance(owner.node, SketchedClass):
            super().add_function(node, owner, parent, prefix)
            return
        method = LaterMethod(member, node, prefix + node.name, self.module, owner)
        owner.node.later[node] = method
        owner.methods.setdefault(node.name, method)
        self.module.all_functions.append(method)


def sketch_class(module: Module, first: int, start: int, end: int) -> bool:
    """Adds the class in `first:end` to a module, as a sketch; False where its lines deceive."""
    text = module.source.text
    if text.count("\n", start, end) < LEAST_LINES:
        return False
    if QUOTE.search(TEXTS.sub("", text[start:end])):
        return False  # it ends inside of a string
    members = list(members_of(text, start, end))
    pieces = ["\n" * module.source.rows_before(first)]
    at = first
    for member in members:
        pieces += [text[at : member.start], stub_of(text, member)]
        at = member.end
    pieces.append(text[at:end])
    try:
        parsed = parsing.parse_here("".join(pieces)).body
    except (SyntaxError, ValueError):
        return False
    by_row = {module.source.position(member.start)[0]: member for member in members}
    if len(parsed) != 1 or not isinstance(parsed[0], ast.ClassDef):
        return False
    if not by_row.keys() <= {part.lineno for part in parsed[0].body}:
        return False
    skeleton = SketchedClass(parsed[0])
    last = text[start:end].rstrip()
    skeleton.end_lineno = module.source.position(start)[0] + last.count("\n")
    skeleton.end_col_offset = len(last[last.rfind("\n") + 1 :].encode())
    SketchWalker(module, by_row).visit(skeleton, None, None, "")
    return True


def stub_of(text: str, member: Member) -> str:
    """One line in the row of the `def`, and empty ones for the rest."""
    kind = "async def" if text.startswith("async", member.start) else "def"
    return f"{kind} {member.name}(): pass" + "\n" * text.count("\n", member.start, member.end)


def members_of(text: str, start: int, end: int) -> Iterator[Member]:
    """The methods that stand directly in the body of a class."""
    body = body_of_class(text, start, end)
    found = INDENT.search(text, body, end) if body else None
    if found is None:
        return
    inside = inner_rows(text, start, end)
    line = re.compile(rf"^{found[1]}([^\s#)\]}}])", re.MULTILINE)
    starts = [m.start(1) for m in line.finditer(text, body, end) if m.start() not in inside]
    decorated = -1
    for place, following in pairwise([*starts, end]):
        if text[place] == "@":
            decorated = place if decorated < 0 else decorated
            continue
        method = METHOD.match(text, place)
        if method is not None:
            first = decorated if decorated >= 0 else place
            yield Member(method[1], line_start(text, first), place, line_start(text, following))
        decorated = -1


def body_of_class(text: str, start: int, end: int) -> int:
    """Where the line behind a class's header begins; 0 where its body stands in the same line."""
    after = end_of_header(text, start, end)
    return text.find("\n", after) + 1 if NOTHING_MORE.match(text, after) else 0


def body_start(text: str, member: Member) -> int:
    """Where the first line of a method's body begins, which may be that of its `def`."""
    after = end_of_header(text, member.start, member.end)
    return after if NOTHING_MORE.match(text, after) else line_start(text, after)


def end_of_header(text: str, start: int, end: int) -> int:
    """The place behind the colon that ends a `def` or `class` line."""
    depth = 0
    for match in SIGNATURE.finditer(text, start, end):
        token = match.group()
        if token in ("(", "[", "{"):
            depth += 1
        elif token in (")", "]", "}"):
            depth -= 1
        elif token == ":" and depth == 0:
            return match.end()
    return end


def inner_rows(text: str, start: int, end: int) -> frozenset[int]:
    """Where lines begin that stand inside of a string."""
    found = set()
    for match in TEXTS.finditer(text, start, end):
        at = text.find("\n", match.start(), match.end())
        while at >= 0:
            found.add(at + 1)
            at = text.find("\n", at + 1, match.end())
    return frozenset(found)


def line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1
