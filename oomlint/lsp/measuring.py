"""Measures fixes for the person at the editor: asks whether the script may run, runs it, tells."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from oomlint.lsp.documents import Document
from oomlint.lsp.lenses import Outcome, is_runnable, lenses, line_key
from oomlint.lsp.options import plain
from oomlint.lsp.verifying import Failed, Interrupted, Verifying
from oomlint.source import Unreadable, read

if TYPE_CHECKING:
    from oomlint.lsp.server import Checked, Server

RUN_IT, LEAVE_IT = "Run it", "Do not run it"
END_IT, KEEP_IT = "Cancel the measurement", "Let it run"
NO_TORCH = (
    'fixes cannot be measured here, for torch is missing: `pip install "oomlint[verify]"`'
    " beside the server"
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants measured: the fixes of one line (from 0), or of a whole document."""

    uri: str
    line: int | None = None


@dataclass(slots=True)
class Measuring:
    """What a session has measured, and what it is measuring."""

    outcomes: dict[str, dict[tuple[str, str], Outcome]] = field(default_factory=dict)
    # The question that is open, or the run that followed from it and the name of its script.
    asking: asyncio.Task[str | None] | None = None
    running: Verifying | None = None
    script: str = ""
    is_explained: bool = False

    def cancel(self) -> None:
        if self.running is not None:
            self.running.interrupt()


def has_torch(server: Server, path: Path) -> bool:
    """Whether what runs the script has torch, as far as that can be seen from here."""
    options, _ = server.options_of(path).measuring()
    return find_spec("torch") is not None or any("--python" in item for item in options or ())


async def lenses_of(server: Server, uri: str) -> list[types.CodeLens] | None:
    """The lenses of a document; none where torch is missing, which is said once."""
    checked = await server.latest(uri)
    if checked is None or checked.result is None:
        return None
    document, state = checked.document, server.measuring
    path = document.source.path
    if not isinstance(document, Document) or not document.uri.startswith("file:"):
        return None
    if not server.options_of(path).has_lenses():
        return None
    if not is_runnable(document.source.text):
        return None
    is_measuring = state.script == path.name
    outcomes = state.outcomes.get(uri, {})
    found = list(lenses(document, checked.result.findings, outcomes, is_measuring))
    if not found or has_torch(server, path):
        return found
    if not state.is_explained:
        state.is_explained = True
        message = types.LogMessageParams(types.MessageType.Info, f"oomlint: {NO_TORCH}")
        server.window_log_message(message)
    return None


def as_actions(found: Sequence[types.CodeLens], line: int) -> list[types.CodeAction]:
    """The lens of a line as an action, for clients that show no lenses."""
    return [
        types.CodeAction(
            f"oomlint: {item.command.title}",
            kind=types.CodeActionKind.QuickFix,
            command=item.command,
        )
        for item in found
        if item.command is not None and item.range.start.line == line
    ]


def wish_of(arguments: object) -> Wish | None:
    """The wish in the arguments of a command: `[{uri, line}]`, or that object alone."""
    given = plain(arguments)
    if isinstance(given, list):
        given = given[0] if given else None
    if not isinstance(given, dict) or not isinstance(given.get("uri"), str):
        return None
    line = given.get("line")
    return Wish(given["uri"], line if isinstance(line, int) else None)


async def measure(server: Server, arguments: object) -> None:
    """All that follows from a wish, refusals included; user code runs only after a yes."""
    wish = wish_of(arguments)
    if wish is None:
        server.show("`oomlint.measure` needs the URI of a document", types.MessageType.Error)
        return
    state = server.measuring
    try:
        if state.script:
            await offer_to_cancel(server)
        else:
            await ask_and_run(server, wish)
    except Failed as error:
        server.show(f"nothing was measured: {error}", types.MessageType.Error)
    except Exception as error:  # nobody else would say that it came to nothing
        why = f"{type(error).__name__}: {error}"
        server.show(f"nothing was measured: {why}", types.MessageType.Error)
    server.refresh_lenses()


async def offer_to_cancel(server: Server) -> None:
    state = server.measuring
    running = state.running
    question = f"oomlint: {state.script} is being measured."
    if await choice(server, question, (END_IT, KEEP_IT)) == END_IT and running is not None:
        running.interrupt()


async def choice(server: Server, question: str, titles: Sequence[str]) -> str | None:
    """What the person chose; None where they chose nothing or the client cannot ask.

    One question is open at a time: who never answered the one before has turned to another.
    """
    state = server.measuring
    if state.asking is not None:
        state.asking.cancel()
    task = state.asking = asyncio.ensure_future(chosen(server, question, titles))
    try:
        return await task
    except asyncio.CancelledError:
        return None


async def chosen(server: Server, question: str, titles: Sequence[str]) -> str | None:
    items = [types.MessageActionItem(title) for title in titles]
    params = types.ShowMessageRequestParams(types.MessageType.Warning, question, items)
    try:
        chosen = await server.window_show_message_request_async(params)
    except JsonRpcException:
        return None
    return chosen.title if isinstance(chosen, types.MessageActionItem) else None


