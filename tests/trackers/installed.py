"""Which of the trackers' libraries are installed, checked without importing them."""

from __future__ import annotations

import importlib.util

import pytest

__all__ = ["need"]


def need(*packages: str) -> None:
    """Skip the module that calls this unless all of them are installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed", allow_module_level=True)
