"""What the client tells: its start, and how documents, files and settings come, change and go."""

from __future__ import annotations

import contextlib

from lsprotocol import types
from pygls.exceptions import JsonRpcException

from oomlint.lsp.dispatch import Urgency
from oomlint.lsp.documents import Document, document_path, open_document
from oomlint.lsp.notebooks import NotebookDocument, changed, gone, open_notebook
from oomlint.lsp.options import options
from oomlint.lsp.server import SETTINGS_FILES, Server

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
    if not isinstance(document, Document):
        return
    changes = list(params.content_changes)
    server.documents[uri] = document.changed(changes, params.text_document.version)
    server.typed(uri)


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
    if server.forget(uri) is not None and not server.pulls:
        server.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def did_open_notebook(server: Server, params: types.DidOpenNotebookDocumentParams) -> None:
    keep_notebook(server, open_notebook(params, server.workspace.position_codec, server.folder))


def did_change_notebook(server: Server, params: types.DidChangeNotebookDocumentParams) -> None:
    notebook = server.documents.get(params.notebook_document.uri)
    if isinstance(notebook, NotebookDocument):
        after = changed(notebook, params.change, params.notebook_document.version)
        keep_notebook(server, after)
        server.withdraw(gone(notebook, after))


def keep_notebook(server: Server, notebook: NotebookDocument) -> None:
    server.documents[notebook.uri] = notebook
    server.notebooks |= {part.uri: notebook.uri for part in notebook.parts}
    server.typed(notebook.uri)


def did_close_notebook(server: Server, params: types.DidCloseNotebookDocumentParams) -> None:
    notebook = server.forget(params.notebook_document.uri)
    if notebook is not None:
        server.withdraw([part.uri for part in notebook.parts])


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
