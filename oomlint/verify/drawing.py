"""Sentences and tables one below the other: with rich for a terminal, plain for a pipe."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def console_on(out: TextIO, *, terminal: bool, color: bool, width: int | None) -> Console:
    """What writes for a terminal, or plain and always as wide for a pipe."""
    from rich.console import Console

    return Console(
        file=out,
        width=width if terminal else 120,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
    )


class Drawing:
    """Collects what is to be shown; columns after the first stand at the right."""

    def __init__(self, *, terminal: bool, color: bool, width: int | None) -> None:
        self.terminal = terminal
        self.out = io.StringIO()
        self.console = console_on(self.out, terminal=terminal, color=color, width=width)

    def sentence(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style or None, soft_wrap=True)

    def space(self) -> None:
        self.console.print()

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> None:
        """A table and an empty line; the last `words` columns stand at the left."""
        from rich import box
        from rich.table import Table

        kind = box.SIMPLE_HEAD if self.terminal and any(heads) else None
        table = Table(box=kind, pad_edge=False, show_edge=False, show_header=any(heads))
        for place, head in enumerate(heads):
            left = place == 0 or place >= len(heads) - words
            table.add_column(head, justify="left" if left else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.console.print()
        self.console.print(table)
        self.console.print()

    def text(self) -> str:
        text = self.out.getvalue()
        if self.terminal:
            return text
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
