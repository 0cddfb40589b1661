"""The runnable fixture of every rule: a script with one fault, and the same script repaired.

`run.fixed.py` is what the rule's own fix makes of `run.py` (tests/test_fixtures.py compares them);
where a rule has no fix, `run.repaired.py` is the repair by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oomlint.registry import all_rules
from oomlint.rule import Rule

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Pair:
    """The scripts before and after the repair, with the rule whose claims they prove."""

    rule: type[Rule]
    script: Path
    repaired: Path

    @property
    def ranks(self) -> int:
        """Two, where the script meets others to train with."""
        return 2 if "init_process_group" in self.script.read_text("utf-8") else 1

    def row(self) -> int:
        lines = self.script.read_text("utf-8").splitlines()
        rows = [i for i, line in enumerate(lines, 1) if f"# expect: {self.rule.code}" in line]
        assert len(rows) == 1, self.script
        return rows[0]


def pairs() -> list[Pair]:
    found = []
    for rule in (rule for rule in all_rules() if rule.claims):
        folder = FIXTURES / f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
        repaired = [folder / name for name in ("run.fixed.py", "run.repaired.py")]
        found += [Pair(rule, folder / "run.py", path) for path in repaired if path.is_file()]
    return found


PAIRS = pairs()
