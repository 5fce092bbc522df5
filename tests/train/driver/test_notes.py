"""Sentences of the driver about what a run does."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lockstep import train
from lockstep.train import Guard
from lockstep.train.driver.notes import NEVER_ROLLS_BACK
from tests.integration.runs import failure


def test_a_rollback_that_no_failure_allows_is_explained(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def breaks() -> None:
        train.report({"loss": math.nan})

    guard = Guard(action="rollback")
    failure(breaks, workers=1, guard=guard, storage_path=str(tmp_path), max_failures=1)
    assert NEVER_ROLLS_BACK not in capfd.readouterr().err
    failure(breaks, workers=1, guard=guard, storage_path=str(tmp_path))
    assert NEVER_ROLLS_BACK in capfd.readouterr().err
