"""The language server: keeps the open documents, has them checked, publishes and repairs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from oomlint import __version__
from oomlint.lsp import actions
from oomlint.lsp.diagnostics import diagnostics
from oomlint.lsp.documents import Document, open_document
from oomlint.lsp.worker import Refused, Request, Worker

if TYPE_CHECKING:
    from oomlint.linter import FileResult

# How long the typing must rest before the text is checked (seconds).
REST_S = 0.1
WATCHED = ("**/pyproject.toml", "**/oomlint.toml", "**/.oomlint.toml", "**/*.py")
PYTHON_SUFFIXES = (".py", ".pyi")


@dataclass(frozen=True, slots=True)
class Checked:
    """The diagnostics of one version of a document."""

    document: Document
    diagnostics: list[types.Diagnostic]


class Server(LanguageServer):
    """A session with one editor."""

    def __init__(self) -> None:
        super().__init__("oomlint", __version__)
        self.documents: dict[str, Document] = {}
        self.checked: dict[str, Checked] = {}
        self.worker = Worker()
        self.complaints: dict[str, str] = {}
        self.pending: dict[str, asyncio.TimerHandle] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.disk_changed = False
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
    def folder(self) -> Path:
        """Where documents without a file are taken to lie."""
        return Path(self.workspace.root_path or Path.cwd())

    def schedule(self, uri: str, rest: float) -> None:
        """Has the document checked once nothing has asked for that for `rest` seconds."""
        earlier = self.pending.pop(uri, None)
        if earlier is not None:
            earlier.cancel()
        self.pending[uri] = asyncio.get_running_loop().call_later(rest, self.start, uri)

    def start(self, uri: str) -> None:
        del self.pending[uri]
        task = asyncio.ensure_future(self.publish(uri))
        # The loop itself holds its tasks weakly.
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def recheck(self) -> None:
        """Checks every open document again: what lies on the disk around them has changed."""
        self.checked.clear()
        self.disk_changed = True
        for uri in self.documents:
            # A save comes from the editor and again from whatever watches the files for it.
            self.schedule(uri, REST_S)

    async def publish(self, uri: str) -> None:
        """Publishes the diagnostics of the document as it is now, unless it changes meanwhile."""
        document = self.documents.get(uri)
        if document is None:
            return
        found = await self.check(document)
        if self.documents.get(uri) is document:
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(uri, found, document.version)
            )

    async def check(self, document: Document) -> list[types.Diagnostic]:
        known = self.checked.get(document.uri)
        if known is not None and known.document is document:
            return known.diagnostics
        answer = await self.ask(document)
        found: list[types.Diagnostic] = []
        if isinstance(answer, Refused):
            self.complain(document.uri, answer.reason)
        elif not isinstance(answer, str):
            related = self.client_can("text_document.publish_diagnostics.related_information")
            found = diagnostics(document, answer, bool(related))
            if answer.problem is None:
                self.complaints.pop(document.uri, None)
            elif not answer.problem.row:
                self.complain(document.uri, f"{document.source.path.name} {answer.problem.message}")
        if self.documents.get(document.uri) is document:
            self.checked[document.uri] = Checked(document, found)
        return found

    async def ask(self, document: Document, fix: bool = False) -> FileResult | str | Refused:
        source, disk_changed = document.source, self.disk_changed
        self.disk_changed = False
        return await self.worker.ask(Request(source.path, source.text, fix, disk_changed))

    def complain(self, uri: str, reason: str) -> None:
        """Shows why a document has no findings, once and not at every key."""
        if self.complaints.get(uri) != reason:
            self.complaints[uri] = reason
            self.window_show_message(
                types.ShowMessageParams(types.MessageType.Error, f"oomlint: {reason}")
            )

    async def fix_all_edit(self, document: Document) -> types.WorkspaceEdit | None:
        """All safe fixes as one edit, or None when there is nothing to change."""
        answer = await self.ask(document, fix=True)
        if isinstance(answer, Refused):
            self.complain(document.uri, answer.reason)
        if not isinstance(answer, str) or answer == document.source.text:
            return None
        return actions.whole_edit(document, answer, self.versioned_edits)


def did_open(server: Server, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    document = open_document(item, server.workspace.position_codec, server.folder)
    if item.language_id != "python" and document.source.path.suffix not in PYTHON_SUFFIXES:
        return
    server.documents[item.uri] = document
    server.schedule(item.uri, 0)


def did_change(server: Server, params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    document = server.documents.get(uri)
    if document is None:
        return
    changes = list(params.content_changes)
    server.documents[uri] = document.changed(changes, params.text_document.version)
    server.schedule(uri, REST_S)


def did_save(server: Server, params: types.DidSaveTextDocumentParams) -> None:
    server.recheck()


def did_close(server: Server, params: types.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    if server.documents.pop(uri, None) is not None:
        server.checked.pop(uri, None)
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def did_change_watched_files(server: Server, params: types.DidChangeWatchedFilesParams) -> None:
    server.recheck()


async def code_action(
    server: Server, params: types.CodeActionParams
) -> Sequence[types.CodeAction] | None:
    document = server.documents.get(params.text_document.uri)
    if document is None:
        return None
    only = params.context.only
    offered: list[types.CodeAction] = []
    if actions.wanted(types.CodeActionKind.QuickFix.value, only):
        offered += actions.quick_fixes(
            document,
            await server.check(document),
            params.context.diagnostics,
            params.range,
            server.versioned_edits,
        )
    if actions.wanted(actions.FIX_ALL, only):
        offered += await fix_all_action(server, document)
    return offered


async def fix_all_action(server: Server, document: Document) -> list[types.CodeAction]:
    """The action with its edit, or, for a client that can ask for the edit later, without."""
    action = types.CodeAction(actions.FIX_ALL_TITLE, kind=actions.FIX_ALL)
    resolvable = server.client_can("text_document.code_action.resolve_support.properties") or ()
    if "edit" in resolvable:
        action.data = document.uri
        return [action]
    action.edit = await server.fix_all_edit(document)
    return [action] if action.edit else []


async def resolve_code_action(server: Server, action: types.CodeAction) -> types.CodeAction:
    document = server.documents.get(action.data) if isinstance(action.data, str) else None
    if document is not None:
        action.edit = await server.fix_all_edit(document)
    return action


async def initialized(server: Server, params: types.InitializedParams) -> None:
    """Asks the client to report changes of settings files and of the project's other files."""
    if not server.client_can("workspace.did_change_watched_files.dynamic_registration"):
        return
    watchers = [types.FileSystemWatcher(pattern) for pattern in WATCHED]
    options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
    registration = types.Registration(
        "oomlint-files", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options
    )
    await server.client_register_capability_async(types.RegistrationParams([registration]))


