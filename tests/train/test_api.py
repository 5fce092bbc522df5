"""What a training function calls, as scripts for Ray call it."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import HangError, StopConditionError, StorageError
from lockstep.train import (
    Checkpoint,
    CheckpointConsistencyMode,
    CheckpointUploadMode,
    ControllerError,
    FailureConfig,
    LoggingConfig,
    NCCLHangError,
    ReportedCheckpointStatus,
    RunConfig,
    ScalingConfig,
)
from tests.integration.runs import failure, fit

ASYNC = CheckpointUploadMode.ASYNC


def test_the_checkpoints_of_async_reports_are_waited_for() -> None:
    def function() -> list[Any]:
        for n in range(3):
            train.report({"n": n}, Checkpoint.from_dict({"n": n}), checkpoint_upload_mode=ASYNC)
        known = train.get_all_reported_checkpoints(CheckpointConsistencyMode.COMMITTED)
        assert train.get_all_reported_checkpoints(timeout_s=5) == known
        assert train.get_checkpoint() == known[-1].checkpoint
        return [
            (item.checkpoint.to_dict()["n"], item.metrics["n"], item.status.name) for item in known
        ]

    for workers in (0, 2):
        value = fit(function, workers=workers).return_value
        assert value == [(0, 0, "COMMITTED"), (1, 1, "COMMITTED"), (2, 2, "COMMITTED")]
    assert ReportedCheckpointStatus("COMMITTED") is ReportedCheckpointStatus.COMMITTED


def test_a_timeout_returns_what_is_committed(tmp_path: Path) -> None:
    """Rank 1 writes its part of the second checkpoint only after rank 0 has asked."""
    asked = tmp_path / "asked"

    def function() -> int:
        rank = train.get_context().get_world_rank()
        train.report({}, Checkpoint.from_dict({"n": 0}))
        directory = tmp_path / f"rank_{rank}"
        directory.mkdir()
        (directory / f"{rank}").write_text("x")
        if rank == 1:
            from lockstep.train.worker import session

            save = session.Session._upload
            session.Session._upload = lambda *args: (_wait_for(asked), save(*args))  # type: ignore[assignment, func-returns-value, method-assign]
            session.Session._snapshot_is_final = lambda *_: False  # type: ignore[method-assign]
        train.report({}, Checkpoint(str(directory)), checkpoint_upload_mode=ASYNC)
        if rank == 1:
            return 0
        known = len(train.get_all_reported_checkpoints(timeout_s=0.05))
        asked.touch()
        return known

    assert fit(function).return_value == 1


def _wait_for(path: Path) -> None:
    while not path.exists():
        threading.Event().wait(0.01)


def test_wrong_arguments_of_the_reported_checkpoints() -> None:
    with pytest.raises(ValueError, match=r"consistency_mode='soon'.*COMMITTED or VALIDATED"):
        train.get_all_reported_checkpoints("soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"timeout_s=-1.*expected seconds"):
        train.get_all_reported_checkpoints(timeout_s=-1)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_of_the_user_uploads(tmp_path: Path, workers: int) -> None:
    bucket = tmp_path / "bucket"

    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        with checkpoint.as_directory() as directory:
            shutil.copytree(directory, bucket / name, dirs_exist_ok=True)
        return Checkpoint(str(bucket / name))

    def function() -> bool:
        rank = train.get_context().get_world_rank()
        for n in range(2):
            local = tmp_path / f"local_{rank}_{n}"
            local.mkdir()
            (local / f"rank_{rank}.txt").write_text(str(n))
            train.report(
                {"n": n},
                Checkpoint(str(local)),
                checkpoint_dir_name="last" if n else None,
                checkpoint_upload_fn=upload,
                delete_local_checkpoint_after_upload=True,
            )
        return local.exists()

    result = fit(function, workers=workers, storage_path=tmp_path / "runs")
    assert result.checkpoint is not None
    assert result.checkpoint.path == str(bucket / "last")
    assert sorted(path.name for path in (bucket / "last").iterdir()) == [
        f"rank_{rank}.txt" for rank in range(workers)
    ]
    assert len(list(bucket.iterdir())) == 2
    assert result.return_value is False


def test_an_upload_function_has_to_return_a_checkpoint() -> None:
    def function() -> None:
        train.report({}, Checkpoint.from_dict({}), checkpoint_upload_fn=lambda *_: None)  # type: ignore[arg-type]

    error = failure(function, workers=1)
    assert "return the uploaded Checkpoint" in str(error.__cause__)


def test_get_storage(tmp_path: Path) -> None:
    def function() -> list[str]:
        storage = train.get_context().get_storage()
        with storage.storage_filesystem.open_output_stream(f"{storage.trial_fs_path}/own") as file:
            file.write(b"mine")
        train.report({}, Checkpoint.from_dict({"n": 1}))
        return [
            storage.storage_fs_path,
            storage.experiment_dir_name,
            storage.experiment_fs_path,
            storage.trial_dir_name,
            storage.build_checkpoint_path_from_name("checkpoint_000000"),
        ]

    result = fit(function, workers=1, storage_path=tmp_path, name="here")
    root, experiment, experiment_path, trial, checkpoint = result.return_value
    assert (root, experiment, experiment_path) == (str(tmp_path), "here", str(tmp_path / "here"))
    assert trial == result.log_dir.name
    assert result.checkpoint is not None
    assert checkpoint == result.checkpoint.path
    assert (result.log_dir / "own").read_bytes() == b"mine"


# ------------------------------------------------------------------------------------------- errors


def test_a_hang_is_raised_under_the_name_of_ray() -> None:
    def function() -> None:
        if train.get_context().get_world_rank():
            threading.Event().wait()
        train.report({})

    error = failure(function, hang_timeout_s=0.5, hang_warning_s=None)
    assert type(error) is NCCLHangError
    assert isinstance(error.__cause__, HangError)


def test_a_failure_of_the_driver_is_a_controller_error() -> None:
    def stop(trial_id: str, result: dict[str, Any]) -> bool:
        raise ValueError("no")

    error = failure(lambda: train.report({}), workers=1, stop=stop)
    assert type(error) is ControllerError
    assert isinstance(error.__cause__, StopConditionError)


def test_deleting_the_storage_under_a_run_is_an_error(tmp_path: Path) -> None:
    def function() -> None:
        train.report({}, Checkpoint.from_dict({}))
        shutil.rmtree(tmp_path / "runs")
        train.report({}, Checkpoint.from_dict({}))

    with pytest.raises((ControllerError, StorageError), match=r"gone|No such file|does not exist"):
        fit(function, workers=1, storage_path=tmp_path / "runs")


# ------------------------------------------------------------------------------------------ configs


@pytest.mark.parametrize(
    ("config", "argument"),
    [
        (ScalingConfig, {"use_tpu": True}),
        (ScalingConfig, {"topology": "4x4"}),
        (ScalingConfig, {"elastic_resize_monitor_interval_s": 5.0}),
        (FailureConfig, {"controller_failure_limit": 3}),
        (FailureConfig, {"preemption_grace_s": 30}),
        (FailureConfig, {"relax_collectives_on_preemption": True}),
        (RunConfig, {"logging_config": LoggingConfig("debug")}),
    ],
)
def test_arguments_that_do_nothing_warn_once(config: Any, argument: dict[str, Any]) -> None:
    name, value = next(iter(argument.items()))
    with pytest.warns(UserWarning, match=rf"{config.__name__}\({name}=.*does nothing: ") as warned:
        config(**argument)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert repr(value) in str(warned[0].message)


def test_defaults_of_ray_are_silent(recwarn: pytest.WarningsRecorder) -> None:
    ScalingConfig(use_tpu=False, elastic_resize_monitor_interval_s=60.0, label_selector=None)
    FailureConfig(controller_failure_limit=-1, preemption_grace_s=None)
    assert not recwarn


def test_logging_config_checks_its_level() -> None:
    assert LoggingConfig("debug").log_level == "DEBUG"
    with pytest.raises(ValueError, match=r"LoggingConfig\(log_level='LOUD'\): expected one of"):
        LoggingConfig("LOUD")
