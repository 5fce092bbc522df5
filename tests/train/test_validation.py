"""Checkpoints that are validated beside training."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train, tune
from lockstep.errors import InsufficientResourcesError, TrainingInterrupted
from lockstep.journal.records import RunRecords
from lockstep.storage import open_storage
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointConsistencyMode,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from lockstep.train.api import ReportedCheckpointStatus as Status
from lockstep.train.driver import validations
from lockstep.train.driver.validations import Validations


def trainer(
    function: Callable[..., Any],
    validate: Callable[..., Any] | ValidationConfig,
    *,
    workers: int = 1,
    config: dict[str, Any] | None = None,
    **run_config: Any,
) -> DataParallelTrainer:
    if not isinstance(validate, ValidationConfig):
        validate = ValidationConfig(validate)
    return DataParallelTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, **run_config),
        validation_config=validate,
    )


def statuses(result: Result) -> list[str]:
    records = RunRecords(open_storage(result.path))
    return [
        record.validation["status"] if record.validation else "COMMITTED"
        for record in records.checkpoints.values()
    ]


def report_epochs(config: dict[str, Any]) -> list[Any]:
    """Report each epoch with a checkpoint; return what is known of them at the end."""
    for epoch in range(config["epochs"]):
        if train.get_context().get_world_rank() == 0:
            checkpoint = Checkpoint.from_dict({"epoch": epoch})
            tasks = config.get("tasks", {})
            train.report({"epoch": epoch}, checkpoint, validation=tasks.get(epoch, True))
        else:
            train.report({"epoch": epoch})
    train.get_all_reported_checkpoints(consistency_mode=CheckpointConsistencyMode.COMMITTED)
    known = train.get_all_reported_checkpoints()
    return [(one.metrics.get("accuracy"), one.status.value) for one in known]


def grade(checkpoint: Checkpoint, bonus: int = 0) -> dict[str, int]:
    epoch = checkpoint.to_dict()["epoch"]
    print(f"grading {epoch}")
    if epoch == 2:
        raise ValueError("the second is broken")
    return {"accuracy": 10 - epoch + bonus}


def test_metrics_of_a_validation_join_those_of_the_checkpoint(
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = {"epochs": 4, "tasks": {0: False, 3: ValidationTaskConfig({"bonus": 5})}}
    validate = ValidationConfig(grade, ValidationTaskConfig({"bonus": 1}))
    result = trainer(report_epochs, validate, workers=2, config=config).fit()
    expected = [
        (None, "COMMITTED"),
        (10, "VALIDATED"),
        (None, "VALIDATION_FAILED"),
        (12, "VALIDATED"),
    ]
    assert result.return_value == expected
    assert statuses(result) == [status for _, status in expected]
    again = Result.from_path(result.path)
    assert [metrics.get("accuracy") for _, metrics in again.best_checkpoints] == [
        None,
        10,
        None,
        12,
    ]
    assert again.metrics["accuracy"] == 12
    assert again.metrics["epoch"] == 3
    best = again.get_best_checkpoint("accuracy", "max")
    assert best is not None
    assert best.to_dict()["epoch"] == 3
    log = Path(result.path, "logs", "validation.log").read_text()
    assert "grading 1" in log
    assert "ValueError: the second is broken" in log
    told = capfd.readouterr().err
    assert "The validation of checkpoint_000002 failed, and training continues: ValueError" in told


def test_the_score_of_a_validation_decides_which_checkpoints_stay() -> None:
    result = trainer(
        report_epochs,
        grade,
        config={"epochs": 2},
        checkpoint_config=CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy"),
    ).fit()
    # The newest stays, to restart from; the best is the first.
    ((best, metrics),) = result.best_checkpoints
    assert best.to_dict()["epoch"] == 0
    assert metrics["accuracy"] == 10


def test_training_continues_while_a_checkpoint_is_validated(tmp_path: Path) -> None:
    reported = tmp_path / "reported"

    def loop() -> None:
        train.report({}, Checkpoint.from_dict({}), validation=True)
        for _ in range(3):
            train.report({})
        reported.touch()

    def wait_for_training(checkpoint: Checkpoint) -> dict[str, bool]:
        while not reported.exists():
            time.sleep(0.01)
        return {"waited": True}

    result = trainer(loop, wait_for_training).fit()  # and fit() waits for the validation
    assert [metrics["waited"] for _, metrics in result.best_checkpoints] == [True]


def wait_for_ever(checkpoint: Checkpoint) -> dict[str, Any]:
    while True:
        time.sleep(60)


def test_a_validation_that_takes_too_long_is_ended(capfd: pytest.CaptureFixture[str]) -> None:
    config = {"epochs": 1, "tasks": {0: ValidationTaskConfig(timeout_s=0.2)}}
    result = trainer(report_epochs, wait_for_ever, config=config).fit()
    assert result.return_value == [(None, "VALIDATION_TIMEOUT")]
    assert "ValidationTaskConfig(timeout_s=0.2)" in capfd.readouterr().err


def test_a_thread_that_a_validation_leaves_does_not_keep_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave_a_thread(checkpoint: Checkpoint) -> dict[str, float]:
        threading.Thread(target=time.sleep, args=(1000,)).start()
        return {"accuracy": 1.0}

    monkeypatch.setattr(validations, "EXIT_S", 0.5)
    result = trainer(report_epochs, leave_a_thread, config={"epochs": 1}).fit()
    assert statuses(result) == ["VALIDATED"]
    assert result.metrics is not None
    assert result.metrics["accuracy"] == 1.0


def test_ctrl_c_during_a_validation_in_the_drivers_process(tmp_path: Path) -> None:
    def interrupt(checkpoint: Checkpoint) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(60)
        return {}

    def report_and_wait(config: dict[str, Any]) -> None:
        for epoch in range(3):
            train.report({}, Checkpoint.from_dict({"epoch": epoch}), validation=True)
            mode = CheckpointConsistencyMode.VALIDATED
            train.get_all_reported_checkpoints(consistency_mode=mode)

    made = trainer(report_and_wait, interrupt, workers=0, storage_path=str(tmp_path), name="run")
    with pytest.raises(TrainingInterrupted):
        made.fit()
    result = Result.from_path(str(tmp_path / "run"))
    assert statuses(result) == ["PENDING_VALIDATION"]  # a restored run validates it


def test_a_validation_whose_process_dies_or_returns_no_dict_has_failed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def die_or_return_a_number(checkpoint: Checkpoint) -> Any:
        if checkpoint.to_dict()["epoch"] == 0:
            os._exit(3)
        return 7

    result = trainer(report_epochs, die_or_return_a_number, config={"epochs": 2}).fit()
    assert statuses(result) == ["VALIDATION_FAILED", "VALIDATION_FAILED"]
    told = capfd.readouterr().err
    assert "its process ended (exit code 3)" in told
    assert "The validation function returned 7; return a dict of metrics." in told


def test_a_restored_run_validates_what_was_pending(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def loop() -> None:
        if train.get_checkpoint() is None:
            task = ValidationTaskConfig({"bonus": 4})
            train.report({"epoch": 0}, Checkpoint.from_dict({"epoch": 0}), validation=task)
            raise KeyboardInterrupt

    def validate(checkpoint: Checkpoint, bonus: int) -> dict[str, int]:
        while not go.exists():
            time.sleep(0.01)
        return {"accuracy": bonus}

    with pytest.raises(TrainingInterrupted) as raised:
        trainer(loop, validate).fit()
    first = raised.value.result
    assert first is not None
    assert statuses(first) == ["PENDING_VALIDATION"]
    go.touch()
    result = DataParallelTrainer.restore(first.path).fit()
    assert statuses(result) == ["VALIDATED"]
    assert [metrics["accuracy"] for _, metrics in result.best_checkpoints] == [4]


def test_without_a_validation_config_a_pending_validation_is_told(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def loop() -> None:
        if train.get_checkpoint() is None:
            train.report({}, Checkpoint.from_dict({}), validation=True)
            raise KeyboardInterrupt

    with pytest.raises(TrainingInterrupted) as raised:
        trainer(loop, wait_for_ever).fit()
    assert raised.value.result is not None
    restored = DataParallelTrainer.restore(raised.value.result.path)
    restored.validation_config = None
    result = restored.fit()
    assert "The validation of checkpoint_000000 did not finish before" in capfd.readouterr().err
    assert statuses(result) == ["VALIDATION_FAILED"]  # else nothing would ever delete it


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_wait_for_validations(
    sent: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    drain = Validations.drain

    def drain_interrupted(self: Validations, then: Callable[[], None]) -> None:
        drain(self, then)
        os.kill(os.getpid(), sent)

    monkeypatch.setattr(Validations, "drain", drain_interrupted)

    def loop() -> None:
        train.report({"x": 1}, Checkpoint.from_dict({}), validation=True)

    result = trainer(loop, wait_for_ever).fit()
    assert result.state == "finished"
    assert statuses(result) == ["PENDING_VALIDATION"]
    assert "The validation of 1 checkpoint was cancelled." in capfd.readouterr().err


def test_a_failed_attempt_does_not_end_a_validation(tmp_path: Path) -> None:
    restarted = tmp_path / "restarted"

    def loop() -> None:
        if train.get_checkpoint() is None:
            train.report({}, Checkpoint.from_dict({}), validation=True)
            raise RuntimeError("once")
        restarted.touch()

    def validate(checkpoint: Checkpoint) -> dict[str, int]:
        while not restarted.exists():
            time.sleep(0.01)
        return {"accuracy": 1}

    result = trainer(loop, validate, failure_config=train.FailureConfig(max_failures=1)).fit()
    assert statuses(result) == ["VALIDATED"]


def test_in_the_drivers_process_validations_run_when_the_function_waits() -> None:
    def outside(checkpoint: Checkpoint) -> dict[str, int]:
        assert train.get_checkpoint() is None  # it is no part of the training
        return {"accuracy": checkpoint.to_dict()["epoch"]}

    result = trainer(report_epochs, outside, workers=0, config={"epochs": 2}).fit()
    assert result.return_value == [(0, "VALIDATED"), (1, "VALIDATED")]


def test_a_validation_function_may_start_a_trainer_of_its_own(tmp_path: Path) -> None:
    def evaluate(config: dict[str, Any]) -> None:
        epoch = config["checkpoint"].to_dict()["epoch"]
        train.report({"score": epoch + train.get_context().get_world_size()})

    def validate(checkpoint: Checkpoint) -> dict[str, Any]:
        inner = DataParallelTrainer(
            evaluate,
            train_loop_config={"checkpoint": checkpoint},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=str(tmp_path / "inner"), verbose=0),
        )
        return {"score": inner.fit().metrics["score"]}

    result = trainer(report_epochs, validate, config={"epochs": 1}).fit()
    assert [metrics["score"] for _, metrics in result.best_checkpoints] == [2]


def test_a_state_is_validated_if_it_is_saved() -> None:
    def loop() -> None:
        state = train.State(epoch=0)
        for epoch in range(3):
            state.epoch = epoch
            train.report({"epoch": epoch}, state, validation=True)

    def validate(checkpoint: Checkpoint) -> dict[str, bool]:
        return {"seen": True}

    result = trainer(loop, validate, checkpoint_config=CheckpointConfig(every=2)).fit()
    assert all(metrics["seen"] for _, metrics in result.best_checkpoints)
    assert [metrics["epoch"] for _, metrics in result.best_checkpoints] == [1, 2]


def test_trials_validate_too() -> None:
    tuner = tune.Tuner(
        trainer(report_epochs, grade),
        param_space={"train_loop_config": {"epochs": tune.grid_search([1, 2])}},
        run_config=RunConfig(verbose=0),
    )
    found = [result.metrics["accuracy"] for result in tuner.fit()]
    assert sorted(found) == [9, 10]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: ValidationConfig(3), "fn=3"),  # type: ignore[arg-type]
        (lambda: ValidationConfig(grade, {"bonus": 1}), "ValidationTaskConfig"),  # type: ignore[arg-type]
        (lambda: ValidationConfig(grade, None, 3), "ray_remote_kwargs=3"),  # type: ignore[arg-type]
        (lambda: ValidationTaskConfig({"f": grade}), "'f'.*functools.partial"),
        (lambda: ValidationTaskConfig([1]), "expected a dict"),  # type: ignore[arg-type]
        (lambda: ValidationTaskConfig(timeout_s=0), "timeout_s=0"),
        (
            lambda: DataParallelTrainer(grade, validation_config=grade),  # type: ignore[arg-type]
            "expected a ValidationConfig",
        ),
    ],
)
def test_wrong_arguments_are_named(call: Callable[[], object], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        call()


def test_options_of_rays_tasks_without_effect_are_named() -> None:
    with pytest.warns(UserWarning, match="max_retries"):
        ValidationConfig(grade, ray_remote_kwargs={"max_retries": 3, "num_cpus": 1})
    needs = ValidationConfig(grade, ray_remote_kwargs={"num_gpus": 4096})
    with pytest.raises(InsufficientResourcesError, match="4096"):
        trainer(report_epochs, needs, config={"epochs": 1}).fit()


def test_a_report_that_cannot_be_validated_is_refused() -> None:
    def loop() -> list[str]:
        texts = []
        for options in (
            {"validation": True},
            {"checkpoint": Checkpoint.from_dict({}), "validation": "yes"},
            {"checkpoint": Checkpoint.from_dict({}), "validation": True},
        ):
            try:
                train.report({}, **options)
            except (TypeError, ValueError) as error:
                texts.append(str(error))
        return texts

    plain = DataParallelTrainer(loop, run_config=RunConfig(verbose=0))
    texts = plain.fit().return_value
    assert "needs a checkpoint" in texts[0]
    assert "'yes'" in texts[1]
    assert "validation_config=ValidationConfig(fn=…)" in texts[2]


def test_the_statuses_are_rays() -> None:
    assert [status.name for status in Status] == [
        "COMMITTED",
        "PENDING_VALIDATION",
        "VALIDATED",
        "VALIDATION_TIMEOUT",
        "VALIDATION_FAILED",
    ]
