"""Types in an editor's place: how soon diagnostics come, and whether random edits break anything.

`latency` replays 200 edits on a training file of 1,000 lines and waits for each one's diagnostics;
`random` sends random inserts, deletes and undos, and compares the end with a fresh check.
`notebook` does that with the cells of a notebook.
`workspace` opens one file of a project of 3,000 and asks questions until its diagnostics come.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "tests"), str(ROOT / "bench")]

import notebook_edits  # noqa: E402
from lsp_client import Client  # noqa: E402

LINES = 1000
EDITS = 200
# How many steps can be undone.
KEPT_PAST = 40
MEDIAN_MS, P95_MS = 150.0, 300.0
# No request may wait longer while a large project is opened.
REQUEST_MS = 300.0
# What the server and its processes may hold.
MOST_MIB = 500.0

HEAD = '''\
"""Trains a classifier and a small language model."""

import argparse
import copy
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    epochs: int = 3
    batch_size: int = 32
    accumulation: int = 4
    lr: float = 3e-4
    max_norm: float = 1.0
    amp: bool = True
    out: str = "runs"


def warmup_cosine(step, total, warmup):
    if step < warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, total - warmup)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def save_checkpoint(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path)


def load_checkpoint(path, model, optimizer, device):
    state = torch.load(path, map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["epoch"]

'''

MODEL = """
class Block{n}(nn.Module):
    def __init__(self, dim, heads, dropout=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout)
        )

    def forward(self, x):
        batch, length, dim = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q = q.view(batch, length, self.heads, -1).transpose(1, 2)
        k = k.view(batch, length, self.heads, -1).transpose(1, 2)
        v = v.view(batch, length, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, length, dim)
        x = x + self.proj(y)
        return x + self.mlp(self.norm2(x))


class Model{n}(nn.Module):
    def __init__(self, vocabulary, dim={n}28, depth=4, heads=4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block{n}(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens, targets=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Tokens{n}(Dataset):
    def __init__(self, path, length):
        self.data = torch.load(path, weights_only=True)
        self.length = length

    def __len__(self):
        return (len(self.data) - 1) // self.length

    def __getitem__(self, index):
        start = index * self.length
        chunk = self.data[start : start + self.length + 1]
        return chunk[:-1], chunk[1:]

"""

TRAINER = """
class Trainer{n}:
    def __init__(self, model, config, device):
        self.model = model.to(device)
        self.config = config
        self.device = device
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr)
        self.scaler = torch.amp.GradScaler("cuda", enabled=config.amp)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: warmup_cosine(step, 10_000, 200)
        )
        self.history = []
        self.best = float("inf")

    def train_epoch(self, loader, epoch):
        self.model.train()
        started = time.time()
        total, losses = 0.0, []
        self.optimizer.zero_grad(set_to_none=True)
        for step, (tokens, targets) in enumerate(loader):
            tokens = tokens.to(self.device, non_blocking=True)
            targets = targets.to(self.device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16, enabled=self.config.amp):
                logits, loss = self.model(tokens, targets)
                loss = loss / self.config.accumulation
            self.scaler.scale(loss).backward()
            losses.append(loss)
            if (step + 1) % self.config.accumulation == 0:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_norm)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.optimizer.zero_grad(set_to_none=True)
                self.schedule.step()
            total += loss.item() * self.config.accumulation
            if step % 50 == 0:
                print(f"epoch {{epoch}} step {{step}} loss {{total / (step + 1):.4f}}")
        self.history.append({{"epoch": epoch, "loss": total / len(loader)}})
        return total / len(loader), time.time() - started

    def evaluate(self, loader):
        self.model.eval()
        total, correct, count = 0.0, 0, 0
        for tokens, targets in loader:
            tokens, targets = tokens.to(self.device), targets.to(self.device)
            logits, loss = self.model(tokens, targets)
            total += loss.item()
            correct += (logits.argmax(-1) == targets).sum().item()
            count += targets.numel()
        return total / len(loader), correct / count

    def fit(self, train_loader, valid_loader):
        for epoch in range(self.config.epochs):
            loss, seconds = self.train_epoch(train_loader, epoch)
            valid, accuracy = self.evaluate(valid_loader)
            print(f"epoch {{epoch}}: {{loss:.4f}} {{valid:.4f}} {{accuracy:.2%}} {{seconds:.0f}} s")
            if valid < self.best:
                self.best = valid
                path = os.path.join(self.config.out, "best{n}.pt")
                save_checkpoint(path, self.model, self.optimizer, epoch)

"""

MEASURES = """
def perplexity_{n}(losses):
    return math.exp(min(20.0, sum(losses) / max(1, len(losses))))


