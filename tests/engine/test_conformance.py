"""Every engine passes the same suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockstep.engine import Engine
from lockstep.engine.inprocess import InProcessEngine
from lockstep.engine.local import LocalEngine
from lockstep.testing import EngineConformance

local = LocalEngine()  # its fork server serves all tests of this module


@pytest.fixture(scope="module", autouse=True)
def _close_local() -> Iterator[None]:
    yield
    local.close()


class TestLocalEngine(EngineConformance):
    @pytest.fixture
    def engine(self) -> Engine:
        return local


class TestInProcessEngine(EngineConformance):
    max_size = 1
    own_processes = False

    @pytest.fixture
    def engine(self) -> Engine:
        return InProcessEngine()
