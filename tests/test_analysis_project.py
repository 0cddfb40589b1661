"""Several files: what is followed across them, and one answer however a file is asked about."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

import pytest
from stories import all_on, model_of, words, write

from oomlint.analysis.project import forget_files
from oomlint.analysis.state import Kind
from oomlint.files import find_files
from oomlint.linter import FileResult, check_bytes, check_source
from oomlint.settings import SettingsFinder, settings_for
from oomlint.source import Source
from oomlint.tree import check_paths

METER = """
    class Meter:
        def __init__(self):
            self.sum = 0
        def update(self, value):
            self.sum += value
"""

CAREFUL = METER.replace("+= value", "+= value.detach()")


def metered(imports: str, make: str = "Meter()") -> str:
    return f"""
import torch
{imports}

def train(model, loader, criterion, optimizer):
    meter = {make}
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        meter.update(loss)
"""


EVALUATE = """
    import torch

    def evaluate(model, loader):
        model.eval()
        for x in loader:
            model(x)
"""


def calling(imports: str, call: str, before: str = "") -> str:
    return f"""
import torch
{imports}

def main(model, loader):
    {before or "pass"}
    {call}
"""


BASE = """
    import torch

    class Base:
        def __init__(self, model, optimizer):
            self.model, self.optimizer = model, optimizer
        def backward(self, loss):
            self.optimizer.zero_grad()
            loss.backward()
        def step(self):
            self.optimizer.step()
        def fit(self, loss):
            self.backward(loss)
            self.step()
"""

INHERITING = """
    import torch
    from base import Base

    class Trainer(Base):
        def train(self, loader, criterion):
            total = 0
            for x, y in loader:
                loss = criterion(self.model(x), y)
                self.backward(loss)
                self.step()
                total += loss
            return total
"""

CLIPPING = """
    import torch
    from steps import backward, clip

    def train(model, loader, criterion, optimizer):
        scaler = torch.amp.GradScaler("cuda")
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            backward(loss, scaler)
            clip(model)
            scaler.step(optimizer)
            scaler.update()
"""

STEPS = """
    import torch

    def backward(loss, scaler):
        scaler.scale(loss).backward()

    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""


@dataclass(frozen=True)
class Case:
    """Files of one project, and `CODE@row` for each finding of each file."""

    name: str
    files: dict[str, str]
    expected: dict[str, list[str]] = field(default_factory=dict)