def confusion_{n}(predictions, targets, classes):
    matrix = torch.zeros(classes, classes, dtype=torch.long)
    for prediction, target in zip(predictions, targets):
        matrix[target, prediction] += 1
    return matrix


def report_{n}(history, path):
    rows = [dict(row, perplexity=perplexity_{n}([row["loss"]])) for row in history]
    Path(path).write_text(json.dumps(rows, indent=2))
    best = min(rows, key=lambda row: row["loss"])
    print(f"best epoch {{best['epoch']}}: {{best['loss']:.4f}}")
    return best

"""

MAIN = """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    config = Config(epochs=arguments.epochs)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = Tokens1(arguments.data, 256)
    loader = DataLoader(dataset, batch_size=config.batch_size, shuffle=True, num_workers=2)
    trainer = Trainer1(Model1(50_000), config, device)
    trainer.fit(loader, loader)
    report_1(trainer.history, "history.json")


if __name__ == "__main__":
    main()
"""


def training_file(lines: int = LINES) -> str:
    """A training script of exactly so many lines: models, data sets, two trainers, measures."""
    parts = [HEAD, MEASURES.format(n=1)]
    for number in (1, 2):
        parts += [MODEL.format(n=number), TRAINER.format(n=number)]
    number = 3
    while count(parts) + MAIN.count("\n") < lines:
        parts.append((MODEL if number % 3 else MEASURES).format(n=number))
        number += 1
    kept = "".join(parts).splitlines()
    main = MAIN.splitlines()
    # Cut between two statements of the module.
    end = lines - len(main)
    while kept[end].startswith((" ", ")", "}")) or not kept[end]:
        end -= 1
    filler = [f"# {index}" for index in range(lines - end - len(main))]
    return "\n".join([*kept[:end], *filler, *main, ""])


def count(parts: list[str]) -> int:
    return sum(part.count("\n") for part in parts)


@dataclass
class Typist:
    """An open document and the client that shows it."""

    client: Client
    name: str
    text: str
    version: int = 1
    past: list[str] = field(default_factory=list)

    def open(self) -> list[dict[str, Any]]:
        return self.client.open(self.name, self.text)

    def replace(self, start: int, end: int, new: str) -> None:
        """One incremental change, sent at once."""
        self.past = [*self.past[-KEPT_PAST:], self.text]
        place = {"start": position(self.text, start), "end": position(self.text, end)}
        self.text = self.text[:start] + new + self.text[end:]
        self.version += 1
        self.client.change(self.name, self.version, {"range": place, "text": new})

    def undo(self) -> None:
        """Goes back one step, as an editor that sends the whole text."""
        if self.past:
            self.go_back(self.past.pop())

    def recover(self) -> None:
        """Goes back to the last text that is Python."""
        while self.past and not compiles(self.past[-1]):
            self.past.pop()
        self.undo()

    def go_back(self, text: str) -> None:
        self.text = text
        self.version += 1
        self.client.change(self.name, self.version, {"text": self.text})

    def diagnostics(self) -> list[dict[str, Any]]:
        return self.client.published(self.name, self.version)


def position(text: str, offset: int) -> dict[str, int]:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    units = len(line) if line.isascii() else len(line.encode("utf-16-le")) // 2
    return {"line": text.count("\n", 0, offset), "character": units}


# Where something is typed, key by key: after which text, and what.
TYPED = (
    ("losses.append(loss", ".item()"),
    ("total, correct, count = 0.0, 0, 0", "\n        seen = []"),
    ("count += targets.numel()", "\n            seen.append(logits)"),
    ("self.head = nn.Linear(dim, vocabulary, bias=False)", "\n        # tied to the embedding"),
    ("progress = (step - warmup)", " * 1.0"),
    ("def forward(self, tokens, targets=None):", "\n        tokens = tokens.long()"),
    ("self.schedule.step()", "\n                norm = float(total)"),
    ("self.best = valid", "\n                print(epoch)"),
)
# What is deleted and put in again, as a whole.
MOVED = (
    "                self.scaler.unscale_(self.optimizer)\n",
    "                self.optimizer.zero_grad(set_to_none=True)\n",
    " / self.config.accumulation",
    "        self.model.eval()\n",
)


def strokes(typist: Typist) -> Iterator[Callable[[], None]]:
    """The edits that are replayed, each as a function that makes it."""
    for after, typed in TYPED:
        at = typist.text.index(after) + len(after)
        for index, key in enumerate(typed):
            yield lambda at=at + index, key=key: typist.replace(at, at, key)
    for moved in MOVED:
        at = typist.text.index(moved)
        end = at + len(moved)
        yield lambda at=at, end=end: typist.replace(at, end, "")
        yield lambda at=at, moved=moved: typist.replace(at, at, moved)
    for index in range(100):
        at = typist.text.index("\nclass Model2") + index
        yield lambda at=at, index=index: typist.replace(at, at, "\nlast = 0"[index % 9])


@dataclass(frozen=True)
class Stroke:
    """One edit: milliseconds until its diagnostics came, and of CPU time that they cost."""

    wall: float
    cpu: float
    is_python: bool


def replay(text: str, edits: int) -> list[Stroke]:
    with tempfile.TemporaryDirectory() as folder, Client(Path(folder), plugin=False) as client:
        typist = Typist(client, "train.py", text)
        typist.open()
        found = []
        for stroke, _ in zip(strokes(typist), range(edits), strict=False):
            cpu, started = cpu_ms(client.process.pid), time.perf_counter()
            stroke()
            typist.diagnostics()
            wall = 1000 * (time.perf_counter() - started)
            used = cpu_ms(client.process.pid) - cpu
            found.append(Stroke(wall, used, compiles(typist.text)))
        return found


def compiles(text: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "train.py", "exec")
        except SyntaxError:
            return False
    return True


def cpu_ms(root: int) -> float:
    """CPU time of a process and its children so far; 0 where the system does not say."""
    total, waiting = 0, [root]
    while waiting:
        try:
            for task in (Path("/proc") / str(waiting.pop()) / "task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return total / 1e6


def latency(options: argparse.Namespace) -> int:
    text = options.file.read_text(encoding="utf-8") if options.file else training_file()
    found = replay(text, options.edits)
    lines = text.count("\n")
    broken = sum(not stroke.is_python for stroke in found)
    print(f"{len(found)} edits of {lines} lines; {broken} of them leave what is no Python")
    for title, chosen in (
        ("all edits", found),
        ("edits that leave Python", [stroke for stroke in found if stroke.is_python]),
    ):
        wall = [stroke.wall for stroke in chosen]
        cpu = [stroke.cpu for stroke in chosen]
        print(
            f"{title}: median {statistics.median(wall):.0f} ms, 95 % within"
            f" {quantile(wall):.0f} ms, longest {max(wall):.0f} ms;"
            f" CPU time of the server: median {statistics.median(cpu):.0f} ms,"
            f" 95 % within {quantile(cpu):.0f} ms"
        )
    wall, cpu = [stroke.wall for stroke in found], [stroke.cpu for stroke in found]
    print(f"waiting by CPU time: {sum(wall) / max(1.0, sum(cpu)):.1f} times (1 on an idle machine)")
    judged = cpu if options.cpu else wall
    return int(statistics.median(judged) > MEDIAN_MS or quantile(judged) > P95_MS)


def quantile(values: list[float]) -> float:
    return sorted(values)[max(0, int(0.95 * len(values)) - 1)]


def workspace(options: argparse.Namespace) -> int:
    """Opens a file of a large project; until its diagnostics come, the server must answer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pyproject.toml").touch()
        text = training_file() + EVALUATED
        for number in range(options.files):
            package = folder / f"part{number // 100}"
            package.mkdir(exist_ok=True)
            module = f"from train import Model1, Trainer1\n\nSIZE = {number}\n"
            (package / f"module{number}.py").write_text(module + MEASURES.format(n=number))
        (folder / "train.py").write_text(text)
        with Client(folder, plugin=False) as client:
            return wait_busily(client, text)


