"""Short spellings for the tests that run real workers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep.train import (
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.driver import controller
from lockstep.train.driver.events import Stuck
from lockstep.train.driver.hangs import HangWatch
from lockstep.train.driver.state import RunState
from tests.repository import SRC


def trainer(
    function: Callable[..., Any],
    *,
    workers: int | tuple[int, int] = 2,
    config: Mapping[str, Any] | None = None,
    max_failures: int = 0,
    **run_config: Any,
) -> DataParallelTrainer:
    """A quiet trainer without a framework."""
    run_config.setdefault("verbose", 0)
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures), **run_config),
    )


def fit(function: Callable[..., Any], **options: Any) -> Result:
    """Run it to the end."""
    return trainer(function, **options).fit()


def failure(function: Callable[..., Any], **options: Any) -> WorkerGroupError:
    """Run it to the failure it must end in."""
    with pytest.raises(WorkerGroupError) as raised:
        fit(function, **options)
    return raised.value


def wait_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure the driver waits for what the others say, however busy this machine is."""
    monkeypatch.setattr(controller, "COLLECT_S", 30.0)
    monkeypatch.setattr(controller, "CAUSE_S", 30.0)


def hang_when(monkeypatch: pytest.MonkeyPatch, hangs: Callable[[RunState], bool]) -> dict[str, Any]:
    """The clock of the hang watch stands still until ``hangs``, then it is much later.

    Returns options of a run that fails at once then, and never before, however busy the machine is.
    """
    original, original_init = HangWatch.stuck, HangWatch.__init__
    now = 0.0

    def init(watch: HangWatch, *limits: float | None) -> None:
        original_init(watch, *limits)
        watch.interval_s = 0.02

    def stuck(watch: HangWatch, state: RunState, _: float, logged: int = 0) -> Stuck | None:
        nonlocal now
        if now == 0.0 and hangs(state):
            original(watch, state, now, logged)  # whatever has just changed is progress
            now = 1e6
        return original(watch, state, now, logged)

    monkeypatch.setattr(HangWatch, "stuck", stuck)
    monkeypatch.setattr(HangWatch, "__init__", init)
    return {"hang_warning_s": None, "hang_timeout_s": 50.0}


def run_script(
    directory: Path,
    source: str,
    *,
    stdin: str = "",
    check: bool = True,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 50,
) -> subprocess.CompletedProcess[str]:
    """Run ``source`` as a script of its own in ``directory``."""
    script = directory / "script.py"
    script.write_text(textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_STORAGE": str(directory / "results"),
            **(environment or {}),
        },
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done
