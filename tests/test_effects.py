"""`[tool.oomlint.effects]`: what users teach, how it is checked, and what it changes."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent, indent

import pytest
from shell import call, write
from stories import NOWHERE, is_first, words

from oomlint.analysis import Model, analyse
from oomlint.analysis.state import Kind
from oomlint.effects import ARGUMENTS, Effect, Taught, effects_table
from oomlint.errors import OomlintError
from oomlint.settings import settings_for
from oomlint.source import Source

Table = dict[str, object]


def model_of(text: str, table: Table, folder: Path = NOWHERE) -> Model:
    source = Source(folder / "train.py", dedent(text))
    return analyse(source, folder, effects=effects_table(table))


def told(text: str, table: Table, *kinds: Kind, folder: Path = NOWHERE) -> list[str]:
    worlds = model_of(text, table, folder).worlds
    return words([e for e in worlds[0].events if is_first(e)], *kinds) if worlds else []


def step(body: str, head: str = "import torch, lib") -> str:
    """A training step in which everything but the model comes from a foreign library."""
    top = "def train(model, loader, criterion, optimizer, opt2, scaler, trainer: lib.Trainer):"
    lines = (
        f"for x, y in loader:\n    loss = criterion(model(x), y)\n{indent(dedent(body), '    ')}"
    )
    return f"{head}\n{top}\n{indent(lines, '    ')}\n"


USES: list[tuple[str, Table, list[str]]] = [
    (
        "lib.go(loss)\nlib.move(optimizer)",
        {"lib.go": "backward", "lib.move": "step"},
        ["backward", "step optimizer"],
    ),
    (
        "lib.go(loss)\nlib.move(optimizer)\nlib.clear(optimizer)",
        {"lib.go": "backward", "lib.move": "step", "lib.clear": "zero-grad"},
        ["backward", "step optimizer", "zero optimizer"],
    ),
    (
        "lib.go(loss, scaler)\nlib.unscale(optimizer)\nlib.cut(model.parameters(), 1.0)\n"
        "lib.move(optimizer)\nlib.refresh(scaler)",
        {
            "lib.go": "scaled-backward",
            "lib.unscale": "unscale",
            "lib.cut": "clip",
            "lib.move": "scaler-step",
            "lib.refresh": "scaler-update",
        },
        [
            "backward scaled",
            "unscale optimizer",
            "clip",
            "scaler-step optimizer",
            "scaler-update",
        ],
    ),
    (
        "lib.go(x, loss)\nlib.move(optimizer, opt2)",
        {
            "lib.go": {"effect": "backward", "loss": 1},
            "lib.move": {"effect": "step", "optimizer": 1},
        },
        ["backward", "step opt2"],
    ),
    (
        "lib.go(loss=loss)\nlib.move(which=opt2)",
        {"lib.go": "backward", "lib.move": {"effect": "step", "optimizer": "which"}},
        ["backward", "step opt2"],
    ),
    (
        "trainer.go(loss)\ntrainer.move()",
        {"lib.Trainer.go": "backward", "lib.Trainer.move": "step"},
        ["backward", "step trainer"],
    ),
    (
        "t = lib.Trainer()\nt.go(loss)\nt.move()",
        {"lib.Trainer.go": "backward", "lib.Trainer.move": "step"},
        ["backward", "step lib.Trainer"],
    ),
    (
        "loss.backward()\noptimizer.step()\nlib.tick(trainer)",
        {"lib.tick": "scheduler-step"},
        ["backward", "step optimizer", "scheduler-step trainer"],
    ),
    (
        "loss.backward()\nthing = lib.make()\nthing.step()",
        {"lib.make": "optimizer"},
        ["backward", "step make"],
    ),
    (
        "s = lib.make()\ns.scale(loss).backward()\ns.step(optimizer)",
        {"lib.make": "scaler"},
        ["backward scaled", "scaler-step optimizer"],
    ),
    (
        "q = lib.make()\nq(x)\nloss.backward()\noptimizer.step()",
        {"lib.make": "model"},
        ["forward make", "backward", "step optimizer"],
    ),
    (
        "lib.run(x)\nloss.backward()\noptimizer.step()",
        {"lib.run": "forward"},
        ["forward lib.run", "backward", "step optimizer"],
    ),
    (
        "with lib.quiet():\n    model(x)\nloss.backward()\noptimizer.step()",
        {"lib.quiet": "no-grad"},
        ["forward model [off]", "backward", "step optimizer"],
    ),
    (
        "with torch.no_grad(), lib.loud():\n    model(x)\nloss.backward()\noptimizer.step()",
        {"lib.loud": "enable-grad"},
        ["forward model", "backward", "step optimizer"],
    ),
]


@pytest.mark.parametrize(("body", "table", "expected"), USES)
def test_a_taught_call_is_its_event(body: str, table: Table, expected: list[str]) -> None:
    found = told(step(body), table)
    assert found == ["forward model", *expected]
    assert told(step(body), {}) != found


def test_a_name_is_the_same_however_it_is_imported() -> None:
    table: Table = {"lib.losses.go": "backward"}
    for head, called in (
        ("import lib.losses", "lib.losses.go"),
        ("import lib.losses as other", "other.go"),
        ("from lib import losses", "losses.go"),
        ("from lib.losses import go", "go"),
        ("from lib.losses import go as back", "back"),
    ):
        text = step(f"{called}(loss)\noptimizer.step()", f"import torch, lib\n{head}")
        assert told(text, table, Kind.BACKWARD) == ["backward"], head


PROJECT = {
    "my/__init__.py": "from my.steps import back\n",
    "my/steps.py": """\
        def back(batch, loss, scale=1.0):
            (loss * scale).unfold().backward()

        def quiet(function):
            return function

        class Trainer:
            def __init__(self, optimizer):
                self.optimizer = optimizer

            def go(self, loss):
                loss.launch()

            def move(self):
                self.engine.launch("step")
        """,
}


@pytest.mark.parametrize(
    ("text", "table", "expected"),
    [
        (
            "from my.steps import back\ndef f(loss, opt):\n    back(0, loss)\n    opt.step()\n",
            {"my.steps.back": {"effect": "scaled-backward", "loss": "loss"}},
            ["backward scaled", "step opt"],
        ),
        (
            "from my import back\ndef f(loss, opt):\n    back(loss=loss)\n    opt.step()\n",
            {"my.steps.back": {"effect": "scaled-backward", "loss": 1}},
            ["backward scaled", "step opt"],
        ),
        (
            "from my.steps import back\ndef f(loss, opt):\n    back(0, loss)\n    opt.step()\n",
            {"my.back": {"effect": "scaled-backward", "loss": "loss"}},
            ["backward scaled", "step opt"],
        ),
        (
            "from my.steps import Trainer\nclass Mine(Trainer):\n    def fit(self, loss):\n"
            "        self.go(loss)\n        self.move()\n",
            {"my.steps.Trainer.go": "backward", "my.steps.Trainer.move": "step"},
            ["backward", "step optimizer"],
        ),
        (
            "from lib import Trainer\nclass Mine(Trainer):\n    def fit(self, loss):\n"
            "        self.go(loss)\n        super().move()\n",
            {"lib.Trainer.go": "backward", "lib.Trainer.move": "step"},
            ["backward", "step super"],
        ),
        (
            "def go(loss):\n    launch(loss)\ndef f(loss, opt):\n    go(loss)\n    opt.step()\n",
            {"train.go": "backward"},
            ["backward", "step opt"],
        ),
        (
            "def go(loss):\n    loss.backward()\ndef f(loss, opt):\n    go(loss)\n    opt.step()\n",
            {"train.go": "opaque"},
            ["step opt"],
        ),
        (
            "from lib import quiet\n@quiet\ndef f(model, x, opt):\n    model(x).backward()\n"
            "    opt.step()\n",
            {"lib.quiet": "no-grad"},
            ["forward model [off]", "backward", "step opt"],
        ),
        (
            "from my.steps import quiet as hush\n@hush\ndef f(model, x, opt):\n"
            "    model(x).backward()\n    opt.step()\n",
            {"my.steps.quiet": "no-grad"},
            ["forward model [off]", "backward", "step opt"],
        ),
    ],
)
def test_definitions_of_the_project(
    tmp_path: Path, text: str, table: Table, expected: list[str]
) -> None:
    for name, code in PROJECT.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(dedent(code))
    assert told(text, table, folder=tmp_path) == expected
    assert told(text, {}, folder=tmp_path) != expected


def test_a_detached_result_keeps_no_graph() -> None:
    text = step("kept = lib.plain(loss)\nloss.backward()\noptimizer.step()")
    frame = model_of(text, {"lib.plain": "detach"}).worlds[0].frames[-1]
    assert getattr(frame.names["kept"], "graph", None) is False


def test_a_condition_over_a_taught_step_is_a_choice() -> None:
    text = step("lib.go(loss)\nif y:\n    lib.move(optimizer)")
    worlds = model_of(text, {"lib.go": "backward", "lib.move": "step"}).worlds
    assert {bool(world.of(Kind.STEP)) for world in worlds} == {True, False}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("effects = 1", 'pyproject.toml:2: `effects` must be a table of "qualified.name"'),
        ("[tool.oomlint.effects]\n'a.b' = 'step'\n'a.go' = 'backwards'", "pyproject.toml:4: "),
        ("[tool.oomlint.effects]\n'a.go' = 'x'", "`effects` `a.go` has no effect `x`; the effects"),
        ("[tool.oomlint.effects]\n'a.go' = 'x'", "are `backward`, `scaled-backward`, `zero-grad`"),
        ("[tool.oomlint.effects]\na.go = 'step'", 'a name with dots stands in quotes: "a.go"'),
        ("[tool.oomlint.effects]\n'a-b' = 'step'", "`a-b` is no qualified name such as"),
        ("[tool.oomlint.effects]\n'a' = 1", "must be an effect or a table with the key `effect`"),
        (
            "[tool.oomlint.effects]\n'a' = { effect = 'step', loss = 0 }",
            "has no key `loss` for `step`; the keys are `effect`, `optimizer`",
        ),
        (
            "[tool.oomlint.effects]\n'a' = { effect = 'step', optimizer = -1 }",
            "needs the place (from 0) or the name of an argument for `optimizer`",
        ),
        (
            "[tool.oomlint.effects]\n'a' = { effect = 'opaque', loss = 0 }",
            "has no key `loss` for `opaque`; the keys are `effect`",
        ),
        ("effects = { 'a' = 'x' }", "pyproject.toml:2: `effects` `a` has no effect"),
    ],
)
def test_what_is_wrong_is_named(project: Path, table: str, message: str) -> None:
    write(project, {"pyproject.toml": f"[tool.oomlint]\n{table}\n"})
    with pytest.raises(OomlintError) as error:
        settings_for(project / "a.py")
    assert message in str(error.value)
    assert call("check").code == 2


def test_settings_hold_what_is_taught_and_the_cache_knows_it(project: Path) -> None:
    plain = settings_for(project / "a.py")
    table = '[tool.oomlint.effects]\n"a.go" = { effect = "scaled-backward", loss = 1 }\n'
    write(project, {"pyproject.toml": table})
    taught = settings_for(project / "a.py")
    assert taught.effects == (Taught("a.go", Effect.SCALED_BACKWARD, (("loss", 1),)),)
    assert taught.fingerprint != plain.fingerprint


HIDDEN = """\
    from lib import make, clip, go, move

    def train(model, loader, criterion, optimizer):
        for x, y in loader:
            go(criterion(model(x), y))
            clip(model.parameters(), 1.0)
            move(optimizer)
    """
TAUGHT = """\
    [tool.oomlint.effects]
    "lib.go" = "scaled-backward"
    "lib.clip" = "clip"
    "lib.move" = "scaler-step"
    """


def test_taught_names_open_the_gates_of_rules_for_other_words(project: Path) -> None:
    write(project, {"train.py": dedent(HIDDEN)})
    options = ("check", "--output-format", "concise", "--select", "OOM301")
    assert call(*options).out == "All checks passed!\n"
    write(project, {"pyproject.toml": dedent(TAUGHT)})
    assert "train.py:6:9: OOM301" in call(*options).out
    assert call("explain", "train.py:6", "--rule", "OOM301").out.count("not asked") == 0


def test_every_effect_and_every_argument_is_documented() -> None:
    page = (Path(__file__).parent.parent / "docs/effects.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    described = {
        effect: set(re.findall(r"`([a-z]+)`", row[3]))
        for row in rows
        for effect in re.findall(r"`([a-z-]+)`", row[1])
    }
    assert described == {effect.value: set(ARGUMENTS.get(effect, ())) for effect in Effect}


def test_the_example_of_the_page_is_valid(project: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/effects.md").read_text("utf-8")
    example = page.partition("```toml\n")[2].partition("```")[0]
    write(project, {"pyproject.toml": example})
    assert len(settings_for(project / "a.py").effects) == 5


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (5, "`go(criterion(model(x), y))`: backward"),
        (5, "the settings teach that `lib.go` is: scaled-backward"),
        (5, "a loss with an autograd graph"),
        (6, "the settings teach that `lib.clip` is: clip"),
        (7, "> round 1    scaler.step"),
    ],
)
def test_explain_says_what_the_settings_teach(project: Path, row: int, said: str) -> None:
    write(project, {"train.py": dedent(HIDDEN), "pyproject.toml": dedent(TAUGHT)})
    assert said in call("explain", f"train.py:{row}").out


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import lib.a\ndef f(loss, opt):\n    lib.a.go(loss)\n", "lib.a.go"),
        ("import lib\ndef f(loss, opt, t: lib.T):\n    t.go(loss)\n", "lib.T.go"),
        ("def go(x):\n    pass\ndef f(loss, opt):\n    go(loss)\n", "train.go"),
    ],
)
def test_explain_says_which_calls_are_never_followed(project: Path, text: str, name: str) -> None:
    settings = f'[tool.oomlint.effects]\n"{name}" = "opaque"\n'
    code = f"{text}    loss.backward()\n    opt.step()\n"
    write(project, {"train.py": code, "pyproject.toml": settings})
    row = code.splitlines().index("    loss.backward()")
    out = call("explain", f"train.py:{row}").out
    assert f"the settings teach that `{name}` is: opaque" in out


def test_opaque_opens_no_gate(project: Path) -> None:
    write(project, {"pyproject.toml": '[tool.oomlint.effects]\n"lib.go" = "opaque"\n'})
    assert settings_for(project / "a.py").taught_words == ()
