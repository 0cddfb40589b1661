"""Where following starts: the functions of a file from which something can be judged."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from oomlint.analysis import classes, walked
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.project import LEARNT, Project
from oomlint.analysis.state import World
from oomlint.effects import Effect

# What a word can say about training, as bits: those of all words that are reached are joined.
BACKWARD, STEP, GATHERS, EVALUATES, TRAIN, FALSE, ENVIRONMENT = (1 << bit for bit in range(7))
WORDS = {
    "append": GATHERS,
    "extend": GATHERS,
    "eval": EVALUATES,
    "train": TRAIN,
    "False": FALSE,
    "env": ENVIRONMENT,
    "envs": ENVIRONMENT,
    "environment": ENVIRONMENT,
    # Ignite's own function, which does both.
    "create_supervised_trainer": BACKWARD | STEP,
}
# What runs where a class of the file is called or entered.
CALLED = ("__call__", "__init__", "__enter__")
# Who does one of these gives what he calls another meaning.
DEEDS = frozenset("for while with async no_grad inference_mode set_grad_enabled".split())
# The mode of a network, whatever functions of these names there are.
SWITCHES = re.compile(r"\.\s*(train|eval)\b")
# A call that may switch a network's mode; `train()` alone never means evaluation.
EVALUATING = re.compile(r"\beval\s*\(")
GIVEN_MODE = re.compile(r"\.\s*train\s*\(\s*[^)\s]")
STEPPING = re.compile(r"(^|_)steps?($|_)|update")


@dataclass(frozen=True, slots=True)
class Root:
    """Where following starts: a function, a method of `owner`, or the script itself."""

    function: Function | None
    owner: Class | None = None
    # Whether a backward may be reached: else all that can be judged is an evaluation.
    trains: bool = True
    # Whether it is followed for this owner although it was for another.
    again: bool = False


CALLS = ((EVALUATES, EVALUATING), (TRAIN, GIVEN_MODE))


def called(call: re.Pattern[str], functions: Iterable[Function]) -> bool:
    return any(call.search(function.code) for function in functions)


class Said(dict[str, int]):
    """What each word says, found once."""

    def __missing__(self, word: str) -> int:
        said = WORDS.get(word, 0)
        if "backward" in word:
            said |= BACKWARD
        if STEPPING.search(word):
            said |= STEP
        if len(self) > MAX_SAID:
            self.clear()
        self[word] = said
        return said


MAX_SAID = 50_000
SAID = Said()


def taught_bits(project: Project) -> dict[str, int]:
    """What the words say whose effect the settings teach."""
    found: dict[str, int] = {}
    for word, effects in project.teaching.words.items() if project.teaching is not None else ():
        if effects & {Effect.BACKWARD, Effect.SCALED_BACKWARD}:
            found[word] = BACKWARD
        if effects & {Effect.STEP, Effect.SCALER_STEP, Effect.UNSCALE, Effect.CLIP}:
            found[word] = found.get(word, 0) | STEP
    return found


def judged(said: int) -> bool:
    """Whether a rule could judge what words say: backward and step, or evaluation."""
    if said & BACKWARD:
        return bool(said & (GATHERS | STEP))
    evaluates = said & EVALUATES or said & (TRAIN | FALSE) == TRAIN | FALSE
    return bool(evaluates or said & ENVIRONMENT)


def may_train(said: int) -> bool:
    return bool(said & BACKWARD)


def evaluated_names(module: Module) -> frozenset[str]:
    """The script's own names for networks that it makes ready for use: `net = load().eval()`."""
    return frozenset(
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if isinstance(node.value.func, ast.Attribute) and node.value.func.attr in ("eval", "to")
        if ".eval()" in written(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


@dataclass(frozen=True, slots=True)
class Mentions:
    """What some words say, and which functions and imports of the file are among them."""

    said: int
    calls: frozenset[str]
    imports: frozenset[str]


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the function says that an import leads to, and the files that told so."""

    said: int
    dependencies: frozenset[Path]
    loaded: frozenset[Path]


class Reading:
    """What the functions of a file mention, and what the functions that they call mention."""

    def __init__(self, project: Project, module: Module) -> None:
        self.project, self.module = project, module
        self.by_name: dict[str, list[Function]] = {}
        for function in module.all_functions:
            if function.parent is None:
                self.by_name.setdefault(function.name, []).append(function)
        for cls in module.classes.values():
            calling = [cls.methods[k] for k in CALLED if k in cls.methods]
            self.by_name.setdefault(cls.name, []).extend(calling)
        self.names = frozenset(self.by_name)
        self.imported_names = frozenset(module.imports)
        self.mentions: dict[Function, Mentions] = {}
        self.said_elsewhere: dict[str, int] = {}
        self.taught = taught_bits(project)
        self.evaluated = evaluated_names(module)
        self.world = World(project, module)

    def script_words(self) -> set[str]:
        """The words of what the module does itself besides defining things."""
        skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
        words: set[str] = set()
        pending: list[object] = [n for n in self.module.tree.body if not isinstance(n, skipped)]
        while pending:
            part = pending.pop()
            if isinstance(part, list):
                pending.extend(part)
            elif isinstance(part, ast.AST):
                if isinstance(part, ast.Name):
                    words.add(part.id)
                    continue
                if isinstance(part, ast.Attribute):
                    words.add(part.attr)
                pending.extend(part.__dict__[name] for name in part._fields)
        return words

    def roots(self) -> list[Root]:
        """Functions that matter, those that nobody here calls first; then inherited methods."""
        functions = [f for f in self.module.all_functions if f.parent is None]
        referenced: set[str] = set()
        for function in functions:
            referenced |= self.mentioned(function).calls - {function.name}
        said = {f: self.said_of(f) for f in functions if f.name != "__init__"}
        chosen = [f for f in said if said[f]]
        free = [f for f in chosen if f.name not in referenced]
        called = [f for f in chosen if f.name in referenced]
        own = (Root(f, f.owner, may_train(said[f])) for f in (*free, *called))
        inherited = list(self.inherited())
        here = [root for root in inherited if root.again]
        return [*(root for root in inherited if not root.again), *own, *here]

    def script(self) -> Root | None:
        """The script itself, where a rule could judge what it reaches."""
        words = self.script_words()
        said = self.judged_by(self.read(frozenset(words))) if words else 0
        # What cells show is judged whatever else they do.
        return Root(None, None, may_train(said)) if said or self.module.shown_rows else None

    def inherited(self) -> Iterator[Root]:
        """Methods of bases that call what a class of this file overrides."""
        for cls in self.module.classes.values():
            for kin in classes.lineage(self.world, cls)[1:]:
                for method in kin.methods.values():
                    if method.name in cls.methods or method.name == "__init__":
                        continue
                    mine = method.words & cls.methods.keys() - {"__init__"}
                    if not mine:
                        continue
                    if kin.module is self.module and not kin.methods.keys() & mine:
                        continue  # followed for its own class already
                    methods = [method, *(cls.methods[name] for name in mine)]
                    words = frozenset().union(*(one.words for one in methods))
                    said = self.judged_by(self.read(words, methods))
                    if said:
                        yield Root(method, cls, may_train(said), kin.module is self.module)

    def said_of(self, function: Function) -> int:
        """What is said where a function leads, if a rule could judge that; else 0."""
        said = self.judged_by(self.mentioned(function))
        if not said and function.name in ("training_step", "compute_loss"):
            # The backward is the framework's own.
            after = walked.walks_result(self.world, function.owner, function)
            clips = function.name == "training_step" and "clip" in function.code
            if after is not None or clips:
                return BACKWARD
        return said

    def only_hands_on(self, function: Function, reached: set[Function]) -> bool:
        """Whether it does nothing but call what was followed already: another way to the same."""
        own = self.mentioned(function)
        if not own.calls or function.decorators or function.parent is not None:
            return False
        if function.words & DEEDS or SWITCHES.search(function.code):
            return False
        if self.read(function.words - own.calls).said:
            return False
        called = {other for name in own.calls for other in self.by_name[name]}
        matter = {other for other in called - {function} if self.judged_by(self.mentioned(other))}
        elsewhere = any(self.said_by_imported(name) for name in own.imports)
        return bool(matter) and matter <= reached and not elsewhere

    def judged_by(self, start: Mentions) -> int:
        """What these and all that they reach say, if a rule could judge that; else 0."""
        said, imports = self.reach(start)
        # Half of it here: the other half may be in what is imported.
        if said & (BACKWARD | STEP) and not (said & BACKWARD and judged(said)):
            for name in sorted(imports):
                said |= self.said_by_imported(name)
        return said if judged(said) else 0

    def reach(self, start: Mentions) -> tuple[int, set[str]]:
        """What these and all functions of the file say that they may call, and their imports."""
        said, imports = start.said, set(start.imports)
        pending = list(start.calls)
        seen = set(pending)
        while pending:
            for other in self.by_name[pending.pop()]:
                found = self.mentioned(other)
                said |= found.said
                imports |= found.imports
                more = found.calls - seen
                seen |= more
                pending.extend(more)
        return said, imports

    def mentioned(self, function: Function) -> Mentions:
        known = self.mentions.get(function)
        if known is None:
            known = self.mentions[function] = self.read(function.words, (function,))
        return known

    def read(self, words: frozenset[str], functions: Iterable[Function] = ()) -> Mentions:
        """What words say, and which they are; where they stand is looked up in `functions`."""
        said = 0
        for word in words:
            said |= SAID[word]
        if functions:
            said &= ~sum(bit for bit, call in CALLS if said & bit and not called(call, functions))
        if not self.evaluated.isdisjoint(words):
            said |= EVALUATES
        for word in self.taught.keys() & words:
            said |= self.taught[word]
        return Mentions(said, words & self.names, words & self.imported_names)

    def said_by_imported(self, name: str) -> int:
        known = self.said_elsewhere.get(name)
        if known is None:
            known = self.said_elsewhere[name] = self.said_by_target(name)
        return known

    def said_by_target(self, name: str) -> int:
        """What the function says that an import leads to, with what its other importers learnt."""
        target = self.module.imports.get(name, "")
        if classes.is_outside(target):
            return 0
        place = (tuple(self.project.bases(self.module)), target)
        learnt = LEARNT.get(place) if not self.taught else None
        if learnt is None:
            learnt = self.learn(place)
        self.project.dependencies |= learnt.dependencies
        self.project.loaded |= learnt.loaded
        return learnt.said

    def learn(self, place: tuple[tuple[str, ...], str]) -> Learnt:
        """Follows an import by itself, so that what it leads to is the same for every importer."""
        apart = Project(self.project.root, self.module)
        found = apart.function(place[1], self.module)
        said = self.read(found.words, (found,)).said if found is not None else 0
        learnt = Learnt(said, frozenset(apart.dependencies), frozenset(apart.loaded))
        if not self.taught and not apart.met_subject:
            LEARNT[place] = learnt
        return learnt
