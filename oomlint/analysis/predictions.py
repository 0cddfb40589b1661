"""Hugging Face's Trainer, whose evaluation collects every batch's predictions on the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import sites
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import Function, Module
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model

LANGUAGE_MODELS = re.compile(
    r"(AutoModelFor|\w+For)(CausalLM|MaskedLM|Seq2SeqLM|ConditionalGeneration|PreTraining"
    r"|SemanticSegmentation)|\w+LMHeadModel"
)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A Trainer with metrics of a model with large outputs, and the arguments that it was given."""

    trainer: ast.Call
    arguments: ast.Call


def trainers(model: Model) -> Iterator[Evaluated]:
    module = model.module
    for site in sites.sites(module):
        if site.qualified not in ("transformers.Trainer", "transformers.trainer.Trainer"):
            continue
        given = {keyword.arg: keyword.value for keyword in site.node.keywords}
        metrics = given.get("compute_metrics")
        if metrics is None or is_none(metrics) or "preprocess_logits_for_metrics" in given:
            continue
        if site.is_open or not makes_logits(module, site.argument(0, "model"), site.function):
            continue
        arguments = made(module, site.argument(1, "args"), site.function)
        if isinstance(arguments, ast.Call) and collects(module, arguments, site.function):
            yield Evaluated(site.node, arguments)


def is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def made(module: Module, node: ast.expr | None, function: Function | None) -> ast.expr | None:
    """The one expression that a name was given."""
    if not isinstance(node, ast.Name):
        return node
    found = sites.bindings(module, node.id, function)
    return found[0] if len(found) == 1 else None


def makes_logits(module: Module, node: ast.expr | None, function: Function | None) -> bool:
    value = made(module, node, function)
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    qualified = sites.qualified_name(module, value.func, function)
    name = qualified.split(".")
    return len(name) > 2 and name[0] == "transformers" and bool(LANGUAGE_MODELS.fullmatch(name[-2]))


FLUSHING = frozenset(
    {
        "eval_accumulation_steps",
        "prediction_loss_only",
        "batch_eval_metrics",
        "eval_do_concat_batches",
    }
)


def collects(module: Module, call: ast.Call, function: Function | None) -> bool:
    qualified = sites.qualified_name(module, call.func, function)
    if qualified not in ("transformers.TrainingArguments",):
        return False
    names = {keyword.arg for keyword in call.keywords}
    changed = any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and node.attr in FLUSHING
        for node in ast.walk(module.tree)
    )
    return None not in names and not names & FLUSHING and not changed


def move_predictions(model: Model, found: Evaluated) -> Fix | None:
    """`eval_accumulation_steps=1` behind the last argument."""
    module, keywords = model.module, found.arguments.keywords
    if not keywords:
        return None
    _, end = module.span(keywords[-1].value)
    last = module.source.line(keywords[-1].lineno)
    own_line = last.strip().startswith(f"{keywords[-1].arg}=") and len(keywords) > 1
    indent = last[: len(last) - len(last.lstrip())]
    joint = f",{module.source.newline}{indent}" if own_line else ", "
    edit = Edit(end, end, f"{joint}eval_accumulation_steps=1")
    return make_fix("Move predictions to the host after each step", [edit], Safety.UNSAFE)
