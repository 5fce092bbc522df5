"""A real run has exactly the faults of its fault plan."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import WorkerDiedError
from lockstep.testing import FaultPlan, InjectedError
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.function.serialize import dump
from tests.integration.runs import hang_when

EPOCHS = 4


class OwnError(Exception):
    """Its ``args`` are not the arguments of ``__init__``."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}: {detail}")
        self.code = code


def train_func() -> None:
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    for epoch in range(start, EPOCHS):
        train.report({"epoch": epoch}, checkpoint=Checkpoint.from_dict({"epoch": epoch}))


def fit(
    plan: FaultPlan,
    *,
    function: Callable[[], None] = train_func,
    workers: int = 2,
    max_failures: int = 0,
) -> Result:
    return DataParallelTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures)),
        fault_plan=plan,
    ).fit()


def failure(plan: FaultPlan, **options: Any) -> WorkerGroupError:
    with pytest.raises(WorkerGroupError) as raised:
        fit(plan, **options)
    return raised.value


def rows(result: Result) -> list[tuple[int, int]]:
    return [tuple(row) for row in result.metrics_dataframe[["attempt", "epoch"]].values.tolist()]


# ---------------------------------------------------------------------------------------- the plan


def test_the_repr_is_the_sentence() -> None:
    plan = (
        FaultPlan()
        .kill(rank=1, at_report=3)
        .exit(rank=0, at_report=1, code=7, attempt=2)
        .raise_in(rank=0, at_report=5, error=ValueError("x"))
        .raise_in(rank=0, at_report=6, error=OSError, attempt=None)
        .hang(rank=2, at_report=1)
        .slow(rank=2, at_report=2, seconds=0.5)
        .terminate(rank=0, at_report=9)
    )
    text = repr(plan)
    assert text == (
        "FaultPlan().kill(rank=1, at_report=3).exit(rank=0, at_report=1, code=7, attempt=2)"
        ".raise_in(rank=0, at_report=5, error=ValueError('x'))"
        ".raise_in(rank=0, at_report=6, error=OSError, attempt=None)"
        ".hang(rank=2, at_report=1).slow(rank=2, at_report=2, seconds=0.5)"
        ".terminate(rank=0, at_report=9)"
    )
    assert repr(eval(text)) == text


