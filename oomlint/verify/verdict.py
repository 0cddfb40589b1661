"""What a comparison of two runs comes to."""

from __future__ import annotations

from dataclasses import dataclass

from oomlint.rule import Claim

CONFIRMED, NO_EFFECT, REFUTED, NOT_MEASURED = (
    "confirmed",
    "no effect",
    "refuted",
    "not measured",
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is confirmed, no effect, refuted or not measured; `reason` one sentence.

    `optimizer` is the ordinal of the one whose steps decided, None where all steps did.
    """

    kind: str
    reason: str
    claim: Claim | None = None
    optimizer: int | None = None
