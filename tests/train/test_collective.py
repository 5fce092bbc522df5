"""``train.collective``: a barrier and a broadcast without a framework, on real workers."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import HangError, MismatchedReportsError
from lockstep.train.collective import barrier, broadcast_from_rank_zero
from tests.integration.runs import failure, fit


def rank() -> int:
    return train.get_context().get_world_rank()


@pytest.mark.parametrize("workers", [0, 3])
def test_every_rank_gets_the_value_of_rank_zero(workers: int) -> None:
    def function() -> None:
        for number in range(3):
            shared = broadcast_from_rank_zero({"of": rank(), "number": number})
            barrier()
            train.report({"of": shared["of"], "number": shared["number"]})

    result = fit(function, workers=workers)
    assert result.metrics_by_rank == [{"of": 0, "number": 2}] * max(workers, 1)


def test_no_rank_passes_a_barrier_before_the_last_one(tmp_path: Path) -> None:
    def function() -> None:
        (tmp_path / f"before_{rank()}").touch()
        barrier()
        train.report({"before": len(os.listdir(tmp_path))})

    result = fit(function, workers=3)
    assert [metrics["before"] for metrics in result.metrics_by_rank] == [3, 3, 3]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (lambda: train.report({}), r"rank 0 called barrier\(\) while rank 1 called report\(\)"),
        (lambda: None, r"rank 0 called barrier\(\) while rank 1 returned"),
        (lambda: broadcast_from_rank_zero(1), r"rank 1 called broadcast_from_rank_zero\(\)"),
    ],
)
def test_ranks_that_do_not_meet_are_an_error(second: Any, why: str) -> None:
    def function() -> None:
        barrier() if rank() == 0 else second()

    error = failure(function)
    assert isinstance(error.__cause__, MismatchedReportsError)
    with pytest.raises(MismatchedReportsError, match=why):
        raise error.__cause__


def test_a_failure_ends_the_ranks_that_wait() -> None:
    def function() -> None:
        if rank() == 1:
            raise ValueError("no")
        barrier()

    assert isinstance(failure(function).__cause__, ValueError)


def test_a_rank_that_never_comes_is_a_hang() -> None:
    def function() -> None:
        if rank() == 1:
            threading.Event().wait()
        barrier()

    error = failure(function, hang_timeout_s=1.0, hang_warning_s=None)
    assert isinstance(error.__cause__, HangError)
    assert "rank 0 at barrier()" in str(error.__cause__)


def test_outside_a_training_function() -> None:
    with pytest.raises(RuntimeError, match=r"barrier\(\) works only inside a training function"):
        barrier()


def test_what_cannot_be_pickled_is_named() -> None:
    def function() -> None:
        broadcast_from_rank_zero(threading.Lock())

    assert isinstance(failure(function, workers=1).__cause__, TypeError)
