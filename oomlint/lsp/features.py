"""What the server does with each message of the protocol, and how it is reached."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from lsprotocol import types

from oomlint.errors import OomlintError
from oomlint.lsp import actions, measuring, sync
from oomlint.lsp.diagnostics import SOURCE
from oomlint.lsp.hover import code_at, findings_at, hover_of, unknown_rule
from oomlint.lsp.lenses import MEASURE
from oomlint.lsp.server import Server

HOVER_LIMIT_S = 0.25
APPLY_AUTOFIX = "oomlint.applyAutofix"


async def diagnostic(
    server: Server, params: types.DocumentDiagnosticParams
) -> types.DocumentDiagnosticReport:
    """What is true of a document; of cells that is published, for a key changes others, too."""
    uri = params.text_document.uri
    checked = None if uri in server.notebooks else await server.latest(uri)
    found = checked.at(uri) if checked else []
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
    text = server.document_of(uri)
    document = text.part(uri) if text else None
    if document is None:
        return None
    pages = await server.worker.rule_pages()
    named = code_at(document, params.position)
    if named is not None:
        code, place = named
        page = pages.get(code) or unknown_rule(code)
        return hover_of(page, place) if page else None
    checked = await server.latest(uri)
    found = findings_at(checked.at(uri) if checked else [], params.position)
    texts = dict.fromkeys(pages[str(item.code)] for item in found if str(item.code) in pages)
    return hover_of("\n\n---\n\n".join(texts), found[0].range) if texts else None


async def code_action(
    server: Server, params: types.CodeActionParams
) -> Sequence[types.CodeAction] | None:
    uri = params.text_document.uri
    if server.document_of(uri) is None:
        return None
    only = params.context.only
    offered: list[types.CodeAction] = []
    if actions.wanted(types.CodeActionKind.QuickFix.value, only):
        checked = await server.latest(uri)
        if checked is not None:
            offered += actions.quick_fixes(
                checked.document,
                uri,
                checked.at(uri),
                params.context.diagnostics,
                params.range,
                server.versioned_edits,
            )
        if not server.client_can("text_document.code_lens"):
            line = params.range.start.line
            offered += measuring.as_actions(await measuring.lenses_of(server, uri) or (), line)
    kind = actions.FIX_ALL_CELLS if uri in server.notebooks else actions.FIX_ALL
    if actions.wanted(kind, only):
        offered += await fix_all_action(server, uri, kind)
    return offered


async def fix_all_action(server: Server, uri: str, kind: str) -> list[types.CodeAction]:
    """The action with its edit, or, for a client that can ask for the edit later, without."""
    document = server.document_of(uri)
    if document is None:
        return []
    action = types.CodeAction(actions.FIX_ALL_TITLE, kind=kind)
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
    document = server.document_of(wish.uri) if wish else None
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
    feature(types.INITIALIZE)(sync.initialize)
    feature(types.INITIALIZED)(sync.initialized)
    feature(types.SHUTDOWN)(shutdown)
    feature(types.TEXT_DOCUMENT_DID_OPEN)(sync.did_open)
    feature(types.TEXT_DOCUMENT_DID_CHANGE)(sync.did_change)
    feature(types.TEXT_DOCUMENT_DID_SAVE)(sync.did_save)
    feature(types.TEXT_DOCUMENT_DID_CLOSE)(sync.did_close)
    feature(types.NOTEBOOK_DOCUMENT_DID_OPEN)(sync.did_open_notebook)
    feature(types.NOTEBOOK_DOCUMENT_DID_CHANGE)(sync.did_change_notebook)
    feature(types.NOTEBOOK_DOCUMENT_DID_CLOSE)(sync.did_close_notebook)
    feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)(sync.did_change_watched_files)
    feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION)(sync.did_change_configuration)
    feature(types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS)(sync.did_change_workspace_folders)
    pulled = types.DiagnosticOptions(
        inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
    )
    feature(types.TEXT_DOCUMENT_DIAGNOSTIC, pulled)(diagnostic)
    feature(types.TEXT_DOCUMENT_HOVER)(hover)
    kinds = types.CodeActionOptions(
        [types.CodeActionKind.QuickFix, actions.FIX_ALL, actions.FIX_ALL_CELLS],
        resolve_provider=True,
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
