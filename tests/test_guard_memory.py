"""Guarded training on an emulated device whose memory ends: what is foretold, and what recovers.

Each case is a script that asserts by itself, run as `oomlint verify --capacity` runs one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oomlint.linter import check_source
from oomlint.settings import settings_for
from oomlint.source import Source
from oomlint.verify.record import FINISHED, RAISED, Ending
from oomlint.verify.runner import Limits, run_text
from oomlint.verify.sizes import MIB

pytest.importorskip("torch")

HEAD = """\
import copy, gc, io, pickle, sys
import torch
from torch import nn
from oomlint import guard
MB = 1 << 20
def net(depth=4, width=256):
    torch.manual_seed(0)
    parts = (part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh()))
    return nn.Sequential(*parts).cuda()
def held():
    gc.collect()
    return torch.cuda.memory_allocated()
"""


def run(tmp_path: Path, text: str, capacity: int | None = None, *argv: str) -> Ending:
    script = tmp_path / "script.py"
    script.write_text(HEAD + text)
    work = tmp_path / f"work{len(list(tmp_path.iterdir()))}"
    work.mkdir()
    limits = Limits(device="emulated", timeout=240.0, steps=10_000, capacity=capacity, writes=True)
    return run_text(script, HEAD + text, argv, None, limits, work, quiet_stdout=True).ending


def passes(tmp_path: Path, text: str, capacity: int | None = None) -> None:
    ending = run(tmp_path, text, capacity)
    assert ending.kind == FINISHED, ending.message


PREDICTIONS = """
class Table(nn.Module):
    def __init__(self, sparse):
        super().__init__()
        self.table = nn.Embedding(500, 64, sparse=sparse)
        self.kernel = None if sparse else nn.Conv1d(64, 33, 3)
    def forward(self, x):
        y = self.table(x)
        return y if self.kernel is None else self.kernel(y.transpose(1, 2))
optim = torch.optim
cases = [
    ("Adadelta", {}), ("Adafactor", {}), ("Adagrad", {}), ("Adam", {}), ("AdamW", {}),
    ("Adam", {"amsgrad": True}), ("AdamW", {"fused": True}), ("AdamW", {"capturable": True}),
    ("Adamax", {}), ("ASGD", {}), ("LBFGS", {"history_size": 3, "max_iter": 8}), ("NAdam", {}),
    ("RAdam", {}), ("RMSprop", {}), ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}), ("SGD", {}), ("SGD", {"momentum": 0.9}), ("SparseAdam", {}), ("Muon", {}),
]
kinds = {name for name, kind in vars(optim).items() if isinstance(kind, type)}
known = {name for name in kinds if issubclass(getattr(optim, name), optim.Optimizer)}
assert known == {"Optimizer", *(name for name, _ in cases)}, known
for name, options in cases:
    for dtype in (torch.float32, torch.bfloat16):
        if dtype is torch.bfloat16 and name == "LBFGS":
            continue
        model = Table(name == "SparseAdam").to("cuda", dtype)
        kept = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
        optimizer = getattr(optim, name)(kept, **options)
        def closure():
            optimizer.zero_grad()
            loss = model(torch.arange(120, device="cuda").view(4, 30)).float().square().mean()
            loss.backward()
            return loss
        before = guard.predict_state(optimizer)
        if name == "LBFGS":
            for _ in range(3):
                optimizer.step(closure)
        else:
            closure()
            asked = guard.predict_state(optimizer)
            assert asked == before, (name, asked, before)
            torch.cuda.empty_cache()
            optimizer.step()
        made = guard.state_bytes(optimizer)
        assert before.keys() >= made.keys(), (name, before, made)
        for device in before:
            assert abs(before[device] - made.get(device, 0)) <= 0.01 * before[device], (
                name, options, dtype, before, made)
        if name != "LBFGS":
            assert guard.predict_state(optimizer) == made
