"""Odd but legal uses that once went wrong."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import train
from lockstep.errors import (
    CheckpointError,
    EngineError,
    InsufficientResourcesError,
    StopConditionError,
)
from lockstep.train import Checkpoint, CheckpointConfig, Result, WorkerGroupError
from tests.integration.runs import failure, fit, trainer
from tests.repository import SRC

IN_PROCESS = """
    from lockstep import train
    from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

    def train_func():
        number = 0
        while True:
            train.report({"n": number}, checkpoint=Checkpoint.from_dict({"n": number}))
            number += 1
            if number == 1:
                print("go", flush=True)

    DataParallelTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(verbose=0, storage_path=STORAGE, name="exp"),
    ).fit()
"""


@pytest.mark.parametrize("attempt", range(3))
def test_ctrl_c_in_process_never_lands_in_the_drivers_work(attempt: int, tmp_path: Path) -> None:
    source = textwrap.dedent(IN_PROCESS).replace("STORAGE", repr(str(tmp_path)))
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            driver.wait(0.1 + 0.07 * attempt)
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(timeout=150)
    assert driver.returncode == -signal.SIGINT
    assert "Interrupted: " in errors
    assert "Traceback" not in errors
    result = Result.from_path(tmp_path / "exp")
    assert result.state == "interrupted"
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["n"] in (result.metrics["n"], result.metrics["n"] - 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_driver_decides_is_the_same_in_process(workers: int) -> None:
    def twice() -> None:
        for number in range(2):
            train.report(
                {}, checkpoint=Checkpoint.from_dict({"n": number}), checkpoint_dir_name="c"
            )

    error = failure(twice, workers=workers)
    assert isinstance(error.__cause__, CheckpointError)
    assert error.result is not None
    assert error.result.state == "failed"


def test_a_stop_function_that_raises_is_named() -> None:
    def report() -> None:
        train.report({"loss": 1})

    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        raise KeyError("lost")

    error = failure(report, stop=stop)
    assert isinstance(error.__cause__, StopConditionError)
    assert isinstance(error.__cause__.__cause__, KeyError)
    assert str(error).startswith("RunConfig(stop=…) raised KeyError")


def test_the_in_process_engine_refuses_several_workers() -> None:
    lockstep.init(engine="inprocess")
    try:
        with pytest.raises(InsufficientResourcesError, match="num_workers=0"):
            fit(lambda: None, workers=2)
    finally:
        lockstep.shutdown()


def test_workers_that_cannot_start_are_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep.shutdown()  # no server is warm
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(WorkerGroupError) as raised:
        trainer(lambda: None, max_failures=-1).fit()
    assert isinstance(raised.value.__cause__, EngineError)


def test_init_again_changes_only_what_it_is_given() -> None:
    def look() -> None:
        train.report({"value": os.environ.get("LOCKSTEP_TEST_AAA")})

    lockstep.init(runtime_env={"env_vars": {"LOCKSTEP_TEST_AAA": "1"}})
    try:
        lockstep.init(num_cpus=4)
        assert fit(look, workers=1).metrics["value"] == "1"
    finally:
        lockstep.shutdown()


def test_metrics_named_like_ours_do_not_disturb_a_restart() -> None:
    def func() -> None:
        if train.get_checkpoint() is None:
            train.report({"time_total_s": "1h"}, checkpoint=Checkpoint.from_dict({"n": 0}))
            raise ValueError("once")
        train.report({"n": 1})

    result = fit(func, workers=1, max_failures=1)
    assert result.metrics["n"] == 1
    assert result.metrics["time_total_s"] > 0


def test_a_failed_run_keeps_what_it_can_go_on_from() -> None:
    def func() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({"n": 0}))
        raise ValueError("no")

    error = failure(func, workers=1, checkpoint_config=CheckpointConfig(num_to_keep=0))
    assert error.result is not None
    assert error.result.checkpoint is not None
    assert error.result.checkpoint.to_dict()["n"] == 0


def test_a_thread_that_is_left_behind_is_named(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.train.driver.controller.EXIT_S", 4.0)

    def fetch_for_ever() -> None:
        threading.Event().wait()

    def train_func() -> None:
        train.report({"a": 1})
        threading.Thread(target=fetch_for_ever, name="fetcher").start()

    result = fit(train_func, workers=1, verbose=0)
    assert (result.state, result.metrics["a"]) == ("finished", 1)
    line = inspect.getsourcelines(fetch_for_ever)[1] + 1
    assert (
        "The function has returned on every rank, but on rank 0 its thread 'fetcher' still runs "
        f"({__file__}, line {line}, in fetch_for_ever), so the run waits for it, 4 s at most; "
        "end it in the function, or make it a daemon thread."
    ) in capfd.readouterr().err


def test_threads_in_this_process_are_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.train.worker.main.threads_left", lambda: pytest.fail("waits"))
    assert fit(lambda: None, workers=0).state == "finished"
