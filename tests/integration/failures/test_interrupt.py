"""Ctrl-C at the edges of a run: before the workers begin, and after they have ended."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import TrainingInterrupted
from lockstep.train import (
    Backend,
    BackendConfig,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from lockstep.tune import Callback
from tests.integration.runs import fit


class Deaf(Backend):
    """Interrupts the driver, and waits where no KeyboardInterrupt comes through."""

    def __init__(self, driver: int) -> None:
        self.driver = driver

    def setup(self, wiring: Any) -> None:
        if wiring.context.world_rank == 0:
            os.kill(self.driver, signal.SIGINT)
        ctypes.PyDLL(None).sleep(100_000)


class DeafConfig(BackendConfig):
    def make_backend(self) -> Backend:
        return Deaf(os.getpid())


def test_ranks_that_are_being_wired_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", "150")
    trainer = DataParallelTrainer(
        lambda: None,
        backend_config=DeafConfig(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    )
    started = time.monotonic()
    with pytest.raises(TrainingInterrupted) as raised:
        trainer.fit()
    assert time.monotonic() - started < 100
    assert raised.value.result is not None
    assert raised.value.result.state == "interrupted"
    for rank in range(2):
        assert Path(raised.value.result.path, "logs", f"rank_{rank}.log").read_text() == ""


class Interrupting:
    """Ctrl-C comes when it is pickled for the second time: to be kept with the run."""

    def __init__(self) -> None:
        self.pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        self.pickled += 1
        if self.pickled == 2:
            signal.raise_signal(signal.SIGINT)
        return Interrupting, ()


def test_while_the_trainer_is_kept_with_its_run(tmp_path: Path) -> None:
    with pytest.raises(TrainingInterrupted, match="Interrupted: 0 reports and 0 checkpoints"):
        fit(lambda config: None, config={"x": Interrupting()}, storage_path=tmp_path, name="exp")
    assert Result.from_path(tmp_path / "exp").state == "interrupted"


def test_while_a_slow_callback_is_waited_for(tmp_path: Path) -> None:
    released = threading.Event()

    class Slow(Callback):
        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            while signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
                time.sleep(0.001)  # the driver still drives
            os.kill(os.getpid(), signal.SIGINT)
            released.wait(120)

    try:
        with pytest.raises(KeyboardInterrupt):
            fit(lambda: None, callbacks=[Slow()], storage_path=tmp_path, name="exp")
    finally:
        released.set()
    assert Result.from_path(tmp_path / "exp").state == "finished"
