"""Every rule's runnable fixture, repaired by hand, is confirmed on the emulated device."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_pairs import PAIRS, Pair

from oomlint.verify import compare_texts
from oomlint.verify.claims import CONFIRMED, NO_EFFECT
from oomlint.verify.compare import compare
from oomlint.verify.runner import Limits

pytest.importorskip("torch")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.folder)
def test_the_repair_is_confirmed_and_nothing_else_is(pair: Pair, tmp_path: Path) -> None:
    after = tmp_path / "run.fixed.py"
    after.write_text(pair.after(), "utf-8")
    limits = Limits(device="emulated", timeout=120.0)
    found = compare_texts(pair.script, after, pair.claims, row=pair.row(), limits=limits)
    assert found.verdict.kind == CONFIRMED, found.verdict.reason
    assert found.verdict.claim in pair.claims
    swapped = compare(found.after, found.before, pair.claims)
    assert swapped.kind != CONFIRMED, swapped.reason
    for run in (found.before, found.after):
        same = compare(run, run, pair.claims)
        assert same.kind == NO_EFFECT, same.reason