CASES = [
    Case(
        "a meter in a module beside it",
        {"meters.py": METER, "train.py": metered("from meters import Meter")},
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter that detaches",
        {"meters.py": CAREFUL, "train.py": metered("from meters import Meter")},
    ),
    Case("a meter that is not there", {"train.py": metered("from meters import Meter")}),
    Case(
        "a meter under another name",
        {"meters.py": METER, "train.py": metered("from meters import Meter as M", "M()")},
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter's module under another name",
        {"meters.py": METER, "train.py": metered("import meters as m", "m.Meter()")},
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter re-exported by its package",
        {
            "lib/__init__.py": "from .meters import Meter\n",
            "lib/meters.py": METER,
            "train.py": metered("from lib import Meter"),
        },
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter re-exported twice, once by a star",
        {
            "lib/__init__.py": "from .inner import *\n",
            "lib/inner/__init__.py": "from .meters import Meter\n",
            "lib/inner/meters.py": METER,
            "train.py": metered("import lib", "lib.Meter()"),
        },
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter by a star import",
        {"meters.py": METER, "train.py": metered("from meters import *")},
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "a meter by a relative import",
        {
            "p/__init__.py": "",
            "p/lib/__init__.py": "",
            "p/lib/meters.py": METER,
            "p/run/__init__.py": "",
            "p/run/train.py": metered("from ..lib.meters import Meter"),
        },
        {"p/run/train.py": ["OOM102@12"]},
    ),
    Case(
        "a project under src",
        {
            "src/p/__init__.py": "",
            "src/p/meters.py": METER,
            "scripts/train.py": metered("from p.meters import Meter"),
        },
        {"scripts/train.py": ["OOM102@12"]},
    ),
    Case(
        "an import inside the function",
        {
            "meters.py": METER,
            "train.py": metered("", "Meter()").replace(
                "    meter =", "    from meters import Meter\n    meter ="
            ),
        },
        {"train.py": ["OOM102@13"]},
    ),
    Case(
        "an import in a circle",
        {
            "meters.py": "from train import train\n" + dedent(METER),
            "train.py": metered("from meters import Meter"),
        },
        {"train.py": ["OOM102@12"]},
    ),
    Case(
        "names that import each other for ever",
        {
            "a.py": "from b import Meter\n",
            "b.py": "from a import Meter\n",
            "train.py": metered("from a import Meter"),
        },
    ),
    Case(
        "a module that is no Python",
        {"meters.py": "class Meter(:\n", "train.py": metered("from meters import Meter")},
    ),
    Case(
        "a base class in another module",
        {"base.py": BASE, "trainer.py": INHERITING},
        {"trainer.py": ["OOM102@12"]},
    ),
    Case(
        "a whole step in another module is not judged",
        {
            "base.py": BASE,
            "trainer.py": INHERITING.replace("self.backward(loss)", "self.fit(loss)").replace(
                "                self.step()\n", ""
            ),
        },
    ),
    Case(
        "steps in another module",
        {"steps.py": STEPS, "train.py": CLIPPING},
        {"train.py": ["OOM301@11"]},
    ),
    Case("nobody calls the evaluation", {"val.py": EVALUATE}, {"val.py": ["OOM101@7"]}),
    Case(
        "the caller turns gradients off by a with",
        {
            "val.py": EVALUATE,
            "main.py": calling("from val import evaluate", "evaluate(model, loader)").replace(
                "    evaluate", "    with torch.no_grad():\n        evaluate"
            ),
        },
    ),
    Case(
        "the caller is decorated",
        {
            "val.py": EVALUATE,
            "main.py": calling("from val import evaluate", "evaluate(model, loader)").replace(
                "def main", "@torch.inference_mode()\ndef main"
            ),
        },
    ),
    Case(
        "the caller switches gradients off for good",
        {
            "val.py": EVALUATE,
            "main.py": calling(
                "import val", "val.evaluate(model, loader)", "torch.set_grad_enabled(False)"
            ),
        },
    ),
    Case(
        "the caller's caller turns gradients off",
        {
            "val.py": EVALUATE,
            "main.py": calling("from val import evaluate", "evaluate(model, loader)")
            + "\ndef top(model, loader):\n    with torch.no_grad():\n        main(model, loader)\n",
        },
    ),
    Case(
        "one of two callers leaves gradients on",
        {
            "val.py": EVALUATE,
            "a.py": calling("from val import evaluate", "evaluate(model, loader)").replace(
                "def main", "@torch.no_grad()\ndef main"
            ),
            "b.py": calling("from val import evaluate", "evaluate(model, loader)"),
        },
        {"val.py": ["OOM101@7"]},
    ),
    Case(
        "somebody calls another function of that name",
        {
            "val.py": EVALUATE,
            "other.py": "def evaluate(model, loader): pass\n",
            "main.py": calling("from other import evaluate", "evaluate(model, loader)").replace(
                "def main", "@torch.no_grad()\ndef main"
            ),
        },
        {"val.py": ["OOM101@7"]},
    ),
    Case(
        "a caller in a folder that is no part of the project",
        {
            "val.py": EVALUATE,
            ".venv/main.py": calling("from val import evaluate", "evaluate(model, loader)").replace(
                "def main", "@torch.no_grad()\ndef main"
            ),
        },
        {"val.py": ["OOM101@7"]},
    ),
]


def tree(paths: list[Path], **options: object) -> dict[str, FileResult]:
    found = find_files([str(path) for path in paths], SettingsFinder()).files
    files = [(path, all_on(settings)) for path, settings in found]
    results = check_paths(files, **options).results  # type: ignore[arg-type]
    return {str(result.path): result for result in results}


def rows(result: FileResult | None) -> list[str]:
    return [f"{f.code}@{f.row}" for f in result.findings] if result is not None else []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    forget_files()
    return tmp_path