async def ask_and_run(server: Server, wish: Wish) -> None:
    """Raises Failed."""
    checked = await server.latest(wish.uri)
    if checked is None:
        raise Failed("that document is not open here")
    document = checked.document
    if not isinstance(document, Document):
        raise Failed("notebooks cannot be run; export it as a script")
    path = document.source.path
    if not has_torch(server, path):
        raise Failed(NO_TORCH)
    codes = codes_at(checked, wish.line)
    if not codes:
        where = f"line {wish.line + 1} of " if wish.line is not None else ""
        raise Failed(f"{where}{path.name} has no finding with a fix")
    require_saved(document)
    command = command_of(server, path, wish)
    question = (
        f"oomlint: measure {named(codes)} in {path.name}? This runs your script before and after"
        f" the fix, for a few steps each: oomlint verify {shlex.join(command)}"
    )
    if await choice(server, question, (RUN_IT, LEAVE_IT)) != RUN_IT:
        return
    require_saved(document)
    await run(server, document, command)


def codes_at(checked: Checked, line: int | None) -> list[str]:
    findings = checked.result.findings if checked.result else ()
    chosen = (item for item in findings if line is None or item.row == line + 1)
    return [item.code for item in chosen if item.fix is not None]


def named(codes: Sequence[str]) -> str:
    what = ", ".join(dict.fromkeys(codes))
    return f"the fix of {what}" if len(codes) == 1 else f"the {len(codes)} fixes of {what}"


def require_saved(document: Document) -> None:
    """Raises Failed where the file is not what the editor shows: only files are run."""
    path = document.source.path
    try:
        is_saved = document.uri.startswith("file:") and read(path).text == document.source.text
    except (OSError, Unreadable):
        is_saved = False
    if not is_saved:
        raise Failed(f"{path.name} has changes that are not saved; save it and try again")


def command_of(server: Server, path: Path, wish: Wish) -> list[str]:
    """The arguments of `oomlint verify`. Raises Failed."""
    options, arguments = server.options_of(path).measuring()
    for name, value in (("options", options), ("arguments", arguments)):
        if value is None:
            raise Failed(f"the editor's setting `measure.{name}` must be a list of strings")
    line = ["--line", str(wish.line + 1)] if wish.line is not None else []
    return [*(options or ()), *line, str(path), *(arguments or ())]


async def run(server: Server, document: Document, command: Sequence[str]) -> None:
    """Runs `oomlint verify` and tells what it measured. Raises Failed."""
    state, name = server.measuring, document.source.path.name
    # From here on whoever wants something measured is asked whether this shall end.
    state.script = name
    token = await begin(server, f"oomlint: measuring {name}")
    ending = "failed"
    try:
        outcomes = await verify(server, document, command, token)
        ending = "done"
    except Interrupted:
        ending = "cancelled"
        server.show(f"the measurement of {name} was cancelled", types.MessageType.Info)
        return
    except Failed as error:
        raise Failed(f"{name}: {error}") from None
    finally:
        state.running, state.script = None, ""
        end(server, token, ending)
    tell(server, document, outcomes)


async def verify(
    server: Server, document: Document, command: Sequence[str], token: str | None
) -> list[Outcome]:
    """Raises Failed and Interrupted."""
    path = document.source.path
    folders = [folder for folder in server.folders() if path.is_relative_to(folder)]
    folder = max(folders, key=lambda one: len(one.parts), default=path.parent)
    child = Verifying(command, folder, lambda what: report(server, token, f"running {what}"))
    server.measuring.running = child
    if token is not None:
        # Which pygls cancels when the client says so, and nothing else ends.
        cancelled = server.work_done_progress.tokens[token]
        cancelled.add_done_callback(lambda _: child.interrupt())
    server.refresh_lenses()
    return await child.outcomes(document.source.text)


def tell(server: Server, document: Document, outcomes: Sequence[Outcome]) -> None:
    """Keeps what was measured for the lenses, and says it."""
    kept = server.measuring.outcomes.setdefault(document.uri, {})
    for outcome in outcomes:
        kept[line_key(document, outcome.code, outcome.row)] = outcome
    name = document.source.path.name
    lines = dict.fromkeys(f"{name}:{item.row} {item.sentence}" for item in outcomes)
    is_good = all(item.verdict == "confirmed" for item in outcomes)
    kind = types.MessageType.Info if is_good else types.MessageType.Warning
    server.show("\n".join(lines) or f"{name} has nothing to measure", kind)


async def begin(server: Server, title: str) -> str | None:
    """The token of a sign of progress, where the client can show one."""
    if not server.client_can("window.work_done_progress"):
        return None
    token = str(uuid4())
    progress = server.work_done_progress
    try:
        await progress.create_async(token)
    except JsonRpcException:
        return None
    progress.begin(token, types.WorkDoneProgressBegin(title, cancellable=True))
    return token


def report(server: Server, token: str | None, message: str) -> None:
    if token is not None:
        server.work_done_progress.report(
            token, types.WorkDoneProgressReport(cancellable=True, message=message)
        )


def end(server: Server, token: str | None, message: str) -> None:
    if token is not None:
        server.work_done_progress.end(token, types.WorkDoneProgressEnd(message=message))
        server.work_done_progress.tokens.pop(token, None)
