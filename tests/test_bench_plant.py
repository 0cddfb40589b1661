"""What the benchmark of recall plants: each operator's edit, and where it leaves a text alone."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import mutations
import plant
from planting import Code, Edit

STEP = """
def train(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
    return total
"""
WINDOW = """
def train(model, loader, optimizer, criterion, n):
    for i, (x, y) in enumerate(loader):
        loss = criterion(model(x), y) / n
        loss.backward()
        if (i + 1) % n == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
EVALUATION = """
def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for x in loader:
            print(model(x).argmax())
"""
SCALED = """
def train(model, loader, optimizer, scaler):
    for x in loader:
        scaler.scale(model(x).mean()).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


EPOCHS = """
def fit(loader, optimizer):
    model = nn.Sequential(nn.Linear(4, 4))
    for epoch in range(3):
        model.train()
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        model.eval()
        for x in loader:
            print(model(x).mean().item())
"""
SCHEDULE = """
def fit(model, loader, optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for epoch in range(3):
        for x in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
        scheduler.step()
"""
TWO_STEPS = """
def fit(one, two, loader, opt_one, opt_two, scaler):
    for x in loader:
        scaler.scale(one(x).mean()).backward()
        scaler.step(opt_one)
        scaler.scale(two(x).mean()).backward()
        scaler.step(opt_two)
        scaler.update()
"""
RANKS = """
def fit(net, data, criterion, epochs):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, sampler=sampler, num_workers=2)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)), y)
            loss.backward()
            optimizer.step()
"""
UNSYNCHRONISED = """
model = DistributedDataParallel(net)
for i, x in enumerate(loader):
    with model.no_sync():
        model(x).mean().backward()
"""
TEACHER = """
def distil(student, teacher, loader, optimizer):
    for x in loader:
        with torch.no_grad():
            wanted = teacher(x)
        optimizer.zero_grad()
        loss = (student(x) - wanted).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
LOSSES = """
def train(model, loader, optimizer):
    criterion = nn.BCEWithLogitsLoss()
    model.head.requires_grad_(False)
    print(model.head.state_dict())
    for x, y in loader:
        out = model(x)
        loss = F.cross_entropy(out, y) + criterion(out, y)
        loss.backward()
        optimizer.step()
"""
WEIGHTED = """
def train(model, loader, optimizer, table):
    weights = table.to(device)
    for x, y in loader:
        F.cross_entropy(model(x), y, weights).backward()
        optimizer.step()
"""
WINDOW_SCHEDULE = """
def train(model, loader, optimizer, updates, n):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    for i, x in enumerate(loader):
        model(x).mean().backward()
        if (i + 1) % n == 0:
            optimizer.step()
            scheduler.step()
"""


def planted(name: str, text: str) -> list[list[str]]:
    """For each site the lines that are taken out and put in."""
    code = Code(Path("train.py"), text)
    operator = next(one for one in mutations.OPERATORS if one.name == name)
    return [
        [
            " ".join(line.split())
            for line in difflib.ndiff(text.splitlines(), changed.splitlines())
            if line[0] in "+-"
        ]
        for _, changed in mutations.planted(code, operator)
    ]


