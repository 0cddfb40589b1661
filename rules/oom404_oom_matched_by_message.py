"""OOM404: an out-of-memory error that is told from others by its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, cadence, edits, handling, sites
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.modules import Function, Module, written
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class OomMatchedByMessage(Rule):
    """
    ## What it does
    Checks for handlers of a RuntimeError that look for "out of memory" in the error's text.

    ## Why is this bad?
    The wording is no interface: it differs between versions and backends, so that a handler stops
    matching without a sign, and other errors contain the words, too. Since PyTorch 1.13 the error
    has a type of its own.

    ## Example
    ```python
    import torch

    def fits(model, batch):
        try:
            model(batch)
        except RuntimeError as error:
            if "out of memory" in str(error):
                return False
            raise
        return True
    ```

    Use instead:
    ```python
    import torch

    def fits(model, batch):
        try:
            model(batch)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                return False
            raise
        return True
    ```

    ## Options
    - `torch-version`: before 2.5 the fix writes `torch.cuda.OutOfMemoryError`; before 1.13 there
      is no fix.

    ## Fix safety
    Unsafe: the type is narrower than the text. Errors of libraries that only quote the words are
    no longer matched. Texts that are matched beside others, as those of cuDNN, are not reported.

    ## Measured
    With `"CUDA error: out of memory"`, the wording of old drivers, the error of today's allocator
    passes the handler and ends the run; by its type it is handled.

    ## References
    - [PyTorch: torch.OutOfMemoryError](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html)
    """

    code = "OOM404"
    name = "oom-matched-by-message"
    severity = Severity.ADVICE
    tokens = (("except",), ("torch",))
    texts = handling.WORDS[:4]
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        told: set[int] = set()
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler) or node.name is None:
                continue
            function = module.function_of(node)
            caught = handling.caught_types(module, node, function)
            if not any(handling.BROAD.fullmatch(name) for name in caught):
                continue
            for test in (*tests_of_text(node), *tests_in_helpers(module, node, function)):
                if accepts_others(module, test) or asked_beside_others(module, node, test):
                    continue
                kind = type_name(model)
                message = (
                    f"`{short(module, test)}` hangs on the wording of the error; its type is "
                    f"`{kind or 'torch.cuda.OutOfMemoryError'}`"
                )
                if id(test) in told:
                    continue
                told.add(id(test))
                here = module.function_of(test) is function
                fix = remedy(module, node, test, kind) if here else None
                yield finding(model, self, test, message, fix)


WORDS = re.compile("|".join(OomMatchedByMessage.texts))


def tests_in_helpers(
    module: Module, handler: ast.ExceptHandler, function: Function | None
) -> Iterator[ast.expr]:
    """The same in a function of the file that the handler asks: `if not is_oom(error): raise`."""
    for site in sites.found_in(module, handler, function):
        called = cadence.local_function(module, site)
        if called is None or len(site.node.args) != 1 or len(called.node.args.args) != 1:
            continue
        given = site.node.args[0]
        if isinstance(given, ast.Name) and given.id == handler.name:
            yield from tests_of_text(called.node, called.node.args.args[0].arg)


def tests_of_text(where: ast.AST, name: str | None = None) -> Iterator[ast.expr]:
    """Expressions in a handler that look for the words in the text of its error."""
    texts = {name or getattr(where, "name", None)}
    for node in sites.own_nodes(where):
        if isinstance(node, ast.Assign) and speaks_of(node.value, texts):
            texts.update(written(target) for target in node.targets)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if isinstance(node.ops[0], ast.In | ast.NotIn) and has_words(node.left):
                if speaks_of(node.comparators[0], texts):
                    yield node
        elif isinstance(node, ast.Call) and written(node.func).endswith(".startswith"):
            assert isinstance(node.func, ast.Attribute)
            if speaks_of(node.func.value, texts) and node.args and has_words(node.args[0]):
                yield node


def has_words(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and WORDS.search(node.value) is not None
    )


def speaks_of(node: ast.AST, texts: set[str | None]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in texts for part in ast.walk(node))


def accepts_others(module: Module, test: ast.expr) -> bool:
    """Whether the test is one of several, so that more than this error is meant."""
    child: ast.AST = test
    for parent in module.enclosing(test):
        if not isinstance(parent, ast.BoolOp | ast.UnaryOp):
            return False
        if isinstance(parent, ast.BoolOp):
            negated = isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn)
            several = ast.And if negated else ast.Or
            if isinstance(parent.op, several) and len(parent.values) > 1:
                return any(value is not child for value in parent.values)
        child = parent
    return False


def asked_beside_others(module: Module, handler: ast.ExceptHandler, test: ast.expr) -> bool:
    """Whether the answer is kept under a name that is then asked together with others."""
    statement = module.parents[test]
    if not isinstance(statement, ast.Assign):
        return False
    names = {written(target) for target in statement.targets}
    return any(
        isinstance(node, ast.BoolOp)
        and any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
        for node in sites.own_nodes(handler)
    )


def type_name(model: Model) -> str | None:
    """How the error is called in the torch that the settings name."""
    version = model.torch_version
    if version is None or version >= (2, 5):
        return "torch.OutOfMemoryError"
    return "torch.cuda.OutOfMemoryError" if version >= (1, 13) else None


def remedy(
    module: Module, handler: ast.ExceptHandler, test: ast.expr, kind: str | None
) -> Fix | None:
    if kind is None:
        return None
    name, imports = edits.name_in_file(module, kind)
    text = f"isinstance({handler.name}, {name})"
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn):
        text = f"not {text}"
        if isinstance(module.parents[test], ast.UnaryOp | ast.Compare):
            text = f"({text})"
    changes = [*imports, edits.replace(module, test, text)]
    return make_fix(f"Ask for its type: `{name}`", changes, Safety.UNSAFE)
