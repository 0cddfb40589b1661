"""Verifies every runnable fixture and writes what was measured as one dated page."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).with_name("results")


def measure(script: Path, device: str) -> dict[str, Any]:
    """The JSON record of `oomlint verify` on one script; raises ValueError where there is none."""
    command = [sys.executable, "-m", "oomlint", "verify", "--json", "--device", device, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        raise ValueError(f"{script}: {done.stderr.strip()[-200:]}") from None
    return document


def rows(script: Path, document: dict[str, Any]) -> list[str]:
    found = []
    for result in document["results"]:
        codes = ", ".join(item["code"] for item in result["findings"])
        found.append(
            f"| {codes} | {script.parent.name} | {result['verdict']} | {result['reason']} |"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "emulated"])
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    options = parser.parse_args()
    lines, failed, device = [], 0, options.device
    for script in sorted(ROOT.glob("fixtures/oom*/run.py")):
        document = measure(script, options.device)
        device = (document["results"][0].get("before") or {}).get("device", device)
        found = rows(script, document)
        failed += sum(result["verdict"] != "confirmed" for result in document["results"])
        lines += found
        print("\n".join(found), flush=True)
    today = datetime.date.today().isoformat()
    head = [
        f"# Proofs of the fixtures, {today}, {device} device",
        "",
        "`python bench/proofs.py --write`: each rule's runnable fixture before and after its fix.",
        "",
        "| rule | fixture | verdict | measured |",
        "|---|---|---|---|",
    ]
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        page = RESULTS / f"proofs-{device}-{today}.md"
        page.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")
        print(f"written to {page.relative_to(ROOT)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
