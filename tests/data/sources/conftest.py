"""Fixtures for the tests of sources."""

from __future__ import annotations

import pytest


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of lines are cut as if they were large."""
    monkeypatch.setattr("lockstep.data.sources.lines.BLOCK_BYTES", 100)
