"""Tensors that hold other tensors live on the emulated device, where those do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json
from oomlint.verify import emulation
emulation.install()
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
found = {}
parts = [torch.randn(2, 8), torch.randn(5, 8)]
ragged = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda")
found["where"] = [str(ragged.device), ragged.is_cuda, str(ragged.cpu().device)]
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).cuda()
before = torch.cuda.memory_allocated()
made = model(ragged)
found["counted"] = torch.cuda.memory_allocated() - before
made.to_padded_tensor(0.0).sum().backward()
plain = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))
plain.load_state_dict({k: v.cpu() for k, v in model.state_dict().items()})
sum(plain(one).sum() for one in parts).backward()
found["same"] = torch.allclose(model[0].weight.grad.cpu(), plain[0].weight.grad, atol=1e-5)
with FakeTensorMode():
    found["fake"] = list(nn.Linear(3, 4)(torch.empty(2, 3)).shape)
before = torch.cuda.memory_allocated()
handed = torch.from_dlpack(made.values())
found["handed"] = [str(handed.device), torch.cuda.memory_allocated() - before]
padded = torch.nested.nested_tensor(parts, device="cuda")
found["padded"] = [str(padded.device), str(padded.to_padded_tensor(0.0).device)]
found["host"] = torch.cuda.host_memory_stats()["allocated_bytes.current"]
found["shared"] = str(torch.quantile(torch.arange(5.0).cuda(), 0.5).item())
print(json.dumps(found))
"""


def test_tensors_that_hold_tensors() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["where"] == ["cuda:0", True, "cpu"]
    # Lines of 16, twice, and of 4, rounded to the allocator's blocks of 512 bytes.
    assert found["counted"] == 3 * 512
    assert found["same"]
    assert found["fake"] == [2, 4]
    assert found["handed"] == ["cuda:0", 0]
    assert found["padded"] == ["cuda:0", "cuda:0"]
    assert found["host"] == 0
    assert found["shared"] == "2.0"