@pytest.mark.parametrize(
    ("name", "text", "changes"),
    [
        ("zero-deleted", STEP, ["- optimizer.zero_grad()"]),
        ("zero-before-step", STEP, ["- optimizer.zero_grad()", "+ optimizer.zero_grad()"]),
        ("detach-dropped", STEP, ["- total += loss.item()", "+ total += loss"]),
        ("graph-retained", STEP, ["- loss.backward()", "+ loss.backward(retain_graph=True)"]),
        (
            "gradients-kept",
            STEP,
            ["- optimizer.zero_grad()", "+ optimizer.zero_grad(set_to_none=False)"],
        ),
        (
            "clip-after-step",
            STEP,
            ["+ optimizer.step()", "- optimizer.step()"],
        ),
        (
            "division-dropped",
            WINDOW,
            ["- loss = criterion(model(x), y) / n", "+ loss = criterion(model(x), y)"],
        ),
        ("counter-shifted", WINDOW, ["- if (i + 1) % n == 0:", "+ if i % n == 0:"]),
        (
            "no-grad-deleted",
            EVALUATION,
            [
                "- with torch.no_grad():",
                "- for x in loader:",
                "+ for x in loader:",
                "- print(model(x).argmax())",
                "+ print(model(x).argmax())",
            ],
        ),
        (
            "train-deleted",
            EPOCHS.replace("nn.Linear(4, 4)", "nn.Linear(4, 4), nn.Dropout()"),
            ["- model.train()"],
        ),
        ("scheduler-first", SCHEDULE, ["+ scheduler.step()", "- scheduler.step()"]),
        (
            "update-hurried",
            TWO_STEPS.replace(
                "        scaler.step(opt_one)\n        scaler.scale(two(x).mean()).backward()\n",
                "        scaler.scale(two(x).mean()).backward()\n        scaler.step(opt_one)\n",
            ),
            ["+ scaler.update()", "- scaler.update()"],
        ),
        ("unscale-deleted", SCALED, ["- scaler.unscale_(optimizer)"]),
        ("update-deleted", SCALED, ["- scaler.update()"]),
        ("unscale-doubled", SCALED, ["+ scaler.unscale_(optimizer)"]),
        ("epoch-untold", RANKS, ["- sampler.set_epoch(epoch)"]),
        (
            "sampler-dropped",
            RANKS,
            [
                "- loader = DataLoader(data, sampler=sampler, num_workers=2)",
                "+ loader = DataLoader(data, shuffle=True, num_workers=2)",
            ],
        ),
        (
            "loader-rebuilt",
            RANKS,
            [
                "- loader = DataLoader(data, sampler=sampler, num_workers=2)",
                "+ loader = DataLoader(data, sampler=sampler, num_workers=2)",
            ],
        ),
        (
            "reads-added",
            RANKS,
            ["+ print(loss.item(), loss.abs().item(), loss.sqrt().item())"],
        ),
        (
            "no-sync-deleted",
            UNSYNCHRONISED,
            [
                "- with model.no_sync():",
                "- model(x).mean().backward()",
                "+ model(x).mean().backward()",
            ],
        ),
        (
            "teacher-recorded",
            TEACHER,
            ["- with torch.no_grad():", "- wanted = teacher(x)", "+ wanted = teacher(x)"],
        ),
        (
            "freeze-assigned",
            LOSSES,
            ["- model.head.requires_grad_(False)", "+ model.head.requires_grad = False"],
        ),
        (
            "softmax-inserted",
            LOSSES,
            [
                "- loss = F.cross_entropy(out, y) + criterion(out, y)",
                "+ loss = F.cross_entropy(out.softmax(1), y) + criterion(out, y)",
            ],
        ),
        (
            "sigmoid-inserted",
            LOSSES,
            [
                "- loss = F.cross_entropy(out, y) + criterion(out, y)",
                "+ loss = F.cross_entropy(out, y) + criterion(out.sigmoid(), y)",
            ],
        ),
        (
            "copy-repeated",
            WEIGHTED,
            ["- weights = table.to(device)", "+ weights = table.to(device)"],
        ),
        ("schedule-hurried", WINDOW_SCHEDULE, ["- scheduler.step()", "+ scheduler.step()"]),
        (
            "amp-renamed",
            'with torch.amp.autocast("cuda", dtype=torch.float16):\n    pass\n',
            [
                '- with torch.amp.autocast("cuda", dtype=torch.float16):',
                "+ with torch.cuda.amp.autocast(dtype=torch.float16):",
            ],
        ),
    ],
)
def test_each_operator_makes_its_fault(name: str, text: str, changes: list[str]) -> None:
    assert planted(name, text) == [changes]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # Somebody else zeroes, too.
        ("zero-deleted", STEP + "\n\ndef reset(optimizer):\n    optimizer.zero_grad()\n"),
        ("zero-deleted", STEP.replace("optimizer.zero_grad()", "model.zero_grad()")),
        # The total is another one in each iteration.
        (
            "detach-dropped",
            STEP.replace("    for x, y", "    for x, y").replace(
                "        loss = c", "        total = 0.0\n        loss = c"
            ),
        ),
        # Accelerate divides by itself.
        ("division-dropped", WINDOW.replace("loss.backward()", "accelerator.backward(loss)")),
        ("counter-shifted", WINDOW.replace("enumerate(loader)", "enumerate(loader, 1)")),
        # Grad mode is off at the only call.
        (
            "no-grad-deleted",
            EVALUATION + "\n\nwith torch.no_grad():\n    evaluate(model, loader)\n",
        ),
        # No layer asks for the mode; the network is frozen and may be meant to be in that mode.
        ("train-deleted", EPOCHS),
        ("train-deleted", EPOCHS + "\nbatch_norm.requires_grad_(False)\n"),
        # Set one back, the schedule is meant to advance first.
        ("scheduler-first", SCHEDULE + "\n    scheduler.last_epoch = -1\n"),
        # The next backward is scaled by the new scale, as its step is.
        ("update-hurried", TWO_STEPS),
        # Its epochs are counted nowhere else, but the order is fixed by the seed.
        ("epoch-untold", RANKS.replace("Sampler(data)", "Sampler(data, seed=epochs)")),
        # The loader's arguments change with the epoch.
        ("loader-rebuilt", RANKS.replace("sampler=sampler", "batch_size=epoch + 1")),
        # Another place speaks of averages, too.
        ("no-sync-deleted", UNSYNCHRONISED + "\nmodel.no_sync()\n"),
        # Frozen, it has no graph to record; cut at once, it keeps none.
        ("teacher-recorded", TEACHER + "\nteacher.requires_grad_(False)\n"),
        ("teacher-recorded", TEACHER.replace("teacher(x)", "teacher(x).detach()")),
        # Frozen in another place, too; probabilities already; a schedule in micro-batches.
        ("freeze-assigned", LOSSES + "\nweight.requires_grad = False\n"),
        ("softmax-inserted", LOSSES + "\nlast = nn.Softmax(1)\n"),
        (
            "schedule-hurried",
            WINDOW_SCHEDULE.replace("(optimizer, updates", "(optimizer, len(loader)"),
        ),
        # The same function steps without the clip's unscaling in between.
        ("scaler-bypassed", SCALED),
    ],
)
def test_nothing_is_planted_where_it_would_be_no_fault(name: str, text: str) -> None:
    assert planted(name, text) == []


def test_offsets_follow_the_edits() -> None:
    edits = [Edit(2, 5, ""), Edit(8, 8, "xx")]
    assert [plant.moved_to(offset, edits) for offset in (0, 5, 7, 9)] == [0, 2, 4, 8]


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ([], [STEP.index("optimizer.step")], True),
        ([], [0], False),
        ([STEP.index("optimizer.step")], [STEP.index("optimizer.step") - 30], False),
    ],
)
def test_only_new_findings_of_the_function_count(
    before: list[int], after: list[int], found: bool
) -> None:
    code = Code(Path("train.py"), STEP)
    operator = next(one for one in mutations.OPERATORS if one.name == "zero-deleted")
    site, text = next(iter(mutations.planted(code, operator)))
    assert plant.judge(code, site, text, before, after) is found
