"""Warm servers for the tests of this folder; none of them outlives its test, or its module."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.warm.warm_runs import Warm


@pytest.fixture
def warm(tmp_path: Path) -> Iterator[Warm]:
    """A runtime directory without a server."""
    server = Warm(tmp_path / "runtime")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def running() -> Iterator[Warm]:
    """A server that listens, for all tests of a module."""
    directory = Path(tempfile.mkdtemp(prefix="warm-"))
    server = Warm(directory)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory)
