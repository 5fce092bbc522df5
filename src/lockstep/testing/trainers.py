"""The conformance suite of trainers: a run behaves the same on every framework.

A test module subclasses it and defines how the framework sums a number across workers; pytest runs
the inherited tests:

    class TestMyTrainer(TrainerConformance):
        trainer_class = MyTrainer

        @staticmethod
        def total(value):  # runs in every worker
            return my_framework.allreduce(value)
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lockstep
from lockstep import runtime, tune
from lockstep.callback import Callback
from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.errors import TrainingFailedError
from lockstep.result import Result
from lockstep.testing.faults import FaultPlan, InjectedError
from lockstep.train import api
from lockstep.train.trainer import DataParallelTrainer

if TYPE_CHECKING:
    import pytest

__all__ = ["TrainerConformance"]

WORKERS = 2
SUM_OF_RANKS = 3.0
"""The value of ``total(rank + 1)`` with two workers."""
_GATE_S = 60
"""The longest time that workers wait for the driver."""


class TrainerConformance:
    """Tests that every trainer passes. Subclass it and define ``trainer_class`` and ``total``."""

    trainer_class: type[DataParallelTrainer]
    """The trainer. Its own arguments must have defaults that work."""

    @staticmethod
    def total(value: float) -> float:
        """Return the sum of all workers' values, computed by the framework."""
        raise NotImplementedError

    def test_a_run(self) -> None:
        """Workers are connected; metrics, checkpoints and callbacks are complete and agree."""
        seen = _Seen()
        result = self._fit(
            {"steps": 4},
            callbacks=[seen],
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order="min"
            ),
        )
        assert result.state == "finished"
        assert result.error is None
        assert _column(result, "step") == [0, 1, 2, 3]
        assert _column(result, "total") == [SUM_OF_RANKS] * 4
        assert [row["rank"] for row in result.metrics_by_rank] == list(range(WORKERS))
        assert result.metrics["step"] == 3
        assert result.metrics["training_iteration"] == 4
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["step"] == 3
        kept = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
        assert kept == [1, 0], "the two best, from worst to best; the newest is kept, too"
        assert seen.steps == [0, 1, 2, 3]
        assert seen.ended == ["complete"]
        again = Result.from_path(result.path)
        assert again.metrics == result.metrics

    def test_a_killed_worker(self) -> None:
        """The workers are restarted from the last checkpoint, and connected again."""
        result = self._fit(
            {"steps": 4},
            fault_plan=FaultPlan().kill(rank=1, at_report=3),
            failure_config=FailureConfig(max_failures=1),
        )
        assert result.state == "finished"
        assert _column(result, "step") == [0, 1, 2, 3]
        assert _column(result, "attempt") == [1, 1, 2, 2]
        assert _column(result, "total") == [SUM_OF_RANKS] * 4
        first, second = ({rank["pid"] for rank in each["workers"]} for each in result.attempts)
        assert len(first) == len(second) == WORKERS
        assert not first & second

    def test_an_error_and_a_restore(self) -> None:
        """The user's own exception is the cause; a restore resumes from the last checkpoint."""
        import pytest

        plan = FaultPlan().raise_in(rank=1, at_report=3, error=InjectedError("on purpose"))
        with pytest.raises(TrainingFailedError) as raised:
            self._fit({"steps": 4}, fault_plan=plan)
        assert isinstance(raised.value.__cause__, InjectedError)
        failed = raised.value.result
        assert failed is not None
        assert failed.state == "failed"
        assert isinstance(failed.error, InjectedError)
        assert _column(failed, "step") == [0, 1]

        assert self.trainer_class.can_restore(failed.path)
        restored = self.trainer_class.restore(failed.path)
        assert isinstance(restored, self.trainer_class)
        result = restored.fit()
        assert result.path == failed.path
        assert result.state == "finished"
        assert _column(result, "step") == [0, 1, 2, 3]
        assert _column(result, "total") == [SUM_OF_RANKS] * 4

    def test_a_stop_condition_and_a_checkpoint_to_begin_with(self) -> None:
        """The function resumes from the checkpoint, and stops at the same report on every rank."""
        result = self._fit(
            {"steps": 1000, "files": True},
            resume_from_checkpoint=Checkpoint.from_dict({"step": 9}),
            stop={"training_iteration": 2},
        )
        assert result.state == "finished"
        assert _column(result, "step") == [10, 11]
        assert _column(result, "total") == [SUM_OF_RANKS] * 2
        assert result.checkpoint is not None
        with result.checkpoint.as_directory() as directory:
            written = {name: Path(directory, name).read_text() for name in ("rank_0", "rank_1")}
        assert written == {"rank_0": "11", "rank_1": "11"}

    def test_another_number_of_workers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One worker runs until there is room for two; the two resume where the one stopped."""
        monkeypatch.setattr(runtime, "_configured", None)
        lockstep.init(num_cpus=1)
        gate = tmp_path / "gate"
        result = self._fit(
            {"steps": 10, "gate": str(gate)}, workers=(1, WORKERS), callbacks=[_Room(gate)]
        )
        assert result.state == "finished"
        assert result.resizes == [{"attempt": 2, "from": 1, "to": WORKERS}]
        assert _column(result, "step") == list(range(10))
        alone = _column(result, "attempt").count(1)
        assert 2 <= alone < 10
        assert _column(result, "total") == [1.0] * alone + [SUM_OF_RANKS] * (10 - alone)

    def test_trials_of_a_tuner(self) -> None:
        """Each trial is a run with a group of its own; a failed trial is a row with its error."""
        trainer = self._trainer({"steps": 3})
        space = {"train_loop_config": {"fail_at": tune.grid_search([None, 1])}}
        grid = tune.Tuner(trainer, param_space=space).fit()
        finished, failed = sorted(grid, key=lambda result: result.error is not None)
        assert finished.error is None
        assert _column(finished, "step") == [0, 1, 2]
        assert _column(finished, "total") == [SUM_OF_RANKS] * 3
        assert isinstance(failed.error, InjectedError)
        assert _column(failed, "step") == [0]
        assert grid.get_best_result("step", "max").path == finished.path

    def test_wrong_arguments_are_rejected_when_given(self) -> None:
        """The constructor checks its arguments; no worker is needed."""
        import pytest

        make: Any = self.trainer_class
        with pytest.raises(TypeError, match="train_loop_per_worker"):
            make("not a function")
        with pytest.raises(TypeError, match="scaling_config"):
            make(_nothing, scaling_config=2)
        with pytest.raises(ValueError, match="takes no argument or one"):
            make(_two_arguments)

    def _fit(self, config: Mapping[str, Any], **options: Any) -> Result:
        return self._trainer(config, **options).fit()

    def _trainer(self, config: Mapping[str, Any], **options: Any) -> DataParallelTrainer:
        run_options = ("callbacks", "checkpoint_config", "failure_config", "stop")
        of_run = {name: options.pop(name) for name in run_options if name in options}
        workers = options.pop("workers", WORKERS)
        make: Any = self.trainer_class
        trainer: DataParallelTrainer = make(
            _steps(self.total),
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=workers),
            run_config=RunConfig(verbose=0, **of_run),
            **options,
        )
        return trainer


def _steps(total: Callable[[float], float]) -> Callable[[dict[str, Any]], None]:
    """Return a training function that sums over the ranks, reports and saves at each step."""

    def train_steps(config: dict[str, Any]) -> None:
        checkpoint = api.get_checkpoint()
        first = 0 if checkpoint is None else checkpoint.to_dict()["step"] + 1
        rank = api.world_rank()
        for step in range(first, config["steps"]):
            metrics = {"step": step, "total": total(rank + 1.0), "rank": rank, "score": step}
            if step == config.get("fail_at"):
                raise InjectedError(f"at step {step}")
            if not config.get("files"):
                api.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))
                if step == 1 and "gate" in config:
                    _wait_for(config["gate"])
                continue
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, f"rank_{rank}").write_text(str(step))
                api.report(metrics, checkpoint=Checkpoint.from_directory(directory))

    return train_steps


def _wait_for(gate: str) -> None:
    deadline = time.monotonic() + _GATE_S
    while not os.path.exists(gate):
        assert time.monotonic() < deadline, f"{gate} was not created in {_GATE_S} s"
        time.sleep(0.01)


def _column(result: Result, name: str) -> list[Any]:
    frame = result.metrics_dataframe
    assert frame is not None
    values: list[Any] = frame[name].tolist()
    return values


class _Seen(Callback):
    """Records the calls of a callback, which runs in the driver."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.steps: list[int] = []
        self.ended: list[str] = []

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        assert os.getpid() == self.process
        self.steps.append(result["step"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.ended.append("complete")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.ended.append("error")


class _Room(Callback):
    """Makes room for the second worker when the first has reached its second step."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        if result["step"] == 1:
            lockstep.init(num_cpus=WORKERS)
            self.gate.touch()


def _nothing() -> None:
    pass


def _two_arguments(one: Any, other: Any) -> None:
    pass
