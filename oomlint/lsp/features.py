"""What the server does with each message of the protocol, and how it is reached."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from oomlint.errors import OomlintError
from oomlint.lsp import actions, measuring
from oomlint.lsp.diagnostics import SOURCE
from oomlint.lsp.dispatch import Urgency
from oomlint.lsp.documents import document_path, open_document
from oomlint.lsp.hover import code_at, findings_at, hover_of, unknown_rule
from oomlint.lsp.lenses import MEASURE
from oomlint.lsp.options import options
from oomlint.lsp.server import REST_S, SETTINGS_FILES, Server

HOVER_LIMIT_S = 0.25
APPLY_AUTOFIX = "oomlint.applyAutofix"
PYTHON_SUFFIXES = (".py", ".pyi")
# Settings, modules, and what says which torch a project wants.
WATCHED = (
    "**/pyproject.toml",
    "**/oomlint.toml",
    "**/.oomlint.toml",
    "**/*.py",
    "**/setup.cfg",
    "**/requirements.txt",
)


def initialize(server: Server, params: types.InitializeParams) -> None:
    server.given = options(params.initialization_options, server.folder)


async def initialized(server: Server, params: types.InitializedParams) -> None:
    """Starts the worker, and asks the client for its settings and for reports of changed files."""
    server.worker.start()
    server.run(server.read_settings())
    registrations = []
    if server.client_can("workspace.did_change_watched_files.dynamic_registration"):
        watchers = [types.FileSystemWatcher(pattern) for pattern in WATCHED]
        registrations.append(
            types.Registration(
                "oomlint-files",
                types.WORKSPACE_DID_CHANGE_WATCHED_FILES,
                types.DidChangeWatchedFilesRegistrationOptions(watchers),
            )
        )
    if server.client_can("workspace.did_change_configuration.dynamic_registration"):
        registrations.append(
            types.Registration(
                "oomlint-settings",
                types.WORKSPACE_DID_CHANGE_CONFIGURATION,
                types.DidChangeConfigurationRegistrationOptions("oomlint"),
            )
        )
    if registrations:
        # A client that refuses what it offered still saves files and asks for diagnostics.
        with contextlib.suppress(JsonRpcException):
            await server.client_register_capability_async(types.RegistrationParams(registrations))


def did_open(server: Server, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    document = open_document(item, server.workspace.position_codec, server.folder)
    if item.language_id != "python" and document.source.path.suffix not in PYTHON_SUFFIXES:
        return
    server.documents[item.uri] = document
    if document.source.path.is_file():
        server.on_disk.add(item.uri)
    server.schedule(item.uri, 0, Urgency.TYPED)


def did_change(server: Server, params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    document = server.documents.get(uri)
    if document is None:
        return
    changes = list(params.content_changes)
    server.documents[uri] = document.changed(changes, params.text_document.version)
    server.schedule(uri, REST_S, Urgency.TYPED)


def did_save(server: Server, params: types.DidSaveTextDocumentParams) -> None:
    uri = params.text_document.uri
    if uri not in server.on_disk:
        # A new file can change what any import means.
        if uri in server.documents:
            server.on_disk.add(uri)
        server.recheck()
        return
    server.recheck([document_path(uri, server.folder)])


def did_close(server: Server, params: types.DidCloseTextDocumentParams) -> None:
    uri = params.text_document.uri
    server.on_disk.discard(uri)
    if server.documents.pop(uri, None) is None:
        return
    server.checked.pop(uri, None)
    server.recent.pop(uri, None)
    server.complaints.pop(uri, None)
    if not server.pulls:
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def did_change_watched_files(server: Server, params: types.DidChangeWatchedFilesParams) -> None:
    paths = [document_path(change.uri, server.folder) for change in params.changes]
    only_contents = all(change.type == types.FileChangeType.Changed for change in params.changes)
    if only_contents and not any(path.name in SETTINGS_FILES for path in paths):
        server.recheck(paths)
    else:
        server.recheck()


async def did_change_configuration(
    server: Server, params: types.DidChangeConfigurationParams
) -> None:
    await server.read_settings(params.settings)
    server.recheck()


async def did_change_workspace_folders(
    server: Server, params: types.DidChangeWorkspaceFoldersParams
) -> None:
    await server.read_settings()
    server.recheck()


async def diagnostic(
    server: Server, params: types.DocumentDiagnosticParams
) -> types.DocumentDiagnosticReport:
    checked = await server.latest(params.text_document.uri)
    found = checked.diagnostics if checked else []
    known = hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()
    if params.previous_result_id == known:
        return types.RelatedUnchangedDocumentDiagnosticReport(result_id=known)
    return types.RelatedFullDocumentDiagnosticReport(items=found, result_id=known)


async def hover(server: Server, params: types.HoverParams) -> types.Hover | None:
    """Nothing where the answer would come late: the pointer has moved on by then."""
    try:
        return await asyncio.wait_for(hover_text(server, params), HOVER_LIMIT_S)
    except asyncio.TimeoutError:
        return None


async def hover_text(server: Server, params: types.HoverParams) -> types.Hover | None:
    uri = params.text_document.uri
    document = server.documents.get(uri)
    if document is None:
        return None
    pages = await server.worker.rule_pages()
    named = code_at(document, params.position)
    if named is not None:
        code, place = named
        text = pages.get(code) or unknown_rule(code)
        return hover_of(text, place) if text else None
    checked = await server.latest(uri)
    found = findings_at(checked.diagnostics if checked else [], params.position)
    texts = dict.fromkeys(pages[str(item.code)] for item in found if str(item.code) in pages)
    return hover_of("\n\n---\n\n".join(texts), found[0].range) if texts else None


async def code_action(
    server: Server, params: types.CodeActionParams
) -> Sequence[types.CodeAction] | None:
    uri = params.text_document.uri
    if uri not in server.documents:
        return None
    only = params.context.only
    offered: list[types.CodeAction] = []
    if actions.wanted(types.CodeActionKind.QuickFix.value, only):
        checked = await server.latest(uri)
        if checked is not None:
            offered += actions.quick_fixes(
                checked.document,
                checked.diagnostics,
                params.context.diagnostics,
                params.range,
                server.versioned_edits,
            )
        if not server.client_can("text_document.code_lens"):
            line = params.range.start.line
            offered += measuring.as_actions(await measuring.lenses_of(server, uri) or (), line)
    if actions.wanted(actions.FIX_ALL, only):
        offered += await fix_all_action(server, uri)
    return offered


async def fix_all_action(server: Server, uri: str) -> list[types.CodeAction]:
    """The action with its edit, or, for a client that can ask for the edit later, without."""
    document = server.documents.get(uri)
    if document is None:
        return []
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


async def code_lens(
    server: Server, params: types.CodeLensParams
) -> Sequence[types.CodeLens] | None:
    return await measuring.lenses_of(server, params.text_document.uri)


def measure(server: Server, *arguments: Any) -> None:
    """Replies at once: some clients wait for the reply, and can ask nobody meanwhile."""
    server.run(measuring.measure(server, list(arguments)))


async def apply_autofix(server: Server, *arguments: Any) -> None:
    """All safe fixes, as an edit that the client is asked to apply."""
    wish = measuring.wish_of(list(arguments))
    document = server.documents.get(wish.uri) if wish else None
    edit = await server.fix_all_edit(document) if document else None
    if edit is not None:
        params = types.ApplyWorkspaceEditParams(edit, actions.FIX_ALL_TITLE)
        server.run(server.unless_refused(server.workspace_apply_edit_async(params)))


def shutdown(server: Server, params: None) -> None:
    server.asked_to_stop = True
    server.measuring.cancel()
    server.worker.stop()


def build() -> Server:
    server = Server()
    feature = server.feature
    feature(types.INITIALIZE)(initialize)
    feature(types.INITIALIZED)(initialized)
    feature(types.SHUTDOWN)(shutdown)
    feature(types.TEXT_DOCUMENT_DID_OPEN)(did_open)
    feature(types.TEXT_DOCUMENT_DID_CHANGE)(did_change)
    feature(types.TEXT_DOCUMENT_DID_SAVE)(did_save)
    feature(types.TEXT_DOCUMENT_DID_CLOSE)(did_close)
    feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)(did_change_watched_files)
    feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(did_change_configuration)
    feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(did_change_workspace_folders)
    pulled = types.DiagnosticOptions(
        inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
    )
    feature(types.TEXT_DOCUMENT_DIAGNOSTIC, pulled)(diagnostic)
    feature(types.TEXT_DOCUMENT_HOVER)(hover)
    kinds = types.CodeActionOptions(
        [types.CodeActionKind.QuickFix, actions.FIX_ALL], resolve_provider=True
    )
    feature(types.TEXT_DOCUMENT_CODE_ACTION, kinds)(code_action)
    feature(types.CODE_ACTION_RESOLVE)(resolve_code_action)
    feature(types.TEXT_DOCUMENT_CODE_LENS)(code_lens)
    server.command(MEASURE)(measure)
    server.command(APPLY_AUTOFIX)(apply_autofix)
    return server


def serve() -> None:
    """Speaks the protocol over stdin and stdout; ends with 1 if the client leaves unannounced."""
    protocol = sys.stdout.buffer
    # Whatever prints by accident must not get between the messages.
    sys.stdout = sys.stderr
    server = build()
    server.start_io(sys.stdin.buffer, protocol)
    leave(server)


def leave(server: Server) -> NoReturn:
    """Ends the server after its session; what a session that just broke off has started, too."""
    server.measuring.cancel()
    sys.exit(0 if server.asked_to_stop else 1)


def serve_tcp(host: str, port: int) -> None:
    """Waits for one client at a port and speaks the protocol with it. Raises OomlintError."""
    # pygls tells there which address it has got.
    log = logging.getLogger("pygls.server")
    log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    server = build()
    try:
        server.start_tcp(host, port)
    except OSError as error:
        raise OomlintError(f"cannot listen at {host}:{port}: {error.strerror}") from None
    leave(server)
