"""Every rule's runnable fixture is confirmed on the emulated device, and nothing else is."""

from __future__ import annotations

import pytest
from verify_pairs import PAIRS, Pair

from oomlint.registry import all_rules
from oomlint.verify import compare_texts
from oomlint.verify.compare import compare
from oomlint.verify.runner import Limits
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT

pytest.importorskip("torch")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.script.parent.name)
def test_the_repair_is_confirmed_and_nothing_else_is(pair: Pair) -> None:
    claims = pair.rule.claims
    limits = Limits(device="emulated", timeout=120.0, ranks=pair.ranks)
    found = compare_texts(pair.script, pair.repaired, claims, row=pair.row(), limits=limits)
    assert found.verdict.kind == CONFIRMED, found.verdict.reason
    assert found.verdict.claim in claims
    swapped = compare(found.after, found.before, claims)
    assert swapped.kind != CONFIRMED, swapped.reason
    for run in (found.before, found.after):
        same = compare(run, run, claims)
        assert same.kind == NO_EFFECT, same.reason


def test_every_rule_with_claims_has_a_pair() -> None:
    proven = {pair.rule.code for pair in PAIRS}
    assert {rule.code for rule in all_rules() if rule.claims} == proven
