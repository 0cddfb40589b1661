"""Scripts that do not measure anything: each ends in one sentence, and nothing is left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from oomlint.rule import Claim
from oomlint.verify import runner
from oomlint.verify.compare import compare
from oomlint.verify.record import FINISHED, STOPPED, Run
from oomlint.verify.runner import Limits, run_text
from oomlint.verify.verdict import CONFIRMED, NOT_MEASURED, REFUTED

pytest.importorskip("torch")

TRAINS = """\
import torch
model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range({steps}):
    model(torch.randn(8, 4, device="cuda")).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(folder: Path, text: str, *argv: str, **limits: object) -> Run:
    script, work = folder / "script.py", folder / "work"
    script.write_text(text, "utf-8")
    work.mkdir()
    chosen = Limits(**{"device": "emulated", "timeout": 120.0, **limits})  # type: ignore[arg-type]
    return run_text(script, text, argv, None, chosen, work, quiet_stdout=True)


SENTENCES = {
    "raises": ("x = 1\nraise ValueError('bad\\nluck')", "raises ValueError: bad at line 2"),
    "missing package": ("import no_such_package_here", "needs the package no_such_package_here"),
    "no such file": ("open('nowhere.txt')", "raises FileNotFoundError"),
    "reads stdin": ("input('name? ')", "reads from standard input"),
    "sys.exit": ("import sys; sys.exit(3)", "exits with status 3"),
    "sys.exit with words": ("import sys; sys.exit('no data')", "exits with the message: no data"),
    "os._exit": ("import os; os._exit(4)", "ended its process with status 4"),
    "os._exit(0)": ("import os; os._exit(0)", "ended without a word"),
    "killed": ("import os; os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    "terminates itself": ("import os; os.kill(os.getpid(), 15)", "was killed by SIGTERM"),
    "ends its group": ("import os; os.killpg(0, 15)", "was killed by SIGTERM"),
    "real-time signal": ("import os; os.kill(os.getpid(), 40)", "was killed by signal 40"),
    "crashes": ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
    "aborts": ("import os; os.abort()", "was killed by SIGABRT"),
    "interrupts itself": ("raise KeyboardInterrupt", "raises KeyboardInterrupt"),
    "never steps": ("print('hello')", "ends before the first optimizer step"),
    "no Python": ("def f(:", "SyntaxError"),
}


@pytest.mark.parametrize("name", SENTENCES)
def test_a_script_that_does_not_train_gets_one_sentence(name: str, tmp_path: Path) -> None:
    text, sentence = SENTENCES[name]
    found = run(tmp_path, text)
    verdict = compare(found, found, (Claim.PEAK_FALLS,))
    assert verdict.kind == NOT_MEASURED
    assert sentence in verdict.reason
    assert "\n" not in verdict.reason


def test_a_hang_ends_at_the_timeout_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    found = run(
        tmp_path,
        "import os, subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"os.write(os.open({str(pids)!r}, os.O_CREAT | os.O_WRONLY), f'{{child.pid}}'.encode())\n"
        "time.sleep(600)\n",
        timeout=12.0,
        writes=True,
    )
    assert found.ending.message == "did not come to an end within 12 s"
    assert not alive(int(pids.read_text()))


LEAVES = """\
import os, subprocess, sys
wait = "import time; time.sleep(600)"
children = [subprocess.Popen([sys.executable, "-S", "-c", wait], start_new_session=True)]
pid = os.fork()
if pid == 0:
    os.setsid()
    pid = os.fork()
    if pid:
        os._exit(0)
    children = []
    import time; time.sleep(600)
os.waitpid(pid, 0)
with open({pids!r}, "w") as file:
    print(children[0].pid, *open("/proc/self/task/%d/children" % os.getpid()).read().split(),
          file=file)
"""


WATCHES_ITS_WORKERS = """\
import os, signal, time
def lost(number, frame):
    raise RuntimeError("a worker was killed")
if os.fork() == 0:
    time.sleep(600)
signal.signal(signal.SIGCHLD, lost)
kill = os.kill
os.kill = lambda *which: (kill(*which), time.sleep(0.5))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are followed through /proc")
def test_the_end_of_its_workers_is_no_fault_of_a_script(tmp_path: Path) -> None:
    """As torch does, which asks at each SIGCHLD whether a worker of a loader has failed."""
    found = run(tmp_path, WATCHES_ITS_WORKERS + TRAINS.format(steps=10**9), steps=2, writes=True)
    assert (len(found.steps), found.ending.kind) == (2, STOPPED)


@pytest.mark.skipif(sys.platform != "linux", reason="processes are followed through /proc")
@pytest.mark.parametrize("end", ["", "os._exit(3)", "import time; time.sleep(600)"])
def test_nothing_that_a_script_started_outlives_it(end: str, tmp_path: Path) -> None:
    """Daemons, too: they have a session of their own and no parent any more."""
    pids = tmp_path / "pids"
    run(tmp_path, LEAVES.format(pids=str(pids)) + end, timeout=6.0, writes=True)
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(set(started)) == 2
    assert not [pid for pid in started if alive(pid)]


def test_too_many_processes_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MAX_PROCESSES", 32)
    text = (
        "import os, time\nfor _ in range(60):\n    os.fork() or time.sleep(600)\ntime.sleep(600)\n"
    )
    found = run(tmp_path, text, timeout=60.0)
    assert found.ending.message == "started more than 32 processes"


def test_signals_that_a_script_ignores_do_not_keep_it_alive(tmp_path: Path) -> None:
    text = "import signal, time\n" + "".join(
        f"signal.signal(signal.{name}, signal.SIG_IGN)\n"
        for name in ("SIGTERM", "SIGINT", "SIGHUP")
    )
    found = run(tmp_path, text + "time.sleep(600)\n", timeout=5.0)
    assert found.ending.message == "did not come to an end within 5 s"


def test_records_survive_another_folder_and_closed_files(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    text = (
        "import os\nos.chdir('/')\nos.closerange(3, 256)\n"
        f"files = [open({str(own)!r}, 'a') for _ in range(64)]\n" + TRAINS.format(steps=2)
    )
    found = run(tmp_path, text, writes=True)
    assert (len(found.steps), found.ending.kind) == (2, FINISHED)
    assert own.read_text() == ""


def test_host_memory_is_limited(tmp_path: Path) -> None:
    hungry = "held = []\nwhile True:\n    held.append(bytearray(64 << 20))\n"
    found = run(tmp_path, hungry, memory=900 << 20)
    assert found.ending.message == "took more than 900 MiB of host memory"


def test_records_survive_a_script_that_is_killed_in_the_middle(tmp_path: Path) -> None:
    text = TRAINS.format(steps=3) + "import os; os.kill(os.getpid(), 9)\n"
    found = run(tmp_path, text)
    assert (len(found.steps), found.ending.message) == (3, "was killed by SIGKILL")


def test_a_script_stops_after_its_steps_and_what_it_prints_may_be_binary(tmp_path: Path) -> None:
    text = "import sys; sys.stdout.buffer.write(bytes(range(256)))\n" + TRAINS.format(steps=10**9)
    found = run(tmp_path, text, steps=4)
    assert (len(found.steps), found.ending.kind) == (4, STOPPED)


def test_a_short_script_is_measured_to_its_end(tmp_path: Path) -> None:
    found = run(tmp_path, TRAINS.format(steps=2), steps=6)
    assert (len(found.steps), found.ending.kind) == (2, FINISHED)


def test_a_script_sees_itself_as_it_would_without_oomlint(tmp_path: Path) -> None:
    (tmp_path / "sibling.py").write_text("VALUE = 7\n")
    found = run(
        tmp_path,
        "import inspect, os, sys, sibling\n"
        "def here(): return 1\n"
        "assert __name__ == '__main__' and sys.modules['__main__'].here is here\n"
        "assert os.path.basename(__file__) == os.path.basename(sys.argv[0]) == 'script.py'\n"
        "assert sys.argv[1:] == ['--epochs', '3'] and sibling.VALUE == 7\n"
        "assert 'return 1' in inspect.getsource(here)\n" + TRAINS.format(steps=1),
        "--epochs",
        "3",
    )
    assert (found.ending.message, found.ending.kind) == ("", FINISHED)


def test_both_runs_draw_the_same_numbers(tmp_path: Path) -> None:
    runs = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        runs.append(run(tmp_path / name, TRAINS.format(steps=3), seed=5))
    losses = [[step.loss for step in found.steps] for found in runs]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


TOGETHER = """\
import os, time, torch
from torch import distributed
distributed.init_process_group("gloo")
rank = distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if rank == 0:
    torch.save(model.state_dict(), "first.pt")
distributed.barrier()
assert os.path.exists("first.pt") and torch.load("first.pt")
for step in range(9):
    model(torch.randn(8, 4, device="cuda") + rank).pow(2).mean().backward()
    {between}
    optimizer.step()
    optimizer.zero_grad()
"""


def test_two_ranks_meet_and_leave_a_record_each(tmp_path: Path) -> None:
    found = run(tmp_path, TOGETHER.format(between="time.sleep(0.1 * rank)"), ranks=2, steps=3)
    assert (found.ending.message, found.ending.kind) == ("", STOPPED)
    assert [len(steps) for steps in (found.steps, *found.peers)] == [3, 3]
    for one, other in zip(found.steps, found.peers[0], strict=True):
        assert one.fingerprint == other.fingerprint != ""
        assert len(one.samples) == 8
        assert not set(one.samples) & set(other.samples)


EPOCHS = """\
import torch
from torch import distributed
from torch.utils.data import DataLoader, DistributedSampler
distributed.init_process_group("gloo")
data = torch.arange(24.0).reshape(12, 2)
loader = DataLoader(data, batch_size=3, sampler=DistributedSampler(data))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    {between}
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_sampler_that_is_told_the_epoch_draws_another_order(tmp_path: Path) -> None:
    runs = []
    for name, between in (("before", "pass"), ("after", "loader.sampler.set_epoch(epoch)")):
        (tmp_path / name).mkdir()
        runs.append(run(tmp_path / name, EPOCHS.format(between=between), ranks=2))
    verdict = compare(*runs, (Claim.EPOCHS_DIFFER,))
    assert verdict.kind == CONFIRMED, verdict.reason
    assert compare(*reversed(runs), (Claim.EPOCHS_DIFFER,)).kind == REFUTED


def test_gloo_stands_in_for_nccl_on_the_emulated_device(tmp_path: Path) -> None:
    found = run(
        tmp_path,
        "import os, torch, torch.distributed as dist\n"
        "device = torch.device('cuda', int(os.environ['LOCAL_RANK']))\n"
        "torch.cuda.set_device(device)\n"
        "dist.init_process_group(backend='nccl', device_id=device)\n"
        "group = dist.new_group([0, 1], backend=dist.Backend.NCCL)\n"
        "x = torch.full((2,), 1.0 + dist.get_rank(), device=device)\n"
        "dist.all_reduce(x, group=group)\n"
        "dist.barrier(device_ids=[0])\n"
        "assert x.tolist() == [3.0, 3.0] and x.is_cuda and dist.is_nccl_available()\n"
        "model = torch.nn.parallel.DistributedDataParallel(\n"
        "    torch.nn.Linear(4, 1).to(device), device_ids=[device.index])\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.randn(8, 4, device=device)).pow(2).mean().backward()\n"
        "optimizer.step()\n",
        ranks=2,
    )
    assert (found.ending.message, found.ending.kind) == ("", FINISHED)
    assert [len(steps) for steps in (found.steps, *found.peers)] == [1, 1]


def test_a_rank_that_raises_ends_those_that_wait_for_it(tmp_path: Path) -> None:
    text = TOGETHER.format(between="assert step < 2 or rank == 0, 'alone'")
    found = run(tmp_path, text, ranks=2, timeout=60.0)
    assert found.ending.message == "raises AssertionError: alone"
    assert len(found.steps) >= 2


def test_a_fork_measures_what_a_process_started_afresh_does(tmp_path: Path) -> None:
    text = "assert 'torch._inductor' not in __import__('sys').modules\n" + TRAINS.format(steps=3)
    runs = []
    for afresh in (True, False):
        folder = tmp_path / str(afresh)
        folder.mkdir()
        runs.append(run(folder, text, afresh=afresh))
    afresh, forked = ([replace(s, seconds=0.0, host=0) for s in found.steps] for found in runs)
    assert len(forked) == 3
    assert forked == afresh


def test_a_fork_has_the_folder_and_the_environment_of_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = (
        "import os, sys, tempfile\n"
        "assert os.path.samefile(os.getcwd(), {here!r}) and os.environ.get('WORD') == {word!r}\n"
        "assert sys.stdin.read() == '' and os.getsid(0) == os.getpid()\n"
        "assert tempfile.gettempdir() == os.environ['TMPDIR'] and 'work' in tempfile.gettempdir()\n"
        "assert {{*os.listdir('/proc/self/fd')}} < {{str(i) for i in range(8)}}\n"
    )
    for word in ("first", None):
        folder = tmp_path / str(word)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.delenv("WORD", raising=False)
        if word:
            monkeypatch.setenv("WORD", word)
        text = check.format(here=str(folder), word=word) + TRAINS.format(steps=1)
        found = run(folder, text)
        assert (found.ending.message, found.ending.kind) == ("", FINISHED)


def test_another_start_takes_over_from_a_template_that_died(tmp_path: Path) -> None:
    """A script can end even the process that it was forked from."""
    endings = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        text = TRAINS.format(steps=1)
        if name == "first":
            text = "import os; os.kill(os.getppid(), 9)\n"
        endings.append(run(tmp_path / name, text, seed=77).ending)
    assert endings[0].message == "was killed by SIGKILL"
    assert (endings[1].message, endings[1].kind) == ("", FINISHED)


def test_nothing_is_written_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "best.pt").write_bytes(b"precious")
    found = run(
        tmp_path,
        "import os, pathlib, torch\n"
        "folder = os.path.dirname(__file__)\n"
        "os.chdir(folder)\n"
        "torch.save({'w': torch.ones(3)}, 'best.pt')\n"
        "assert torch.load('best.pt')['w'].sum() == 3\n"
        "os.makedirs('runs/one', exist_ok=True)\n"
        "pathlib.Path('runs/one/log.txt').write_text('hello')\n"
        "assert open('runs/one/log.txt').read() == 'hello' and os.path.exists('runs/one')\n"
        "assert os.listdir('runs') == ['one']\n"
        "os.replace('runs/one/log.txt', 'runs/one/new.txt')\n"
        "os.remove('script.py')\n" + TRAINS.format(steps=1),
    )
    assert found.ending.message == ""
    assert sorted(os.listdir(tmp_path)) == ["best.pt", "script.py", "work"]
    assert (tmp_path / "best.pt").read_bytes() == b"precious"