def test_a_plan_is_frozen_and_each_method_gives_a_new_one() -> None:
    empty = FaultPlan()
    plan = empty.kill(rank=0, at_report=1)
    assert repr(empty) == "FaultPlan()"
    assert plan == FaultPlan().kill(rank=0, at_report=1)
    assert plan != empty
    assert len({plan, FaultPlan().kill(rank=0, at_report=1), empty}) == 2
    with pytest.raises(FrozenInstanceError):
        plan._faults = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda p: p.kill(rank=-1, at_report=1), ValueError, r"rank=-1\): must be 0 or more"),
        (lambda p: p.kill(rank=1.0, at_report=1), TypeError, r"rank=1\.0\): expected an integer"),
        (lambda p: p.hang(rank=True, at_report=1), TypeError, "rank=True"),
        (lambda p: p.terminate(rank=0, at_report=0), ValueError, "at_report=0.*1 or more"),
        (lambda p: p.kill(rank=0, at_report="3"), TypeError, "at_report='3'"),
        (lambda p: p.kill(rank=0, at_report=1, attempt=0), ValueError, "None means every attempt"),
        (lambda p: p.exit(rank=0, at_report=1, code=256), ValueError, "code=256.*255 or less"),
        (lambda p: p.exit(rank=0, at_report=1, code=-1), ValueError, "code=-1"),
        (lambda p: p.slow(rank=0, at_report=1, seconds=-1), ValueError, "seconds=-1"),
        (lambda p: p.slow(rank=0, at_report=1, seconds=float("nan")), ValueError, "seconds=nan"),
        (lambda p: p.slow(rank=0, at_report=1, seconds="1"), TypeError, "seconds='1'"),
        (lambda p: p.raise_in(rank=0, at_report=1, error="x"), TypeError, "such as ValueError"),
        (lambda p: p.raise_in(rank=0, at_report=1, error=int), TypeError, "expected an exception"),
        (lambda p: p.random(0, ranks=0, reports=1), ValueError, "ranks=0"),
        (lambda p: p.random(0, ranks=1, reports=1, kinds=["hang"]), ValueError, "kinds="),
        (lambda p: p.random(0, ranks=1, reports=1, kinds=()), ValueError, "kinds="),
    ],
)
def test_wrong_arguments_are_named(
    make: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(FaultPlan())


def test_a_fault_is_due_at_its_place_only() -> None:
    plan = FaultPlan().raise_in(rank=1, at_report=3, error=OwnError(1, detail="here"))
    for place in [(0, 3, 1), (1, 2, 1), (1, 4, 1), (1, 3, 2)]:
        plan(*place)
    with pytest.raises(OwnError, match="code 1: here"):
        plan(1, 3, 1)


def test_attempt_none_is_every_attempt() -> None:
    plan = FaultPlan().raise_in(rank=0, at_report=1, attempt=None)
    for attempt in (1, 2, 7):
        with pytest.raises(InjectedError):
            plan(0, 1, attempt)


def test_an_error_of_a_test_module_travels() -> None:
    error = OwnError(3, detail="kept")
    error.__notes__ = ["a note"]
    for kind in (error, OwnError, UnicodeDecodeError("utf-8", b"x", 0, 1, "why")):
        plan = FaultPlan().raise_in(rank=0, at_report=2, error=kind)
        again = pickle.loads(dump(plan, "fault_plan"))
        assert repr(again) == repr(plan)
    plan = pickle.loads(dump(FaultPlan().raise_in(rank=0, at_report=1, error=error), "plan"))
    with pytest.raises(OwnError, match="code 3: kept") as raised:
        plan(0, 1, 1)
    assert raised.value.code == 3
    assert raised.value.__notes__ == ["a note"]


@pytest.mark.parametrize("kind", ["kill", "exit", "terminate"])
def test_the_process_that_made_the_plan_is_not_ended(kind: str) -> None:
    plan = getattr(FaultPlan(), kind)(rank=0, at_report=2)
    error = failure(plan, workers=0)
    assert type(error.__cause__) is RuntimeError
    assert f".{kind}(rank=0, at_report=2" in str(error.__cause__)
    assert "use raise_in" in str(error.__cause__)


# ----------------------------------------------------------------------------------------- the run


def test_a_kill_is_survived_from_the_checkpoint() -> None:
    result = fit(FaultPlan().kill(rank=1, at_report=3), max_failures=1)
    assert rows(result) == [(1, 0), (1, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(
    ("plan", "exitcode"),
    [
        (FaultPlan().kill(rank=1, at_report=2), -signal.SIGKILL),
        (FaultPlan().exit(rank=1, at_report=2, code=7), 7),
        (FaultPlan().exit(rank=1, at_report=2, code=0), 0),
    ],
    ids=repr,
)
def test_a_death_has_its_exit_code(plan: FaultPlan, exitcode: int) -> None:
    error = failure(plan)
    assert isinstance(error.__cause__, WorkerDiedError)
    assert error.__cause__.exitcode == exitcode
    assert error.result is not None
    assert rows(error.result) == [(1, 0)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_ones_own_is_raised(workers: int) -> None:
    plan = FaultPlan().raise_in(rank=0, at_report=3, error=OwnError(5, detail="injected"))
    error = failure(plan, workers=workers)
    assert type(error.__cause__) is OwnError
    assert str(error.__cause__) == "code 5: injected"
    assert list(error.worker_failures) == [0]
    assert error.result is not None
    assert rows(error.result) == [(1, 0), (1, 1)]


def test_faults_of_later_attempts() -> None:
    plan = (
        FaultPlan()
        .kill(rank=0, at_report=2)
        .exit(rank=1, at_report=2, attempt=2)
        .raise_in(rank=0, at_report=2, attempt=3)
    )
    result = fit(plan, max_failures=-1)
    assert rows(result) == [(1, 0), (2, 1), (3, 2), (4, 3)]


def test_every_attempt_fails_alike() -> None:
    plan = FaultPlan().exit(rank=0, at_report=1, attempt=None)
    error = failure(plan, max_failures=2)
    assert "in attempt 3" in str(error)


def test_slow_takes_its_time_and_continues() -> None:
    result = fit(FaultPlan().slow(rank=1, at_report=2, seconds=0.3))
    assert rows(result) == [(1, epoch) for epoch in range(EPOCHS)]
    assert result.metrics_dataframe["time_this_iter_s"][1] > 0.3


def test_a_hang_ends_with_the_run() -> None:
    plan = FaultPlan().hang(rank=1, at_report=2).raise_in(rank=0, at_report=2)
    error = failure(plan)
    assert type(error.__cause__) is InjectedError
    assert list(error.worker_failures) == [0]


def test_a_hang_that_times_out_is_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    options = hang_when(monkeypatch, lambda state: state.rows == 2 and state.arrived == 1)
    config = RunConfig(verbose=0, failure_config=FailureConfig(1), **options)
    scaling = ScalingConfig(num_workers=2)
    plan = FaultPlan().hang(rank=1, at_report=3)
    trainer = DataParallelTrainer(
        train_func, scaling_config=scaling, run_config=config, fault_plan=plan
    )
    assert rows(trainer.fit()) == [(1, 0), (1, 1), (2, 2), (2, 3)]


def test_a_function_that_handles_sigterm_continues() -> None:
    def handles() -> None:
        received: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        for _ in range(3):
            train.report({"received": len(received)})
        train.report({"received": len(received)})

    result = fit(FaultPlan().terminate(rank=0, at_report=2), function=handles, workers=1)
    assert result.metrics["received"] == 1


def test_a_fault_that_never_comes_does_nothing() -> None:
    plan = FaultPlan().kill(rank=5, at_report=1).kill(rank=0, at_report=EPOCHS + 1)
    assert rows(fit(plan)) == [(1, epoch) for epoch in range(EPOCHS)]


# ------------------------------------------------------------------------------------------ random


def test_random_plans_repeat_and_stay_in_bounds() -> None:
    options: dict[str, Any] = {"ranks": 3, "reports": 4, "count": 5}
    plans = [FaultPlan.random(seed, **options) for seed in range(50)]
    assert repr(plans[7]) == repr(FaultPlan.random(7, **options))
    assert len(set(map(repr, plans))) == 50
    faults = [fault for plan in plans for fault in plan._faults]
    assert {fault.rank for fault in faults} == {0, 1, 2}
    assert {fault.at_report for fault in faults} == {1, 2, 3, 4}
    assert {fault.kind for fault in faults} == {"kill", "exit", "raise_in"}
    assert [fault.attempt for fault in plans[0]._faults] == [1, 2, 3, 4, 5]
    only = FaultPlan.random(1, ranks=1, reports=1, kinds=["exit"], count=9)
    assert {fault.kind for fault in only._faults} == {"exit"}


@pytest.mark.parametrize("seed", range(4))
def test_random_faults_lose_and_double_nothing(seed: int) -> None:
    plan = FaultPlan.random(seed, ranks=2, reports=2, count=4)
    result = fit(plan, max_failures=4)
    assert [epoch for _, epoch in rows(result)] == list(range(EPOCHS))
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == EPOCHS - 1


def test_the_pid_guard_does_not_follow_the_plan_into_workers() -> None:
    plan = pickle.loads(dump(FaultPlan().kill(rank=0, at_report=1), "fault_plan"))
    pid = os.fork()
    if pid == 0:
        plan(0, 1, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