def shutdown(server: Server, params: None) -> None:
    server.asked_to_stop = True
    server.worker.stop()


def build() -> Server:
    server = Server()
    feature = server.feature
    feature(types.INITIALIZED)(initialized)
    feature(types.SHUTDOWN)(shutdown)
    feature(types.TEXT_DOCUMENT_DID_OPEN)(did_open)
    feature(types.TEXT_DOCUMENT_DID_CHANGE)(did_change)
    feature(types.TEXT_DOCUMENT_DID_SAVE)(did_save)
    feature(types.TEXT_DOCUMENT_DID_CLOSE)(did_close)
    feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)(did_change_watched_files)
    kinds = types.CodeActionOptions(
        [types.CodeActionKind.QuickFix, actions.FIX_ALL], resolve_provider=True
    )
    feature(types.TEXT_DOCUMENT_CODE_ACTION, kinds)(code_action)
    feature(types.CODE_ACTION_RESOLVE)(resolve_code_action)
    return server


def serve() -> None:
    """Speaks the protocol over stdin and stdout; ends with 1 if the client leaves unannounced."""
    protocol = sys.stdout.buffer
    # Whatever prints by accident must not get between the messages.
    sys.stdout = sys.stderr
    server = build()
    server.start_io(sys.stdin.buffer, protocol)
    sys.exit(0 if server.asked_to_stop else 1)
