"""Operators that take more on CUDA than their outputs: the peaks of torch's CUDA build, and ours.

Each case names tensors, and what is run on them; the number is by how many bytes the peak of
requested memory exceeded its beginning there, on an H100 with cuDNN off.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

CASES = {
    "lines across memory are normalized": (
        "x = turned(64, 32, 256); m = nn.LayerNorm(256).cuda()",
        "backward(m(x))",
        8407040,
    ),
    "normalization of halves": (
        (
            "x = values(64, 32, 256); "
            "m = nn.LayerNorm(256).cuda().to(bfloat16); "
            "x = x.detach().to(bfloat16).requires_grad_()"
        ),
        "backward(m(x))",
        3163136,
    ),
    "normalization of groups": (
        "x = values(8, 32, 16, 16); m = nn.GroupNorm(8, 32).cuda()",
        "backward(m(x))",
        790784,
    ),
    "of groups whose channels come last": (
        (
            "x = values(8, 32, 16, 16).detach().to(memory_format=torch.channels_last)"
            ".requires_grad_(); "
            "m = nn.GroupNorm(8, 32).cuda()"
        ),
        "backward(m(x))",
        1052928,
    ),
    "a gradient across memory": (
        "x = values(64, 32, 100)",
        "across(x.log_softmax(-1))",
        3276800,
    ),
    "a gradient that repeats itself": (
        "x = values(64, 32, 100)",
        "repeated(x.softmax(-1))",
        2457608,
    ),
    "the same of a linear layer": (
        "x = values(8, 100, 64); m = nn.Linear(64, 32).cuda()",
        "repeated(m(x))",
        417800,
    ),
    "dropout across memory": (
        "x = turned(64, 32, 32)",
        "backward(F.dropout(x, 0.1))",
        1048576,
    ),
    "log_sigmoid": (
        "x = values(64, 1024)",
        "backward(F.logsigmoid(x))",
        786432,
    ),
    "many indices of an embedding": (
        "w = values(1000, 64); i = indices(1000, 32, 160)",
        "backward(F.embedding(i, w))",
        3415504,
    ),
    "bags of indices": (
        "w = values(1000, 64); i = indices(1000, 32, 16)",
        "backward(F.embedding_bag(i, w))",
        446120,
    ),
    "indexing": (
        "x = values(1000, 64); i = indices(1000, 512)",
        "backward(x[i])",
        534529,
    ),
    "more indices": (
        "x = values(1000, 64); i = indices(1000, 5120)",
        "backward(x[i])",
        3129855,
    ),
    "the number of largest values": (
        "x = values(1000, 64)",
        "backward(x.amax(-1))",
        592000,
    ),
    "long lines are sorted": (
        "x = values(16, 32000, grad=False)",
        "x.sort(-1, descending=True)",
        22635007,
    ),
    "one line is sorted": (
        "x = values(40000)",
        "x.argsort()",
        1296895,
    ),
    "drawing": (
        "x = values(16, 32000, grad=False)",
        "torch.multinomial(x.softmax(-1), 1)",
        4096138,
    ),
    "alignments": (
        "x = values(50, 16, 20); t = indices(19, 16, 10)+1",
        (
            "F.ctc_loss(x.log_softmax(2), t, torch.full((16, ), 50), torch.full((16, ),"
            " 10)).backward()"
        ),
        262920,
    ),
    "convolution of groups": (
        "x = values(8, 16, 32, 32); m = nn.Conv2d(16, 32, 3, groups=4, padding=1).cuda()",
        "backward(m(x))",
        3166848,
    ),
    "transposed convolution of groups": (
        ("x = values(8, 16, 16, 16); m = nn.ConvTranspose2d(16, 32, 4, 2, 1, groups=4).cuda()"),
        "backward(m(x))",
        2662528,
    ),
    "convolution across memory": (
        "x = turned(8, 16, 32, 32); m = nn.Conv2d(16, 32, 3).cuda()",
        "backward(m(x))",
        3428736,
    ),
    "every channel by itself": (
        "x = values(8, 16, 320); m = nn.Conv1d(16, 16, 3, groups=16).cuda()",
        "backward(m(x))",
        489728,
    ),
    "a recurrent layer": (
        "x = values(20, 8, 16); m = nn.LSTM(16, 32, 2, bidirectional=True).cuda()",
        "backward(m(x))",
        1367040,
    ),
    "attention in evaluation": (
        (
            "x = values(8, 32, 64, grad=False); "
            "m = nn.MultiheadAttention(64, 4, batch_first=True).cuda().eval()"
        ),
        "with torch.no_grad(): m(x, x, x, need_weights=False)",
        327680,
    ),
    "an encoder layer in evaluation": (
        (
            "x = values(8, 32, 64, grad=False); "
            "m = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, activation='gelu',"
            " norm_first=True).cuda().eval()"
        ),
        "with torch.no_grad(): m(x)",
        393216,
    ),
    "in inference mode": (
        (
            "x = values(8, 32, 64, grad=False); "
            "m = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()"
        ),
        "with torch.inference_mode(): m(x)",
        327680,
    ),
    "with padding": (
        (
            "x = values(8, 32, 64, grad=False); "
            "k = indices(2, 8, 32) > 0; "
            "m = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()"
        ),
        "with torch.no_grad(): m(x, src_key_padding_mask=k)",
        460032,
    ),
    "a layer that waits for its input": (
        (
            "x = values(8, 3, 64, 64); "
            "m = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2),"
            " nn.Flatten(), nn.LazyLinear(10)).cuda(); "
            "m(x)"
        ),
        "backward(m(x))",
        6520104,
    ),
    "a recurrent layer that projects": (
        "x = values(20, 8, 16); m = nn.LSTM(16, 32, 2, proj_size=8).cuda()",
        "backward(m(x))",
        607744,
    ),
    "packed sequences": (
        (
            "x = values(20, 8, 16); m = nn.GRU(16, 32, bidirectional=True).cuda(); "
            "k = torch.tensor([20, 20, 17, 12, 12, 9, 5, 1])"
        ),
        "backward(m(nn.utils.rnn.pack_padded_sequence(x, k))[0].data)",
        382208,
    ),
    "a cell step by step, in halves": (
        "x = values(20, 8, 16); m = nn.LSTMCell(16, 32).cuda()",
        (
            "with torch.autocast('cuda', bfloat16):\n    s = None\n"
            "    for one in x.unbind(0): s = m(one, s)\nbackward(s)"
        ),
        181504,
    ),
    "a largest value and its gradient": (
        "x = values(300, 700)",
        "backward(x.max())",
        2100229,
    ),
    "quantiles": (
        "x = values(300, 70)",
        "backward(x.quantile(0.3, dim=0))",
        421400,
    ),
    "bags of words": (
        "x = indices(500, 64, 32); m = nn.EmbeddingBag(500, 16, mode='sum').cuda()",
        "backward(m(x))",
        165456,
    ),
    "bags of words, their largest": (
        "x = indices(500, 64, 32); m = nn.EmbeddingBag(500, 16, mode='max').cuda()",
        "backward(m(x))",
        65792,
    ),
    "two inputs at once": (
        "x = values(64, 32); y = values(64, 48); m = nn.Bilinear(32, 48, 20).cuda()",
        "backward(m(x, y))",
        419920,
    ),
    "distances of few points": (
        "x = values(4, 20, 16); y = values(4, 20, 16)",
        "backward(torch.cdist(x, y))",
        138240,
    ),
    "averages by place": (
        "x = values(900, 64); k = indices(10, 900)",
        "backward(values(10, 64).scatter_reduce(0, k[:, None].expand(-1, 64), x, 'mean'))",
        704000,
    ),
    "the logarithm of a sum over lines": (
        "x = values(1024, 256)",
        "x.logsumexp(0)",
        3147784,
    ),
}
PROGRAM = """
import gc, json, sys
from oomlint.verify import emulation
from oomlint.verify.profiles import PROFILES
emulation.install(profile=PROFILES["H100"])
import torch
import torch.nn.functional as F
from torch import bfloat16, nn
torch.backends.cudnn.enabled = False
torch.backends.cuda.enable_cudnn_sdp(False)
def values(*shape, grad=True):
    return torch.randn(shape).cuda().requires_grad_(grad)
