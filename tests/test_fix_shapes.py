"""What fixes write: the file's own names and imports, at the right place, every other byte kept."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path
from textwrap import dedent

import pytest

from oomlint.fixer import FixedText, fix_text
from oomlint.settings import settings_for
from oomlint.source import Source, from_bytes


def fix(text: str, folder: Path) -> FixedText:
    (folder / "pyproject.toml").touch()
    source = Source(folder / "train.py", text)
    fixed = fix_text(source, settings_for(source.path), unsafe=True)
    assert not fixed.refused, fixed.refusals
    ast.parse(fixed.text)
    return fixed


def shape(before: str, after: str, name: str, known: str = "") -> object:
    """A row of the table; `known` is what is wrong with a fix that is not yet so."""
    marks = [pytest.mark.xfail(reason=known, strict=True)] if known else []
    return pytest.param(
        dedent(before).lstrip("\n"), dedent(after).lstrip("\n"), id=name, marks=marks
    )


GRAD_MODE = [
    shape(
        """
        import torch

        def evaluate(model, loader):
            model.eval()
            correct = 0
            for x, y in loader:
                correct += (model(x).argmax(1) == y).sum().item()
            return correct
        """,
        """
        import torch

        @torch.no_grad()
        def evaluate(model, loader):
            model.eval()
            correct = 0
            for x, y in loader:
                correct += (model(x).argmax(1) == y).sum().item()
            return correct
        """,
        "decorator-on-an-evaluation-function",
    ),
    shape(
        """
        import torch as th

        def evaluate(model, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())
        """,
        """
        import torch as th

        @th.no_grad()
        def evaluate(model, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())
        """,
        "alias-of-torch",
    ),
    shape(
        """
        from torch import nn, no_grad as no_gradient

        def evaluate(model, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())
        """,
        """
        from torch import nn, no_grad as no_gradient

        @no_gradient()
        def evaluate(model, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())
        """,
        "alias-of-no-grad",
    ),
    shape(
        """
        import torch.nn as nn
        from torch.utils.data import DataLoader

        def evaluate(model, dataset):
            model.eval()
            for x in DataLoader(dataset):
                print(model(x).sum().item())
        """,
        """
        import torch
        import torch.nn as nn
        from torch.utils.data import DataLoader

        @torch.no_grad()
        def evaluate(model, dataset):
            model.eval()
            for x in DataLoader(dataset):
                print(model(x).sum().item())
        """,
        "import-added-once",
    ),
    shape(
        '''
        #!/usr/bin/env python
        """Evaluates."""

        from __future__ import annotations

        from torch.nn import Module

        def evaluate(model: Module, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())

        def predict(model: Module, loader):
            model.eval()
            for x in loader:
                print(model(x).argmax(1).tolist())
        ''',
        '''
        #!/usr/bin/env python
        """Evaluates."""

        from __future__ import annotations

        import torch
        from torch.nn import Module

        @torch.no_grad()
        def evaluate(model: Module, loader):
            model.eval()
            for x in loader:
                print(model(x).sum().item())

        @torch.no_grad()
        def predict(model: Module, loader):
            model.eval()
            for x in loader:
                print(model(x).argmax(1).tolist())
        ''',
        "import-below-future-shared-by-two-fixes",
    ),
    shape(
        """
        import torch

        class Probe:
            @staticmethod
            def evaluate(model, loader):
                model.eval()
                for x in loader:
                    print(model(x).sum().item())
        """,
        """
        import torch

        class Probe:
            @staticmethod
            @torch.no_grad()
            def evaluate(model, loader):
                model.eval()
                for x in loader:
                    print(model(x).sum().item())
        """,
        "below-staticmethod",
    ),
    shape(
        """
        import torch
        from tools import timed

        class Probe:
            @classmethod
            @timed(unit="s")
            # the validation set is small
            def evaluate(cls, model, loader):
                model.eval()
                for x in loader:
                    print(model(x).sum().item())
        """,
        """
        import torch
        from tools import timed

        class Probe:
            @classmethod
            @timed(unit="s")
            # the validation set is small
            @torch.no_grad()
            def evaluate(cls, model, loader):
                model.eval()
                for x in loader:
                    print(model(x).sum().item())
        """,
        "below-every-decorator-and-comment",
    ),
    shape(
        """
        import torch

        def evaluate(model, loader, **kwargs):
            model.eval()
            for x in loader:
                print(model(x, **kwargs).sum().item())
        """,
        """
        import torch

        @torch.no_grad()
        def evaluate(model, loader, **kwargs):
            model.eval()
            for x in loader:
                print(model(x, **kwargs).sum().item())
        """,
        "call-with-keywords-left-alone",
    ),
    shape(
        """
        import torch
        import torch.nn.functional as F

        def fit(model, optimizer, train_loader, test_loader, epochs):
            for epoch in range(epochs):
                model.train()
                for x, y in train_loader:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                model.eval()
                correct = 0
                # the whole test set
                for x, y in test_loader:
                    # logits
                    output = model(x)

                    correct += (output.argmax(1) == y).sum().item()  # a number
                print(f"{epoch}: {correct}")
        """,
        """
        import torch
        import torch.nn.functional as F

        def fit(model, optimizer, train_loader, test_loader, epochs):
            for epoch in range(epochs):
                model.train()
                for x, y in train_loader:
                    optimizer.zero_grad()
                    F.cross_entropy(model(x), y).backward()
                    optimizer.step()
                model.eval()
                correct = 0
                # the whole test set
                with torch.no_grad():
                    for x, y in test_loader:
                        # logits
                        output = model(x)

                        correct += (output.argmax(1) == y).sum().item()  # a number
                print(f"{epoch}: {correct}")
        """,
        "with-around-the-loop-of-a-training-function",
    ),
    shape(
        '''
        import torch
        import torch.nn.functional as F

        def fit(model, optimizer, train_loader, test_loader):
            for x, y in train_loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()
            for x, y in test_loader:
                output = model(x)
                print("""sum:
            first
        """, output.sum().item())
        ''',
        '''
        import torch
        import torch.nn.functional as F

        def fit(model, optimizer, train_loader, test_loader):
            for x, y in train_loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, y in test_loader:
                    output = model(x)
                    print("""sum:
            first
        """, output.sum().item())
        ''',
        "text-inside-strings-not-indented",
    ),
    shape(
        """
        import torch

        model = torch.nn.Linear(2, 2)
        model.eval()
        for x in loader: print(model(x).sum().item())
        """,
        """
        import torch

        model = torch.nn.Linear(2, 2)
        model.eval()
        for x in loader: print(model(x).sum().item())
        """,
        "loop-on-one-line-left-alone",
    ),
    shape(
        """
        import torch

        async def evaluate(model, loader):
            model.eval()
            async for x in loader:
                print(model(x).sum().item())
        """,
        """
        import torch

        async def evaluate(model, loader):
            model.eval()
            async for x in loader:
                print(model(x).sum().item())
        """,
        "async-left-alone",
    ),
]

DETACH = [
    shape(
        """
        def train(model, loader, opt, criterion):
            total = 0
            for x, y in loader:
                opt.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                opt.step()
                total += loss  # for the log
            return total
        """,
        """
        def train(model, loader, opt, criterion):
            total = 0
            for x, y in loader:
                opt.zero_grad()
                loss = criterion(model(x), y)
                loss.backward()
                opt.step()
                total += loss.detach()  # for the log
            return total
        """,
        "running-total",
    ),
    shape(
        """
        def train(model, loader, opt, criterion):
            losses = []
            for x, y in loader:
                opt.zero_grad()
                first, second = criterion(model(x), y)
                (first + second).backward()
                opt.step()
                losses.append(first + second)
            return losses
        """,
        """
        def train(model, loader, opt, criterion):
            losses = []
            for x, y in loader:
                opt.zero_grad()
                first, second = criterion(model(x), y)
                (first + second).backward()
                opt.step()
                losses.append((first + second).detach())
            return losses
        """,
        "sum-in-brackets",
    ),
    shape(
        """
        def train(model, loader, opt, criterion):
            losses = []
            for x, y in loader:
                opt.zero_grad()
                loss = criterion(
                    model(x),  # logits
                    y,
                )
                loss.backward()
                opt.step()
                losses.append(
                    loss  # one for each batch
                )
            return losses
        """,
        """
        def train(model, loader, opt, criterion):
            losses = []
            for x, y in loader:
                opt.zero_grad()
                loss = criterion(
                    model(x),  # logits
                    y,
                )
                loss.backward()
                opt.step()
                losses.append(
                    loss.detach()  # one for each batch
                )
            return losses
        """,
        "call-over-several-lines",
    ),
    shape(
        """
        def train(model, loader, opt, criterion):
            total = 0
            for x, y in loader:
                opt.zero_grad(); loss = criterion(model(x), y)
                loss.backward(); opt.step(); total += loss
            return total
        """,
        """
        def train(model, loader, opt, criterion):
            total = 0
            for x, y in loader:
                opt.zero_grad(); loss = criterion(model(x), y)
                loss.backward(); opt.step(); total += loss.detach()
            return total
        """,
        "inside-a-line-of-several-statements",
    ),
]

DIVISION = [
    shape(
        """
        import torch.nn.functional as F

        class Trainer:
            def run(self, loader):
                for i, (x, y) in enumerate(loader):
                    loss = F.cross_entropy(self.net(x), y)
                    loss.backward()
                    if (i + 1) % self.cfg.accum == 0:
                        self.opt.step()
                        self.opt.zero_grad()
        """,
        """
        import torch.nn.functional as F

        class Trainer:
            def run(self, loader):
                for i, (x, y) in enumerate(loader):
                    loss = F.cross_entropy(self.net(x), y)
                    (loss / self.cfg.accum).backward()
                    if (i + 1) % self.cfg.accum == 0:
                        self.opt.step()
                        self.opt.zero_grad()
        """,
        "divisor-from-the-windows-own-name",
    ),
    shape(
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, n):
            for step in range(100):
                optimizer.zero_grad()
                for micro_step in range(n):
                    x, y = next(loader)
                    loss = F.cross_entropy(model(x), y)
                    loss.backward()
                optimizer.step()
        """,
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, n):
            for step in range(100):
                optimizer.zero_grad()
                for micro_step in range(n):
                    x, y = next(loader)
                    loss = F.cross_entropy(model(x), y)
                    (loss / n).backward()
                optimizer.step()
        """,
        "divisor-from-the-inner-loop",
    ),
    shape(
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, scaler, args):
            for i, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x), y)
                scaler.scale(loss + 0.1 * model.penalty()).backward()
                if (i + 1) % args["accumulation"] == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, scaler, args):
            for i, (x, y) in enumerate(loader):
                loss = F.cross_entropy(model(x), y)
                scaler.scale((loss + 0.1 * model.penalty()) / args["accumulation"]).backward()
                if (i + 1) % args["accumulation"] == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
        "inside-the-scale",
    ),
    shape(
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, accum_steps):
            for i, (x, y) in enumerate(loader):
                out = model(x)
                (F.cross_entropy(out, y) + F.mse_loss(out, y)).backward()
                if (i + 1) % accum_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, accum_steps):
            for i, (x, y) in enumerate(loader):
                out = model(x)
                ((F.cross_entropy(out, y) + F.mse_loss(out, y)) / accum_steps).backward()
                if (i + 1) % accum_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        "bracketed-sum",
    ),
    shape(
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, accum):
            for i, (x, y) in enumerate(loader):
                F.cross_entropy(
                    model(x),  # logits
                    y,
                ).backward()
                if (i + 1) % (2 * accum) == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        """
        import torch.nn.functional as F

        def train(model, loader, optimizer, accum):
            for i, (x, y) in enumerate(loader):
                (F.cross_entropy(
                    model(x),  # logits
                    y,
                ) / (2 * accum)).backward()
                if (i + 1) % (2 * accum) == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
        "loss-over-several-lines-and-a-product",
    ),
]

