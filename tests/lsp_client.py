"""A language client of the tests: speaks JSON-RPC with the real server process over its pipes."""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pytest

PLUGIN = Path(__file__).parent / "plugin"
OOMLINT = Path(sys.executable).with_name("oomlint")
PATIENCE_S = 60.0
START = {"line": 0, "character": 0}
CAPABILITIES: dict[str, Any] = {
    "workspace": {"workspaceEdit": {"documentChanges": True}},
    "textDocument": {
        "publishDiagnostics": {"relatedInformation": True, "dataSupport": True},
        "codeAction": {"dataSupport": True, "resolveSupport": {"properties": ["edit"]}},
    },
}


class Client:
    """One session; every message of the server is kept in order of arrival."""

    def __init__(
        self,
        folder: Path,
        capabilities: dict[str, Any] | None = None,
        *,
        options: object = None,
        folders: list[Path] | None = None,
        replies: dict[str, Callable[[Any], object]] | None = None,
        port: int = 0,
        plugin: bool = True,
    ) -> None:
        """`replies` answer the server's own requests, by method; others are answered by null.

        One that raises NotImplementedError is answered by an error.
        """
        self.folder = folder
        self.replies = replies or {}
        where = ["--tcp", "--port", str(port)] if port else []
        self.process = subprocess.Popen(
            [str(OOMLINT), "server", *where],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(PLUGIN)} if plugin else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.input: IO[bytes] | None = self.process.stdout
        self.output: IO[bytes] | None = self.process.stdin
        if port:
            self.connection = connect(port)
            self.input = self.connection.makefile("rb")
            self.output = self.connection.makefile("wb")
        self.inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.unread: list[dict[str, Any]] = []
        self.errors: list[bytes] = []
        self.opened: set[str] = set()
        self.number = 0
        self.sending = threading.Lock()
        threading.Thread(target=self.listen, daemon=True).start()
        threading.Thread(target=self.drain, daemon=True).start()
        hello = {
            "processId": os.getpid(),
            "rootUri": folder.as_uri(),
            "capabilities": CAPABILITIES if capabilities is None else capabilities,
            "initializationOptions": options,
        }
        if folders is not None:
            hello["workspaceFolders"] = [{"uri": f.as_uri(), "name": f.name} for f in folders]
        self.hello = self.ask("initialize", hello)
        self.tell("initialized", {})

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def listen(self) -> None:
        stream = self.input
        assert stream is not None
        size = 0
        while line := stream.readline():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
            elif not line.strip():
                message = json.loads(stream.read(size))
                if "method" in message and "id" in message:
                    self.send({"id": message["id"], **self.reply(message)})
                self.inbox.put(message)

    def reply(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = self.replies.get(message["method"], lambda params: None)
        try:
            return {"result": answer(message.get("params"))}
        except NotImplementedError as error:
            return {"error": {"code": -32803, "message": str(error)}}

    def drain(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.output is not None
        with self.sending:
            self.output.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            self.output.flush()

    def tell(self, method: str, params: dict[str, Any]) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: str, params: dict[str, Any] | None) -> Any:
        self.number += 1
        number = self.number
        self.send({"id": number, "method": method, "params": params})
        reply = self.wait(lambda message: message.get("id") == number and "method" not in message)
        if "error" in reply:
            raise AssertionError(f"{method}: {reply['error']}")
        return reply["result"]

    def wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first message that is `wanted`, among those not read yet; others stay unread."""
        for index, message in enumerate(self.unread):
            if wanted(message):
                return self.unread.pop(index)
        while True:
            try:
                message = self.inbox.get(timeout=PATIENCE_S)
            except queue.Empty:
                said = b"".join(self.errors).decode()
                raise AssertionError(
                    f"no such message came; unread: {self.unread}\n{said}"
                ) from None
            if wanted(message):
                return message
            self.unread.append(message)

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str, version: int = 1) -> list[dict[str, Any]]:
        """Opens a document and returns its diagnostics."""
        item = {"uri": self.uri(name), "languageId": "python", "version": version, "text": text}
        self.opened.add(item["uri"])
        self.tell("textDocument/didOpen", {"textDocument": item})
        return self.published(name, version)

    def move(self, folder: Path) -> None:
        """Closes all documents; names are those of files in `folder` from now on."""
        for uri in self.opened:
            self.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
        self.opened.clear()
        self.ask("textDocument/hover", {"textDocument": {"uri": ""}, "position": START})
        self.unread.clear()
        self.errors.clear()
        self.folder = folder

    def change(self, name: str, version: int, *changes: dict[str, Any]) -> None:
        identifier = {"uri": self.uri(name), "version": version}
        self.tell(
            "textDocument/didChange", {"textDocument": identifier, "contentChanges": [*changes]}
        )

    def published(self, name: str, version: int | None) -> list[dict[str, Any]]:
        """The diagnostics that the server publishes for this version."""
        params = self.wait(
            lambda message: (
                message.get("method") == "textDocument/publishDiagnostics"
                and message["params"]["uri"] == self.uri(name)
                and message["params"].get("version") == version
            )
        )["params"]
        found: list[dict[str, Any]] = params["diagnostics"]
        return found

    def actions(
        self,
        name: str,
        diagnostics: list[dict[str, Any]],
        only: list[str] | None = None,
        place: dict[str, Any] | None = None,
    ) -> list[dict[str, Any]]:
        nowhere = {"start": {"line": 99, "character": 0}, "end": {"line": 99, "character": 0}}
        context: dict[str, Any] = {"diagnostics": diagnostics}
        if only is not None:
            context["only"] = only
        found: list[dict[str, Any]] = self.ask(
            "textDocument/codeAction",
            {
                "textDocument": {"uri": self.uri(name)},
                "range": place or nowhere,
                "context": context,
            },
        )
        return found

    def hang_up(self) -> None:
        """Breaks the connection of a session over TCP."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def leave(self) -> int:
        """Ends the session as the protocol says; the exit status of the server."""
        assert self.ask("shutdown", None) is None
        self.send({"method": "exit"})
        return self.process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Client]]:
    """The client that most tests share: a server needs a second to start."""
    clients: list[Client] = []
    yield clients
    for client in clients:
        client.process.kill()


@pytest.fixture
def client(session: list[Client], tmp_path: Path) -> Client:
    """A client without open documents, for the files of this test's folder."""
    if not session or session[-1].process.poll() is not None:
        session.append(Client(tmp_path))
    session[-1].move(tmp_path)
    return session[-1]


def connect(port: int) -> socket.socket:
    """A connection with the server, once it listens."""
    latest = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            if time.monotonic() > latest:
                raise
            time.sleep(0.05)


def place(line: int, start: int, end: int) -> dict[str, Any]:
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line, "character": end},
    }


def apply_edits(text: str, edits: list[dict[str, Any]]) -> str:
    """Applies text edits whose positions count UTF-16 units, as an editor does."""
    units = text.encode("utf-16-le")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode("utf-16-le")))

    def place(position: dict[str, int]) -> int:
        return starts[position["line"]] + 2 * position["character"]

    ordered = sorted(edits, key=lambda edit: place(edit["range"]["start"]), reverse=True)
    for edit in ordered:
        start, end = place(edit["range"]["start"]), place(edit["range"]["end"])
        units = units[:start] + edit["newText"].encode("utf-16-le") + units[end:]
    return units.decode("utf-16-le")