master = [p.detach().float().requires_grad_() for p in net().bfloat16().parameters()]
optimizer = optim.AdamW(master)
assert guard.predict_state(optimizer)[torch.device("cuda", 0)] == 8 * sum(p.numel() for p in master)
"""


def test_the_state_of_every_optimizer_of_torch_is_foretold(tmp_path: Path) -> None:
    passes(tmp_path, PREDICTIONS)


# Of 8 MiB of parameters, so 16 MiB of gradients beside them and 16 MiB of Adam's state.
LARGE_STATE = """
model = net(8, 512)
optimizer = torch.optim.Adam(model.parameters(), foreach=False)
guard.attach(optimizer, on_misfit=sys.argv[1])
before = [p.detach().clone() for p in model.parameters()]
try:
    for step in range(3):
        model(torch.ones(8, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
except guard.WillNotFit as error:
    assert step == 0 and not optimizer.state
    assert all(map(torch.equal, before, model.parameters()))
    raise
"""
# The state is small beside the activations, which fit as long as it is not there.
LARGE_ACTIVATIONS = """
model = net(8, 512)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
inputs = torch.ones(6144, 512, device="cuda")
guard.attach(optimizer, on_misfit=sys.argv[1])
def step():
    kept = inputs * model(inputs[:8])[0]
    for _ in range(12):
        kept = kept.sin()
    kept.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(3):
    step()
"""


@pytest.mark.parametrize(
    ("text", "large", "small", "said"),
    [
        (LARGE_STATE, 64, 36, "Adam adds 16.03 MiB of state to 24."),
        (LARGE_ACTIVATIONS, 240, 222, "state, and forward and backward took 212.14 MiB without it"),
    ],
)
def test_a_run_that_cannot_fit_ends_before_its_first_step(
    text: str, large: int, small: int, said: str, tmp_path: Path
) -> None:
    ending = run(tmp_path, text, small * MIB, "raise")
    assert (ending.kind, ending.error) == (RAISED, "WillNotFit")
    assert ending.message.startswith("raises WillNotFit: the run cannot fit: Adam")
    assert said in ending.message
    # It was right, and says nothing where a little more memory is enough.
    assert run(tmp_path, text, small * MIB, "warn").error == "OutOfMemoryError"
    assert run(tmp_path, text, large * MIB, "raise").kind == FINISHED


UNKNOWN = """
class Lion(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 1e-4})
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
            p.sub_(1e-4 * (0.9 * momentum + p.grad).sign_())
            momentum.lerp_(p.grad, 0.1)
model = net(8, 512)
optimizer = Lion(model.parameters())
inputs = torch.ones(6144, 512, device="cuda")
assert guard.predict_state(optimizer) is None
watch = guard.attach(optimizer)
def step():
    kept = inputs * model(inputs[:8])[0]
    for _ in range(12):
        kept = kept.sin()
    kept.mean().backward()
    optimizer.step()
    optimizer.zero_grad()
for _ in range(3):
    step()
"""


FRAGMENTED = LARGE_ACTIVATIONS.replace(
    "guard.attach(optimizer, on_misfit=sys.argv[1])",
    """
import logging
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("oomlint.guard").addHandler(handler)
guard.attach(optimizer)
""",
).replace(
    "for _ in range(3):\n    step()",
    """
try:
    for _ in range(3):
        step()
except torch.OutOfMemoryError:
    pass
close = [text for text in said if text.startswith("the run may not fit: AdamW adds 16.03 MiB")]
assert len(close) == int(sys.argv[1]), said
""",
)


@pytest.mark.parametrize(("capacity", "warnings"), [(230, "1"), (400, "0")])
def test_what_pieces_may_decide_is_said(capacity: int, warnings: str, tmp_path: Path) -> None:
    ending = run(tmp_path, FRAGMENTED, capacity * MIB, warnings)
    assert ending.kind == FINISHED, ending.message


# The whole batch fits as long as there is no state, and half of it beside the state.
CUT = """
model = net(8, 512)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
inputs = torch.ones(6144, 512, device="cuda")
@guard.micro_batches(model)
def backward(x, share):
    kept = x * model(x[:8])[0]
    for _ in range(12):
        kept = kept.sin()
    (kept.mean() * share).backward()
saved = []
with guard.attach(optimizer, on_limit=saved.append, limit=0.5):
    for step in range(4):
        backward(inputs)
        optimizer.step()
        optimizer.zero_grad()
        assert step or backward.size is None
assert backward.size == 3072 and len(saved) == 1
"""


def test_cut_batches_meet_the_state_with_less_at_a_time(tmp_path: Path) -> None:
    passes(tmp_path, CUT, 222 * MIB)


def test_an_unknown_optimizer_is_learnt_from_its_first_step(tmp_path: Path) -> None:
    ending = run(tmp_path, UNKNOWN, 216 * MIB)
    assert ending.error == "WillNotFit"
    assert "Lion made 8.02 MiB of state at its first step" in ending.message
    assert run(tmp_path, UNKNOWN, 240 * MIB).kind == FINISHED


LIMIT = """
model = net()
optimizer = torch.optim.Adam(model.parameters())
seen, kept, saved = [], [], io.BytesIO()
def save(usage):
    seen.append(usage)
    torch.save([model.state_dict(), optimizer.state_dict()], saved)
def train(steps):
    for step in range(steps):
        model(torch.ones(8, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.empty(4 * MB, dtype=torch.uint8, device="cuda"))
watch = guard.attach(optimizer, on_limit=save, limit=0.5)
torch.empty(60 * MB, dtype=torch.uint8, device="cuda")
train(3)
assert not seen, "what is only cached is no need"
try:
    train(100)
    assert False, "never stopped"
except guard.LimitReached as reached:
    usage = reached.usage
assert seen == [usage]
assert usage.capacity == 100 * MB and usage.device == torch.device("cuda", 0)
assert 50 * MB < usage.reserved == torch.cuda.memory_reserved() < 75 * MB, usage
assert usage.allocated < usage.reserved and usage.steps == len(kept) + 1
assert optimizer.state[model[0].weight]["step"] == usage.steps, "the step was not complete"
assert str(usage).startswith(f"after {usage.steps} steps ")
saved.seek(0)
weights, _ = torch.load(saved)
assert all(map(torch.equal, weights.values(), model.state_dict().values()))
train(1)
assert len(seen) == 1
watch.remove()
with guard.attach(optimizer, on_limit=seen.append, limit=0.3, stop=False):
    train(3)
assert len(seen) == 2
train(3)
assert len(seen) == 2
"""


def test_the_limit_calls_once_after_a_step_and_stops(tmp_path: Path) -> None:
    passes(tmp_path, LIMIT, 100 * MIB)


HOOKS = """
import copy, pickle
def step(model, *optimizers, scaler=None, bad=False):
    loss = model(torch.ones(8, 256, device="cuda")).square().mean()
    if bad:
        loss = loss * float("inf")
    (scaler.scale(loss) if scaler else loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer) if scaler else optimizer.step()
    if scaler:
        scaler.update()
    model.zero_grad()

model = net()
one = torch.optim.AdamW(model[:4].parameters())
other = torch.optim.SGD(model[4:].parameters(), lr=0.1, momentum=0.9)
watch = guard.attach(one, other)
for _ in range(3):
    step(model, one, other)
assert watch.steps == 6

for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
    assert not copied._optimizer_step_post_hooks
    assert copied.state_dict()["state"].keys() == one.state_dict()["state"].keys()
    for group in copied.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    copied.step()
step(model, one, other)
assert watch.steps == 8
watch.remove()
watch.remove()
step(model, one, other)
assert watch.steps == 8
assert not one._optimizer_step_pre_hooks and not one._optimizer_step_post_hooks

model = net()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
watch = guard.attach(optimizer)
step(model, optimizer, scaler=scaler, bad=True)
assert watch.steps == 0 and not optimizer.state
step(model, optimizer, scaler=scaler)
assert watch.steps == 1

model = net()
optimizer = torch.optim.LBFGS(model.parameters(), history_size=2, max_iter=4)
with guard.attach(optimizer) as watch:
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(8, 256, device="cuda")).square().mean()
        loss.backward()
        return loss
    for _ in range(3):
        optimizer.step(closure)
assert watch.steps == 3

class Wrapper:
    def __init__(self, optimizer):
        self.optimizer = optimizer
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
watch = guard.attach(Wrapper(optimizer))
step(model, optimizer)
assert watch.steps == 1
resumed = torch.optim.Adam(model.parameters())
first = torch.optim.Adam(model.parameters())
step(model, first)
resumed.load_state_dict(first.state_dict())
assert guard.predict_state(resumed) == guard.state_bytes(resumed) == guard.state_bytes(first)
"""


def test_hooks_stay_with_their_optimizers(tmp_path: Path) -> None:
    passes(tmp_path, HOOKS)


RECOVERY = """
def forward_of(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels)

def trained(size, bare=False):
    model = net(6, 128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    starts, calls = [], []
    @guard.micro_batches(model, size=size)
    def backward(batch, share):
        "Goes backward."
        if len(batch["images"]) != (calls or [None])[-1]:
            starts.append(torch.cuda.memory_allocated())
        calls.append(len(batch["images"]))
        loss = forward_of(model, batch["images"], batch["labels"])
        (loss * share).backward()
        return loss.detach() * share, len(batch["images"])
    torch.manual_seed(1)
    images = torch.randn(16384, 128, device="cuda")
    labels = torch.randint(128, (16384,), device="cuda")
    losses = []
    for _ in range(2):
        if bare:
            loss = forward_of(model, images, labels)
            loss.backward()
            count = len(images)
        else:
            loss, count = backward({"images": images, "labels": labels})
        assert count == 16384
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    if not bare:
        assert backward.__doc__ == "Goes backward." and backward.__name__ == "backward"
        assert len(set(starts)) <= 2, starts  # gradients are there when a window begins anew
    return losses, [p.detach().clone() for p in model.parameters()], calls, backward.size

device = int(sys.argv[1])
if device:  # not enough for the whole batch
    try:
        trained(None, bare=True)
        assert False, "the whole batch fits, which shows nothing"
    except torch.OutOfMemoryError:
        pass
    gc.collect()
    losses, weights, calls, size = trained(None)
    assert size == 4096, size
    assert calls[0] == 16384 and 8192 in calls and calls[-8:] == [4096] * 8, calls
    small = trained(4096)
    assert small[0] == losses and all(map(torch.equal, small[1], weights))
    torch.save([losses, [p.cpu() for p in weights]], sys.argv[2])
else:
    losses, weights = torch.load(sys.argv[2])
    whole = trained(None, bare=True)
    assert abs(whole[0][1] - losses[1]) < 1e-5
    assert all(torch.allclose(a.cpu(), b, atol=1e-6) for a, b in zip(whole[1], weights))
"""


def test_a_batch_that_is_too_large_is_cut_until_it_fits(tmp_path: Path) -> None:
    kept = str(tmp_path / "kept.pt")
    for capacity, argument in ((56 * MIB, "1"), (None, "0")):
        ending = run(tmp_path, RECOVERY, capacity, argument, kept)
        assert ending.kind == FINISHED, ending.message


ATTEMPTS = """
class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + torch.empty(64 * MB, dtype=torch.uint8, device="cuda").sum()
model = net()
def fails(rows, where):
    kept = torch.ones(rows, 256, device="cuda")
    outputs = model(kept)
    if where == "forward":
        torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
    Layer.apply(outputs).sum().backward()
    return "never"
start = held()
for where in ("forward", "backward"):
    model.zero_grad()
    tried = guard.attempt(fails, 1024, where=where)
    assert not tried and tried.value is None and tried.error.startswith("CUDA out of memory"), tried
    model.zero_grad()
    assert torch.cuda.memory_allocated() == start, "the graph is alive without a collection"
    try:
        fails(1024, where)
    except torch.OutOfMemoryError:
        assert torch.cuda.memory_allocated() > start + 4 * MB, "inside of the handler it is alive"
good = guard.attempt(lambda: 3)
assert good and good.value == 3 and good.error is None
for error in (ValueError("no"), RuntimeError("no")):
    def other():
        raise error
    try:
        guard.attempt(other)
        assert False
    except type(error) as raised:
        assert raised is error
handle = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
assert guard.is_out_of_memory(handle) and not guard.is_out_of_memory(RuntimeError("no"))

@guard.micro_batches(model)
def hopeless(x, share):
    torch.empty(64 * MB, dtype=torch.uint8, device="cuda")
try:
    hopeless(torch.ones(4, 256, device="cuda"))
    assert False
except guard.WillNotFit as error:
    assert str(error).startswith("one sample at a time is too much beside "), error
    assert "CUDA out of memory" in str(error) and error.__context__ is None

# Gradients of earlier calls are what they were, also where the backward failed half-way.
model.zero_grad()
model(torch.ones(2, 256, device="cuda")).sum().backward()
earlier = [p.grad.clone() for p in model.parameters()]
@guard.micro_batches(model)
def once(x, share):
    outputs = model(x)
    (Layer.apply(outputs) if len(x) > 2 else outputs).sum().backward()
x = torch.randn(4, 256, device="cuda")
assert once(x) is None and once.size == 2
got = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
model(x).sum().backward()
for both, first, p in zip(got, earlier, model.parameters()):
    assert torch.allclose(both, first + p.grad, atol=1e-5)
"""


def test_an_attempt_that_failed_leaves_nothing_alive(tmp_path: Path) -> None:
    passes(tmp_path, ATTEMPTS, 56 * MIB)


DOCS = Path(__file__).resolve().parents[1] / "docs" / "guard.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# What the page takes for granted: a training script's own names.
BEFORE = """
model, criterion = net(6, 128), nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters())
loader = [(torch.randn(16384, 128).cuda(), torch.randint(128, (16384,)).cuda()) for _ in range(3)]
def train():
    for images, labels in loader:
        criterion(model(images[:64]), labels[:64]).backward()
        optimizer.step()
        optimizer.zero_grad()
@torch.no_grad()
def evaluate(size):
    torch.empty(size * MB, dtype=torch.uint8, device="cuda")
    return f"evaluated {size} at once"
"""
AFTER = """
assert backward.size == 8192, backward.size
assert tried.value == "evaluated 16 at once", tried
assert optimizer.state[model[0].weight]["step"] == 6
"""


def test_the_page_is_code_that_runs(tmp_path: Path) -> None:
    blocks = BLOCK.findall(DOCS.read_text("utf-8"))
    assert len(blocks) == 4
    passes(tmp_path, "\n".join([BEFORE, *blocks, AFTER]), 72 * MIB)


def test_oomlint_finds_nothing_in_code_with_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "guarded.py"
    text = "\n".join([HEAD, BEFORE, *BLOCK.findall(DOCS.read_text("utf-8"))])
    found = check_source(Source(script, text), settings_for(script))
    assert found.problem is None
    assert [(finding.row, finding.code) for finding in found.findings] == []
