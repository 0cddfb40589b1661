"""What a text must show for an activation to be fed to a loss that asks for another input."""

from __future__ import annotations

import re
from dataclasses import dataclass

from oomlint.token_patterns import AllOf, AnyOf

# Brackets with others inside of them, three deep.
INNER = rb"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
# `weights = F.softmax(scores, dim=-1)` right above `weights = self.dropout(weights)`.
DROPPED = re.compile(
    rb"\n([ \t]+)(\w+)[ \t]*=[ \t]*"
    rb"(?:[\w.]+\.softmax\("
    + INNER
    + rb"\)|(?:\w+\.)*Softmax\("
    + INNER
    + rb"\)\("
    + INNER
    + rb"\))"
    rb"(?:\.\w+\(" + INNER + rb"\))*[ \t]*\n(?:[ \t]*(?:\"\")?[ \t]*\n)*"
    rb"(?=\1\2[ \t]*=[ \t]*(?:\w+\.)*(\w*drop\w*)\()"
)


@dataclass(frozen=True)
class Kept:
    """A softmax whose output is more than what a dropout gets and takes the place of.

    What a function of the file is called is no dropout: it may give back what it is given.
    """

    pattern: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        defined: frozenset[bytes] | None = None
        for match in self.pattern.finditer(code):
            found = DROPPED.match(code, max(0, code.rfind(b"\n", 0, match.start())))
            if found is None or found.end() < match.end():
                return True
            if defined is None:
                defined = frozenset(DEFINED.findall(code))
            if found[3] in defined:
                return True
        return False


DEFINED = re.compile(rb"def[ \t]+(\w+)")


def word(name: str) -> re.Pattern[bytes]:
    """A whole word; the check in front of it comes last, so that it is looked for as a literal."""
    return re.compile(rf"{name}\b(?<!\w{name})".encode())


def any_word(names: str) -> AnyOf:
    return AnyOf(tuple(word(name) for name in names.split()))


# A file that takes steps may run a network of another file, which ends in anything.
TRAINS = AnyOf(
    tuple(
        re.compile(sign)
        for sign in (
            rb"backward\(",
            rb"training_step",
            rb"compute_loss",
            rb"create_supervised_trainer",
        )
    )
)
SOFTMAX_FED = AnyOf(
    (
        AllOf(
            (
                any_word("cross_entropy CrossEntropyLoss"),
                AnyOf(
                    (
                        Kept(
                            re.compile(
                                rb"oftmax(?:2d)?\b(?:(?<=\b[sS]oftmax)|(?<=\blog_softmax)"
                                rb"|(?<=\bLogSoftmax)|(?<=\bSoftmax2d))"
                            )
                        ),
                        TRAINS,
                    )
                ),
            )
        ),
        AllOf(
            (
                # These take the logarithms themselves.
                any_word("nll_loss NLLLoss NLLLoss2d"),
                AnyOf(
                    (
                        Kept(re.compile(rb"oftmax(?:2d)?\b(?:(?<=\b[sS]oftmax)|(?<=\bSoftmax2d))")),
                        TRAINS,
                    )
                ),
            )
        ),
    )
)
BINARY_FED = AnyOf(
    (
        AllOf(
            (
                any_word("BCEWithLogitsLoss binary_cross_entropy_with_logits"),
                AnyOf((any_word("sigmoid Sigmoid expit"), TRAINS)),
            )
        ),
        AllOf(
            (
                any_word("BCELoss binary_cross_entropy"),
                AnyOf(
                    (
                        any_word("Linear LazyLinear Bilinear"),
                        re.compile(rb"Conv(?:Transpose)?[123]d\b"),
                        TRAINS,
                    )
                ),
            )
        ),
    )
)
