"""Every spelling of a name is the same object, and the old spellings are re-exports."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import lockstep

ROOT = Path(lockstep.__file__).parent

# The defining place first, then every other spelling of it.
SPELLINGS = [
    ["callback.Callback", "tune.Callback", "tune.callback.Callback"],
    ["callback.LoggerCallback", "tune.logger.LoggerCallback"],
    ["callback.UserCallback", "train.UserCallback"],
    [
        "trackers.csv.CSVLoggerCallback",
        "trackers.CSVLoggerCallback",
        "tune.logger.CSVLoggerCallback",
    ],
    [
        "trackers.json.JsonLoggerCallback",
        "trackers.JsonLoggerCallback",
        "tune.logger.JsonLoggerCallback",
    ],
    [
        "checkpoint.Checkpoint",
        "train.Checkpoint",
        "air.Checkpoint",
        "air.checkpoint.Checkpoint",
    ],
    ["result.Result", "train.Result", "air.Result", "air.result.Result"],
    *(
        [f"config.{name}", f"train.{name}", f"air.{name}", f"air.config.{name}"]
        for name in ("RunConfig", "ScalingConfig", "FailureConfig", "CheckpointConfig")
    ),
    ["train.api.report", "train.report", "tune.report", "air.session.report"],
    [
        "train.api.get_checkpoint",
        "train.get_checkpoint",
        "tune.get_checkpoint",
        "air.session.get_checkpoint",
    ],
    ["train.api.get_context", "train.get_context", "tune.get_context"],
    ["train.context.TrainContext", "train.TrainContext"],
    *(
        [f"train.api.{name}", f"air.session.{name}"]
        for name in (
            "get_experiment_name",
            "get_local_rank",
            "get_local_world_size",
            "get_metadata",
            "get_node_rank",
            "get_trial_dir",
            "get_trial_id",
            "get_trial_name",
            "get_trial_resources",
            "get_world_rank",
            "get_world_size",
        )
    ),
    [
        "train.tensorflow.keras.ReportCheckpointCallback",
        "air.integrations.keras.ReportCheckpointCallback",
    ],
    ["errors.WorkerDiedError", "exceptions.WorkerDiedError", "exceptions.RayActorError"],
    ["errors.TrainingFailedError", "exceptions.TrainingFailedError"],
]

OLD_SPELLINGS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / "air").rglob("*.py"),
        ROOT / "exceptions.py",
        ROOT / "tune" / "callback.py",
        ROOT / "tune" / "logger.py",
    )
)


def resolve(spelling: str) -> object:
    module, _, name = f"lockstep.{spelling}".rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("spellings", SPELLINGS, ids=lambda spellings: spellings[0])
def test_every_spelling_is_the_same_object(spellings: list[str]) -> None:
    defined, *others = [resolve(spelling) for spelling in spellings]
    assert all(other is defined for other in others)


def test_the_one_line_import_of_the_pages() -> None:
    from lockstep.air import (  # noqa: F401
        Checkpoint,
        CheckpointConfig,
        FailureConfig,
        RunConfig,
        ScalingConfig,
        session,
    )

    assert session is importlib.import_module("lockstep.air.session")


def test_a_worker_that_died_is_caught_under_the_old_name() -> None:
    from lockstep.errors import WorkerDiedError
    from lockstep.exceptions import RayActorError

    with pytest.raises(RayActorError, match="signal 9"):
        raise WorkerDiedError("rank 0 was killed by signal 9", -9)


@pytest.mark.parametrize("file", OLD_SPELLINGS)
def test_old_spellings_define_nothing(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    defined = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
    ]
    assert defined == []


def test_exceptions_has_every_error() -> None:
    errors = importlib.import_module("lockstep.errors")
    exceptions = importlib.import_module("lockstep.exceptions")
    assert set(exceptions.__all__) == {*errors.__all__, "RayActorError"}
    assert all(getattr(exceptions, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.parametrize("name", ["train", "tune", "air"])
def test_subpackages_are_attributes_after_a_plain_import(name: str) -> None:
    assert getattr(lockstep, name) is importlib.import_module(f"lockstep.{name}")