MOVES = [
    shape(
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                criterion(model(x), y).backward()
                # now the update
                opt.zero_grad()  # start afresh
                opt.step()
        """,
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                criterion(model(x), y).backward()
                # now the update
                opt.step()
                opt.zero_grad()  # start afresh
        """,
        "zeroing-behind-the-step-with-its-comment",
    ),
    shape(
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                criterion(model(x), y).backward(); opt.zero_grad(); opt.step()
        """,
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                criterion(model(x), y).backward(); opt.zero_grad(); opt.step()
        """,
        "no-move-inside-a-line-of-several-statements",
    ),
    shape(
        """
        from torch.nn.utils import clip_grad_norm_

        def train(model, loader, opt, criterion, clip):
            for x, y in loader:
                opt.zero_grad()
                criterion(model(x), y).backward()
                opt.step()
                if clip is not None:
                    # max norm
                    clip_grad_norm_(
                        model.parameters(),
                        clip,
                    )
        """,
        """
        from torch.nn.utils import clip_grad_norm_

        def train(model, loader, opt, criterion, clip):
            for x, y in loader:
                opt.zero_grad()
                criterion(model(x), y).backward()
                if clip is not None:
                    # max norm
                    clip_grad_norm_(
                        model.parameters(),
                        clip,
                    )
                opt.step()
        """,
        "an-if-block-whole",
    ),
    shape(
        """
        def train(model, loader, opt, criterion, accum):
            for i, (x, y) in enumerate(loader):
                opt.zero_grad()
                (criterion(model(x), y) / accum).backward()
                if (i + 1) % accum == 0:
                    opt.step()
        """,
        """
        def train(model, loader, opt, criterion, accum):
            for i, (x, y) in enumerate(loader):
                (criterion(model(x), y) / accum).backward()
                if (i + 1) % accum == 0:
                    opt.step()
                    opt.zero_grad()
        """,
        "zeroing-into-the-window",
    ),
    shape(
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                opt.step()""",
        """
        def train(model, loader, opt, criterion):
            for x, y in loader:
                loss = criterion(model(x), y)
                opt.zero_grad()
                loss.backward()
                opt.step()""",
        "file-without-a-last-newline",
    ),
]

SCALER = [
    shape(
        """
        import torch

        class Trainer:
            def step(self, loss):
                self.amp_scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.amp_scaler.step(self.optim)
                self.amp_scaler.update()

            def run(self, loader):
                for x, y in loader:
                    self.optim.zero_grad()
                    self.step(self.criterion(self.net(x), y))
        """,
        """
        import torch

        class Trainer:
            def step(self, loss):
                self.amp_scaler.scale(loss).backward()
                self.amp_scaler.unscale_(self.optim)
                torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
                self.amp_scaler.step(self.optim)
                self.amp_scaler.update()

            def run(self, loader):
                for x, y in loader:
                    self.optim.zero_grad()
                    self.step(self.criterion(self.net(x), y))
        """,
        "unscale-with-attributes-of-the-file",
    ),
    shape(
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, opt_g, g_scaler, criterion, args):
            for x, y in loader:
                opt_g.zero_grad()
                loss = criterion(net(x), y)
                g_scaler.scale(loss).backward()
                if args.clip > 0:
                    clip_grad_norm_(net.parameters(), args.clip)
                g_scaler.step(opt_g)
                g_scaler.update()
        """,
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, opt_g, g_scaler, criterion, args):
            for x, y in loader:
                opt_g.zero_grad()
                loss = criterion(net(x), y)
                g_scaler.scale(loss).backward()
                if args.clip > 0:
                    g_scaler.unscale_(opt_g)
                    clip_grad_norm_(net.parameters(), args.clip)
                g_scaler.step(opt_g)
                g_scaler.update()
        """,
        "unscale-with-local-names-under-a-condition",
    ),
    shape(
        """
        from torch.amp import GradScaler

        def train(net, loader, solver, criterion):
            grad_scaler = GradScaler("cuda")
            for x, y in loader:
                solver.zero_grad()
                loss = criterion(net(x), y)
                grad_scaler.scale(loss).backward()
                grad_scaler.step(solver)
        """,
        """
        from torch.amp import GradScaler

        def train(net, loader, solver, criterion):
            grad_scaler = GradScaler("cuda")
            for x, y in loader:
                solver.zero_grad()
                loss = criterion(net(x), y)
                grad_scaler.scale(loss).backward()
                grad_scaler.step(solver)
                grad_scaler.update()
        """,
        "update-with-the-files-own-scaler",
    ),
    shape(
        """
        from torch.amp import GradScaler

        def train(net, loader, solver, criterion):
            grad_scaler = GradScaler("cuda")
            for x, y in loader:
                solver.zero_grad()
                loss = criterion(net(x), y)
                grad_scaler.scale(loss).backward()
                solver.step()
                grad_scaler.update()
        """,
        """
        from torch.amp import GradScaler

        def train(net, loader, solver, criterion):
            grad_scaler = GradScaler("cuda")
            for x, y in loader:
                solver.zero_grad()
                loss = criterion(net(x), y)
                grad_scaler.scale(loss).backward()
                grad_scaler.step(solver)
                grad_scaler.update()
        """,
        "step-with-the-files-own-scaler",
    ),
    shape(
        """
        from torch.amp import GradScaler

        def train(encoder, head, loader, encoder_optimizer, head_optimizer, criterion):
            scaler = GradScaler("cuda")
            for x, y in loader:
                encoder_optimizer.zero_grad()
                head_optimizer.zero_grad()
                scaler.scale(criterion(head(encoder(x)), y)).backward()
                scaler.step(encoder_optimizer)
                scaler.step(head_optimizer)
        """,
        """
        from torch.amp import GradScaler

        def train(encoder, head, loader, encoder_optimizer, head_optimizer, criterion):
            scaler = GradScaler("cuda")
            for x, y in loader:
                encoder_optimizer.zero_grad()
                head_optimizer.zero_grad()
                scaler.scale(criterion(head(encoder(x)), y)).backward()
                scaler.step(encoder_optimizer)
                scaler.step(head_optimizer)
                scaler.update()
        """,
        "one-update-behind-the-last-step",
    ),
    shape(
        """
        from torch.amp import GradScaler

        def train(net, loader, optimizer, criterion, epochs):
            scaler = GradScaler("cuda")
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    scaler.scale(criterion(net(x), y)).backward()
                    scaler.step(optimizer)
                scaler.update()
        """,
        """
        from torch.amp import GradScaler

        def train(net, loader, optimizer, criterion, epochs):
            scaler = GradScaler("cuda")
            for _ in range(epochs):
                for x, y in loader:
                    optimizer.zero_grad()
                    scaler.scale(criterion(net(x), y)).backward()
                    scaler.step(optimizer)
                    scaler.update()
        """,
        "update-of-the-epoch-into-the-loop",
        known="a second update without a step in between raises",
    ),
    shape(
        """
        def train(net, loader, optimizer, scaler, criterion):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                optimizer.step()
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        def train(net, loader, optimizer, scaler, criterion):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                scaler.step(optimizer)
                scaler.update()
        """,
        "the-plain-step-beside-the-scalers-removed",
    ),
    shape(
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, optimizer, scaler, criterion, log, clip):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                if log:
                    scaler.unscale_(optimizer)
                    print(net.weight.grad.norm())
                if clip:
                    scaler.unscale_(optimizer)
                    clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, optimizer, scaler, criterion, log, clip):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                if log:
                    scaler.unscale_(optimizer)
                    print(net.weight.grad.norm())
                if clip:
                    scaler.unscale_(optimizer)
                    clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        "unscaling-under-two-conditions-left-alone",
    ),
    shape(
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, optimizer, scaler, criterion, log):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                if log:
                    scaler.unscale_(optimizer)
                    print(net.weight.grad.norm())
                clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        """
        from torch.nn.utils import clip_grad_norm_

        def train(net, loader, optimizer, scaler, criterion, log):
            for x, y in loader:
                optimizer.zero_grad()
                scaler.scale(criterion(net(x), y)).backward()
                if log:
                    scaler.unscale_(optimizer)
                    print(net.weight.grad.norm())
                clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
        """,
        "unscaling-on-one-path-left-alone",
    ),
    shape(
        """
        import torch
        import torch.nn.functional as F
        from torch.nn.utils import clip_grad_norm_


        def unscaled_and_clipped_every_time(model, loader, optimizer, accumulation_steps):
            scaler = torch.amp.GradScaler("cuda")
            for i, (inputs, targets) in enumerate(loader):
                with torch.autocast("cuda"):
                    loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                clip_grad_norm_(model.parameters(), 1.0)
                if (i + 1) % accumulation_steps == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
        """
        import torch
        import torch.nn.functional as F
        from torch.nn.utils import clip_grad_norm_


        def unscaled_and_clipped_every_time(model, loader, optimizer, accumulation_steps):
            scaler = torch.amp.GradScaler("cuda")
            for i, (inputs, targets) in enumerate(loader):
                with torch.autocast("cuda"):
                    loss = F.cross_entropy(model(inputs), targets) / accumulation_steps
                scaler.scale(loss).backward()
                if (i + 1) % accumulation_steps == 0:
                    scaler.unscale_(optimizer)
                    clip_grad_norm_(model.parameters(), 1.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
        """,
        "unscaled-and-clipped-on-every-micro-batch",
    ),
]


