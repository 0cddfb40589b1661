"""Loops that generate token by token: what grows, what chooses the next token, what is fed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import derivation, knowledge, sites
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site

Loop = ast.For | ast.AsyncFor | ast.While

JOINING = frozenset({"torch.cat", "torch.concat", "torch.concatenate", "torch.hstack"})
# Calls that choose a token from scores.
CHOOSING = re.compile(
    r"argmax|multinomial|topk|(^|_)sample($|_)|categorical|(^|_)(pick|choose|greedy)($|_)|^max$",
    re.IGNORECASE,
)
# Words of code that keeps keys and values, or another state, from one step to the next.
STATE = re.compile(
    r"past|cache|incremental|(^|_)mems?($|_)|(^|_)kv($|_)|prefill|input_pos|start_pos|cur_pos"
    r"|hidden|(^|_)states?$|env(s|ironment)?$|backward",
    re.IGNORECASE,
)
UNCACHED = re.compile(r"\buse_cache\s*=\s*False|[\"']use_cache[\"']\s*:\s*False")
# Fewer tokens than this are generated as fast without a cache.
FEW = 8


@dataclass(frozen=True, slots=True)
class Decoding:
    """A loop that feeds the whole sequence to a model and adds what it chose."""

    loop: Loop
    sequence: str
    forward: ast.Call
    growth: ast.expr | ast.stmt


# Methods that run a network.
RUNNING = frozenset({"forward", "decode", "__call__"})


def decodings(module: Module) -> Iterator[Decoding]:
    """Every loop that decodes without any state, once for each model that it runs."""
    known: dict[Function, bool] = {}
    for site in sites.sites(module):
        if site.function is not None and not chooses(site.function.outermost, known):
            continue
        if not is_model(module, site):
            continue
        for loop in sites.loops_around(module, site.node)[:1]:
            found = decoding(module, site, loop)
            if found is not None and not keeps_state(module, site.function, loop):
                yield found


def chooses(function: Function, known: dict[Function, bool]) -> bool:
    """Whether a function has the name of any call that chooses a token."""
    if function not in known:
        known[function] = any(CHOOSING.search(word) for word in function.words)
    return known[function]


def is_model(module: Module, site: Site) -> bool:
    """Whether a call runs a network: by its name, by `self(...)`, or by a method that decodes."""
    called = site.node.func
    if isinstance(called, ast.Attribute) and called.attr in RUNNING:
        called = called.value
    text = written(called)
    if sites.is_self_attribute(ast.Attribute(called, "x", ast.Load()), site.function):
        return True  # `self(tokens)` of a network
    return not site.qualified and knowledge.role_of_name(text) is Role.MODEL


def decoding(module: Module, site: Site, loop: Loop) -> Decoding | None:
    for growth, sequence, added in growths(module, loop, site.function):
        given = [*site.node.args, *(keyword.value for keyword in site.node.keywords)]
        if isinstance(growth, ast.Assign) and isinstance(growth.targets[0], ast.Subscript):
            if not any(is_filled_part(value, sequence) for value in given):
                continue
        elif not any(is_whole(value, sequence, loop) for value in given):
            continue
        chain = chain_to(added, site.node, loop)
        if chain is not None and any(CHOOSING.search(name) for name in chain):
            return Decoding(loop, sequence, site.node, growth)
    return None


def growths(
    module: Module, loop: Loop, function: Function | None
) -> Iterator[tuple[ast.expr | ast.stmt, str, list[ast.expr]]]:
    """What grows in a loop, with what is added: joined, appended, or written into a buffer."""
    for node in body_nodes(loop):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from joined(module, node, node.value, function)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            yield node, written(node.targets[0].value), [node.value]
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List):
            yield node, written(node.target), list(node.value.elts)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "append" and len(node.args) == 1:
                yield node, written(node.func.value), node.args


def joined(
    module: Module, node: ast.Assign, call: ast.Call, function: Function | None
) -> Iterator[tuple[ast.expr | ast.stmt, str, list[ast.expr]]]:
    """`tokens = torch.cat((tokens, chosen), dim=1)`, and the rows of a beam likewise."""
    if sites.qualified_name(module, call.func, function) not in JOINING or not call.args:
        return
    parts = call.args[0]
    if not isinstance(parts, ast.Tuple | ast.List) or len(parts.elts) < 2:
        return
    sequence = written(node.targets[0])
    first = parts.elts[0]
    while isinstance(first, ast.Subscript):
        first = first.value
    if written(first) == sequence:
        yield node, sequence, parts.elts[1:]


def body_nodes(loop: Loop) -> Iterator[ast.AST]:
    for statement in loop.body:
        yield statement
        yield from sites.own_nodes(statement)


def is_filled_part(node: ast.expr, buffer: str) -> bool:
    """`buffer[:, :position]`: what was written until now."""
    if not isinstance(node, ast.Subscript) or written(node.value) != buffer:
        return False
    index = node.slice
    last = index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index
    return isinstance(last, ast.Slice) and last.lower is None and last.upper is not None


def is_whole(node: ast.expr, sequence: str, loop: Loop, depth: int = 0) -> bool:
    """Whether an expression is all of a sequence, or all that a window of fixed size holds."""
    if written(node) == sequence:
        return True
    if isinstance(node, ast.Subscript):
        return written(node.value) == sequence and not is_single(node.slice)
    if isinstance(node, ast.IfExp):
        return all(is_whole(arm, sequence, loop, depth) for arm in (node.body, node.orelse))
    if isinstance(node, ast.List | ast.Tuple):
        return any(is_whole(part, sequence, loop, depth) for part in node.elts)
    if isinstance(node, ast.Call):
        inner = [*node.args[:1]]
        if isinstance(node.func, ast.Attribute) and not node.args:
            inner.append(node.func.value)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "unsqueeze", "view"):
            inner = [node.func.value]
        return any(is_whole(part, sequence, loop, depth) for part in inner)
    if isinstance(node, ast.Name) and depth < 2:
        values = [
            value
            for part in body_nodes(loop)
            for target, value in derivation.bound(part)
            if written(target) == node.id and value is not None
        ]
        return bool(values) and all(is_whole(v, sequence, loop, depth + 1) for v in values)
    return False


def is_single(index: ast.expr) -> bool:
    """Whether a subscript takes one position or the part since an earlier one."""
    last = index.elts[-1] if isinstance(index, ast.Tuple) and index.elts else index
    if not isinstance(last, ast.Slice):
        return True
    if last.lower is None:
        return False
    constant = isinstance(last.lower, ast.UnaryOp) and isinstance(last.lower.operand, ast.Constant)
    if constant and isinstance(last.lower, ast.UnaryOp):
        size = last.lower.operand
        return isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value < FEW
    return not isinstance(last.lower, ast.UnaryOp) and not is_zero(last.lower)


def is_zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def chain_to(added: list[ast.expr], forward: ast.Call, loop: Loop) -> set[str] | None:
    """The names of the calls between a forward and what is added, None if no way leads there."""
    bindings: dict[str, list[ast.expr]] = {}
    for part in body_nodes(loop):
        for target, value in derivation.bound(part):
            if value is not None:
                for name in derivation.written_targets(target):
                    bindings.setdefault(name, []).append(value)
    pending, seen, calls, reached = list(added), set[str](), set[str](), False
    while pending:
        node = pending.pop()
        for part in ast.walk(node):
            if part is forward:
                reached = True
            if isinstance(part, ast.Call):
                calls.add(written(part.func).rsplit(".", 1)[-1])
            if isinstance(part, ast.Name) and part.id not in seen:
                seen.add(part.id)
                pending += bindings.get(part.id, [])
    return calls if reached else None


def keeps_state(module: Module, function: Function | None, loop: Loop) -> bool:
    """Whether the function speaks of a cache or a state at all, or generates a few tokens only."""
    if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) and loop.iter.args:
        count = loop.iter.args[-1]
        if isinstance(count, ast.Constant) and isinstance(count.value, int) and count.value < FEW:
            return True
    around = function.outermost if function is not None else None
    node: ast.AST = around.node if around is not None else loop
    start, end = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]
    rows = (module.source.line(row).split("#")[0] for row in range(start, end + 1))
    text = UNCACHED.sub("", "\n".join(rows))
    code = around.code if around is not None else text
    words = set(re.findall(r"\w+", UNCACHED.sub("", code)))
    if around is not None:
        arguments = around.node.args
        words |= {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    return any(STATE.search(word) for word in words)
