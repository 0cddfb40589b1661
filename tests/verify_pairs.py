"""The ten runnable fixtures with the repair that a good engineer would make, as text edits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oomlint.rule import Claim

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclass(frozen=True)
class Pair:
    """A fixture's folder, what its rule claims, and edits (old line, new lines) that repair it."""

    folder: str
    claims: tuple[Claim, ...]
    edits: tuple[tuple[str, str], ...]

    @property
    def script(self) -> Path:
        return FIXTURES / self.folder / "run.py"

    def before(self) -> str:
        return self.script.read_text("utf-8")

    def after(self) -> str:
        text = self.before()
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.folder}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        return text

    def row(self) -> int:
        rows = [i for i, line in enumerate(self.before().splitlines(), 1) if "# expect:" in line]
        assert len(rows) == 1, self.folder
        return rows[0]


PAIRS = (
    Pair(
        "oom101_eval_without_no_grad",
        (Claim.PEAK_FALLS, Claim.GROWTH_STOPS),
        (("def evaluate(", "@torch.no_grad()\ndef evaluate("),),
    ),
    Pair(
        "oom102_retained_loss",
        (Claim.NODES_STOP, Claim.GROWTH_STOPS),
        (("total_loss += loss  ", "total_loss += loss.detach()  "),),
    ),
    Pair(
        "oom201_unscaled_accumulation",
        (Claim.GRADIENT_SHRINKS,),
        (("        loss.backward()", "        (loss / accumulation_steps).backward()"),),
    ),
    Pair(
        "oom202_misplaced_zero_grad",
        (Claim.PARAMETERS_MOVE, Claim.GRADIENT_WHOLE),
        (
            ("        optimizer.zero_grad()  # expect: OOM202\n", ""),
            (
                "        optimizer.step()\n",
                "        optimizer.step()\n        optimizer.zero_grad()\n",
            ),
        ),
    ),
    Pair(
        "oom203_missing_zero_grad",
        (Claim.GRADIENT_STOPS_GROWING,),
        (
            (
                "        loss.backward()\n",
                "        optimizer.zero_grad()\n        loss.backward()\n",
            ),
        ),
    ),
    Pair(
        "oom204_clip_misplaced",
        (Claim.NORM_BOUNDED,),
        (
            ("        clip_grad_norm_(model.parameters(), max_norm)  # expect: OOM204\n", ""),
            (
                "        optimizer.step()\n",
                "        clip_grad_norm_(model.parameters(), max_norm)\n        optimizer.step()\n",
            ),
        ),
    ),
    Pair(
        "oom301_clip_before_unscale",
        (Claim.GRADIENT_RESTORED,),
        (
            (
                "            torch.nn.utils.clip_grad_norm_",
                "            scaler.unscale_(optimizer)\n"
                "            torch.nn.utils.clip_grad_norm_",
            ),
        ),
    ),
    Pair(
        "oom302_missing_scaler_update",
        (Claim.ERROR_GONE,),
        (
            (
                "        scaler.step(optimizer)  # expect: OOM302\n",
                "        scaler.step(optimizer)\n        scaler.update()\n",
            ),
        ),
    ),
    Pair(
        "oom303_unscaled_step",
        (Claim.UPDATE_RESTORED,),
        (("head_optimizer.step()", "scaler.step(head_optimizer)"),),
    ),
    Pair(
        "oom304_double_unscale",
        (Claim.ERROR_GONE,),
        (
            ("        scaler.unscale_(optimizer)  # expect: OOM304\n", ""),
            (
                "            torch.nn.utils.clip_grad_norm_",
                "            scaler.unscale_(optimizer)\n"
                "            torch.nn.utils.clip_grad_norm_",
            ),
        ),
    ),
)