SHAPES = [*GRAD_MODE, *DETACH, *DIVISION, *MOVES, *SCALER]


@pytest.mark.parametrize(("before", "after"), SHAPES)
def test_fix(before: str, after: str, tmp_path: Path) -> None:
    """Where nothing is to be changed, there is a finding, and it stays."""
    fixed = fix(before, tmp_path)
    lines = difflib.unified_diff(after.splitlines(), fixed.text.splitlines(), "wanted", "got", n=1)
    assert fixed.text == after, "\n" + "\n".join(lines)
    assert bool(fixed.result.findings) == (before == after)
    assert fix(after, tmp_path).text == after


@pytest.mark.parametrize(("before", "after"), SHAPES)
def test_fix_in_a_file_with_tabs_and_windows_line_ends(
    before: str, after: str, tmp_path: Path
) -> None:
    def variant(text: str) -> str:
        return text.replace("    ", "\t").replace("\n", "\r\n")

    assert fix(variant(before), tmp_path).text == variant(after)


@pytest.mark.parametrize(
    "comment",
    ["# größer", "# 好", "# 😀", "# a\tb", "#", "# type: ignore[x]", "# \N{NO-BREAK SPACE}"],
)
def test_comments_are_kept(comment: str, tmp_path: Path) -> None:
    before = (
        f"import torch  {comment}\n{comment}\n"
        f"def validate(model, loader):  {comment}\n"
        f"    model.eval()  {comment}\n"
        f"    for x in loader:  {comment}\n"
        f"        print(model(x).sum().item())  {comment}\n{comment}"
    )
    after = before.replace("def validate", "@torch.no_grad()\ndef validate")
    assert fix(before, tmp_path).text == after


@pytest.mark.parametrize(
    ("encoding", "head", "word"),
    [
        ("utf-8", b"", "größe"),
        ("utf-8", b"\xef\xbb\xbf", "größe"),
        ("latin-1", b"# -*- coding: latin-1 -*-\n", "größe"),
        ("cp1251", b"# vim: set fileencoding=cp1251 :\n", "размер"),
        ("shift_jis", b"# coding: shift_jis\n", "大きさ"),
    ],
)
def test_encoding_is_kept(encoding: str, head: bytes, word: str, tmp_path: Path) -> None:
    text = (
        "import torch\n\n"
        "def validate(model, loader):\n"
        "    model.eval()\n"
        f"    for x in loader:\n        print('{word}', model(x).sum().item())  # {word}\n"
    )
    (tmp_path / "pyproject.toml").touch()
    source = from_bytes(tmp_path / "train.py", head + text.encode(encoding))
    fixed = fix_text(source, settings_for(source.path), unsafe=False).text
    wanted = text.replace("def validate", "@torch.no_grad()\ndef validate")
    assert source.encode(fixed) == head + wanted.encode(encoding)
