"""The ordering question with its witness path, and windows of gradient accumulation."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest
from stories import happening, model_of, word, words

from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, positions
from oomlint.analysis.questions import Window
from oomlint.analysis.reductions import reduction_of
from oomlint.analysis.state import Event, Kind, World, once


def function(body: str, before: str = "") -> str:
    head = "def f(model, optimizer, other, scaler, criterion, args, loader, n, a):"
    return f"import torch\n{dedent(before)}\n{head}\n{indent(dedent(body), '    ')}\n"


LETTERS = {
    "b": "args.loss.backward()",
    "z": "optimizer.zero_grad()",
    "c": "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    "u": "scaler.unscale_(optimizer)",
    "s": "scaler.step(optimizer)",
    "o": "optimizer.step()",
    "p": "scaler.update()",
    "?": "args.unknown(scaler, optimizer)",
}
KINDS = {
    "b": Kind.BACKWARD,
    "z": Kind.ZERO_GRAD,
    "c": Kind.CLIP,
    "u": Kind.UNSCALE,
    "s": Kind.SCALER_STEP,
    "o": Kind.STEP,
    "p": Kind.SCALER_UPDATE,
}


def spelled(letters: str) -> str:
    return function("\n".join(LETTERS[letter] for letter in letters))


def is_a(letters: str) -> ask.Test:
    kinds = {KINDS[letter] for letter in letters}
    return lambda event: event.kind in kinds


WAYS = [
    # events, goal, avoiding, the row of the goal that is reached
    ("bcs", "c", "u", 2),
    ("bucs", "c", "u", None),
    ("bcus", "c", "u", 2),
    ("bzcs", "c", "u", 3),
    ("bs", "c", "u", None),
    ("bccs", "c", "", 2),
    ("bzo", "o", "b", 3),
    ("bzbo", "o", "b", None),
    ("bzo", "o", "z", None),
    ("bo", "zo", "o", 2),
]


@pytest.mark.parametrize(("letters", "goal", "avoiding", "row"), WAYS)
def test_way(letters: str, goal: str, avoiding: str, row: int | None) -> None:
    (world,) = model_of(spelled(letters)).worlds
    found = ask.way(world, world.events[0], is_a(goal), is_a(avoiding))
    assert (found.node.lineno - 3 if found else None) == row


@pytest.mark.parametrize(
    ("letters", "kinds", "rows"),
    [
        ("bzcsbo", "b", [1, 5]),
        ("bzcsbo", "so", [4, 6]),
        ("bosb", "bso", [1, 2, 3, 4]),
        ("osbc", "bc", [3, 4]),
        ("bzo", "c", []),
        ("bzo", "cu", []),
        ("bzo", "cz", [2]),
    ],
)
def test_events_by_kind_keep_their_order(letters: str, kinds: str, rows: list[int]) -> None:
    (world,) = model_of(spelled(letters)).worlds
    events = world.of(*(KINDS[letter] for letter in kinds))
    assert [event.node.lineno - 3 for event in events] == rows


def test_a_question_is_answered_once_for_each_world() -> None:
    asked = []

    @once
    def length(world: World) -> int:
        asked.append(world)
        return len(world.events)

    first, second = (model_of(spelled(letters)).worlds[0] for letters in ("bzo", "bo"))
    assert [length(first), length(second), length(first), length(second)] == [3, 2, 3, 2]
    assert asked == [first, second]


def test_a_way_around_the_loop() -> None:
    text = function("for x in loader:\n    args.loss.backward()\n    optimizer.step()")
    (world,) = model_of(text).worlds
    step = happening(world, Kind.STEP)
    around = ask.way(world, step, is_a("b"), is_a("z"))
    assert around is not None
    assert (around.marks[0][1], step.marks[0][1]) == (2, 1)
    text = text.replace("optimizer.step()", "optimizer.step()\n        optimizer.zero_grad()")
    (world,) = model_of(text).worlds
    assert ask.way(world, happening(world, Kind.STEP), is_a("b"), is_a("z")) is None


@pytest.mark.parametrize(
    ("letters", "question", "expected"),
    [
        ("bucs", "before", ["unscale optimizer", "backward"]),
        ("bzcs", "before", ["zero optimizer", "backward"]),
        ("obcs", "before", ["backward"]),
        ("cbz", "after", ["backward", "zero optimizer"]),
        ("cbo", "after", ["backward"]),
        ("c", "after", []),
    ],
)
def test_before_and_after_stop_at_steps(letters: str, question: str, expected: list[str]) -> None:
    (world,) = model_of(
        spelled(letters.replace("?", "")) + "    optimizer.step\n    args.loss.backward\n"
    ).worlds
    clip = happening(world, Kind.CLIP)
    walk = ask.before if question == "before" else ask.after
    assert words(walk(world, clip, lambda e: e.kind in ask.STEPS)) == expected


@pytest.mark.parametrize(
    ("letters", "after", "before"),
    [
        ("bzo", "zero optimizer", "zero optimizer"),
        ("bo", None, None),
        ("zbo", None, "zero optimizer"),
    ],
)
def test_first_after_and_last_before(letters: str, after: str | None, before: str | None) -> None:
    (world,) = model_of(spelled(letters)).worlds
    following = ask.first_after(world, happening(world, Kind.BACKWARD), is_a("z"))
    earlier = ask.last_before(world, happening(world, Kind.STEP), is_a("z"))
    assert (following and word(following), earlier and word(earlier)) == (after, before)


@pytest.mark.parametrize(("letters", "touched"), [("b?s", True), ("bs", False), ("?bs", False)])
def test_calls_that_cannot_be_followed_may_touch_what_they_get(letters: str, touched: bool) -> None:
    (world,) = model_of(spelled(letters)).worlds
    first, last = happening(world, Kind.BACKWARD), happening(world, Kind.SCALER_STEP)
    assert ask.opaque_between(world, first, last, last.value) is touched
    assert ask.opaque_between(world, first, last, last.subject) is touched


CONCERNS = [
    ("optimizer.zero_grad()", "optimizer.step()", True),
    ("model.zero_grad()", "optimizer.step()", True),
    ("args.thing.zero_grad()", "a_opt.step()", True),
    ("a_opt.zero_grad()", "b_opt.step()", False),
    ("a_opt.zero_grad()", "a_opt.step()", True),
    ("both.zero_grad()", "b_opt.step()", True),
    ("model.zero_grad()", "a_opt.step()", True),
    ("model.head.zero_grad()", "a_opt.step()", True),
    ("model.zero_grad()", "b_opt.step()", False),
    ("args.net.zero_grad()", "b_opt.step()", True),
]


@pytest.mark.parametrize(("zero", "step", "expected"), CONCERNS)
def test_whose_gradients_a_zero_grad_clears(zero: str, step: str, expected: bool) -> None:
    text = function(
        f"""
        a_opt = torch.optim.SGD(model.parameters(), lr=1)
        b_opt = torch.optim.SGD(args.net.parameters(), lr=1)
        both = torch.optim.SGD([*model.parameters(), *args.net.parameters()], lr=1)
        args.loss.backward()
        {zero}
        {step}
        """
    )
    (world,) = model_of(text).worlds
    cleared = happening(world, Kind.ZERO_GRAD)
    assert ask.concerns(cleared, happening(world, Kind.STEP).subject) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("model", "model", True),
        ("model", "model.head", True),
        ("model.head", "model", True),
        ("model", "models", False),
        ("model.a", "model.b", False),
    ],
)
def test_related(one: str, other: str, expected: bool) -> None:
    assert ask.related(one, other) is expected


# windows


def windows(body: str, before: str = "") -> list[Window]:
    found: list[Window] = []
    for world in model_of(function(body, before)).worlds:
        found += ask.windows(world)
    return found


def summary(window: Window) -> str:
    """`% guard / size`, as the code writes them."""
    guard = ast.unparse(window.guard.test) if window.guard else "nested"
    size = ast.unparse(window.size) if window.size else "?"
    return f"{guard} / {size}"


def guarded(condition: str, before: str = "", loss: str = "criterion(model(x), x)") -> str:
    return f"""{before}
