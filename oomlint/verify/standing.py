"""Calls a function with stand-ins for what its harness does not give."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from oomlint.verify import stand_ins, trials
from oomlint.verify.calling import CannotCall
from oomlint.verify.plan import CONFIG, TENSOR, UNKNOWN, Part, Plan, names_of
from oomlint.verify.stand_ins import Builder, Guess
from oomlint.verify.targets import Target
from oomlint.verify.uses import names_in

HOW = "write a function that returns its arguments and name it: --harness file.py:function"
# Whose fault an error is, the least known first.
SUSPECTS = (UNKNOWN, CONFIG, TENSOR)


class Standing:
    """One function, what is given for it and what is not."""

    def __init__(
        self,
        target: Target,
        module: types.ModuleType,
        function: Any,
        given: tuple[tuple[Any, ...], dict[str, Any]],
        plan: Plan,
    ) -> None:
        self.target, self.function, self.plan = target, function, plan
        self.args, self.kwargs = given
        owner = target.function.rpartition(".")[0]
        self.cls = None
        for name in owner.split(".") if owner else ():
            self.cls = getattr(self.cls or module, name)
        bound = inspect.signature(function).bind_partial(*self.args, **self.kwargs)
        self.given = dict(bound.arguments)
        self.parts = self.needed(filled=False)

    def needed(self, filled: bool) -> tuple[Part, ...]:
        return stand_ins.needed(self.plan.parts, self.given, filled)

    def call_of(self, guess: Guess, count: int) -> tuple[Callable[[], Any], Builder]:
        builder = Builder(guess, count, self.cls)
        values = builder.build(self.needed(guess.filled), self.given)
        args, kwargs = stand_ins.arguments(self.function, values, self.args, self.kwargs)
        return lambda: self.function(*args, **kwargs), builder

    def find(self, recorder: Any, note: Any, patience: float) -> Guess:
        """The first guess that the function runs with. Raises CannotCall."""

        def call(guess: Guess) -> Any:
            return self.call_of(guess, trials.ROUND + 1)[0]()

        rows = self.plan.rows
        trial = trials.Trial(call, self.target.file, rows, recorder, note, patience)
        tried = stand_ins.guesses(self.parts, self.plan.targets)
        guess, outcome = trials.first_that_runs(trial, tried)
        if not outcome.will_do(rows) and "NoneType" in outcome.message:
            # It asks too much of a default.
            tried = stand_ins.guesses(self.needed(filled=True), self.plan.targets, filled=True)
            again, better = trials.first_that_runs(trial, tried)
            if better.rank(rows) > outcome.rank(rows):
                guess, outcome = again, better
        if outcome.is_good(rows) or outcome.will_do(rows):
            return guess
        if outcome.end == trials.RETURNED:
            raise CannotCall(f"with stand-ins it does not come to line {rows[0]}; {HOW}")
        where = f" at line {outcome.row}" if outcome.row else ""
        raise CannotCall(
            f"with stand-ins it {outcome.message}{where}{self.blamed(outcome.row)}; {HOW}"
        )

    def blamed(self, row: int | None) -> str:
        """The parameter that a failing row asks too much of, if it names one."""
        part = self.suspect(row)
        if part is None:
            return ""
        known = f"`{part.name}` is not known" if part.role == UNKNOWN else f"`{part.name}`"
        return f", where {known}" if part.role == UNKNOWN else f", where it uses {known}"

    def suspect(self, row: int | None) -> Part | None:
        import linecache

        text = linecache.getline(self.target.file, row or 0).strip().rstrip(":")
        words = used_names(text)
        named = [part for part in self.parts if words & {part.name, *leaves_of(part)}]
        named.sort(key=lambda p: SUSPECTS.index(p.role) if p.role in SUSPECTS else len(SUSPECTS))
        if named:
            return named[0]
        return next((part for part in self.parts if part.role == UNKNOWN), None)


def leaves_of(part: Part) -> set[str]:
    return set(names_of(part.batch)) if part.batch is not None else set()


def used_names(line: str) -> set[str]:
    for text in (line, f"{line}: pass", f"({line})", line.removeprefix("return ")):
        try:
            return {name for node in ast.parse(text).body for name in names_in(node)}
        except SyntaxError:
            continue
    return set()


def as_entry(guess: Guess) -> dict[str, Any]:
    return asdict(guess)


def from_entry(entry: dict[str, Any]) -> Guess:
    return Guess(**entry)


def said(builder: Builder) -> list[tuple[str, str, str]]:
    """What stood in for each parameter, and how its part was known."""
    found = []
    for one in builder.stood:
        asked = {
            name.removeprefix(f"{one.name}."): value
            for name, value in builder.asked.items()
            if name.startswith(f"{one.name}.") and value
        }
        given = ", ".join(f"{name}={value}" for name, value in asked.items())
        found.append((one.name, f"{one.what} ({given})" if given else one.what, one.why))
    return found
