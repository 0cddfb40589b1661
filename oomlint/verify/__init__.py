"""Measures what a fix changes: runs code before and after it on the same seeds and compares."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from oomlint.rule import Claim
    from oomlint.verify.compare import Verdict
    from oomlint.verify.record import Run
    from oomlint.verify.runner import Limits

__all__ = ["Comparison", "compare_texts"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of one script and the verdict on what the fix claims."""

    before: Run
    after: Run
    verdict: Verdict


def compare_texts(
    before: Path,
    after: Path,
    claims: tuple[Claim, ...],
    *,
    row: int | None = None,
    argv: tuple[str, ...] = (),
    limits: Limits | None = None,
    watch: Callable[[], None] | None = None,
) -> Comparison:
    """Runs two files as the same script and judges the claims.

    `row` is the 1-based row of the finding in `before`; it decides which loop's iterations are
    steps where no optimizer steps. Both texts run under the name and in the folder of `before`.
    Raises OSError when a file cannot be read.
    """
    from oomlint.verify.compare import compare
    from oomlint.verify.instrument import region_at
    from oomlint.verify.runner import Limits, run_text

    limits = limits or Limits()
    texts = [path.read_text("utf-8") for path in (before, after)]
    region = region_at(texts[0], row) if row is not None else None
    runs = []
    for text in texts:
        with TemporaryDirectory(prefix="oomlint-") as folder:
            runs.append(run_text(before, text, argv, region, limits, Path(folder), watch=watch))
    return Comparison(runs[0], runs[1], compare(runs[0], runs[1], claims))