for i, x in enumerate(loader):
    loss = {loss}
    loss.backward()
    if {condition}:
        optimizer.step()
        optimizer.zero_grad()
"""


WINDOWS = [
    (guarded("(i + 1) % n == 0"), "(i + 1) % n == 0 / n"),
    (guarded("not (i + 1) % n"), "not (i + 1) % n / n"),
    (
        guarded("(i + 1) % 4 == 0 or i + 1 == len(loader)"),
        "(i + 1) % 4 == 0 or i + 1 == len(loader) / 4",
    ),
    (guarded("i % args.accum == 0 and i > 0"), "i % args.accum == 0 and i > 0 / args.accum"),
    (
        guarded("count >= args.accum_steps", "count = 0").replace(
            "    if", "    count += 1\n    if"
        ),
        "count >= args.accum_steps / args.accum_steps",
    ),
    (
        guarded("boundary").replace("    if", "    boundary = (i + 1) % n == 0\n    if"),
        "boundary / n",
    ),
    (
        "for batch in loader:\n    for _ in range(n):\n        criterion(model(batch)).backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()",
        "nested / n",
    ),
    (
        "for batch in loader:\n    for part in batch.chunks:\n        criterion(part).backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()",
        "nested / ?",
    ),
]


@pytest.mark.parametrize(("body", "expected"), WINDOWS)
def test_windows(body: str, expected: str) -> None:
    assert summary(windows(body)[0]) == expected


NO_WINDOWS = {
    "a step in every iteration": "for x in loader:\n    criterion(x).backward()\n"
    "    optimizer.step()",
    "a step that is skipped": "for x in loader:\n    loss = criterion(x)\n    loss.backward()\n"
    "    if torch.isfinite(loss) % 2:\n        optimizer.step()",
    "everything under the condition": "for i, x in enumerate(loader):\n    if i % n == 0:\n"
    "        criterion(x).backward()\n        optimizer.step()",
    "backward by a framework": "for i, x in enumerate(loader):\n    scaler = args.engine\n"
    "    scaler.backward(criterion(x))\n    if i % n == 0:\n        optimizer.step()",
    "no loop": "args.loss.backward()\nif a % n == 0:\n    optimizer.step()",
    "timm's scaler": "for i, x in enumerate(loader):\n    criterion(x).backward()\n"
    "    if i % n == 0:\n        scaler(criterion(x), optimizer)",
    "steps in sharpness-aware minimisation": "for i, x in enumerate(loader):\n"
    "    criterion(x).backward()\n    if i % n == 0:\n        optimizer.first_step()",
}


@pytest.mark.parametrize("name", NO_WINDOWS)
def test_no_windows(name: str) -> None:
    assert [summary(window) for window in windows(NO_WINDOWS[name])] == []


def test_each_window_is_found_once_in_a_world() -> None:
    for world in model_of(function(guarded("(i + 1) % n == 0"))).worlds:
        assert len(list(ask.windows(world))) <= 1


ACCUMULATIONS = [
    (guarded("(i + 1) % args.accumulation_steps == 0"), True),
    (guarded("(i + 1) % grad_accum == 0").replace("grad_accum", "args.grad_accum"), True),
    (guarded("(i + 1) % n == 0"), False),
    (guarded("(i + 1) % n == 0", loss="criterion(model(x), x) / n"), True),
    (guarded("(i + 1) % n == 0", loss="criterion(model(x), x).div(n)"), True),
    (guarded("i % args.critic_steps == 0"), False),
    (guarded("i % args.accumulate == 0") + "    args.opt.step()\n", False),
]


@pytest.mark.parametrize(("body", "expected"), ACCUMULATIONS)
def test_which_windows_are_accumulation(body: str, expected: bool) -> None:
    assert ask.is_accumulation(windows(body)[0]) is expected


DIVIDED = [
    ("criterion(model(x), x)", False),
    ("criterion(model(x), x) / n", True),
    ("criterion(model(x), x) * (1 / n)", True),
    ("criterion(model(x), x).div(n)", True),
    ("criterion(model(x) / n, x)", False),
    ("torch.div(criterion(model(x), x), n)", True),
    ("args.weight * criterion(model(x), x) / n", True),
    ("criterion(model(x), x) + args.other_loss / n", True),
    ("criterion(model(x), x) / n if a else criterion(model(x), x)", True),
]


@pytest.mark.parametrize(("loss", "expected"), DIVIDED)
def test_divided_losses(loss: str, expected: bool) -> None:
    assert ask.divided(windows(guarded("(i + 1) % n == 0", loss=loss))[0]) is expected


PERHAPS = {
    "in the other operand": ("", "loss.mean() if n == 1 else loss.mean() / n"),
    "in the other arm": (
        "    if n == 1:\n        pass\n    else:\n        loss = loss / n\n",
        "loss",
    ),
}


@pytest.mark.parametrize("name", PERHAPS)
def test_losses_that_are_divided_where_it_matters(name: str) -> None:
    before, loss = PERHAPS[name]
    body = guarded("(i + 1) % n == 0")
    body = body.replace("    loss.backward()", f"{before}    loss = {loss}\n    loss.backward()")
    assert ask.divided(windows(body)[0]) is True


def test_divided_in_place() -> None:
    body = guarded("(i + 1) % n == 0").replace(
        "    loss.backward()", "    loss /= n\n    loss.backward()"
    )
    assert ask.divided(windows(body)[0]) is True


REDUCTIONS = [
    ("torch.nn.CrossEntropyLoss()(model(x), x)", "mean"),
    ('torch.nn.CrossEntropyLoss(reduction="sum")(model(x), x)', "sum"),
    ('torch.nn.CrossEntropyLoss(reduction="none")(model(x), x)', ""),
    ('torch.nn.CrossEntropyLoss(reduction="none")(model(x), x).mean()', "mean"),
    ("torch.nn.CrossEntropyLoss(reduction=args.how)(model(x), x)", ""),
    ("torch.nn.CrossEntropyLoss(size_average=False)(model(x), x)", ""),
    ("torch.nn.functional.cross_entropy(model(x), x)", "mean"),
    ('torch.nn.functional.cross_entropy(model(x), x, reduction="sum")', "sum"),
    ("criterion(model(x), x)", ""),
    ("model(x).loss", "mean"),
    ("model(x).sum()", "sum"),
    ("2 * model(x).mean()", "mean"),
    ("model(x).mean() + model(x).sum()", "mixed"),
    ("model(x).mean() * len(x)", "sum"),
    ("scaler.scale(torch.nn.MSELoss()(model(x), x))", "mean"),
    ("(model(x) * mask).sum() / mask.sum()", "mean"),
    ("(model(x) * mask).sum() / (mask.sum() + 1e-8)", "mean"),
    ("torch.sum(model(x) * mask) / torch.sum(mask).clamp(min=1)", "mean"),
    ("((model(x) * mask).sum(1) / mask.sum(1)).mean()", "mean"),
    ("(model(x)[rows] * mask[rows]).sum() / mask.sum()", "sum"),
    ("model(x).sum() / tokens", "mixed"),
    ("model(x).mean() + model(x).sum() * 0.0", "mean"),
]


@pytest.mark.parametrize(("loss", "expected"), REDUCTIONS)
def test_how_a_loss_is_reduced(loss: str, expected: str) -> None:
    text = function(f"loss = {loss}\nloss.backward()\noptimizer.step()")
    event = happening(model_of(text).worlds[0], Kind.BACKWARD)
    assert event.value is not None
    assert reduction_of(event.value) == expected


def test_a_counter_that_goes_on_over_the_epochs() -> None:
    over = """
    step = 0
    for epoch in range(3):
        for x in loader:
            step += 1
            criterion(model(x), x).backward()
            if step % args.accum == 0:
                optimizer.step()
                optimizer.zero_grad()
    """
    assert ask.carries_over(windows(dedent(over))[0]) is True
    inside = dedent(over).replace("step = 0\n", "").replace("    for x", "    step = 0\n    for x")
    assert ask.carries_over(windows(inside)[0]) is False
    assert ask.carries_over(windows(guarded("(i + 1) % args.accum == 0"))[0]) is False


def test_only_one_backward() -> None:
    two = guarded("(i + 1) % n == 0").replace(
        "    loss.backward()", "    loss.backward(retain_graph=True)\n    loss.backward()"
    )
    assert [ask.only_backward(w) for w in windows(two)[:1]] == [False]
    assert [ask.only_backward(w) for w in windows(guarded("(i + 1) % n == 0"))[:1]] == [True]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("use_amp", "use_amp", False),
        ("args.amp", "args.use_amp", True),
        ("a", "args.amp", False),
        ("args.fp16", "args.half", True),
    ],
)
def test_conditions_about_mixed_precision_that_disagree(
    first: str, second: str, expected: bool
) -> None:
    body = f"if {first}:\n    args.loss.backward()\nif {second}:\n    optimizer.step()"
    world = model_of(function(body).replace("n, a)", "n, a, use_amp)")).worlds[0]
    backward, step = happening(world, Kind.BACKWARD), happening(world, Kind.STEP)
    assert ask.disagree(backward, step) is expected


# where to point


NESTED = """
    import torch

    def clip(model):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def step(model, optimizer, loss):
        loss.backward()
        clip(model)
        optimizer.step()

    def train(model, optimizer, loss):
        step(model, optimizer, loss)
"""


def row_of(node: ast.AST | None) -> int | None:
    return getattr(node, "lineno", None)


def test_findings_stand_where_both_events_are_in_sight() -> None:
    model = model_of(NESTED)
    world = model.worlds[0]
    clip, step = happening(world, Kind.CLIP), happening(world, Kind.STEP)
    assert [row_of(node) for _, node in positions(clip)] == [13, 9, 5]
    assert row_of(anchor(model, clip)) == 5
    assert row_of(anchor(model, clip, step)) == 9
    assert row_of(anchor(model, step, clip)) == 10
    assert ask.same_function(step, happening(world, Kind.BACKWARD))
    assert not ask.same_function(step, clip)


def test_what_gradients_are_taken_of() -> None:
    text = function(
        "loss = criterion(model(a), a)\nkept = model(a)\nloss.backward()\noptimizer.step()"
    )
    (world,) = model_of(text).worlds
    taken = ask.fed(world)
    forwards: list[Event] = [e for e in world.events if e.kind is Kind.FORWARD]
    assert [id(event.value) in taken for event in forwards] == [True, False]
