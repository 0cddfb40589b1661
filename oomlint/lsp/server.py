"""One session with an editor: its documents, what is known of each, and when that is outdated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types

from oomlint.lsp import actions
from oomlint.lsp.diagnostics import Text, diagnostics
from oomlint.lsp.dispatch import Stale, Urgency, Worker
from oomlint.lsp.measuring import Measuring
from oomlint.lsp.notebooks import NotebookDocument
from oomlint.lsp.session import Session
from oomlint.lsp.worker import Refused, Request

if TYPE_CHECKING:
    from oomlint.linter import FileResult

# How long the typing must rest before the text is checked (seconds): keys that come in one burst
# are checked once. What is typed during a check waits for its end anyway, and what comes after a
# pause is no burst yet: it is checked at once.
REST_S = 0.01
PAUSE_S = 0.1
# The same for changes on the disk, which come in larger bursts and from two sides.
DISK_REST_S = 0.1
SETTINGS_FILES = ("pyproject.toml", "oomlint.toml", ".oomlint.toml", "setup.py", "setup.cfg")
# Texts of a document whose results are kept: what is undone or typed again is known.
KEPT_RESULTS = 8


@dataclass(frozen=True, slots=True)
class Checked:
    """The diagnostics of one version of a document, by URI, and the result that they show."""

    document: Text
    diagnostics: dict[str, list[types.Diagnostic]]
    result: FileResult | None

    def at(self, uri: str) -> list[types.Diagnostic]:
        return self.diagnostics.get(uri, [])


@dataclass(frozen=True, slots=True)
class Running:
    """A check that is under way."""

    document: Text
    urgency: Urgency
    task: asyncio.Task[Checked | None]


class Server(Session):
    """A session with one editor."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[str, Text] = {}
        # The notebook of each cell, and what was last published for it.
        self.notebooks: dict[str, str] = {}
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        # The documents whose file was there before.
        self.on_disk: set[str] = set()
        self.checked: dict[str, Checked] = {}
        self.running: dict[str, Running] = {}
        self.recent: dict[str, dict[str, FileResult]] = {}
        self.worker = Worker()
        self.measuring = Measuring()
        self.complaints: dict[str, str] = {}
        self.pending: dict[str, asyncio.TimerHandle] = {}
        self.last_typed = -PAUSE_S

    def schedule(self, uri: str, rest: float, urgency: Urgency) -> None:
        """Has the document checked once nothing has asked for that for `rest` seconds."""
        if self.pulls and not isinstance(self.documents.get(uri), NotebookDocument):
            return
        earlier = self.pending.pop(uri, None)
        if earlier is not None:
            earlier.cancel()
        loop = asyncio.get_running_loop()
        self.pending[uri] = loop.call_later(rest, self.start, uri, urgency)

    def typed(self, uri: str) -> None:
        """Has the document checked after a key: at once behind a pause, else at the burst's end."""
        now = asyncio.get_running_loop().time()
        is_burst = now - self.last_typed < PAUSE_S
        self.last_typed = now
        self.schedule(uri, REST_S if is_burst else 0, Urgency.TYPED)

    def start(self, uri: str, urgency: Urgency) -> None:
        del self.pending[uri]
        self.run(self.publish(uri, urgency))

    def recheck(self, changed: Iterable[Path] | None = None) -> None:
        """Checks again what may rest on the changed files, or, without them, everything."""
        self.worker.disk_changed = True
        paths = None if changed is None else frozenset(changed)
        outdated = [uri for uri in self.documents if self.may_rest_on(uri, paths)]
        for uri in outdated:
            # Another object: whatever is under way for the earlier one is out of date.
            self.documents[uri] = replace(self.documents[uri])
            self.checked.pop(uri, None)
            self.recent.pop(uri, None)
            self.schedule(uri, DISK_REST_S, Urgency.AROUND)
        if outdated and self.pulls and self.client_can("workspace.diagnostics.refresh_support"):
            self.run(self.unless_refused(self.workspace_diagnostic_refresh_async(None)))

    def may_rest_on(self, uri: str, changed: frozenset[Path] | None) -> bool:
        known = self.checked.get(uri)
        if changed is None or known is None or known.result is None:
            return True
        if known.document is not self.documents[uri]:
            return True
        if known.result.depends_on_callers and any(path.suffix == ".py" for path in changed):
            return True
        return not changed.isdisjoint(known.result.dependencies)

    async def publish(self, uri: str, urgency: Urgency) -> None:
        """Publishes the diagnostics of the document as it is now, unless it changes meanwhile."""
        document = self.documents.get(uri)
        if document is None:
            return
        found = await self.check(document, urgency)
        if found is None or self.documents.get(uri) is not document:
            return
        for part in document.parts:
            params = types.PublishDiagnosticsParams(part.uri, found.at(part.uri), part.version)
            if isinstance(document, NotebookDocument):
                # A key in one cell changes what is true of few others.
                if self.published.get(part.uri) == params:
                    continue
                self.published[part.uri] = params
            self.text_document_publish_diagnostics(params)

    def withdraw(self, uris: Iterable[str]) -> None:
        """Takes the diagnostics of cells away that are no more."""
        for uri in uris:
            self.notebooks.pop(uri, None)
            self.published.pop(uri, None)
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def document_of(self, uri: str) -> Text | None:
        """The open document at a URI, of a cell its notebook."""
        return self.documents.get(self.notebooks.get(uri, uri))

    def forget(self, uri: str) -> Text | None:
        """Drops all that is known of a document that was closed."""
        self.on_disk.discard(uri)
        for known in (self.checked, self.recent, self.complaints):
            known.pop(uri, None)
        return self.documents.pop(uri, None)

    async def latest(self, uri: str) -> Checked | None:
        """What is true of the document now, also if it changes while that is found out."""
        uri = self.notebooks.get(uri, uri)
        while (document := self.documents.get(uri)) is not None:
            found = await self.check(document, Urgency.ASKED)
            if found is not None and self.documents.get(uri) is document:
                return found
        return None

    async def check(self, document: Text, urgency: Urgency) -> Checked | None:
        """The diagnostics of this version; None when it is not wanted any more."""
        known = self.checked.get(document.uri)
        if known is not None and known.document is document:
            return known
        running = self.running.get(document.uri)
        if running is None or running.document is not document or running.urgency > urgency:
            task = asyncio.ensure_future(self.find(document, urgency))
            running = self.running[document.uri] = Running(document, urgency, task)
        # Who asked may be cancelled; the others still wait for this check.
        return await asyncio.shield(running.task)

    async def find(self, document: Text, urgency: Urgency) -> Checked | None:
        uri = document.uri

        def is_wanted() -> bool:
            known = self.checked.get(uri)
            return self.documents.get(uri) is document and (
                known is None or known.document is not document
            )

        answer: FileResult | str | Refused | Stale | None
        answer = self.recent.get(uri, {}).get(document.body)
        if answer is None:
            answer = await self.ask(document, urgency, is_wanted)
        if isinstance(answer, Stale):
            known = self.checked.get(uri)
            return known if known is not None and known.document is document else None
        found: dict[str, list[types.Diagnostic]] = {}
        result = None
        if self.documents.get(uri) is not document:
            # Of a text that is gone nothing is said; whoever took its place says it.
            return Checked(document, found, result)
        if isinstance(answer, Refused):
            self.complain(uri, answer.reason)
        elif not isinstance(answer, str):
            result = answer
            found = diagnostics(document, answer, self.abilities)
            if answer.problem is None:
                self.complaints.pop(uri, None)
            elif not answer.problem.row:
                self.complain(uri, f"{document.source.path.name} {answer.problem.message}")
        checked = self.checked[uri] = Checked(document, found, result)
        if result is not None:
            self.remember(document, result)
        return checked

    def remember(self, document: Text, result: FileResult) -> None:
        kept = self.recent.setdefault(document.uri, {})
        kept.pop(document.body, None)
        kept[document.body] = result
        while len(kept) > KEPT_RESULTS:
            del kept[next(iter(kept))]

    async def ask(
        self,
        document: Text,
        urgency: Urgency,
        is_wanted: Callable[[], bool] = lambda: True,
        fix: bool = False,
    ) -> FileResult | str | Refused | Stale:
        await self.has_settings.wait()
        path = document.source.path
        is_notebook = isinstance(document, NotebookDocument)
        request = Request(path, document.body, is_notebook, fix, options=self.options_of(path))
        return await self.worker.ask(request, urgency, is_wanted)

    def complain(self, uri: str, reason: str) -> None:
        """Shows why a document has no findings, once and not at every key."""
        if self.complaints.get(uri) != reason:
            self.complaints[uri] = reason
            self.show(reason, types.MessageType.Error)

    async def fix_all_edit(self, document: Text) -> types.WorkspaceEdit | None:
        """All safe fixes as one edit, or None when there is nothing to change."""
        answer = await self.ask(document, Urgency.ASKED, fix=True)
        if isinstance(answer, Refused):
            self.complain(document.uri, answer.reason)
        if not isinstance(answer, str) or answer == document.body:
            return None
        now = self.documents.get(document.uri)
        if now is None or now.body != document.body:
            return None
        return actions.whole_edit(document, answer, self.versioned_edits)
