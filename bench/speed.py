"""Times oomlint against ruff and its rivals in one run, and writes a table of the ratios."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import CorpusError, python_files
from tools import RIVALS, beside_python, packages_folder, rival, torch_distributed

RESULTS = Path(__file__).with_name("results")
CORES = 2
SAMPLE_SECONDS = 0.02
# Gradients and evaluation, the rules that there were first; their limit is half of that of all.
FEW = "OOM101,OOM102,OOM201,OOM202,OOM203,OOM204,OOM301,OOM302,OOM303,OOM304"


@dataclass(frozen=True, slots=True)
class Run:
    """One whole process with its children: seconds of wall and CPU time, peak bytes resident."""

    wall: float
    cpu: float
    resident: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach: `value` against `limit`, which is a ceiling unless `floor`."""

    what: str
    value: float
    limit: float
    unit: str
    floor: bool = False

    @property
    def reached(self) -> bool:
        return self.value >= self.limit if self.floor else self.value <= self.limit


def resident_bytes(root: int) -> int:
    """Resident bytes of a process and all its descendants; shared pages count each time."""
    total, waiting = 0, [root]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            total += int((process / "statm").read_text().split()[1])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue  # it ended while we looked
    return total * os.sysconf("SC_PAGE_SIZE")


def run(command: Sequence[str], folder: Path, allowed: Sequence[int], watch: bool = False) -> Run:
    """Runs a command to its end; raises CorpusError for an exit status that is not allowed."""
    peak = 0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(SAMPLE_SECONDS):
            peak = max(peak, resident_bytes(process.pid))

    with tempfile.TemporaryFile() as complaints:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=complaints
        )
        sampler = threading.Thread(target=sample) if watch else None
        if sampler:
            sampler.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = code = os.waitstatus_to_exitcode(status)
        ended.set()
        if sampler:
            sampler.join()
        if code not in allowed:
            complaints.seek(0)
            ending = complaints.read().decode("utf-8", "replace")[-2000:]
            raise CorpusError(f"{' '.join(command)} ended with {code}: {ending}")
    return Run(wall, usage.ru_utime + usage.ru_stime, peak)


def oomlint(folder: Path, *options: str) -> list[str]:
    return [beside_python("oomlint"), "check", "--isolated", *options, str(folder)]


def ruff(folder: Path) -> list[str]:
    command = [beside_python("ruff"), "check", "--isolated", "--no-cache", "--select", "E9,F"]
    return [*command, str(folder)]


def compared(folder: Path, runs: int) -> dict[str, list[Run]]:
    """Cold, warm and ruff in turn, so that a slower minute of the machine meets all of them."""
    with tempfile.TemporaryDirectory() as cache:
        commands = {
            "cold": oomlint(folder, "--no-cache"),
            "cold, ten rules": oomlint(folder, "--no-cache", "--select", FEW),
            "warm": oomlint(folder, "--cache-dir", cache),
            "ruff": ruff(folder),
        }
        times: dict[str, list[Run]] = {name: [] for name in commands}
        for command in (commands["ruff"], commands["warm"]):  # the disk cache and ours
            run(command, folder, (0, 1))
        for _ in range(runs):
            for name, command in commands.items():
                times[name].append(run(command, folder, (0, 1)))
    return times


def median(runs: Sequence[Run]) -> float:
    return statistics.median(one.wall for one in runs)


def version_cost(runs: int) -> float:
    """Seconds of CPU that `oomlint --version` takes beyond an interpreter that does nothing."""
    here = Path.cwd()
    bare = [sys.executable, "-c", "pass"]
    ours = [beside_python("oomlint"), "--version"]
    pairs = [(run(ours, here, (0,)).cpu, run(bare, here, (0,)).cpu) for _ in range(runs)]
    return statistics.median(a for a, _ in pairs) - statistics.median(b for _, b in pairs)


def rivals_on(folder: Path) -> dict[str, Run]:
    return {
        "torch-preflight check": run(
            [rival("torch-preflight"), "check", str(folder)], folder, (0, 1)
        ),
        "torchfix --select ALL": run(
            [rival("torchfix"), "--select", "ALL", str(folder)], folder, (0, 1)
        ),
    }


def size(folder: Path) -> str:
    files = python_files(folder)
    lines = sum(path.read_bytes().count(b"\n") for path in files)
    return f"{len(files):,} files, {lines:,} lines"