def path_of(folder: Path, name: str) -> str:
    return str((folder / name).resolve())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_findings_of_a_tree(case: Case, folder: Path) -> None:
    write(folder, case.files)
    results = tree([folder], use_cache=False, jobs=1)
    found = {name: rows(results.get(path_of(folder, name))) for name in case.files}
    assert {name: hits for name, hits in found.items() if hits} == case.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tree_file_alone_bytes_and_stdin_agree(case: Case, folder: Path) -> None:
    write(folder, case.files)
    whole = tree([folder], use_cache=False, jobs=1)
    for name in case.files:
        if name.startswith("."):
            continue
        path = Path(path_of(folder, name))
        forget_files()
        alone = tree([path], use_cache=False, jobs=1).get(str(path))
        assert alone == whole.get(str(path))
        settings = all_on(settings_for(path))
        data = path.read_bytes()
        expected = alone.findings if alone is not None else ()
        assert check_bytes(path, data, settings).findings == expected
        # An editor's text counts, not what is stored under its name.
        path.write_text("x = 1\n")
        forget_files()
        assert check_source(Source(path, data.decode()), settings).findings == expected
        path.write_bytes(data)


def gated(folder: Path, name: str) -> tuple[list[str], list[str]]:
    path = folder / name
    source = Source(path, path.read_text("utf-8"))
    settings = all_on(settings_for(path))
    return rows(check_source(source, settings)), rows(check_source(source, settings, gate=False))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gate_hides_nothing(case: Case, folder: Path) -> None:
    write(folder, case.files)
    for name in case.files:
        if "(:" in case.files[name]:
            continue
        with_gate, without = gated(folder, name)
        assert with_gate == without


def test_unsaved_text_counts_and_the_file_below_it_does_not(folder: Path) -> None:
    write(folder, {"meters.py": METER, "train.py": "x = 1\n"})
    path = folder / "train.py"
    result = check_source(
        Source(path, metered("from meters import Meter")), all_on(settings_for(path))
    )
    assert rows(result) == ["OOM102@12"]


def test_the_order_of_the_paths_changes_nothing(folder: Path) -> None:
    case = next(case for case in CASES if case.name == "one of two callers leaves gradients on")
    write(folder, case.files)
    paths = [folder / name for name in case.files]
    forward = tree(paths, use_cache=False, jobs=1)
    assert tree(paths[::-1], use_cache=False, jobs=1) == forward
    assert tree(paths, use_cache=False, jobs=2) == forward


def test_dependencies_name_every_file_that_was_looked_at(folder: Path) -> None:
    files = {
        "lib/__init__.py": "from .meters import Meter\n",
        "lib/meters.py": METER,
        "train.py": metered("from lib import Meter"),
        "unrelated.py": METER,
    }
    write(folder, files)
    path = folder / "train.py"
    result = check_source(Source(path, dedent(files["train.py"])), all_on(settings_for(path)))
    looked_at = {p.relative_to(folder).as_posix() for p in result.dependencies}
    assert {"lib/__init__.py", "lib/meters.py"} <= looked_at
    assert "unrelated.py" not in looked_at
    assert result.depends_on_callers is False


def test_a_file_that_could_come_to_be_is_a_dependency(folder: Path) -> None:
    text = metered("from meters import Meter")
    path = folder / "train.py"
    result = check_source(Source(path, text), all_on(settings_for(path)))
    assert folder / "meters.py" in result.dependencies


def test_evaluation_depends_on_its_callers(folder: Path) -> None:
    path = folder / "val.py"
    result = check_source(Source(path, dedent(EVALUATE)), all_on(settings_for(path)))
    assert result.depends_on_callers is True


CHANGES = [
    ({"meters.py": METER, "train.py": metered("from meters import Meter")}, "meters.py", CAREFUL),
    ({"meters.py": CAREFUL, "train.py": metered("from meters import Meter")}, "meters.py", METER),
    ({"train.py": metered("from meters import Meter")}, "meters.py", METER),
    (
        {"val.py": EVALUATE},
        "main.py",
        calling("from val import evaluate", "evaluate(model, loader)").replace(
            "def main", "@torch.no_grad()\ndef main"
        ),
    ),
]


@pytest.mark.parametrize(("files", "changed", "text"), CHANGES)
def test_a_stored_answer_ends_when_a_file_it_depends_on_changes(
    files: dict[str, str], changed: str, text: str, folder: Path
) -> None:
    write(folder, files)
    before = tree([folder], jobs=1)
    assert tree([folder], jobs=1) == before
    write(folder, {changed: text})
    forget_files()
    after = tree([folder], jobs=1)
    forget_files()
    assert after == tree([folder], jobs=1, use_cache=False)
    assert after != before


