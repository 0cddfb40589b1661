"""The server before pytest-lsp's client: replies of the right types, within what real editors can.

pytest-lsp knows the capabilities of editors, and warns of what a server sends in spite of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from typed_client import config, pytest_lsp

TEXT = "kept = 0\nfor value in range(9):\n    kept += value  # noqa: OOM101\n"
EDITORS = ("visual_studio_code", "neovim", "emacs")
pytestmark = pytest.mark.filterwarnings("error::pytest_lsp.LspSpecificationWarning")


@pytest_lsp.fixture(config=config, params=EDITORS)
async def editor(
    lsp_client: pytest_lsp.LanguageClient, request: pytest.FixtureRequest, tmp_path: Path
) -> Any:
    capabilities = pytest_lsp.client_capabilities(request.param)
    root = types.WorkspaceFolder(tmp_path.as_uri(), "project")
    await lsp_client.initialize_session(
        types.InitializeParams(capabilities, root_uri=root.uri, workspace_folders=[root])
    )
    yield
    await lsp_client.shutdown_session()


async def diagnostics_of(editor: Any, uri: str) -> list[types.Diagnostic]:
    """What is published or, where the editor asks for diagnostics, replied."""
    if editor.capabilities.text_document.diagnostic is None:
        await editor.wait_for_notification(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        found: list[types.Diagnostic] = editor.diagnostics[uri]
        return found
    document = types.TextDocumentIdentifier(uri)
    report = await editor.text_document_diagnostic_async(types.DocumentDiagnosticParams(document))
    return list(report.items)


@pytest.mark.asyncio
async def test_a_session_of_an_editor(editor: Any, tmp_path: Path) -> None:
    uri = (tmp_path / "a.py").as_uri()
    editor.text_document_did_open(
        types.DidOpenTextDocumentParams(types.TextDocumentItem(uri, "python", 1, TEXT))
    )
    found, unused = await diagnostics_of(editor, uri)
    assert (found.code, found.severity) == ("TST001", types.DiagnosticSeverity.Error)
    assert unused.code == "OOM001"

    document = types.TextDocumentIdentifier(uri)
    fix, ignore = await editor.text_document_code_action_async(
        types.CodeActionParams(
            document,
            found.range,
            types.CodeActionContext([found], [types.CodeActionKind.QuickFix]),
        )
    )
    assert fix.is_preferred and not ignore.is_preferred
    (change,) = fix.edit.document_changes or [fix.edit]
    (edit,) = change.edits if isinstance(change, types.TextDocumentEdit) else change.changes[uri]
    assert edit.new_text == ".detach()"

    whole = types.CodeActionContext([], ["source.fixAll"])
    (action,) = await editor.text_document_code_action_async(
        types.CodeActionParams(document, found.range, whole)
    )
    if action.edit is None:
        action = await editor.code_action_resolve_async(action)
    assert action.edit is not None

    shown = await editor.text_document_hover_async(
        types.HoverParams(document, types.Position(2, 29))
    )
    assert shown.contents.value.startswith("# eval-without-no-grad (OOM101)")