def targets(
    corpus: Mapping[str, Sequence[Run]],
    small: Mapping[str, Sequence[Run]],
    rivals: Mapping[str, Run],
    peak: int,
    version: float,
) -> tuple[Target, ...]:
    base = median(corpus["ruff"])
    cold = median(small["cold"])
    return (
        Target("corpus, all rules cold against ruff", median(corpus["cold"]) / base, 10, "x"),
        Target(
            "corpus, ten rules cold against ruff", median(corpus["cold, ten rules"]) / base, 5, "x"
        ),
        Target("corpus, warm against ruff", median(corpus["warm"]) / base, 2, "x"),
        *(
            Target(f"torch/distributed, faster than {name}", one.wall / cold, 30, "x", True)
            for name, one in rivals.items()
        ),
        Target("peak resident, all processes", peak / 2**20, 600, " MiB"),
        Target("oomlint --version beyond bare Python", version * 1000, 100, " ms CPU"),
    )


def report(
    sizes: Mapping[str, str],
    rows: Sequence[tuple[str, str, Sequence[Run]]],
    goals: Sequence[Target],
    note: str,
) -> str:
    """The results as a Markdown page."""
    ruff_version = subprocess.run(
        [beside_python("ruff"), "--version"], capture_output=True, text=True
    ).stdout.strip()
    text = [f"# Speed, {datetime.date.today().isoformat()}", ""]
    text.append(
        f"Python {platform.python_version()}, oomlint {build()}, {ruff_version}, "
        f"{', '.join(RIVALS)}; {CORES} cores ({processor()}). Whole processes, wall time."
    )
    text += ["", note] if note else []
    text += [""] + [f"- {name}: {words}" for name, words in sizes.items()]
    text += [
        "",
        "| code | tool | median s | min | max | CPU s | runs |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for code, tool, runs in rows:
        walls = [one.wall for one in runs]
        cpu = statistics.median(one.cpu for one in runs)
        text.append(
            f"| {code} | {tool} | {statistics.median(walls):.2f} | {min(walls):.2f} | "
            f"{max(walls):.2f} | {cpu:.2f} | {len(runs)} |"
        )
    text += ["", "| target | measured | limit | |", "|---|--:|--:|---|"]
    for goal in goals:
        sign = ">=" if goal.floor else "<="
        text.append(
            f"| {goal.what} | {goal.value:.1f}{goal.unit} | {sign} {goal.limit:g}{goal.unit} | "
            f"{'reached' if goal.reached else '**missed**'} |"
        )
    return "\n".join(text) + "\n"


def build() -> str:
    """Whether the modules that follow the code are Python here or compiled."""
    hot = importlib.util.find_spec("oomlint.analysis.values")
    is_python = hot is None or (hot.origin or "").endswith(".py")
    return "as plain Python" if is_python else "compiled by mypyc"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "?")


def baselines(corpus: Path, distributed: Path, runs: int) -> int:
    """What can be timed without oomlint."""
    for name, folder in (("corpus", corpus), ("torch/distributed", distributed)):
        times = [run(ruff(folder), folder, (0, 1)) for _ in range(runs)]
        print(f"{name} ({size(folder)}): ruff {median(times):.2f} s")
    for name, one in rivals_on(distributed).items():
        print(f"torch/distributed: {name} {one.wall:.1f} s wall, {one.cpu:.1f} s CPU")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--without-rivals", action="store_true", help="saves some four minutes")
    parser.add_argument("--baselines", action="store_true", help="ruff and the rivals alone")
    parser.add_argument("--write", action="store_true", help="keep the page in bench/results")
    parser.add_argument("--name", default="speed", help="what the page's file name begins with")
    parser.add_argument("--note", default="", help="a sentence for the page: whose Python it is")
    options = parser.parse_args()
    corpus, distributed = packages_folder(), torch_distributed()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if options.baselines:
        return baselines(corpus, distributed, options.runs)
    on_corpus = compared(corpus, options.runs)
    on_torch = compared(distributed, options.runs)
    peak = run(oomlint(corpus, "--no-cache"), corpus, (0, 1), watch=True).resident
    rivals = {} if options.without_rivals else rivals_on(distributed)
    goals = targets(on_corpus, on_torch, rivals, peak, version_cost(max(options.runs, 10)))
    rows = [
        (name, tool if tool == "ruff" else f"oomlint, {tool}", runs)
        for name, times in (("corpus", on_corpus), ("torch/distributed", on_torch))
        for tool, runs in times.items()
    ]
    rows += [("torch/distributed", name, [one]) for name, one in rivals.items()]
    page = report(
        {"corpus": size(corpus), "torch/distributed": size(distributed)}, rows, goals, options.note
    )
    print(page)
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        target = RESULTS / f"{options.name}-{datetime.date.today().isoformat()}.md"
        target.write_text(page, encoding="utf-8")
        print(f"written to {target}", file=sys.stderr)
    return 0 if all(goal.reached for goal in goals) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