# what another file's function does


def test_events_of_another_files_functions(folder: Path) -> None:
    write(folder, {"steps.py": STEPS})
    model = model_of(CLIPPING, folder / "train.py")
    world = model.worlds[0]
    first = [e for e in world.events if all(loop.iteration == 1 for loop in e.loops)]
    assert words(first) == [
        "zero optimizer",
        "forward model",
        "backward scaled",
        "clip",
        "scaler-step optimizer",
        "scaler-update",
    ]
    backward = next(e for e in first if e.kind is Kind.BACKWARD)
    assert backward.module.path == folder / "steps.py"
    assert backward.node.lineno == 5
    assert [call.callee.qualname for call in backward.calls if call.callee] == ["backward"]


LOOKED_INTO = {
    "a decorated function": "import a\n@a.wraps(print)\ndef back(l):\n    l.backward()\n",
    "a string in the first column": 'def back(l):\n    """\nDoc\n"""\n    l.backward()\n',
    "a function behind a class": "class A:\n    x = 1\n\ndef back(l):\n    l.backward()\n",
    "a comment in the first column": "def back(l):\n# why\n    l.backward()\n",
    "a call over lines": "def back(\n    l,\n):\n    l.backward(\n    )\n",
    "a closing bracket in the first column": "def back(\n    l\n):\n    l.backward()\n",
    "newer syntax elsewhere": "type A = int\ndef g[T](): pass\ndef back(l):\n    l.backward()\n",
    "newer syntax inside": "def back[T](l: T):\n    print(f'{l['a']}')\n    l.backward()\n",
    "one line": "def back(l): l.backward()\n",
    "an async function": "async def back(l):\n    l.backward()\n",
    "windows line ends": "def back(l):\r\n    x = 1\r\n    l.backward()\r\n",
    "under a condition": "if True:\n    def back(l):\n        l.backward()\n",
    "in a try": "try:\n    import x\nexcept ImportError:\n    def back(l):\n        l.backward()\n",
    "an alias": "def other(l):\n    l.backward()\nback = other\n",
    "tabs": "def back(l):\n\tl.backward()\n",
    "a form feed": "x = 1\n\f\ndef back(l):\n    l.backward()\n",
    "a definition in a string": 'x = """\ndef back():\n"""\ndef back(l):\n    l.backward()\n',
}  # fmt: skip

MISSED = {
    "under a condition",
    "in a try",
    "an alias",
    "a definition in a string",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.xfail(strict=True, reason="seen by its first column"))
        if name in MISSED
        else name
        for name in LOOKED_INTO
    ],
)
def test_functions_that_are_looked_into(name: str, folder: Path) -> None:
    write(folder, {"lib.py": LOOKED_INTO[name]})
    text = """
    from lib import back
    def train(loss, optimizer):
        back(loss)
        optimizer.step()
        optimizer.backward
    """
    (world,) = model_of(text, folder / "train.py").worlds
    assert words(world.events) == ["backward", "step optimizer"]


def test_a_function_of_another_file_keeps_its_rows(folder: Path) -> None:
    write(folder, {"lib.py": "# é\n\n\nimport torch\n\n\ndef back(l):\n    'é'; l.backward()\n"})
    text = """
    from lib import back
    def f(l, optimizer):
        back(l)
        optimizer.step()
        l.backward()
    """
    (world,) = model_of(text, folder / "train.py").worlds
    event = world.events[0]
    start, end = event.module.span(event.node)
    assert event.module.source.text[start:end] == "l.backward()"
    assert event.module.source.position(start) == (8, 10)


def test_packages_that_are_no_part_of_a_project_are_not_looked_for(folder: Path) -> None:
    write(folder, {"torch.py": "def zeros(l):\n    l.backward()\n"})
    text = """
    import torch
    def f(l, optimizer):
        torch.zeros(l)
        l.backward()
        optimizer.step()
    """
    model = model_of(text, folder / "train.py")
    assert words(model.worlds[0].events) == ["backward", "step optimizer"]
    assert folder / "torch.py" not in model.dependencies
