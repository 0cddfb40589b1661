"""Memory that ends, streams, and GPUs by name: what a CUDA build of torch answered, and ours.

The expected answers are those of torch 2.13's own CUDA build, run on a driver that only counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oomlint.cli.runs import GPUS
from oomlint.verify.allocator_settings import AllocatorSettings, from_environment, parse
from oomlint.verify.profiles import PROFILES, SHARED
from oomlint.verify.record import FINISHED, RAISED
from oomlint.verify.runner import Limits, run_text
from oomlint.verify.sizes import MIB

pytest.importorskip("torch")

ADVICE = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF="
    "expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-"
    "cuda-alloc-conf)"
)
# Each case: code whose last line is the answer, and CUDA's.
CASES = {
    "more than the device has": (
        "held = make(100 * MB + 12345)\ntext(lambda: make(1 << 40))",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total "
        "capacity of 79.18 GiB of which 79.08 GiB is free. Including non-PyTorch memory, this "
        "process has 102.00 MiB memory in use. Of the allocated memory 100.01 MiB is allocated by "
        "PyTorch, and 1.99 MiB is reserved by PyTorch but unallocated." + ADVICE,
    ),
    "more than the process may have": (
        "torch.cuda.set_per_process_memory_fraction(0.001); held = make(30 * MB)\n"
        "said = text(lambda: make(60 * MB)); torch.cuda.set_per_process_memory_fraction(1.0)\n"
        "said",
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 60.00 MiB. GPU 0 has a total "
        "capacity of 79.18 GiB of which 79.15 GiB is free. Including non-PyTorch memory, this "
        "process has 30.00 MiB memory in use. 81.08 MiB allowed; Of the allocated memory 30.00 "
        "MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated." + ADVICE,
    ),
    "a fraction that is no float": (
        "text(lambda: torch.cuda.set_per_process_memory_fraction(1))",
        "TypeError: Invalid type for fraction argument, must be `float`",
    ),
    "what one stream freed no other gets": (
        "s = torch.cuda.Stream()\nwith torch.cuda.stream(s): x = make(30 * MB)\n"
        "del x; y = make(30 * MB); found = held(); del y\n"
        "with s: z = make(30 * MB)\nfound + held()",
        str([30 * MIB, 60 * MIB, 30 * MIB, 2] * 2),
    ),
    "a recorded stream delays the reuse": (
        "x = make(30 * MB); x.record_stream(torch.cuda.Stream()); del x\n"
        "found = held(); y = make(1000); found + held()",
        str([0, 30 * MIB, 30 * MIB, 1, 1024, 32 * MIB, 1024, 2]),
    ),
    "its own stream does not": (
        "x = make(30 * MB); x.record_stream(torch.cuda.current_stream()); del x\nheld()",
        str([0, 30 * MIB, 0, 1]),
    ),
    "settings at run time": (
        "use = torch.cuda.memory._set_allocator_settings; use('expandable_segments:True')\n"
        "x = make(30 * MB); y = make(MB); del y; found = held()\n"
        "use('expandable_segments:False'); z = make(30 * MB); found + held()",
        str([31457280, 44040192, 31457280, 0, 62914560, 75497472, 62914560, 1]),
    ),
    "free memory is the device's": (
        "a = torch.cuda.mem_get_info(); x = make(3 * MB); b = torch.cuda.mem_get_info()\n"
        "[a[0] - b[0], b[1]]",
        "[20971520, 85017493504]",
    ),
    "the current stream": (
        "d, s = torch.cuda.default_stream(), torch.cuda.Stream()\n"
        "found = [torch.cuda.current_stream() == d, s == d]\n"
        "with torch.cuda.stream(s):\n"
        "    with torch.cuda.stream(None): found.append(torch.cuda.current_stream() == s)\n"
        "torch.cuda.set_stream(s); found.append(torch.cuda.current_stream() == s)\n"
        "torch.cuda.set_stream(d); found + [torch.cuda.current_stream() == d]",
        "[True, False, True, True, True]",
    ),
    "the properties": (
        "p = torch.cuda.get_device_properties(0)\n"
        "[p.name, p.total_memory, p.multi_processor_count, p.major, p.minor,"
        " p.max_threads_per_multi_processor, p.shared_memory_per_multiprocessor,"
        " p.shared_memory_per_block_optin, p.shared_memory_per_block, p.L2_cache_size]",
        "['NVIDIA H100 80GB HBM3', 85017493504, 132, 9, 0, 2048, 233472, 232448, 49152, 52428800]",
    ),
    "a row of the summary": (
        "x = make(3 * MB)\n"
        "[line for line in torch.cuda.memory_summary(device=0).splitlines()"
        " if 'Non-releasable mem' in line][0][:39]",
        "| Non-releasable memory |  17408 KiB | ",
    ),
    "convolutions without cuDNN spread their pixels": (
        "torch.backends.cudnn.enabled = False; F = torch.nn.functional\n"
        "make = lambda *shape: torch.ones(shape, device='cuda', requires_grad=True)\n"
        "m = make(8, 8); (m @ m).sum().backward(); del m\n"
        "x, w, one, up = make(4, 16, 32, 32), make(24, 16, 3, 3), make(24, 16, 1, 1),"
        " make(16, 24, 2, 2); b = make(24)\n"
        "def peak(run):\n"
        "    torch.cuda.reset_peak_memory_stats(); name = 'requested_bytes.all.'\n"
        "    start = torch.cuda.memory_stats()[name + 'current']; made = run()\n"
        "    return torch.cuda.memory_stats()[name + 'peak'] - start, made\n"
        "found = []\n"
        "for run in (lambda: F.conv2d(x, w, None, 1, 1), lambda: F.conv2d(x, one),"
        " lambda: F.conv2d(x, one, None, 2), lambda: F.conv_transpose2d(x, up, b, 2)):\n"
        "    x.grad = w.grad = one.grad = up.grad = b.grad = None\n"
        "    size, y = peak(run); g = torch.ones_like(y)\n"
        "    found += [size, peak(lambda: y.backward(g))[0]]; del y, g\n"
        "torch.backends.cudnn.enabled = True; torch._C._cuda_clearCublasWorkspaces()\nfound",
        "[983040, 865792, 393216, 329216, 114688, 280064, 1982464, 661600]",
    ),
    "a pool of its own": (
        "p = torch.cuda.MemPool(); x = make(5 * MB)\n"
        "with torch.cuda.use_mem_pool(p): y = make(5 * MB); z = make(1000); users = p.use_count()\n"
        "found = held(), [(s['segment_pool_id'] == p.id, s['total_size']) for s in"
        " torch.cuda.memory_snapshot()], len(p.snapshot()), users\n"
        "w = make(5 * MB); del y, z; torch.cuda.empty_cache(); kept = held()[1::2]\n"
        "del p; [*found, kept, held()[1::2]]",
        "[[10486784, 44040192, 10486784, 3], [(False, 20971520), (True, 20971520), (True, "
        "2097152)], 2, 2, [44040192, 3], [20971520, 1]]",
    ),
    "a snapshot": (
        "x = make(4000); y = make(30 * MB); y.record_stream(torch.cuda.Stream())\n"
        "z = make(3 * MB); del y, z\n"
        "[(s['segment_type'], s['total_size'], s['allocated_size'], s['active_size'],"
        " s['requested_size'], [(b['address'] - s['address'], b['size'], b['state']) for b in"
        " s['blocks']]) for s in torch.cuda.memory_snapshot()]",
        "[('small', 2097152, 4096, 4096, 4000, [(0, 4096, 'active_allocated'), (4096, 2093056,"
        " 'inactive')]), ('large', 31457280, 0, 31457280, 31457280, [(0, 31457280,"
        " 'active_pending_free')]), ('large', 20971520, 0, 0, 0, [(0, 20971520, 'inactive')])]",
    ),
    "a snapshot of segments that expand": (
        "use = torch.cuda.memory._set_allocator_settings; use('expandable_segments:True')\n"
        "x, y = make(30 * MB), make(50 * MB); del x\n"
        "def seen(): return [(s['total_size'], s['is_expandable'], [(b['size'], b['state']) for b"
        " in s['blocks']]) for s in torch.cuda.memory_snapshot()]\n"
        "found = seen(); torch.cuda.empty_cache(); found += seen()\n"
        "use('expandable_segments:False'); found",
        "[(83886080, True, [(31457280, 'inactive'), (52428800, 'active_allocated')]), (62914560,"
        " True, [(10485760, 'inactive'), (52428800, 'active_allocated')])]",
    ),
    "a history": (
        "record = torch.cuda.memory._record_memory_history\n"
        "record(clear_history=True, stacks='python')\n"
        "def ask(): return make(4000)\n"
        "x = ask(); y = make(30 * MB); y.record_stream(torch.cuda.Stream()); z = make(3 * MB)\n"
        "del z, y; torch.cuda.empty_cache(); text(lambda: make(1 << 45))\n"
        "trace = torch.cuda.memory._snapshot()['device_traces'][0]; record(None)\n"
        "[(e['action'], e['size']) for e in trace], [f['name'] for f in trace[1]['frames']][:3],"
        " 'device_free' in trace[-1], len(torch.cuda.memory._snapshot()['device_traces'][0])",
        "([('segment_alloc', 2097152), ('alloc', 4000), ('segment_alloc', 31457280), ('alloc',"
        " 31457280), ('segment_alloc', 20971520), ('alloc', 3145728), ('free_requested', 3145728),"
        " ('free_completed', 3145728), ('free_requested', 31457280), ('free_completed', 31457280),"
        " ('segment_free', 20971520), ('segment_free', 31457280), ('oom', 35184372088832)],"
        " ['make', 'ask', '<module>'], True, 0)",
    ),
    "a workspace for each thread that multiplies": (
        "w = torch.ones(8, 8, device='cuda', requires_grad=True)\n"
        "start = held()[0]; y = (w @ w).sum(); forward = held()[0] - start; y.backward()\n"
        "w.grad = None; found = [forward - 512, held()[0] - start - 512]\n"
        "torch._C._cuda_clearCublasWorkspaces(); found + [held()[0] - start - 512]",
        str([32 * MIB, 64 * MIB, 0]),
    ),
}
PROGRAM = """
import ast, gc, json, sys, torch
from oomlint.verify import emulation
from oomlint.verify.profiles import PROFILES
emulation.install(profile=PROFILES["H100"])
MB = 1 << 20
def make(size): return torch.empty(size, dtype=torch.uint8, device="cuda")
def held():
    stats = torch.cuda.memory_stats()
    names = ("allocated_bytes", "reserved_bytes", "active_bytes", "segment")
    return [stats[f"{name}.all.current"] for name in names]
