"""pytest-lsp's typed client, set up for the server of the tests."""

from __future__ import annotations

import os
from typing import Any

import pytest
from lsp_client import OOMLINT, PLUGIN
from lsprotocol import types

pytest_lsp = pytest.importorskip("pytest_lsp")


def registering_client() -> Any:
    """pytest-lsp's client, which by itself refuses what its editors would register."""
    client = pytest_lsp.make_test_lsp_client()

    @client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def register(params: types.RegistrationParams) -> None:
        assert params.registrations

    return client


config = pytest_lsp.ClientServerConfig(
    client_factory=registering_client,
    server_command=[str(OOMLINT), "server"],
    server_env={**os.environ, "PYTHONPATH": str(PLUGIN)},
)
