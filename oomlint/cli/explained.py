"""The explanation of a line as text, for readers who do not know the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from oomlint.keys import shown_path

if TYPE_CHECKING:
    from oomlint.analysis.explanation import Condition, Explanation, Happening, Line, Part, Story
    from oomlint.analysis.wording import Meaning
    from oomlint.cli.explain import Found, Standing

MAX_WAYS = 4
MAX_STORIES = 3
MAX_WORDS = 4


def render(
    shown: str,
    line: Explanation,
    standings: Iterable[Standing],
    notes: Iterable[str],
    in_full: bool,
) -> Iterator[str]:
    inside = f", in `{line.function}`" if line.function else ""
    yield click.style(f"{shown}:{line.row}{inside}", bold=True)
    yield f"    {line.code}"
    for note in notes:
        yield f"note: {note}"
    yield from section("What its parts are taken for", parts(line))
    yield from section("How it is reached", reached(line))
    yield from section("What happens here, and what before and after", stories(line))
    every = tuple(standings)
    yield from section("Rules", rules_in_full(every) if in_full else rules(every))


def section(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield ""
    yield click.style(title, bold=True)
    yield from (f"  {line}" for line in lines)


def parts(line: Explanation) -> Iterator[str]:
    if not line.parts:
        yield "nothing: the line was not followed, or it only holds constants"
    for part in line.parts:
        yield part_line(part)
        if part.note:
            yield f"    {part.note}"


def part_line(part: Part) -> str:
    events = " and ".join(part.events)
    meanings = "; or ".join(said(meaning) for meaning in part.meanings)
    if not events:
        return f"`{part.code}`: {meanings}"
    returns = f"; its result: {meanings}" if meanings and "`None`" not in meanings else ""
    return f"`{part.code}`: {click.style(events, bold=True)}{returns}"


def said(meaning: Meaning) -> str:
    how = f" ({meaning.evidence}: {meaning.made})" if meaning.made else ""
    warning = "; a role by name alone is not enough for a finding"
    return meaning.what + how + (warning if meaning.evidence == "named" else "")


def reached(line: Explanation) -> Iterator[str]:
    if not line.ways:
        yield click.style("not followed:", bold=True)
        yield from (f"- {reason}" for reason in line.silence)
        return
    for way in line.ways[:MAX_WAYS]:
        start = f"`{way.root}` (line {way.root_row})" if way.root_row > 1 else way.root
        yield f"following starts at {start}; {counted(way.worlds, line.worlds)}"
        yield from (f"    over {place(call)}" for call in way.calls)
        yield from (f"    inside {place(loop)}" for loop in way.loops)
        yield from (f"    where {condition(item)}" for item in way.conditions)
        contexts = f"; contexts: {', '.join(way.contexts)}" if way.contexts else ""
        yield f"    gradients: {way.gradients}{contexts}"
    yield from more(len(line.ways) - MAX_WAYS, "way")


def counted(worlds: int, of: int) -> str:
    return f"in {worlds} of {of} runs through the file (one for each set of open conditions)"


def place(line: Line) -> str:
    where = (
        f"line {line.row} of {shown_file(line.filename)}" if line.filename else f"line {line.row}"
    )
    return f"{line.code if line.code.startswith('`') else f'`{line.code}`'} ({where})"


def shown_file(filename: str) -> str:
    return shown_path(Path(filename))


def condition(item: Condition) -> str:
    return f"{place(item.line)} is {'true' if item.holds else 'false'}"


def more(count: int, noun: str) -> Iterator[str]:
    if count > 0:
        yield f"... and {count} more {noun}{'s' if count > 1 else ''} (`--output-format json`)"


def stories(line: Explanation) -> Iterator[str]:
    if not line.stories:
        yield "no event of a training step happens on this line"
    for story in line.stories[:MAX_STORIES]:
        where = ", ".join(condition(item) for item in story.conditions)
        yield f"from `{story.root}`{f', where {where}' if where else ''}:"
        yield from story_lines(story)
    yield from more(len(line.stories) - MAX_STORIES, "order")


def story_lines(story: Story) -> Iterator[str]:
    if story.earlier:
        yield f"    ... {story.earlier} earlier"
    for event in story.happenings:
        yield happening(event)
    if story.later:
        yield f"    ... {story.later} later"


def happening(event: Happening) -> str:
    rounds = "/".join(map(str, event.iteration))
    turn = f"round {rounds}" if rounds else ""
    file = f" of {shown_file(event.line.filename)}" if event.line.filename else ""
    on = f" [{event.object}]" if event.object else ""
    mark = ">" if event.here else " "
    where = f"line {event.line.row}{file}"
    return f"  {mark} {turn:<10} {event.what:<17} {where:<9} {event.line.code}{on}"


def rules(standings: tuple[Standing, ...]) -> Iterator[str]:
    """What was found first, then why there is nothing else, the rules of one reason together."""
    for standing in standings:
        yield from (found(standing, item) for item in standing.found)
        if standing.failed:
            yield f"{standing.code} ({standing.name}) failed: {standing.failed}"
    silent = [item for item in standings if not item.found and not item.failed]
    asked = [item.code for item in silent if not item.missing and not item.off]
    if asked:
        yield f"asked, and nothing found on this line: {', '.join(asked)}"
    off: dict[str, list[str]] = {}
    for item in silent:
        if item.off:
            off.setdefault(item.off, []).append(item.code)
    for reason, codes in off.items():
        yield f"off ({reason}): {', '.join(codes)}"
    unasked: dict[str, list[str]] = {}
    for item in silent:
        if item.missing and not item.off:
            unasked.setdefault(missing(item), []).append(item.code)
    for reason, codes in unasked.items():
        yield f"not asked ({reason}): {', '.join(codes)}"


def rules_in_full(standings: tuple[Standing, ...]) -> Iterator[str]:
    for item in standings:
        yield f"{item.code} ({item.name})"
        yield f"    {f'off: {item.off}' if item.off else 'on for this file'}"
        yield f"    {f'not asked: {missing(item, MAX_WORDS * 5)}' if item.missing else 'asked'}"
        yield from (f"    {found(item, one)}" for one in item.found)
        if item.failed:
            yield f"    failed: {item.failed}"
        elif not item.missing and not item.found:
            yield "    found nothing on this line"


def found(standing: Standing, item: Found) -> str:
    what = f"{standing.code} ({standing.name}) line {item.row}: {item.message}"
    if not item.starts_here:
        what += " [this line is on its path]"
    return f"{what} [not reported: {item.silenced}]" if item.silenced else what


def missing(standing: Standing, most: int = MAX_WORDS) -> str:
    """Which words the file would have to hold, in code and not in comments or strings."""
    groups = []
    for group in standing.missing:
        words = ", ".join(f"`{word}`" for word in group[:most])
        dots = ", ..." if len(group) > most else ""
        groups.append(f"none of {words}{dots}" if len(group) > 1 else f"no {words}")
        if not group:
            groups[-1] = "nothing of the form that it looks for"
    return f"the file's code holds {'; and '.join(groups)}"