def text(run):
    try: run()
    except Exception as error: return f"{type(error).__name__}: {error}"
answers = {}
for name, code in json.load(sys.stdin).items():
    gc.collect(); torch.cuda.empty_cache()
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value)
    names = dict(globals())
    exec(compile(tree, name, "exec"), names)
    answers[name] = str(eval(compile(last, name, "eval"), names))
    del names
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps({name: code for name, (code, _) in CASES.items()}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={name: text for name, text in os.environ.items() if "ALLOC_CONF" not in name},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", CASES)
def test_memory_is_what_cudas_own_build_says(name: str, answers: dict[str, str]) -> None:
    assert answers[name] == CASES[name][1]


HANDLES = """\
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
size = 4096
for step in range(3):
    try:
        model(torch.ones(size, 1024, device="cuda")).square().mean().backward()
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        size //= 2
        continue
    optimizer.step()
    optimizer.zero_grad()
assert size == {left}, size
"""


@pytest.mark.parametrize(
    ("left", "limits"),
    [(2048, {"capacity": 95 * MIB}), (4096, {"gpu": "T4", "capacity": 300 * MIB})],
)
def test_handlers_of_the_script_run(left: int, limits: dict[str, object], tmp_path: Path) -> None:
    text = HANDLES.format(left=left)
    script = tmp_path / "script.py"
    script.write_text(text)
    chosen = Limits(device="emulated", timeout=120.0, steps=9, **limits)  # type: ignore[arg-type]
    work = tmp_path / "work"
    work.mkdir()
    found = run_text(script, text, (), None, chosen, work, quiet_stdout=True)
    assert found.ending.kind == FINISHED, found.ending.message


def test_an_unknown_option_of_the_allocator_ends_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split:40")
    text = "import torch\ntorch.ones(1).cuda()\n"
    script, work = tmp_path / "script.py", tmp_path / "work"
    script.write_text(text)
    work.mkdir()
    chosen = Limits(device="emulated", timeout=120.0)
    found = run_text(script, text, (), None, chosen, work, quiet_stdout=True)
    assert found.ending.kind == RAISED
    assert "Unrecognized key 'max_split' in CUDA allocator config." in found.ending.message


def test_another_backend_and_graphed_callables_lower_the_confidence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    text = (
        "import torch\nassert torch.cuda.get_allocator_backend() == 'cudaMallocAsync'\n"
        "x = torch.ones(1).cuda()\ntorch.cuda.make_graphed_callables(torch.sin, (x,))(x)\n"
    )
    script, work = tmp_path / "script.py", tmp_path / "work"
    script.write_text(text)
    work.mkdir()
    chosen = Limits(device="emulated", gpu="A100", timeout=120.0)
    found = run_text(script, text, (), None, chosen, work, quiet_stdout=True)
    assert found.ending.kind == FINISHED, found.ending.message
    assert found.holdings is not None
    assert [doubt[:12] for doubt in found.holdings.doubts] == ["in place of ", "what torch.c"]


def test_the_command_offers_every_profile() -> None:
    assert set(GPUS) == set(PROFILES)
    assert all(profile.capability in SHARED for profile in PROFILES.values())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", AllocatorSettings()),
        (" max_split_size_mb: 32 ,", AllocatorSettings(max_split=32 * MIB)),
        ("expandable_segments:True,expandable_segments:False", AllocatorSettings()),
        ("backend:native,pinned_use_background_threads:True", AllocatorSettings()),
        ("per_process_memory_fraction:0.5", AllocatorSettings(fraction=0.5)),
        ("roundup_power2_divisions:8", AllocatorSettings(divisions=(8,) * 16)),
        (
            "roundup_power2_divisions:[2:8,16:4,>:2]",
            AllocatorSettings(divisions=(8, 8, 0, 0, 4, *(2,) * 11)),
        ),
        ("roundup_power2_divisions:[>:4]", AllocatorSettings(divisions=(0, *(4,) * 15))),
    ],
)
def test_options_are_read_as_torch_reads_them(text: str, expected: AllocatorSettings) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_split_size_mb:10", "max_split_size_mb too small, must be >= 20"),
        ("max_split_size_mb:30,large_segment_size_mb:64", "too small, must be >= 64"),
        ("max_non_split_rounding_mb:5", "max_non_split_rounding_mb too small, must be >= 20"),
        ("large_segment_size_mb:10", "large_segment_size_mb must be > 10 MB"),
        ("garbage_collection_threshold:1.5", r"set it in \(0.0, 1.0\)"),
        ("per_process_memory_fraction:2", r"is invalid, set it in \[0.0, 1.0\]"),
        ("roundup_power2_divisions:3", "the divisions has to be power of 2"),
        ("roundup_power2_divisions:[3:4]", "the intervals have to be power of 2"),
        ("expandable_segments:true", "Expected 'True' or 'False'"),
        ("max_split_size_mb=100", "settings"),
        ("backend:other", "Unknown allocator backend, options are native and cudaMallocAsync"),
        ("nothing:1", "Unrecognized key 'nothing' in CUDA allocator config."),
    ],
)
def test_what_torch_refuses_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_the_workspace_is_what_the_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert PROFILES["A100"].chosen_workspace() == 2 * 4 * MIB + 8 * 16 * 1024
    assert PROFILES["H200"].chosen_workspace() == 32 * MIB
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8:4096:2")
    assert PROFILES["H200"].chosen_workspace() == 2 * 4 * MIB + 8 * 16 * 1024


def test_the_older_name_of_the_variable_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:30")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert from_environment().max_split == 30 * MIB
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:40")
    assert from_environment().max_split == 40 * MIB
