"""Which runs through the code are followed: conditions that agree, branches, exits and loops."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest
from stories import both_iterations, events, model_of, words, worlds

from oomlint.analysis.state import Kind

SCALED = ["backward scaled", "scaler-step optimizer"]
PLAIN = ["backward", "step optimizer"]


def function(body: str, before: str = "") -> str:
    """A function whose `loss`, `optimizer`, `scaler` and the rest come from outside."""
    head = "def f(model, optimizer, scaler, loss, args, use_amp, a, b, loader, i, n):"
    top = f"import torch\n{dedent(before)}"
    return f"{top}\n{head}\n{indent(dedent(body), '    ')}\n"


def two_tests(first: str, second: str) -> str:
    return function(
        f"""
        if {first}:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if {second}:
            scaler.step(optimizer)
        else:
            optimizer.step()
        """
    )


SAME = [
    ("use_amp", "use_amp"),
    ("args.amp", "args.amp"),
    ("scaler", "scaler is not None"),
    ("scaler is not None", "scaler"),
    ("args.scaler != None", "args.scaler"),
    ("args.mode == 'amp'", "args.mode == 'amp'"),
    ("a == b", "not a != b"),
    ("a < b", "not (a >= b)"),
    ("a <= b", "not a > b"),
    ("args.kind in ('x', 'y')", "not args.kind not in ('x', 'y')"),
    ("use_amp and a", "use_amp and a"),
    ("not use_amp", "not use_amp"),
    ("use_amp", "not not use_amp"),
    ("isinstance(a, int)", "isinstance(a, int)"),
    ("len(args.amp) > 0", "len(args.amp) > 0"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_the_same_test_has_the_same_answer(first: str, second: str) -> None:
    found = worlds(two_tests(first, second))
    assert found[0] == SCALED
    assert PLAIN in found
    assert all(world in (SCALED, PLAIN) for world in found)


OPPOSITE = [
    ("use_amp", "not use_amp"),
    ("scaler is None", "scaler"),
    ("a == b", "a != b"),
    ("a < b", "a >= b"),
    ("a in b", "a not in b"),
    ("not (a and b)", "a and b"),
]


@pytest.mark.parametrize(("first", "second"), OPPOSITE)
def test_opposite_tests_have_opposite_answers(first: str, second: str) -> None:
    found = worlds(two_tests(first, second))
    mixed = [[SCALED[0], PLAIN[1]], [PLAIN[0], SCALED[1]]]
    assert all(world in mixed for world in found)
    assert all(world in found for world in mixed)


def test_tests_that_have_nothing_in_common_are_four_worlds() -> None:
    assert worlds(two_tests("a", "b")) == [
        SCALED,
        ["backward", "scaler-step optimizer"],
        ["backward scaled", "step optimizer"],
        PLAIN,
    ]


def test_what_changed_in_between_is_another_question() -> None:
    text = function(
        """
        if a > n:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        a = b
        if a > n:
            scaler.step(optimizer)
        else:
            optimizer.step()
        """
    )
    assert len(worlds(text)) == 4


KNOWN = [
    ("True", "step"),
    ("False", "scaler"),
    ("None", "scaler"),
    ("not 0", "step"),
    ("1 == 1", "step"),
    ("'a' != 'a'", "scaler"),
    ("'a' in ('a', 'b')", "step"),
    ("torch.optim.SGD(a) is not None", "step"),
    ("[] is None", "scaler"),
    ("True or a", "step"),
    ("False and a", "scaler"),
]


@pytest.mark.parametrize(("test", "taken"), KNOWN)
def test_what_is_known_makes_no_second_world(test: str, taken: str) -> None:
    text = function(
        f"""
        loss.backward()
        if {test}:
            optimizer.step()
        else:
            scaler.step(optimizer)
        """
    )
    last = "step optimizer" if taken == "step" else "scaler-step optimizer"
    assert worlds(text) == [["backward", last]]


def test_arguments_settle_the_callees_conditions() -> None:
    text = """
    def step(optimizer, scaler, loss, amp=False):
        if amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
        else:
            loss.backward()
            optimizer.step()

    def train(optimizer, scaler, loss):
        step(optimizer, scaler, loss)
        step(optimizer, scaler, loss, amp=True)
        step(optimizer, None, loss, False)
    """
    assert worlds(text) == [[*PLAIN, *SCALED, *PLAIN]]


QUIET = [
    "if args.verbose:\n    print(loss)",
    "if a:\n    name = 'x'\nelse:\n    name = 'y'",
    "if loader is None:\n    raise ValueError",
    "if not loader:\n    sys.exit(1)",
    "while a:\n    print(a)",
    "x = 1 if a else 2",
]


@pytest.mark.parametrize("quiet", QUIET)
def test_branches_without_events_make_no_world(quiet: str) -> None:
    text = function(f"{quiet}\nloss.backward()\noptimizer.step()")
    assert worlds(text) == [PLAIN]


def test_values_that_such_branches_leave_are_either() -> None:
    text = function(
        """
        if a:
            chosen = torch.optim.SGD(b)
        else:
            chosen = None
        loss.backward()
        chosen.step()
        """
    )
    assert worlds(text) == [["backward", "step SGD"]]


CHOSEN = [
    ("optimizer.step() if a else None", [PLAIN, ["backward"]]),
    ("if a:\n    optimizer.step()", [PLAIN, ["backward"]]),
    ("if a:\n    pass\nelse:\n    optimizer.step()", [["backward"], PLAIN]),
    (
        "if a:\n    optimizer.step()\nelif b:\n    scaler.step(optimizer)",
        [PLAIN, ["backward", "scaler-step optimizer"], ["backward"]],
    ),
    ("if a:\n    if a:\n        optimizer.step()", [PLAIN, ["backward"]]),
    ("if a:\n    return\noptimizer.step()", [PLAIN, ["backward"]]),
    # `b` is asked only in the world of `a`; that neither is enough is one story, told once.
    ("if a and b:\n    return\noptimizer.step()", [PLAIN, ["backward"]]),
]


@pytest.mark.parametrize(("code", "expected"), CHOSEN)
def test_branches_with_events_are_worlds(code: str, expected: list[list[str]]) -> None:
    assert worlds(function(f"loss.backward()\n{code}")) == expected


def test_a_step_behind_and_is_a_world() -> None:
    assert worlds(function("loss.backward()\na and optimizer.step()")) == [PLAIN, ["backward"]]


def test_leaving_an_iteration_before_any_event_is_not_followed() -> None:
    text = function(
        """
        for x in loader:
            if x is None:
                continue
            loss.backward()
            optimizer.step()
        """
    )
    assert worlds(text) == [PLAIN]


def test_leaving_an_iteration_after_an_event_is() -> None:
    text = function(
        """
        for x in loader:
            loss = args.criterion(x)
            loss.backward()
            if torch.isnan(loss):
                continue
            optimizer.step()
        """
    )
    found = [words(world.events) for world in model_of(text).worlds]
    assert found == [PLAIN * 2, ["backward", *PLAIN], [*PLAIN, "backward"], ["backward"] * 2]


def test_window_conditions_are_asked_anew_in_every_iteration() -> None:
    text = function(
        """
        for i, x in enumerate(loader):
            loss.backward()
            if (i + 1) % n == 0:
                optimizer.step()
                optimizer.zero_grad()
        """
    )
    stepping = [*PLAIN, "zero optimizer"]
    found = [words(world.events) for world in model_of(text).worlds]
    assert found == [
        stepping * 2,
        ["backward", *stepping],
        [*stepping, "backward"],
        ["backward"] * 2,
    ]


def test_a_flag_is_the_same_in_every_iteration() -> None:
    text = function(
        """
        for x in loader:
            loss.backward()
            if use_amp:
                optimizer.step()
        """
    )
    found = [words(world.events) for world in model_of(text).worlds]
    assert found == [PLAIN * 2, ["backward"] * 2]


LOOPS = [
    ("for x in loader:\n    loss.backward()\n    optimizer.step()", PLAIN * 2),
    ("while a:\n    loss.backward()\n    optimizer.step()", PLAIN * 2),
    ("while True:\n    loss.backward()\n    optimizer.step()\n    break", PLAIN),
    ("for x in loader:\n    loss.backward()\nelse:\n    optimizer.step()", ["backward", *PLAIN]),
    (
        "for x in loader:\n    loss.backward()\n    break\nelse:\n    optimizer.step()",
        ["backward"],
    ),
    ("for e in range(3):\n  for x in loader:\n    loss.backward()\n  optimizer.step()",
     ["backward", *PLAIN, *PLAIN]),
    ("for x in loader:\n    loss.backward()\n    continue\n    optimizer.step()", ["backward"] * 2),
    ("for x in loader:\n    loss.backward()\n    return\noptimizer.step()", ["backward"]),
    ("loss.backward()\n[o.step() for o in args.optimizers]",
     ["backward", *["step args.optimizers[*]"] * 2]),
    ("async for x in loader:\n    loss.backward()\n    optimizer.step()", PLAIN * 2),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), LOOPS)
def test_loops_are_followed_twice(code: str, expected: list[str]) -> None:
    text = function(code).replace("def f", "async def f" if "async" in code else "def f")
    if "step" not in expected[-1]:
        text = text.replace("    return\n", "    return optimizer.step\n")
    assert both_iterations(text) == expected


ONE_BY_ONE = ["zero args.a", "zero args.b", "zero args.c"]
DISPLAYS = [
    ("for o in (first, second, third):\n    o.zero_grad()", ONE_BY_ONE),
    ("for i, o in enumerate([first, second, third]):\n    o.zero_grad()", ONE_BY_ONE),
    ("[o.zero_grad() for o in (first, second, third)]", ONE_BY_ONE),
    ("for o in {'a': first, 'b': second, 'c': third}.values():\n    o.zero_grad()", ONE_BY_ONE),
    ("for o in (first, second, third):\n    while a:\n        pass\n    o.zero_grad()", ONE_BY_ONE),
    ("for o in [first, second, third, first, first]:\n    while a: pass\n    o.zero_grad()",
     [*ONE_BY_ONE, "zero args.a"]),
    ("for o in (first,):\n    o.zero_grad()", ["zero args.a"] * 2),
    ("for rate in (1, 2, 3):\n    first.zero_grad()", ["zero args.a"] * 2),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), DISPLAYS)
def test_loops_over_objects_are_followed_for_each(code: str, expected: list[str]) -> None:
    names = "first, second, third = args.a, args.b, args.c"
    text = function(f"{names}\n{code}\nloss.backward()\noptimizer.step()")
    found = [event for event in both_iterations(text) if event.startswith("zero")]
    assert found == expected


BLOCKS = [
    ("try:\n    loss.backward()\nexcept E:\n    pass\noptimizer.step()", PLAIN),
    ("try:\n    loss.backward()\nexcept E:\n    model.eval()\nelse:\n    optimizer.step()", PLAIN),
    ("try:\n    loss.backward()\nfinally:\n    optimizer.step()", PLAIN),
    ("try:\n    loss.backward()\n    raise E\nexcept E:\n    optimizer.step()", PLAIN),
    ("try:\n    loss.backward()\n    return\nfinally:\n    optimizer.step()", PLAIN),
    ("with a, b as c:\n    loss.backward()\noptimizer.step()", PLAIN),
    ("async with a:\n    loss.backward()\noptimizer.step()", PLAIN),
    ("match a:\n    case 1:\n        loss.backward()\noptimizer.step()", PLAIN),
    ("del a\nassert b\nglobal g\nloss.backward()\noptimizer.step()", PLAIN),
    ("loss.backward()\nraise ValueError\noptimizer.step()", ["backward"]),
    ("(lambda: loss.backward())()\noptimizer.step()", PLAIN),
    ("loss.backward()\n(x := optimizer).step()", PLAIN),
    ("loss.backward(); optimizer.step()", PLAIN),
]  # fmt: skip


@pytest.mark.parametrize(("code", "expected"), BLOCKS)
def test_blocks(code: str, expected: list[str]) -> None:
    text = function(code).replace("def f", "async def f" if "async" in code else "def f")
    assert events(text) == expected


def test_every_case_of_a_match_is_a_world() -> None:
    text = function(
        """
        loss.backward()
        match a:
            case 1:
                optimizer.step()
            case 2:
                scaler.step(optimizer)
        """
    )
    assert worlds(text)[:2] == [PLAIN, ["backward", "scaler-step optimizer"]]


@pytest.mark.xfail(strict=True, reason="an exception in the body of a `try` is never followed")
def test_a_handler_is_a_world() -> None:
    text = function(
        """
        try:
            loss.backward()
            optimizer.step()
        except RuntimeError:
            optimizer.zero_grad()
        """
    )
    assert ["backward", "zero optimizer"] in worlds(text)


def guards(text: str, kind: Kind) -> list[list[tuple[str, bool]]]:
    """The conditions that the events of a kind stand under, world by world."""
    return [
        [(ast.unparse(guard.test), guard.truth) for guard in event.guards]
        for world in model_of(text).worlds
        for event in world.events
        if event.kind is kind
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("optimizer.step()", [[]]),
        ("if a:\n    optimizer.step()", [[("a", True)]]),
        ("if a:\n    pass\nelse:\n    optimizer.step()", [[("a", False)]]),
        ("if a:\n    return\noptimizer.step()", [[("a", False)]]),
        ("if a:\n    if b:\n        optimizer.step()", [[("a", True), ("b", True)]]),
        ("if a:\n    print(a)\noptimizer.step()", [[]]),
        ("if a:\n    loss.mean()\n    optimizer.step()", [[("a", True)]]),
    ],
)
def test_guards(code: str, expected: list[list[tuple[str, bool]]]) -> None:
    assert guards(function(f"loss.backward()\n{code}"), Kind.STEP) == expected


def test_conditions_of_a_callee_do_not_guard_the_caller() -> None:
    text = """
    def log(loss, a):
        if a:
            loss.backward()
            return

    def train(loss, a, optimizer):
        log(loss, a)
        optimizer.step()
    """
    assert guards(text, Kind.STEP) == [[], []]
    assert guards(text, Kind.BACKWARD) == [[("a", True)]]


def test_each_loop_run_has_its_own_marks() -> None:
    text = function(
        """
        for e in range(2):
            for x in loader:
                loss.backward()
            optimizer.step()
        """
    )
    (world,) = model_of(text).worlds
    marks = [event.marks for event in world.events]
    assert [[number for _, number in mark] for mark in marks] == [
        [1, 1],
        [1, 2],
        [1],
        [2, 1],
        [2],
    ]
    serials = {mark[1][0] for mark in marks if len(mark) == 2}
    assert len(serials) == 2
