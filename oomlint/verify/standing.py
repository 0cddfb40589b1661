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
from oomlint.verify.plan import CONFIG, DEVICE, SETTING, TENSOR, UNKNOWN, Part, Plan, names_of
from oomlint.verify.stand_ins import Builder, Guess
from oomlint.verify.targets import Target
from oomlint.verify.uses import names_in

HOW = (
    "put `def make(): return {what}` into a file harness.py, with yours for the dots, and add "
    "--harness harness.py:make; the rest stays stood in for"
)
# Whose fault an error is, the least known first.
PLAIN = (DEVICE, SETTING)
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
        self.target, self.module, self.function, self.plan = target, module, function, plan
        self.args, self.kwargs = given
        owner = target.function.rpartition(".")[0]
        self.cls = None
        for name in owner.split(".") if owner else ():
            self.cls = getattr(self.cls or module, name)
        bound = inspect.signature(function).bind_partial(*self.args, **self.kwargs)
        self.given = dict(bound.arguments)
        self.parts = self.needed(filled=False)

    def needed(self, filled: bool) -> tuple[Part, ...]:
        given = (*self.given, *(p.name for p in self.plan.parts if self.is_defined(p)))
        return stand_ins.needed(self.plan.parts, given, filled, self.plan.wanted)

    def is_defined(self, part: Part) -> bool:
        return part.is_global and hasattr(self.module, part.name)

    def call_of(self, guess: Guess, count: int) -> tuple[Callable[[], Any], Builder]:
        builder = Builder(guess, count, self.cls, self.plan)
        needed = self.needed(guess.filled)
        values = builder.build(needed, self.given)
        for part in needed:
            if part.is_global:
                setattr(self.module, part.name, values[part.name])
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
            raise CannotCall(f"with stand-ins it does not come to line {rows[0]}; {self.how(None)}")
        where = f" at line {outcome.row}" if outcome.row else ""
        part = self.suspect(outcome.row)
        raise CannotCall(
            f"with stand-ins it {outcome.message}{where}{blamed(part)}; {self.how(part)}"
        )

    def how(self, part: Part | None) -> str:
        """What its user can write, for the part at fault or else for whatever is no plain value."""
        names = [one.name for one in self.parts if one.role not in PLAIN] or ["..."]
        chosen = [part.name] if part is not None else names
        chosen = ["self" if name.startswith("self.") else name for name in chosen]
        what = ", ".join(f'"{name}": ...' for name in dict.fromkeys(chosen))
        if self.target.harness:
            return (
                f"let the harness {self.target.harness} return {{{what}}}, with yours for the dots"
            )
        return HOW.format(what=f"{{{what}}}")

    def suspect(self, row: int | None) -> Part | None:
        import linecache

        text = linecache.getline(self.target.file, row or 0).strip().rstrip(":")
        words = used_names(text)
        named = [part for part in self.parts if words & {part.name, *leaves_of(part)}]
        named.sort(key=lambda p: SUSPECTS.index(p.role) if p.role in SUSPECTS else len(SUSPECTS))
        return named[0] if named else None


def blamed(part: Part | None) -> str:
    """The parameter that a failing row asks too much of, if it names one."""
    if part is None:
        return ""
    if part.role == UNKNOWN:
        return f", where `{part.name}` is not known"
    return f", where it uses `{part.name}`"


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
            for name, value in builder.answers.asked.items()
            if name.startswith(f"{one.name}.") and value
        }
        given = ", ".join(f"{name}={value}" for name, value in asked.items())
        found.append((one.name, f"{one.what} ({given})" if given else one.what, one.why))
    return found