EVALUATED = """

def evaluate(model: torch.nn.Module, loader):
    model.eval()
    return [model(batch) for batch in loader]  # noqa: OOM999
"""


def wait_busily(client: Client, text: str) -> int:
    uri = client.uri("train.py")
    item = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    started = time.perf_counter()
    client.tell("textDocument/didOpen", {"textDocument": item})
    at = position(text, text.index("OOM999") + 2)
    waits = []
    while True:
        asked = time.perf_counter()
        client.ask("textDocument/hover", {"textDocument": {"uri": uri}, "position": at})
        waits.append(1000 * (time.perf_counter() - asked))
        if any(m.get("method") == "textDocument/publishDiagnostics" for m in client.unread):
            break
        time.sleep(0.05)
    print(
        f"diagnostics after {time.perf_counter() - started:.1f} s; meanwhile {len(waits)} requests"
        f" waited {max(waits):.0f} ms at most, their median"
        f" {statistics.median(waits):.0f} ms; {resident_mib(client.process.pid):.0f} MiB resident"
    )
    return int(max(waits) > REQUEST_MS or resident_mib(client.process.pid) > MOST_MIB)


WORDS = (
    *("loss", "losses.append(loss)", "    ", "\n", "\n        ", "(", ")", ":", "#", '"', '"""'),
    *("optimizer.zero_grad()", "loss.backward()", "with torch.no_grad():", "for x in y:\n", "é😀"),
    *("def f(x):\n    return x\n", "\\", "\t", "  # noqa: OOM101", "  # oomlint: ignore[OOM102]"),
)


