"""What sets the batch size of a script, and how it is turned."""

from __future__ import annotations

from textwrap import dedent

import pytest

from oomlint.verify.knobs import ARGUMENT, CONSTANT, Knob, find

DECLARED = """
BATCH = 12
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--eval-batch-size", type=int, default=100)
parser.add_argument("-b", "--batch-size", type=int, default=BATCH)
"""


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        ((), 12),
        (("--batch-size", "32"), 32),
        (("--batch-size=33",), 33),
        (("-b", "34", "--epochs", "5"), 34),
    ],
)
def test_a_declared_argument_by_any_of_its_names(argv: tuple[str, ...], value: int) -> None:
    knob = find(DECLARED, argv)
    assert knob is not None
    assert (knob.kind, knob.name, knob.value) == (ARGUMENT, "--batch-size", value)
    _, turned, loader = knob.turned(7, DECLARED, argv)
    assert loader is None
    assert find(DECLARED, turned) == Knob(ARGUMENT, "--batch-size", 7, 5, others=("-b",)) or (
        turned[-2:] == ("--batch-size", "7")
    )


def test_arguments_that_no_text_declares() -> None:
    knob = find("main()", ("train.batch_size=8", "model=small"))
    assert knob is not None
    assert (knob.name, knob.value) == ("train.batch_size", 8)
    assert knob.turned(9, "", ("train.batch_size=8",))[1] == ("train.batch_size=9",)


@pytest.mark.parametrize(
    ("text", "name", "row", "changed"),
    [
        ("batch_size = 8\n", "batch_size", 1, "batch_size = 99\n"),
        ("x = 1\nBATCH_SIZE: int = 1_6  # é\n", "BATCH_SIZE", 2, "BATCH_SIZE: int = 99  # é\n"),
        ("é, b = 1, 2; bs = 4\n", "bs", 1, "é, b = 1, 2; bs = 99\n"),
        ("class C:\n    micro_batch_size = 4\n", "micro_batch_size", 2, "micro_batch_size = 99\n"),
        (
            "eval_batch_size = 3\ndef main():\n    batch_size = 5\n",
            "batch_size",
            3,
            "    batch_size = 99\n",
        ),
    ],
)
def test_a_number_in_the_text(text: str, name: str, row: int, changed: str) -> None:
    knob = find(text, ())
    assert knob is not None
    assert (knob.kind, knob.name, knob.row) == (CONSTANT, name, row)
    assert knob.turned(99, text, ())[0].endswith(changed)


def test_nothing_of_the_kind_is_left_to_the_loader() -> None:
    text = dedent(
        """
        batches = 100
        loader = DataLoader(data, batch_size=4)
        parser.add_argument("--backend")
        """
    )
    assert find(text, ("--seed", "3")) is None


def test_what_is_named_must_be_there() -> None:
    assert find("n = 3\nbatch_size = 4\n", (), "n") == Knob(CONSTANT, "n", 3, 1, (4, 5))
    with pytest.raises(LookupError):
        find("batch_size = 4\n", (), "rows")
