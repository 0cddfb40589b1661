"""What a text must show for some kind of code to be in it: patterns that several gates share."""

from __future__ import annotations

import re
from functools import lru_cache

from oomlint.analysis import cadence, decoding, knowledge
from oomlint.layout import DEFINITION, LOOP
from oomlint.token_patterns import (
    AllOf,
    AnyOf,
    Exactly,
    InOneBlock,
    InOneFunction,
    Lines,
    Shared,
    called,
)


class ModelCall:
    """A token pattern: some call that `decoding.is_model` could take for one of a network."""

    def search(self, code: bytes, /) -> object:
        return any(map(may_run, called(code)))


@lru_cache(maxsize=8192)
def may_run(name: bytes) -> bool:
    text = name.decode()
    if text in decoding.RUNNING or text == "self":
        return True
    return knowledge.role_of_name(text) is knowledge.Role.MODEL


def loop_over(data: bytes) -> Lines:
    """The first line of a `for` over what a pattern matches, or one that goes on below.

    A text in it may say anything.
    """
    return Lines(
        (b"for ", b"for\t", b"for(", b"for\\"),
        re.compile(
            rb"^[ \t]*(?:async[ \t]+)?for\b"
            rb"(?:(?!.*:[ \t]*(?:\"\")?[ \t]*$)|.*(?:" + data + rb"|\"\".*:))"
        ),
    )


# `cadence.is_update`: a backward, or a step of what may be an optimizer, a scaler or an engine.
UPDATE = Shared(
    AnyOf(
        (
            Exactly((b"backward(",)),
            Lines(
                (b".step(",),
                re.compile(
                    rb"opt|solver|scaler|grad_amp|engine|\"\"|^[ \t)\]]*\.step\(", re.IGNORECASE
                ),
            ),
        )
    )
)
OVER_BATCHES = loop_over(rb"(?i:" + cadence.BATCHES.pattern.encode() + rb")")
# `cadence.is_step_loop` of batches: it runs a network.
BATCH_LOOP = (OVER_BATCHES, AnyOf((Exactly((b"training_step(",)), ModelCall())))
# `cadence.once_a_step`: a loop of steps, a method that a framework calls for each, an engine.
STEPS = AnyOf(
    (
        UPDATE,
        InOneBlock(LOOP, BATCH_LOOP),
        re.compile(rb"def[ \t]+(?:" + cadence.STEP_HOOK.pattern.encode() + rb")[ \t]*\("),
        Exactly((b"ITERATION_", b"Engine(")),
    )
)
# `cadence.trains`: updates, or a call of what is named after training.
TRAINING = AnyOf(
    (
        UPDATE,
        Lines(
            (b"train", b"fit", b"finetune"),
            re.compile(
                rb"(?<![.\w])(?:\w*train|train_\w*|fit|run_training|training_loop|finetune\w*)\("
                rb"|(?:(?i:trainer|learner|runner|engine)\w*|[)\]]|\"\"|^[ \t]*)"
                rb"\.(?:\w*train|train_\w*|fit|run_training|training_loop|finetune\w*)\(",
            ),
        ),
    )
)
# Calls of a backward and of a step, whoever's and in whatever words: to define them is none.
CALLS_BACKWARD = Lines((b"backward(",), re.compile(rb"(?<!\w)(?<!def )\w*backward\("))
CALLS_STEP = Lines((b"step",), re.compile(rb"(?<!\w)(?<!def )\w*step\w*[ \t]*\(|\.step\b"))
CALLS_BOTH = Shared(AllOf((CALLS_BACKWARD, CALLS_STEP)))
# A file that takes steps, or gives a framework the loss to do so.
TAKES_STEPS = AnyOf(
    (
        CALLS_BOTH,
        re.compile(rb"def[ \t]+(?:training_step|compute_loss)\b|create_supervised_trainer"),
    )
)
# A result of `torch.load` that its function takes in, or hands on to another one that does.
LOADS_STATE = Shared(
    AllOf(
        (
            AnyOf(
                (
                    re.compile(rb"\btorch\.(?:serialization\.)?load\b"),
                    re.compile(rb"import\s+torch\s+as\b"),
                    re.compile(
                        rb"from\s+torch(?:\.serialization)?\s+import\s*"
                        rb"(?:\(|\*|[^\n]*\b(?:load|serial))"
                    ),
                )
            ),
            AnyOf(
                (
                    InOneFunction(
                        (Exactly((b"load(",)), re.compile(rb"load_state_dict\(|\breturn\b"))
                    ),
                    re.compile(rb"\bload\s+as\b"),
                )
            ),
        )
    )
)
# Code that can name `torch.utils.checkpoint.checkpoint`, and does so outside of an import.
CHECKPOINTING = Shared(
    AllOf(
        (
            AnyOf(
                (
                    Lines((b"utils.checkpoint",), re.compile(rb"utils\.checkpoint\b")),
                    Exactly((b"checkpoint.checkpoint",)),
                    re.compile(rb"utils\s+import\b[^#;=]{0,400}?\bcheckpoint\b"),
                )
            ),
            Lines(
                (b"checkpoint",),
                re.compile(
                    rb"^(?![ \t]*(?:from|import)\b).*\bcheckpoint(?:_sequential)?\b(?!\.)"
                    rb"|\bcheckpoint(?:_sequential)?\s+as\b"
                ),
            ),
        )
    )
)
# Words of a call that chooses a token; `max(`, but not as the end of `softmax(`.
CHOOSING = (
    *"argmax multinomial topk ategorical greedy sample( sample_ pick( pick_".split(),
    *"choose( choose_".split(),
    *(f"{before}max(" for before in " .=,:([{-+*/\n\t"),
)
CHOICE = Lines(
    tuple(b"argmax multinomial topk ategorical sample pick choose greedy max(".split()),
    re.compile(
        rb"(?:argmax|multinomial|topk|ategorical)\w*\s*\("
        rb"|(?:\b|_)(?:sample|pick|choose|greedy)(?:_\w*)?\s*\(|\bmax\(",
        re.IGNORECASE,
    ),
)
GROWTH = Lines(
    (b"cat", b"stack", b"append", b"+=", b"]"),
    re.compile(rb"(?:cat|concat|concatenate|hstack|append)\s*\(|\+=\s*\[|\]\s*=[^=]"),
)
HEADER_END = re.compile(rb":[ \t]*(?:\"\")?[ \t]*\n")


class Stateless:
    """A token pattern: a function with no word of a cache or a state, or code of no function."""

    def search(self, part: bytes, /) -> object:
        header = DEFINITION.search(part)
        body = HEADER_END.search(part, header.end()) if header is not None else None
        if body is None or b"class " in part:
            return True
        text = decoding.UNCACHED.sub("", part[body.end() :].decode("utf-8", "replace"))
        return not any(decoding.STATE.search(word) for word in set(re.findall(r"\w+", text)))


# One loop chooses by a call what comes next, adds it, and runs a network.
DECODES = Shared(InOneFunction((InOneBlock(LOOP, (CHOICE, GROWTH, ModelCall())), Stateless())))
