"""Fused operators and gradient sums: the bytes that torch's CUDA build asked for, and ours.

Both sides write every request to the allocator; the expected ones are those of an H100.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

# Each case: code that runs what is counted, and the requests in their order.
CASES = {
    "efficient attention": (
        "attend(float32, 100, 100, 32)",
        ["102400 4096", "102400 102400 102400 102400 3200 3200 262400"],
    ),
    "of wide heads": (
        "attend(float32, 300, 300, 96)",
        ["921600 10240", "921600 921600 921600 921600 9600 9600 1573632"],
    ),
    "with a mask that is padded": (
        "attend(float32, 100, 100, 32, mask=True)",
        ["4 4 40000 41600 102400 4096", "102400 102400 102400 102400 3200 3200 262400"],
    ),
    "flash attention": (
        "attend(bfloat16, 100, 100, 32)",
        ["51200 3200 16 8", "51200 51200 51200 4096 131072"],
    ),
    "with dropout": (
        "attend(bfloat16, 256, 256, 128, dropout_p=0.1)",
        ["524288 8192 16 16 8", "524288 524288 524288 8192 1048576"],
    ),
    "whose keys are split": (
        "attend(bfloat16, 256, 256, 160)",
        ["655360 8192 32768 6291456 16 8", "655360 655360 655360 8192 1572864"],
    ),
    "of heads that are padded": (
        "attend(bfloat16, 100, 100, 60)",
        [
            "102400 102400 102400 102400 3200 16 8",
            "102400 102400 102400 102400 102400 102400 4096 262144 96000 96000 96000",
        ],
    ),
    "causal with more keys than queries": (
        "attend(bfloat16, 64, 96, 64, is_causal=True)",
        ["65536 2048", "65536 98304 98304 2048 131200"],
    ),
    "that keeps no graph": (
        "no_graph()",
        ["204800"],
    ),
    "rms_norm": (
        "norm(2048, 1024, float32)",
        ["8388608 8192", "8388608 4096"],
    ),
    "rms_norm in halves": (
        "norm(2048, 1024, bfloat16)",
        ["4194304 8192", "4194304 2048"],
    ),
    "gradients are summed in place": (
        "fan_out()",
        [
            "1048576 1048576 4 128 4 4 128 4 4 1048576 4 128 4 4",
            "1048576 1048576 1048576 1048576 1048576",
        ],
    ),
}
PROGRAM = """
import json, sys
from oomlint.verify import emulation
from oomlint.verify.allocator import Allocator
from oomlint.verify.profiles import PROFILES
device = emulation.install(profile=PROFILES["H100"])
import torch
import torch.nn.functional as F
from torch import bfloat16, float32
torch.backends.cuda.enable_cudnn_sdp(False)
asked = []
malloc = Allocator.malloc
def listening(self, request, *place):
    if request:
        asked.append(request)
    return malloc(self, request, *place)
Allocator.malloc = listening
def heard(run):
    asked.clear()
    made = run()
    return made, " ".join(map(str, asked))
def make(*shape, dtype=float32):
    return torch.ones(shape, dtype=dtype, device="cuda", requires_grad=True)
def both(run, inputs):
    made, forward = heard(run)
    gradient = torch.empty_like(made)
    return [forward, heard(lambda: torch.autograd.grad(made, inputs, gradient))[1]]
def attend(dtype, queries, keys, width, mask=False, **options):
    rows = (queries, keys, keys)
    given = [make(2, n, 4, width, dtype=dtype).transpose(1, 2) for n in rows]
    if mask:
        options["attn_mask"] = torch.ones(queries, keys, dtype=torch.bool, device="cuda")
    return both(lambda: F.scaled_dot_product_attention(*given, **options), given)
def no_graph():
    x = make(2, 4, 100, 64)
    with torch.no_grad():
        return [heard(lambda: F.scaled_dot_product_attention(x, x, x))[1].removesuffix(" 0")]
def norm(rows, width, dtype):
    x, weight = make(rows, width, dtype=dtype), make(width, dtype=dtype)
    return both(lambda: F.rms_norm(x, (width,), weight), [x, weight])
def fan_out():
    x = make(512, 512)
    y = x * 2
    def sums():
        a, b = y.exp(), y.tanh()
        return a.sum() + b.sum() + (a * b).sum()
    return both(sums, [x])
answers = {}
for name, code in json.load(sys.stdin).items():
    answers[name] = eval(code)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers() -> dict[str, list[str]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps({name: code for name, (code, _) in CASES.items()}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_requests_are_those_of_cudas_build(name: str, answers: dict[str, list[str]]) -> None:
    assert answers[name] == CASES[name][1]