def edit_at_random(typist: Typist, draw: random.Random) -> None:
    """Inserts, deletes or goes back; what is deleted spans a few lines at most."""
    kind = draw.random()
    if kind < 0.3:
        typist.undo() if kind < 0.2 else typist.recover()
        return
    start = draw.randrange(len(typist.text) + 1)
    end = min(len(typist.text), start + draw.choice((0, 0, 1, 5, 60)))
    typist.replace(start, end, draw.choice(WORDS) if kind < 0.8 else "")


def play(client: Client, name: str, text: str, edits: int, seed: int) -> Typist:
    """Random edits of one document, some of them between questions; waits for some answers."""
    draw = random.Random(seed)
    typist = Typist(client, name, text)
    typist.open()
    document = {"uri": client.uri(name)}
    for number in range(edits):
        edit_at_random(typist, draw)
        if draw.random() < 0.1:
            at = position(typist.text, draw.randrange(len(typist.text) + 1))
            client.ask("textDocument/hover", {"textDocument": document, "position": at})
        if draw.random() < 0.1:
            client.actions(name, [], place={"start": at_random(draw), "end": at_random(draw)})
        if number % 50 == 49:
            typist.diagnostics()
    if not compiles(typist.text):
        typist.recover()
    # Another text, so that the last check cannot be an older one's.
    typist.replace(0, 0, "\n")
    return typist


def at_random(draw: random.Random) -> dict[str, int]:
    return {"line": draw.randrange(2000), "character": draw.randrange(200)}


def at_random_edits(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder, Client(Path(folder), plugin=False) as client:
        started = time.perf_counter()
        typist = play(client, "train.py", training_file(), options.edits, options.seed)
        typed = typist.diagnostics()
        fresh = client.open("fresh.py", typist.text)
        complaints = said(client)
        seconds = time.perf_counter() - started
        memory = resident_mib(client.process.pid)
        print(
            f"{options.edits} edits in {seconds:.0f} s; the server ends with {len(typed)}"
            f" diagnostics, a fresh check finds {len(fresh)}; {len(complaints)} complaints;"
            f" {memory:.0f} MiB resident"
        )
        for complaint in complaints:
            print(complaint)
        same = bare(typed) == bare(fresh)
        return int(bool(complaints) or not same or memory > MOST_MIB or client.leave() != 0)


def in_cells(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder, Client(Path(folder), plugin=False) as client:
        book, shown = notebook_edits.play(client, training_file(320), options.edits, options.seed)
        other = notebook_edits.fresh(client, book)
        complaints = said(client)
        memory = resident_mib(client.process.pid)
        print(
            f"{options.edits} edits; {len(shown)} cells end with"
            f" {sum(map(len, shown))} diagnostics, fresh ones have {sum(map(len, other))};"
            f" {len(complaints)} complaints; {memory:.0f} MiB resident"
        )
        for complaint in complaints:
            print(complaint)
        bad = bool(complaints) or shown != other or memory > MOST_MIB
        return int(bad or client.leave() != 0)


def bare(found: list[dict[str, Any]]) -> list[object]:
    """Diagnostics without the name of their file."""
    return [(item["range"], item.get("code"), item["message"], item.get("data")) for item in found]


def said(client: Client) -> list[str]:
    """What the server complained of: messages for the user, and what it wrote to stderr."""
    shown = [m["params"]["message"] for m in client.unread if m.get("method") in COMPLAINTS]
    return shown + [line.decode() for line in client.errors]


COMPLAINTS = ("window/showMessage", "window/logMessage")


def resident_mib(root: int) -> float:
    pages, waiting = 0, [root]
    while waiting:
        process = Path("/proc") / str(waiting.pop())
        try:
            pages += int((process / "statm").read_text().split()[1])
            for task in (process / "task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        except (OSError, IndexError):
            continue
    return pages * 4096 / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    timed = commands.add_parser("latency")
    timed.add_argument("--edits", type=int, default=EDITS)
    timed.add_argument("--file", type=Path, help="a training script of your own")
    timed.add_argument("--cpu", action="store_true", help="judge by CPU time: others work, too")
    timed.set_defaults(work=latency)
    drawn = commands.add_parser("random")
    drawn.add_argument("--edits", type=int, default=10_000)
    drawn.add_argument("--seed", type=int, default=1)
    drawn.set_defaults(work=at_random_edits)
    cells = commands.add_parser("notebook")
    cells.add_argument("--edits", type=int, default=10_000)
    cells.add_argument("--seed", type=int, default=1)
    cells.set_defaults(work=in_cells)
    large = commands.add_parser("workspace")
    large.add_argument("--files", type=int, default=3000)
    large.set_defaults(work=workspace)
    options = parser.parse_args()
    code: int = options.work(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