def test_other_programs_cannot_write_beside_the_script(tmp_path: Path) -> None:
    if not landlocked():
        pytest.skip("this kernel has no Landlock")
    found = run(
        tmp_path,
        "import os, subprocess, sqlite3, tempfile\n"
        "folder = os.path.dirname(__file__)\n"
        "os.chdir(folder)\n"
        "assert os.system('echo no > by_shell.txt 2> /dev/null') != 0\n"
        "assert os.system('rm script.py 2> /dev/null') != 0\n"
        "try:\n"
        "    sqlite3.connect('by_library.db').execute('create table t (x)')\n"
        "    raise AssertionError('written')\n"
        "except sqlite3.OperationalError:\n"
        "    pass\n"
        "assert os.system('echo yes > $TMPDIR/mine.txt') == 0\n" + TRAINS.format(steps=1),
    )
    assert (found.ending.message, found.ending.kind) == ("", FINISHED)
    assert sorted(os.listdir(tmp_path)) == ["script.py", "work"]


def landlocked() -> bool:
    if sys.platform != "linux":
        return False
    return ctypes.CDLL(None).syscall(444, None, 0, 1) > 0  # type: ignore[no-any-return]


def alive(pid: int) -> bool:
    for _ in range(20):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_children_at_once(number: int, status: int, tmp_path: Path) -> None:
    """Those that moved to a session of their own, too."""
    pids = tmp_path / "pids"
    script = tmp_path / "script.py"
    script.write_text(
        "import os, subprocess, sys, time, torch\n"
        "def train(model, loader, optimizer):\n"
        "    for x in loader:\n"
        "        model(x).sum().backward()\n"
        "        optimizer.step()\n"
        "wait = [sys.executable, '-S', '-c', 'import time; time.sleep(600)']\n"
        "child = subprocess.Popen(wait, start_new_session=True)\n"
        f"with open({str(pids)!r} + '.new', 'w') as file:\n"
        "    print(os.getpid(), child.pid, file=file)\n"
        f"os.rename({str(pids)!r} + '.new', {str(pids)!r})\n"
        "time.sleep(600)\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-m", "oomlint", "verify", "--allow-writes", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Who runs the tests in the background of a shell ignores it, and so would this process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        for _ in range(600):
            if pids.exists():
                break
            time.sleep(0.1)
        time.sleep(0.2)
        program.send_signal(number)
        _, err = program.communicate(timeout=30)
    finally:
        program.kill()
    assert program.returncode == status
    assert "Traceback" not in err
    assert not [pid for pid in pids.read_text().split() if alive(int(pid))]


def test_a_terminal_shows_what_runs_once_it_takes_long(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import time; time.sleep(1.2)\n" + TRAINS.format(steps=2) + KEPT)
    shown, terminal = os.openpty()
    command = [sys.executable, "-m", "oomlint", "verify", "--device", "emulated", str(script)]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=terminal, env={**os.environ, "TERM": "xterm"}
    )
    os.close(terminal)
    said = b""
    while True:
        try:
            said += os.read(shown, 4096)
        except OSError:  # the program has closed its end
            break
    out, _ = program.communicate(timeout=60)
    os.close(shown)
    assert b"running OOM102 before the fix" in said
    assert b"running" not in out and b"OOM102" in out


KEPT = """
total = 0
for step in range(4):
    loss = model(torch.randn(8, 4, device="cuda")).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss
"""
