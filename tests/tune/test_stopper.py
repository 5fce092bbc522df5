"""Stoppers: when a trial ends, and when everything does."""

from __future__ import annotations

import datetime
import math
import time
from typing import Any

import pytest

from lockstep.tune import stopper as stoppers
from lockstep.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    NoopStopper,
    Stopper,
    TimeoutStopper,
    TrialPlateauStopper,
)


def test_maximum_iteration() -> None:
    stop = MaximumIterationStopper(3)
    assert [stop("a", {"training_iteration": n}) for n in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]
    assert not stop.stop_all()


def test_a_trial_s_plateau() -> None:
    stop = TrialPlateauStopper("loss", std=0.1, num_results=3, grace_period=4)
    values = [1.0, 1.0, 1.0, 1.0]
    assert [stop("a", {"loss": v}) for v in values] == [False, False, False, True]
    assert [stop("b", {"loss": v}) for v in (4, 3, 2, 1, 1)] == [False] * 5
    assert stop("b", {"loss": 1})
    assert not stop("c", {})
    assert not any(stop("d", {"loss": math.nan}) for _ in range(9))
    assert not stop.stop_all()


def test_a_plateau_at_a_threshold_only() -> None:
    stop = TrialPlateauStopper(
        "loss", num_results=2, grace_period=0, metric_threshold=1, mode="min"
    )
    assert not any(stop("a", {"loss": 5.0}) for _ in range(5))
    assert not stop("a", {"loss": 0.5})
    assert stop("a", {"loss": 0.5})


def test_the_experiment_s_plateau() -> None:
    stop = ExperimentPlateauStopper("loss", std=0.01, top=3, patience=2)
    for value in (5.0, 1.0, 1.0):
        assert not stop("a", {"loss": value})
    assert not stop("b", {"loss": 1.0})
    assert not stop.stop_all()
    assert stop("c", {"loss": 9.0})
    assert stop.stop_all()


def test_the_experiment_s_plateau_of_a_maximum() -> None:
    stop = ExperimentPlateauStopper("gain", top=2, mode="max")
    assert not stop("a", {"gain": 1.0})
    assert not stop("a", {"gain": 2.0})
    assert not stop("a", {"gain": 1.0})
    assert stop("a", {"gain": 2.0})


@pytest.mark.parametrize("timeout", [0.05, datetime.timedelta(milliseconds=50)])
def test_a_timeout_counts_from_the_first_question(timeout: Any) -> None:
    stop = TimeoutStopper(timeout)
    time.sleep(0.06)
    assert not stop.stop_all()
    deadline = time.monotonic() + 120
    while not stop.stop_all():
        assert time.monotonic() < deadline
    assert stop("a", {})


def test_functions_and_combinations() -> None:
    function = FunctionStopper(lambda trial_id, result: result["x"] > 3)
    stop = CombinedStopper(function, MaximumIterationStopper(5), NoopStopper())
    assert not stop("a", {"x": 1, "training_iteration": 1})
    assert stop("a", {"x": 4, "training_iteration": 1})
    assert stop("a", {"x": 1, "training_iteration": 5})
    assert not stop.stop_all()
    assert CombinedStopper(ExperimentPlateauStopper("x"), _Always()).stop_all()


def test_every_stopper_of_a_combination_sees_every_result() -> None:
    plateau = TrialPlateauStopper("x", num_results=2, grace_period=0)
    stop = CombinedStopper(FunctionStopper(lambda trial_id, result: True), plateau)
    stop("a", {"x": 1.0})
    assert plateau("a", {"x": 1.0})


class _Always(Stopper):
    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return True

    def stop_all(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: MaximumIterationStopper(0), ValueError, "max_iter=0"),
        (lambda: TimeoutStopper(0), ValueError, "timeout=0"),
        (lambda: TimeoutStopper("1"), TypeError, "timeout='1'"),  # type: ignore[arg-type]
        (lambda: TrialPlateauStopper(""), ValueError, "metric=''"),
        (lambda: TrialPlateauStopper("a", std=0), ValueError, "std=0"),
        (lambda: TrialPlateauStopper("a", metric_threshold=1), ValueError, "mode=None"),
        (lambda: ExperimentPlateauStopper("a", top=1), ValueError, "top=1"),
        (lambda: ExperimentPlateauStopper("a", mode="x"), ValueError, "mode='x'"),
        (lambda: ExperimentPlateauStopper("a", patience=-1), ValueError, "patience=-1"),
        (lambda: FunctionStopper(3), TypeError, "FunctionStopper"),  # type: ignore[arg-type]
        (lambda: FunctionStopper(lambda: True), TypeError, "trial_id, result"),  # type: ignore[arg-type, misc]
        (lambda: CombinedStopper(lambda t, r: True), TypeError, "FunctionStopper"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_rejected_at_once(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_every_name() -> None:
    assert all(hasattr(stoppers, name) for name in stoppers.__all__)
