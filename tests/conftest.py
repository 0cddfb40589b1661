"""Shared fixtures; leaves out the tests of what is not installed, and says so in the header."""

from __future__ import annotations

import os
from importlib.util import find_spec

from lsp_client import client, session
from shell import plugin, project

__all__ = ["client", "plugin", "project", "session"]

# Tests run on all cores at once: threads of torch would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

OPTIONAL = {"torch": "test_verify*", "pygls": "test_lsp*"}
MISSING = [module for module in OPTIONAL if find_spec(module) is None]

collect_ignore_glob = [OPTIONAL[module] for module in MISSING]


def pytest_report_header() -> list[str]:
    return [f"{module} is not installed: {OPTIONAL[module]} is left out" for module in MISSING]
