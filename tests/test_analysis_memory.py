"""How often a place runs, what handles exhausted memory, what is set in the environment: tables."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from oomlint.analysis import cadence, environment, handling, loading, modules, sites
from oomlint.source import from_bytes


def module_of(tmp_path: Path, text: str) -> modules.Module:
    source = from_bytes(tmp_path / "train.py", dedent(text).encode())
    return modules.build(source, ast.parse(source.text), "train", False)


STEP = "loss.backward(); optimizer.step()"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"for x in data:\n    {STEP}\n    here()", True),
        (f"for x in data:\n    if use_cuda:\n        here()\n    {STEP}", True),
        (f"for x in data:\n    if step % 9 == 0:\n        here()\n    {STEP}", False),
        (f"for x in data:\n    if verbose:\n        here()\n    {STEP}", False),
        (f"for x in data:\n    if step % 9: continue\n    here()\n    {STEP}", False),
        (f"for epoch in epochs:\n    for x in data:\n        {STEP}\n    here()", False),
        ("for x in data:\n    scheduler.step()\n    here()", False),
        ("for x in data:\n    net(x)\n    here()", False),
        ("for x in loader:\n    net(x)\n    here()", True),
        (f"for size in sizes:\n    {STEP}\n    here()", False),
        (f"for x in data:\n    try:\n        {STEP}\n    except E:\n        here()", False),
        (f"def step():\n    {STEP}\n    here()\nfor x in data:\n    step()", True),
        (f"def step():\n    {STEP}\n    here()\nstep()", False),
        (f"def step():\n    {STEP}\nfor x in data:\n    step()\n    here()", True),
        (
            f"def run():\n    for x in data:\n        {STEP}\nfor e in n:\n    run()\n    here()",
            False,
        ),
        ("class M:\n    def training_step(self, batch):\n        here()", True),
        ("def training_step(batch):\n    here()", False),
    ],
)
def test_what_runs_once_a_step(tmp_path: Path, text: str, expected: bool) -> None:
    module = module_of(tmp_path, text)
    here = next(site for site in sites.sites(module) if site.method == "here")
    assert cadence.once_a_step(module, here.node, here.function) is expected


@pytest.mark.parametrize(
    ("handler", "statements"),
    [
        ("except torch.OutOfMemoryError:\n    a()\n    b()", "a() b()"),
        ("except (RuntimeError, torch.cuda.OutOfMemoryError):\n    a()", None),
        ("except ValueError as e:\n    if 'out of memory' in str(e):\n        a()", None),
        ("except RuntimeError as e:\n    if 'out of memory' in str(e):\n        a()", "a()"),
        ("except RuntimeError as e:\n    if 'out of memory' not in str(e): raise\n    a()", "a()"),
        (
            "except RuntimeError as e:\n    if not is_oom(e):\n        b()\n    else:\n        a()",
            "a()",
        ),
        ("except Exception as e:\n    if is_room(e):\n        a()", None),
        (
            "except Exception as e:\n    oom = 'out of memory' in str(e)\n    if oom:\n        a()",
            "a()",
        ),
        ("except RuntimeError:\n    torch.cuda.empty_cache()", "torch.cuda.empty_cache()"),
    ],
)
def test_what_handles_exhausted_memory(
    tmp_path: Path, handler: str, statements: str | None
) -> None:
    module = module_of(tmp_path, f"import torch\ntry:\n    f()\n{handler}")
    found = [" ".join(map(ast.unparse, arm.statements)) for arm in handling.arms(module)]
    assert found == ([] if statements is None else [statements])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("os.environ['A'] = '1'", [("A", "'1'")]),
        ("os.environ.setdefault('A', x)", [("A", "x")]),
        ("os.putenv('A', '1')", [("A", "'1'")]),
        ("os.environ.update({'A': '1', **more}, B='2')", [("A", "'1'"), ("B", "'2'")]),
        ("os.environ[name] = '1'", []),
        ("environ['A'] = '1'", []),
        ("print(os.environ['A'])", []),
    ],
)
def test_what_is_set_in_the_environment(
    tmp_path: Path, text: str, expected: list[tuple[str, str]]
) -> None:
    found = environment.settings(module_of(tmp_path, f"import os\n{text}"))
    assert [(s.name, ast.unparse(s.value)) for s in found if s.value is not None] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = torch.load(p)\nm.load_state_dict(c['model'])", [("c", 1)]),
        ("m.load_state_dict(torch.load(p))", [("", 1)]),
        ("c = torch.load(p)['model']\nm.load_state_dict(c)\no.load_state_dict(c)", [("c", 2)]),
        ("c = torch.load(p)\nw = {k: v for k, v in c.items()}\nm.load_state_dict(w)", [("c", 1)]),
        ("c = torch.load(p)\nscheduler.load_state_dict(c)", []),
        ("c = torch.load(p)\nuse(c)\nm.load_state_dict(d)", []),
        ("b = io.BytesIO()\nm.load_state_dict(torch.load(b))", []),
        ("def f():\n    return torch.load(p)\nc = f()\nm.load_state_dict(c)", [("c", 1)]),
    ],
)
def test_what_a_checkpoint_is_restored_into(
    tmp_path: Path, text: str, expected: list[tuple[str, int]]
) -> None:
    found = loading.checkpoints(module_of(tmp_path, f"import io, torch\n{text}"))
    assert [(c.name, len(c.restores)) for c in found] == expected
