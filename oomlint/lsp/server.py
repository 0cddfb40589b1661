"""One session with an editor: its documents, what is known of each, and when that is outdated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from oomlint import __version__
from oomlint.lsp import actions
from oomlint.lsp.diagnostics import Abilities, diagnostics
from oomlint.lsp.dispatch import Stale, Urgency, Worker
from oomlint.lsp.documents import Document
from oomlint.lsp.measuring import Measuring
from oomlint.lsp.options import Options, options
from oomlint.lsp.worker import Refused, Request

if TYPE_CHECKING:
    from oomlint.linter import FileResult

# How long the typing must rest before the text is checked (seconds): keys that come in one burst
# are checked once. What is typed during a check waits for its end anyway.
REST_S = 0.01
# The same for changes on the disk, which come in larger bursts and from two sides.
DISK_REST_S = 0.1
# How long a client may take to say its settings before documents are checked without them.
SETTINGS_LIMIT_S = 2.0
SETTINGS_FILES = ("pyproject.toml", "oomlint.toml", ".oomlint.toml", "setup.py", "setup.cfg")
# Texts of a document whose results are kept: what is undone or typed again is known.
KEPT_RESULTS = 8


@dataclass(frozen=True, slots=True)
class Checked:
    """The diagnostics of one version of a document, and the result that they show."""

    document: Document
    diagnostics: list[types.Diagnostic]
    result: FileResult | None


@dataclass(frozen=True, slots=True)
class Running:
    """A check that is under way."""

    document: Document
    urgency: Urgency
    task: asyncio.Task[Checked | None]


class Server(LanguageServer):
    """A session with one editor."""

    def __init__(self) -> None:
        super().__init__("oomlint", __version__)
        self.documents: dict[str, Document] = {}
        # The documents whose file was there before.
        self.on_disk: set[str] = set()
        self.checked: dict[str, Checked] = {}
        self.running: dict[str, Running] = {}
        self.recent: dict[str, dict[str, FileResult]] = {}
        self.worker = Worker()
        self.measuring = Measuring()
        self.complaints: dict[str, str] = {}
        self.pending: dict[str, asyncio.TimerHandle] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.given = Options()
        self.by_folder: dict[Path, Options] = {}
        self.has_settings = asyncio.Event()
        self.asked_to_stop = False

    def client_can(self, path: str) -> Any:
        """What the client declared at a dotted path of its capabilities, or None."""
        value: Any = self.client_capabilities
        for name in path.split("."):
            value = getattr(value, name, None)
        return value

    @property
    def versioned_edits(self) -> bool:
        return bool(self.client_can("workspace.workspace_edit.document_changes"))

    @property
    def pulls(self) -> bool:
        """Whether the client asks for diagnostics, so that none are published."""
        return self.client_can("text_document.diagnostic") is not None

    @property
    def abilities(self) -> Abilities:
        about = (
            self.client_can("text_document.publish_diagnostics"),
            self.client_can("text_document.diagnostic"),
        )
        tags = [getattr(item, "tag_support", None) for item in about]
        return Abilities(
            related=any(getattr(item, "related_information", None) for item in about),
            tags=frozenset(tag for item in tags if item for tag in item.value_set),
        )

    @property
    def folder(self) -> Path:
        """Where documents without a file are taken to lie."""
        return next(self.folders(), None) or Path(self.workspace.root_path or Path.cwd())

    def folders(self) -> Iterator[Path]:
        """The workspace's folders that lie on this machine."""
        for uri in self.workspace.folders:
            path = uris.to_fs_path(uri)
            if path:
                yield Path(path)

    def options_of(self, path: Path) -> Options:
        """The editor's settings for a file: those of the innermost folder that it lies in."""
        around = [folder for folder in self.by_folder if path.is_relative_to(folder)]
        if around:
            return self.by_folder[max(around, key=lambda folder: len(folder.parts))]
        return self.given

    async def read_settings(self, pushed: object = None) -> None:
        """Asks the client for its settings, folder by folder where it has several."""
        if not self.client_can("workspace.configuration"):
            if pushed is not None:
                self.given = options(pushed, self.folder)
            self.has_settings.set()
            return
        folders = list(dict.fromkeys(self.folders())) or [self.folder]
        items = [
            types.ConfigurationItem(scope_uri=folder.as_uri(), section="oomlint")
            for folder in folders
        ]
        asked = self.workspace_configuration_async(types.ConfigurationParams(items))
        try:
            found = await asyncio.wait_for(asked, SETTINGS_LIMIT_S)
        except Exception:  # whatever the client's reply is, there are settings in files
            found = []
        self.by_folder = {
            folder: options(raw, folder)
            for folder, raw in zip(folders, found, strict=False)
            if raw is not None
        }
        self.has_settings.set()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts work that nobody waits for."""
        task = asyncio.ensure_future(work)
        # The loop itself holds its tasks weakly.
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def schedule(self, uri: str, rest: float, urgency: Urgency) -> None:
        """Has the document checked once nothing has asked for that for `rest` seconds."""
        if self.pulls:
            return
        earlier = self.pending.pop(uri, None)
        if earlier is not None:
            earlier.cancel()
        loop = asyncio.get_running_loop()
        self.pending[uri] = loop.call_later(rest, self.start, uri, urgency)

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

    async def unless_refused(self, request: Awaitable[Any]) -> None:
        """Waits for a reply to a request that a client may refuse."""
        with contextlib.suppress(JsonRpcException):
            await request

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
        if found is not None and self.documents.get(uri) is document:
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri, found.diagnostics, document.version)
            )

    async def latest(self, uri: str) -> Checked | None:
        """What is true of the document now, also if it changes while that is found out."""
        while (document := self.documents.get(uri)) is not None:
            found = await self.check(document, Urgency.ASKED)
            if found is not None and self.documents.get(uri) is document:
                return found
        return None

    async def check(self, document: Document, urgency: Urgency) -> Checked | None:
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

    async def find(self, document: Document, urgency: Urgency) -> Checked | None:
        uri = document.uri

        def is_wanted() -> bool:
            known = self.checked.get(uri)
            return self.documents.get(uri) is document and (
                known is None or known.document is not document
            )

        answer: FileResult | str | Refused | Stale | None
        answer = self.recent.get(uri, {}).get(document.source.text)
        if answer is None:
            answer = await self.ask(document, urgency, is_wanted)
        if isinstance(answer, Stale):
            known = self.checked.get(uri)
            return known if known is not None and known.document is document else None
        found: list[types.Diagnostic] = []
        result = None
        if isinstance(answer, Refused):
            self.complain(uri, answer.reason)
        elif not isinstance(answer, str):
            result = answer
            found = diagnostics(document, answer, self.abilities)
            if answer.problem is None:
                self.complaints.pop(uri, None)
            elif not answer.problem.row:
                self.complain(uri, f"{document.source.path.name} {answer.problem.message}")
        checked = Checked(document, found, result)
        if self.documents.get(uri) is document:
            self.checked[uri] = checked
            if result is not None:
                self.remember(document, result)
        return checked

    def remember(self, document: Document, result: FileResult) -> None:
        kept = self.recent.setdefault(document.uri, {})
        kept.pop(document.source.text, None)
        kept[document.source.text] = result
        while len(kept) > KEPT_RESULTS:
            del kept[next(iter(kept))]

    async def ask(
        self,
        document: Document,
        urgency: Urgency,
        is_wanted: Callable[[], bool] = lambda: True,
        fix: bool = False,
    ) -> FileResult | str | Refused | Stale:
        await self.has_settings.wait()
        source = document.source
        request = Request(source.path, source.text, fix, options=self.options_of(source.path))
        return await self.worker.ask(request, urgency, is_wanted)

    def complain(self, uri: str, reason: str) -> None:
        """Shows why a document has no findings, once and not at every key."""
        if self.complaints.get(uri) != reason:
            self.complaints[uri] = reason
            self.show(reason, types.MessageType.Error)

    def show(self, sentence: str, kind: types.MessageType) -> None:
        self.window_show_message(types.ShowMessageParams(kind, f"oomlint: {sentence}"))

    def refresh_lenses(self) -> None:
        """Tells a client that shows lenses to ask for them again."""
        if self.client_can("workspace.code_lens.refresh_support"):
            self.run(self.unless_refused(self.workspace_code_lens_refresh_async(None)))

    async def fix_all_edit(self, document: Document) -> types.WorkspaceEdit | None:
        """All safe fixes as one edit, or None when there is nothing to change."""
        answer = await self.ask(document, Urgency.ASKED, fix=True)
        if isinstance(answer, Refused):
            self.complain(document.uri, answer.reason)
        if not isinstance(answer, str) or answer == document.source.text:
            return None
        now = self.documents.get(document.uri)
        if now is None or now.source.text != document.source.text:
            return None
        return actions.whole_edit(document, answer, self.versioned_edits)
