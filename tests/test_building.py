"""A compiled build: its constructors are those of the dataclasses, and it fails in one sentence."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "building"))

backend = importlib.import_module("backend")
compiling = importlib.import_module("compiling")
constructors = importlib.import_module("constructors")

FILES = [f"oomlint/{name}.py" for name in compiling.HOT.split()]
HEAD = "from dataclasses import dataclass, field\n\n\n"


def written(tmp_path: Path, text: str) -> dict[str, Any]:
    """The names of a module after its constructors were written out."""
    file = tmp_path / "one.py"
    file.write_text(HEAD + text, encoding="utf-8")
    constructors.write_constructors([file])
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec"), names)
    return names


def test_order_defaults_factories_and_inheritance(tmp_path: Path) -> None:
    names = written(
        tmp_path,
        "@dataclass(eq=False)\nclass Base:\n    key: str\n    size: int = 3\n\n\n"
        "@dataclass(eq=False)\nclass Derived(Base):\n"
        "    items: list[int] = field(default_factory=list)\n    size: int = 4\n"
        "    name: str = ''\n\n\n"
        "@dataclass\nclass Leaf(Derived):\n    '''Nothing of its own.'''\n\n",
    )
    for kind in (names["Derived"], names["Leaf"]):
        first, second = kind("a"), kind("b", 5, [1], name="c")
        assert (first.key, first.size, first.items, first.name) == ("a", 4, [], "")
        assert (second.key, second.size, second.items, second.name) == ("b", 5, [1], "c")
        assert first.items is not kind("a").items
        with pytest.raises(TypeError):
            kind()
    assert names["Base"]("a").size == 3


@pytest.mark.parametrize(
    "text",
    [
        "@dataclass(kw_only=True)\nclass A:\n    a: int\n\n",
        "@dataclass\nclass A:\n    a: int = field(default=1, repr=False)\n\n",
        "@dataclass\nclass A:\n    a: list[int] | None = field(default_factory=list)\n\n",
        "@dataclass\nclass A:\n    a: ClassVar[int] = 1\n\n",
        "@dataclass\nclass A:\n    a: int\n\n    def __post_init__(self): ...\n\n",
        "@dataclass\nclass A(Elsewhere):\n    a: int\n\n",
        "@dataclass\nclass A:\n    a: int\n\n\nclass A: ...\n\n",
        "@dataclass\nclass A:\n    a: int",
    ],
)
def test_what_is_not_known_is_not_guessed(tmp_path: Path, text: str) -> None:
    with pytest.raises(constructors.NotWritten, match="A"):
        written(tmp_path, text)


def test_classes_that_keep_their_constructor(tmp_path: Path) -> None:
    text = "@dataclass(frozen=True)\nclass A:\n    a: int\n\n\nclass B:\n    b: int\n\n\n"
    text += "@dataclass\nclass C:\n    c: int\n\n    def __init__(self):\n        self.c = 1\n\n"
    written(tmp_path, text)
    assert (tmp_path / "one.py").read_text(encoding="utf-8") == HEAD + text


def test_the_compiled_modules_are_made_in_the_same_way(tmp_path: Path) -> None:
    """Line by line the same text but for constructors, and those take what dataclasses take."""
    folder = compiling.sources(tmp_path / "copy", FILES)
    count = 0
    for file in FILES:
        ours = (ROOT / file).read_text(encoding="utf-8").split("\n")
        made = (folder / file).read_text(encoding="utf-8").split("\n")
        new = [(old, line) for old, line in zip(ours, made, strict=True) if old != line]
        assert all(not old and line.startswith("    def __init__(self") for old, line in new), file
        count += len(new)
    assert count > 20
    subprocess.run(
        [sys.executable, "-c", f"import test_building; test_building.compare({FILES!r})"],
        env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}"},
        cwd=folder,
        check=True,
    )


def test_mypy_is_wanted_only_for_a_compiled_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OOMLINT_COMPILED", raising=False)
    assert backend.compiler() == []
    monkeypatch.setenv("OOMLINT_COMPILED", "0")
    assert backend.compiler() == []
    monkeypatch.setenv("OOMLINT_COMPILED", "1")
    (wanted,) = backend.compiler()
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    (pinned,) = re.findall(r"^mypy==(\d+)\.(\d+)", pins, re.MULTILINE)
    lowest, below = re.fullmatch(r"mypy>=([\d.]+),<([\d.]+)", wanted).groups()  # type: ignore[union-attr]
    assert tuple(map(int, lowest.split("."))) <= tuple(map(int, pinned)) < (int(below),)


def test_without_mypy_the_build_fails_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mypyc.build", None)
    with pytest.raises(SystemExit, match="OOMLINT_COMPILED is set, but mypy is not installed"):
        compiling.extensions()


def compare(files: list[str]) -> None:
    """In a process that imports the copy: holds its constructors against generated ones."""
    compared = 0
    for file in files:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        assert not str(module.__file__).startswith(str(ROOT / "oomlint"))
        for kind in vars(module).values():
            if not isinstance(kind, type) or kind.__module__ != module.__name__:
                continue
            if not dataclasses.is_dataclass(kind):
                continue
            generated = dataclasses.make_dataclass(
                "Again",
                [
                    (
                        f.name,
                        Any,
                        dataclasses.field(default=f.default, default_factory=f.default_factory),
                    )
                    for f in dataclasses.fields(kind)
                ],
            )
            wanted = inspect.signature(generated.__init__).parameters
            found = inspect.signature(kind.__init__).parameters
            assert list(found) == list(wanted), kind
            given = {
                name: object()
                for name, parameter in wanted.items()
                if parameter.default is inspect.Parameter.empty and name != "self"
            }
            one, other = kind(**given), generated(**given)
            for name in list(wanted)[1:]:
                assert getattr(one, name) == getattr(other, name), (kind, name)
            compared += 1
    assert compared > 30
