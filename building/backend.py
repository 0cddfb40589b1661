"""setuptools' build backend, which also wants mypy where a compiled build is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compiling import is_wanted
from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

Settings = Mapping[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_wheel(config_settings) + compiler()


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    return build_meta.get_requires_for_build_editable(config_settings) + compiler()


def compiler() -> list[str]:
    return ["mypy>=2.4,<3"] if is_wanted() else []