def turned(first, second, *rest):
    return torch.randn(second, first, *rest).cuda().transpose(0, 1).requires_grad_()
def indices(below, *shape):
    return torch.randint(below, shape).cuda()
def backward(made):
    made = made[0] if isinstance(made, tuple) else made
    made.backward(torch.ones_like(made))
def across(made):
    first, second, *rest = made.shape
    made.backward(torch.ones(second, first, *rest).cuda().transpose(0, 1))
def repeated(made):
    made.sum().backward()
backward(values(64, 64) @ values(64, 64))  # both threads have their workspaces
def peak(setup, run):
    names = dict(globals())
    exec(setup, names)
    torch.cuda.reset_peak_memory_stats()
    requested = "requested_bytes.all."
    begin = torch.cuda.memory_stats()[requested + "current"]
    exec(run, names)
    return torch.cuda.memory_stats()[requested + "peak"] - begin
print(json.dumps({name: peak(*case) for name, case in json.load(sys.stdin).items()}))
"""


@pytest.fixture(scope="module")
def peaks() -> dict[str, int]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        input=json.dumps({name: case[:2] for name, case in CASES.items()}),
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
def test_the_peak_is_that_of_cudas_build(name: str, peaks: dict[str, int]) -> None:
    assert peaks[name] == pytest.approx(CASES[name][2], rel=0.006)
