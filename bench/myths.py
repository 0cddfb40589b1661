"""Measures what is often said of training memory and does not hold when it is run.

Each function below is one myth: its docstring is the claim and, after a blank line, the truth; it
measures, asserts the refutation and returns its figures. `--write` keeps them in docs/myths.md.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import sys
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, Page, Rows, command, emulate, paragraphs

ROOT = Path(__file__).parent.parent
MIB = 2**20
WIDTH, BATCH, WINDOW = 256, 32, 4


@dataclass(frozen=True, slots=True)
class Myth:
    """`rules` find the real fault behind it; `modelled`: the allocator itself decides."""

    name: str
    measure: Callable[[], Rows]
    rules: tuple[str, ...]
    modelled: bool
    capacity: int | None

    @property
    def claim(self) -> str:
        return paragraphs(self.measure.__doc__)[0]

    @property
    def truth(self) -> str:
        return paragraphs(self.measure.__doc__)[1]


MYTHS: dict[str, Myth] = {}

# Said as often, but nothing that is measured here could refute or confirm it.
UNMEASURED = (
    ("Pinned host memory leaks on the device.", "the emulated device has no pinned pages"),
    ("memory_profiler and py-spy show GPU memory.", "emulated device memory *is* host memory"),
    ("`cudnn.benchmark` guards against OOM.", "cuDNN does not run on the CPU"),
    ("A container's memory limit guards against CUDA OOM.", "it needs a container and a GPU"),
    ("`use_cache=True` turns PagedAttention on.", "it needs transformers and a serving engine"),
)


def myth(
    *rules: str, modelled: bool = False, capacity: int | None = None
) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    def enter(measure: Callable[[], Rows]) -> Callable[[], Rows]:
        name = measure.__name__
        MYTHS[name] = Myth(name, measure, rules, modelled, capacity)
        return measure

    return enter


def network(depth: int = 4, width: int = WIDTH) -> Any:
    from torch import nn

    layers = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers).cuda()


def inputs(batch: int = BATCH, width: int = WIDTH) -> Any:
    import torch

    return torch.randn(batch, width, device="cuda")


def loss_of(model: Any, batch: Any) -> Any:
    return model(batch).pow(2).mean()


def allocated() -> int:
    import torch

    gc.collect()
    return torch.cuda.memory_allocated()


def gradient(model: Any) -> Any:
    import torch

    return torch.cat([p.grad.flatten() for p in model.parameters()]).clone()


def size(count: int) -> str:
    return f"{count:,} bytes" if abs(count) < MIB else f"{count / MIB:.2f} MiB"


def growth(values: list[int]) -> int:
    """Bytes a step, after a first one in which gradients and states are made."""
    return max(abs(after - before) for before, after in itertools.pairwise(values[1:]))


@myth("OOM201")
def undivided_loss() -> Rows:
    """Accumulating gradients without dividing the loss makes memory grow.

    Gradients add up in the same tensors, divided or not. What grows is their size: the gradient
    at the step is as many times too large as there are micro-batches in a window.
    """
    import torch

    norms, peaks, ends = [], [], []
    batches = [inputs() for _ in range(WINDOW)]
    for divisor in (1, WINDOW):
        torch.manual_seed(0)
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        bytes_at_step = []
        for step in range(6):
            if step == 2:
                torch.cuda.reset_peak_memory_stats()
            for batch in batches:
                (loss_of(model, batch) / divisor).backward()
            norm = gradient(model).norm().item()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            bytes_at_step.append(allocated())
        norms.append(norm)
        peaks.append(torch.cuda.max_memory_allocated())
        ends.append(growth(bytes_at_step))
        del model, optimizer
    assert ends == [0, 0], ends
    assert abs(peaks[0] - peaks[1]) <= 1024, peaks
    assert abs(norms[0] / norms[1] - WINDOW) < 1e-3, norms
    return [
        ("growth per step, not divided", size(ends[0])),
        ("peak, not divided / divided", f"{peaks[0]:,} / {peaks[1]:,} bytes"),
        (f"gradient norm at the step, not divided / divided by {WINDOW}", ratio(*norms)),
    ]


def ratio(one: float, other: float) -> str:
    return f"{one:.4g} / {other:.4g} = {one / other:.2f}"


@myth("OOM203")
def missing_zero_grad() -> Rows:
    """Without `zero_grad` memory grows with every step.

    The next backward adds to the gradient that is there, in place. Memory stays; the gradient is
    the sum of all backward passes since the start.
    """
    import torch

    model, batch = network(), inputs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    ends, norms = [], []
    for _ in range(10):
        loss_of(model, batch).backward()
        optimizer.step()
        norms.append(gradient(model).norm().item())
        ends.append(allocated())
    assert growth(ends) == 0, ends
    assert abs(norms[-1] / norms[0] - 10) < 1e-3, norms
    return [
        ("growth per step without `zero_grad`", size(growth(ends))),
        ("gradient norm at step 10 / step 1, same batch", ratio(norms[-1], norms[0])),
    ]


@myth()
def frozen_parameters_in_the_optimizer() -> Rows:
    """Frozen parameters must be filtered out of the optimizer, or it keeps state for them.

    An optimizer makes the state of a parameter in the first step in which that has a gradient. A
    frozen one never has, so Adam keeps nothing for it, filtered or not.
    """
    import torch

    states, entries = [], []
    for filtered in (False, True):
        torch.manual_seed(0)
        model = network(depth=8)
        for parameter in model[:8].parameters():
            parameter.requires_grad_(False)
        chosen = [p for p in model.parameters() if p.requires_grad or not filtered]
        optimizer = torch.optim.Adam(chosen)
        loss_of(model, inputs()).backward()
        before = allocated()
        optimizer.step()
        states.append(allocated() - before)
        entries.append((len(optimizer.state), len(chosen)))
        del model, chosen, optimizer, parameter
    assert states[0] == states[1] > 0, states
    assert entries[0][0] == entries[1][0] == 8, entries
    return [
        ("bytes of Adam's state, all parameters given", size(states[0])),
        ("bytes of Adam's state, frozen ones filtered out", size(states[1])),
        ("parameters with state / given, not filtered", "{} / {}".format(*entries[0])),
    ]


@myth()
def lambda_lr_leaks() -> Rows:
    """`LambdaLR` leaks memory, because it keeps its lambda.

    It keeps one function and a few numbers, however often it is stepped.
    """
    import torch

    optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    optimizer.step()

    def advance(steps: int) -> None:
        for _ in range(steps):
            schedule.step()

    device = allocated()
    host, objects = traced(lambda: advance(10_000))
    assert allocated() == device
    assert host < 10_000 and objects < 100, (host, objects)
    return [
        ("device bytes after 10,000 steps of the schedule", size(allocated() - device)),
        ("Python's own bytes after them", size(host)),
        ("objects more", str(objects)),
    ]


def traced(work: Callable[[], object]) -> tuple[int, int]:
    """Bytes and objects that Python holds more after the work, of whose result it keeps hold."""
    work()  # caches fill
    gc.collect()
    tracemalloc.start()
    objects = len(gc.get_objects())
    before = tracemalloc.get_traced_memory()[0]
    kept = work()
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    more = len(gc.get_objects()) - objects
    tracemalloc.stop()
    del kept
    return after - before, more


@myth("OOM102")
def logged_item() -> Rows:
    """Logging `loss.item()` in every step accumulates GPU memory.

    `item()` makes a number of the host, and no number takes device memory. What accumulates is the
    loss itself, when *it* is kept.
    """
    import torch

    figures = []
    for kept in (float, torch.Tensor):
        model, batch = network(), inputs()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        log, ends = [], []
        for _ in range(50):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.append(loss.item() if kept is float else loss)
            ends.append(allocated())
        figures.append(ends[-1] - ends[1])
        del model, optimizer, loss, log
    assert figures[0] == 0, figures
    assert figures[1] >= 48 * 4, figures
    return [
        ("growth over 48 steps, `loss.item()` kept", size(figures[0])),
        ("growth over 48 steps, `loss` kept", size(figures[1])),
    ]


@myth("OOM414", modelled=True, capacity=100 * MIB)
def del_needs_empty_cache() -> Rows:
    """After `del x`, `empty_cache()` is needed before the memory can be used again.

    The caching allocator gives the block to the next tensor that fits, without asking the driver.
    `empty_cache` gives blocks that no tensor uses back to the driver, no more.
    """
    import torch

    def make() -> Any:
        return torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")

    first = make()
    reserved = torch.cuda.memory_reserved()
    with contextlib.suppress(torch.OutOfMemoryError):
        make()
        raise AssertionError("two of them fit, which shows nothing")
    requests = device_requests()
    del first
    second = make()
    assert torch.cuda.memory_reserved() == reserved
    assert device_requests() == requests
    figures = [
        ("device memory", "100 MiB"),
        ("first tensor, deleted, then second", f"64 MiB, then {size(second.nbytes)}: it fits"),
        ("requests to the driver for the second", str(device_requests() - requests)),
        ("reserved before / after", f"{size(reserved)} / {size(torch.cuda.memory_reserved())}"),
    ]
    del second
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    return [*figures, ("reserved after `del` and `empty_cache()`", "0 bytes")]


def device_requests() -> int:
    import torch

    return int(torch.cuda.memory_stats()["num_device_alloc"])


@myth("OOM111")
def average_of_a_state_dict() -> Rows:
    """An exponential moving average over `state_dict()` builds an autograd graph.

    The tensors of a `state_dict` are detached: nothing is recorded. An average of `parameters()`
    outside of `no_grad` is one that does build it.
    """
    grown, graphs = [], []
    for live in (False, True):
        model = network()
        average = {key: value.clone() for key, value in model.state_dict().items()}
        for _ in range(20):
            weights = dict(model.named_parameters()) if live else model.state_dict()
            for key, value in weights.items():
                average[key] = 0.9 * average[key] + 0.1 * value
        graphs.append(sum(value.grad_fn is not None for value in average.values()))
        grown.append(nodes(average.values()))
        del model, average, weights, value
    assert graphs[0] == grown[0] == 0, (graphs, grown)
    assert graphs[1] == 8 and grown[1] > 20 * 8, (graphs, grown)
    return [
        ("averages with a graph after 20 updates, of `state_dict()`", str(graphs[0])),
        ("autograd nodes behind them", str(grown[0])),
        ("averages with a graph, of `parameters()`", str(graphs[1])),
        ("autograd nodes behind them", str(grown[1])),
    ]


def nodes(tensors: Iterable[Any]) -> int:
    """How many autograd nodes are reached from some tensors."""
    open_nodes = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(open_nodes)
    while open_nodes:
        for following, _ in open_nodes.pop().next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                open_nodes.append(following)
    return len(seen)


@myth("OOM414", modelled=True)
def memory_reserved_reserves() -> Rows:
    """`torch.cuda.memory_reserved()` reserves memory for the process.

    It reads a counter of the allocator, and changes nothing.
    """
    import torch

    held = inputs()
    before = allocated(), torch.cuda.memory_reserved(), device_requests()
    for _ in range(1000):
        torch.cuda.memory_reserved()
    after = allocated(), torch.cuda.memory_reserved(), device_requests()
    assert before == after, (before, after)
    del held
    return [
        ("reserved before 1,000 calls / after", f"{size(before[1])} / {size(after[1])}"),
        ("requests to the driver", str(after[2] - before[2])),
    ]


@myth("OOM202")
def zero_grad_outside_of_the_window() -> Rows:
    """With accumulation, `zero_grad()` belongs outside of the `if` of the window, or gradients run
    away.

    Inside of the `if`, behind the step, every window begins at zero, and nothing runs away.
    Outside, the gradients of all micro-batches but the last are erased before the step.
    """
    import torch

    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    batches = [inputs() for _ in range(WINDOW)]
    single = []
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        single.append(gradient(model))
    seen: dict[bool, list[Any]] = {}
    for outside in (False, True):
        optimizer.zero_grad()
        seen[outside] = []
        for index, batch in enumerate(batches * 5, 1):
            if outside:
                optimizer.zero_grad()
            loss_of(model, batch).backward()
            if index % WINDOW == 0:
                seen[outside].append(gradient(model))
                optimizer.step()
                if not outside:
                    optimizer.zero_grad()
    norms = [one.norm().item() for one in seen[False]]
    assert max(norms) - min(norms) < 1e-6, norms
    assert torch.allclose(seen[False][-1], sum(single))
    assert torch.equal(seen[True][-1], single[-1])
    return [
        ("gradient norm at the first / fifth step, inside", ratio(norms[0], norms[-1])),
        ("inside: the step sees", f"the sum of all {WINDOW} micro-batches"),
        ("outside: the step sees", f"the last one of {WINDOW} micro-batches alone"),
        ("gradient norm, inside / outside", ratio(norms[-1], seen[True][-1].norm().item())),
    ]


@myth()
def memory_in_proportion_to_the_batch() -> Rows:
    """Memory is proportional to batch size times (parameters + activations).

    Parameters and optimizer state are the same at every batch size; only activations grow with it.
    The peak is a straight line that does not begin at zero.
    """
    import torch

    peaks = {}
    for batch in (512, 1024, 2048):
        torch.manual_seed(0)
        model = network(width=512)
        optimizer = torch.optim.Adam(model.parameters(), foreach=False)
        for _ in range(3):
            torch.cuda.reset_peak_memory_stats()
            optimizer.zero_grad()
            loss_of(model, inputs(batch, 512)).backward()
            optimizer.step()
        peaks[batch] = torch.cuda.max_memory_allocated()
        states = 3 * 4 * sum(p.numel() for p in model.parameters())
        del model, optimizer
    slope = (peaks[2048] - peaks[1024]) / 1024
    start = peaks[2048] - slope * 2048
    assert abs((peaks[1024] - peaks[512]) / 512 - slope) < 0.02 * slope, peaks
    assert 0.9 * states < start < 1.1 * states, (peaks, start, states)
    assert peaks[2048] < 3 * peaks[512], peaks
    return [
        *((f"peak at batch {batch}", size(peak)) for batch, peak in peaks.items()),
        ("factor from batch 512 to 2048 (4 was claimed)", f"{peaks[2048] / peaks[512]:.2f}"),
        ("where the line begins, at batch 0", f"{start / MIB:.2f} MiB"),
        ("parameters and Adam's state", size(states)),
    ]


@myth()
def activations_grow_exponentially() -> Rows:
    """Activations grow exponentially with the batch size.

    They grow in proportion: each sample saves the same bytes.
    """
    model = network()
    saved = {}
    for batch in (32, 64, 128, 256):
        given = inputs(batch)
        before = allocated()
        loss = loss_of(model, given)
        saved[batch] = allocated() - before
        del loss
    shares = [count / batch for batch, count in saved.items()]
    assert max(shares) < 1.02 * min(shares), saved
    return [
        (f"activations at batch {batch}", f"{size(count)}, {count / batch:,.0f} a sample")
        for batch, count in saved.items()
    ]


@myth("OOM405", modelled=True, capacity=16 * MIB)
def signal_handler_catches_oom() -> Rows:
    """A handler for SIGSEGV or SIGABRT saves the run when the GPU is out of memory.

    Running out of CUDA memory is a Python exception. No signal is sent, and an `except` handles it.
    """
    import torch

    calls = []
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM):
        signal.signal(number, lambda *given: calls.append(given))
    caught = 0
    for _ in range(5):
        try:
            torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            caught += 1
    assert (caught, calls) == (5, []), (caught, calls)
    return [
        ("allocations of 64 MiB on a device of 16 MiB", "5"),
        ("`torch.OutOfMemoryError` raised and caught", str(caught)),
        ("calls of the handlers for SIGSEGV, SIGABRT and SIGTERM", str(len(calls))),
    ]


@myth("OOM403", modelled=True, capacity=64 * MIB)
def freed_inside_of_the_handler() -> Rows:
    """`del error`, `gc.collect()` and `empty_cache()` in the `except` block free what failed.

    The traceback holds the frames that failed, and with them their tensors and the graph, for as
    long as the handler runs, whatever is called in it. Behind the handler they are gone, without
    any call.
    """
    import torch

    start = allocated()
    held = []

    def step() -> None:
        loss = loss_of(network(), inputs(4096))
        torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        loss.backward()

    for named in (True, False):
        try:
            step()
        except torch.OutOfMemoryError as error:
            held.append(torch.cuda.memory_allocated() - start)
            if named:
                del error
            gc.collect()
            torch.cuda.empty_cache()
            held.append(torch.cuda.memory_allocated() - start)
        held.append(torch.cuda.memory_allocated() - start)
    assert held[0] == held[1] == held[3] == held[4] > 16 * MIB, held
    assert held[2] == held[5] == 0, held
    return [
        ("held in the handler, at its beginning", size(held[0])),
        ("held in the handler, after `del error`, `gc.collect()`, `empty_cache()`", size(held[1])),
        ("held behind the handler", size(held[2])),
    ]


@myth("OOM403", modelled=True, capacity=64 * MIB)
def out_of_memory_needs_a_restart() -> Rows:
    """After a CUDA out-of-memory error the process has to be started again.

    The request failed and nothing else. When what failed is let go, the device is as before, and
    smaller micro-batches come to the gradient that the whole batch has.
    """
    import torch

    model, batch = network(), inputs(8192)
    start = allocated()

    def backward(share: int) -> None:
        for part in batch.chunk(share):
            (loss_of(model, part) * len(part) / len(batch)).backward()

    def fits(share: int) -> bool:
        try:
            backward(share)
        except torch.OutOfMemoryError:
            return False
        return True

    assert not fits(1), "the whole batch fits, which shows nothing"
    model.zero_grad()
    left = allocated() - start
    shares = next(share for share in (2, 4, 8, 16, 32) if fits(share) or model.zero_grad())
    found = gradient(model)
    model.zero_grad()
    backward(64)
    assert left == 0, left
    assert torch.allclose(found, gradient(model), atol=1e-7)
    return [
        ("held after the error, beside model and batch", size(left)),
        ("micro-batches with which the same process went on", str(shares)),
        ("its gradient is that of 64 micro-batches", "yes, within 1e-7"),
    ]


@myth("OOM401", modelled=True, capacity=100 * MIB)
def empty_cache_undoes_fragmentation() -> Rows:
    """`empty_cache()` puts fragmented memory together again.

    It gives back segments that are free as a whole. One small tensor in a segment keeps all of it,
    and no call moves a tensor.
    """
    import torch

    def pieces() -> list[Any]:
        made = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(25)]
        return made[::5]

    def whole() -> bool:
        try:
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            return False
        return True

    kept = pieces()
    rows = [
        ("allocated, of 100 MiB", size(allocated())),
        ("reserved", size(torch.cuda.memory_reserved())),
    ]
    before = whole()
    torch.cuda.empty_cache()
    rows.append(("reserved after `empty_cache()`", size(torch.cuda.memory_reserved())))
    after = whole()
    assert (before, after) == (False, False), (before, after)
    assert rows[1][1] == rows[2][1], rows
    del kept
    torch.cuda.empty_cache()
    assert whole()
    return [
        *rows,
        ("a tensor of 40 MiB fits before / after `empty_cache()`", "no / no"),
        ("it fits when the small tensors are gone", "yes"),
    ]


@myth(modelled=True, capacity=100 * MIB)
def a_memory_fraction_prevents_oom() -> Rows:
    """`set_per_process_memory_fraction(0.9)` keeps a reserve that prevents running out of memory.

    It is a limit: the error comes earlier, at 90 % of the device, with the rest unused.
    """
    import torch

    capacity = torch.cuda.get_per_process_memory_fraction()

    def fitting() -> int:
        made: list[Any] = []
        try:
            while True:
                made.append(torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            return len(made)

    counts = []
    for share in (1.0, 0.9):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(share * capacity)
        counts.append(fitting())
    assert counts[1] < counts[0], counts
    return [
        ("tensors of 2 MiB until the error, whole device of 100 MiB", str(counts[0])),
        ("tensors of 2 MiB until the error, a fraction of 0.9", str(counts[1])),
    ]


def measure(name: str, device: str) -> Rows:
    chosen = MYTHS[name]
    emulate(device, chosen.capacity)
    return chosen.measure()


def page(figures: Iterable[Figure]) -> str:
    rows = list(figures)
    lines = [
        "<!-- written by `python bench/myths.py --write`; change bench/myths.py instead -->",
        "",
        "# Myths",
        "",
        "What is often said of training memory and does not hold when it is run. Each claim is a"
        " function of [bench/myths.py](../bench/myths.py) that measures, and fails if the claim"
        " held. `python bench/myths.py` runs all of them again, without a GPU; with `--device"
        " cuda` on one. [Claims](claims.md) are those of which something holds.",
        "",
        "The emulated device computes real numbers on the CPU and counts memory as CUDA's caching"
        " allocator does. Where that allocator itself is what the claim is about, the text says"
        " so: the figures then are those of a model of it.",
    ]
    for chosen in MYTHS.values():
        lines += ["", f"## {chosen.claim}", "", f"Measured, this is not so. {chosen.truth}"]
        lines += remarks(chosen)
        lines += ["", "| Measured | | Device | torch |", "|---|---|---|---|"]
        lines += [
            f"| {one.what} | {one.value} | {one.device} | {one.torch} |"
            for one in rows
            if one.name == chosen.name
        ]
        lines += ["", f"`python bench/myths.py {chosen.name}`"]
    lines += ["", "## Not measured", ""]
    lines += ["These are said as often, and nothing here can tell whether they hold:", ""]
    lines += [f"- {claim} Not measured, because {why}." for claim, why in UNMEASURED]
    return "\n".join([*lines, ""])


def remarks(chosen: Myth) -> list[str]:
    lines = []
    if chosen.modelled:
        lines += ["", "The allocator decides this, so the emulated figures show its model."]
    if chosen.rules:
        from oomlint.registry import find_rule
        from oomlint.rule import page_name

        links = [
            f"[{code}](rules/{page_name(code, find_rule(code).name)})" for code in chosen.rules
        ]
        lines += ["", f"The fault behind it is found by {' and '.join(links)}."]
    return lines


PAGE = Page(
    script=Path(__file__),
    kept=Path(__file__).with_name("myths.tsv"),
    page=ROOT / "docs" / "myths.md",
    statements={name: one.claim for name, one in MYTHS.items()},
    draw=page,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(command(PAGE, __doc__, "not refuted"))
