"""What a session knows of its client: its abilities, folders and settings; ways to tell it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from oomlint import __version__
from oomlint.lsp.diagnostics import Abilities
from oomlint.lsp.options import Options, options

# How long a client may take to say its settings before documents are checked without them.
SETTINGS_LIMIT_S = 2.0


class Session(LanguageServer):
    """The client's side of a session."""

    def __init__(self) -> None:
        python = [types.NotebookCellLanguage("python")]
        super().__init__(
            "oomlint",
            __version__,
            notebook_document_sync=types.NotebookDocumentSyncOptions(
                [types.NotebookDocumentFilterWithNotebook("*", python)], save=False
            ),
        )
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

    async def unless_refused(self, request: Awaitable[Any]) -> None:
        """Waits for a reply to a request that a client may refuse."""
        with contextlib.suppress(JsonRpcException):
            await request

    def show(self, sentence: str, kind: types.MessageType) -> None:
        self.window_show_message(types.ShowMessageParams(kind, f"oomlint: {sentence}"))

    def refresh_lenses(self) -> None:
        """Tells a client that shows lenses to ask for them again."""
        if self.client_can("workspace.code_lens.refresh_support"):
            self.run(self.unless_refused(self.workspace_code_lens_refresh_async(None)))
