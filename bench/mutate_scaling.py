"""Plants steps with gradients that still carry the scale of mixed precision."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from planting import CLIPS, Code, Scope, Site, last_name, receiver_of


def scaled(code: Code, scope: Scope, name: str) -> list[ast.Call]:
    return [call for call in code.called(scope, name) if code.role(receiver_of(call)) == "scaler"]


def plain(code: Code, call: ast.Call) -> bool:
    statement = code.statement(call)
    return isinstance(statement, ast.Expr) and statement.value is call


def unscale_deleted(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        calls = scaled(code, scope, "unscale_")
        for call in calls:
            same = [one for one in calls if text_of_arguments(one) == text_of_arguments(call)]
            clipped = [one for _, one in clips_at(code, scope) if one.lineno > call.lineno]
            before = [one for one, _ in code.backwards(scope) if one.lineno < call.lineno]
            if len(same) == 1 and plain(code, call) and clipped and before:
                yield Site(call, code.remove(code.statement(call)))


def clips_at(code: Code, scope: Scope) -> Iterator[tuple[ast.stmt, ast.Call]]:
    for call in code.calls_in(scope):
        if last_name(call.func) in CLIPS:
            yield code.statement(call), call


def unscale_doubled(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        for call in scaled(code, scope, "unscale_"):
            if plain(code, call) and [
                o for o in scaled(code, scope, "step") if o.lineno > call.lineno
            ]:
                statement = code.statement(call)
                yield Site(call, code.insert([code.segment(statement)], statement, True))


def text_of_arguments(call: ast.Call) -> str:
    return ", ".join(ast.unparse(argument) for argument in call.args)


def update_deleted(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        steps = scaled(code, scope, "step")
        for call in scaled(code, scope, "update"):
            text = ast.unparse(receiver_of(call))
            everywhere = [
                one
                for other in (code.tree, *code.functions)
                for one in scaled(code, other, "update")
                if ast.unparse(receiver_of(one)) == text
            ]
            if len(everywhere) == 1 and plain(code, call) and steps and code.repeated(steps[0]):
                yield Site(call, code.remove(code.statement(call)))


def scaler_bypassed(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        unscaled = {text_of_arguments(call) for call in scaled(code, scope, "unscale_")}
        for call in scaled(code, scope, "step"):
            text = text_of_arguments(call)
            if len(call.args) != 1 or text in unscaled or not scaled(code, scope, "scale"):
                continue
            yield Site(call, code.replace(call, f"{code.segment(call.args[0])}.step()"))


def update_hurried(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        steps, updates = scaled(code, scope, "step"), scaled(code, scope, "update")
        if len(updates) != 1 or not plain(code, updates[0]):
            continue
        before = [one for one in steps if one.lineno < updates[0].lineno and plain(code, one)]
        if len({text_of_arguments(one) for one in before}) < 2:
            continue
        between = (call for call, _ in code.backwards(scope) if call.lineno > before[0].lineno)
        if any(call.lineno < updates[0].lineno for call in between):
            # The scale of the next backward is then the new one for its own step, too.
            continue
        block = code.block(code.statement(updates[0]))
        if all(code.statement(one) in block for one in before):
            yield Site(
                updates[0],
                code.move(code.statement(updates[0]), code.statement(before[0]), behind=True),
            )
