"""Every spelling of a name is the same object, and the old spellings are re-exports."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep

ROOT = Path(lockstep.__file__).parent

# The defining place first, then every other spelling of it.
SPELLINGS = [
    ["callback.Callback", "tune.Callback", "tune.callback.Callback"],
    ["callback.LoggerCallback", "tune.logger.LoggerCallback", "tune.logger.logger.LoggerCallback"],
    ["callback.UserCallback", "train.UserCallback"],
    ["tune.tuner.Tuner", "tune.Tuner"],
    ["tune.tune_config.TuneConfig", "tune.tuner.TuneConfig", "tune.TuneConfig"],
    ["tune.result_grid.ResultGrid", "tune.ResultGrid"],
    ["tune.legacy.run", "tune.run"],
    ["tune.analysis.ExperimentAnalysis", "tune.ExperimentAnalysis"],
    ["errors.LockstepError", "tune.error.TuneError", "tune.TuneError"],
    ["config.SyncConfig", "train.SyncConfig", "tune.SyncConfig"],
    ["tune.experiment.trial.Trial", "tune.experiment.Trial"],
    ["tune.registry.register_trainable", "tune.register_trainable"],
    ["tune.compat.CLIReporter", "tune.progress_reporter.CLIReporter", "tune.CLIReporter"],
    [
        "tune.parameters.PlacementGroupFactory",
        "tune.execution.placement_groups.PlacementGroupFactory",
        "tune.PlacementGroupFactory",
    ],
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
        "trackers.tensorboard.TBXLoggerCallback",
        "trackers.TBXLoggerCallback",
        "tune.logger.TBXLoggerCallback",
        "tune.logger.tensorboardx.TBXLoggerCallback",
    ],
    *(
        [
            f"trackers.{module}.{name}",
            f"trackers.{name}",
            f"tune.logger.{module}.{name}",
            f"tune.integration.{module}.{name}",
            f"air.integrations.{module}.{name}",
            f"air.callbacks.{module}.{name}",
        ]
        for module, name in (
            ("comet", "CometLoggerCallback"),
            ("mlflow", "MLflowLoggerCallback"),
            ("wandb", "WandbLoggerCallback"),
        )
    ),
    *(
        [
            f"train.tracking.{module}.setup_{module}",
            f"train.tracking.setup_{module}",
            f"tune.integration.{module}.setup_{module}",
            f"air.integrations.{module}.setup_{module}",
        ]
        for module in ("comet", "mlflow", "wandb")
    ),
    [
        "checkpoint.Checkpoint",
        "train.Checkpoint",
        "air.Checkpoint",
        "air.checkpoint.Checkpoint",
    ],
    ["result.Result", "train.Result", "air.Result", "air.result.Result"],
    ["train.torch.trainer.TorchTrainer", "train.torch.torch_trainer.TorchTrainer"],
    [
        "train.torch.checkpoint.TorchCheckpoint",
        "train.torch.TorchCheckpoint",
        "train.torch.torch_checkpoint.TorchCheckpoint",
    ],
    *(
        [f"train.torch.{name}", f"train.torch.train_loop_utils.{name}"]
        for name in ("accelerate", "get_device", "prepare_data_loader", "prepare_model")
    ),
    ["errors.SessionMisuseError", "train.error.SessionMisuseError"],
    ["train.constants.TRAIN_DATASET_KEY", "train.TRAIN_DATASET_KEY"],
    *(
        [f"{home}.{name}", f"train.{name}", f"train.v2.api.{module}.{name}"]
        for home, module, names in (
            ("callback", "callback", ["UserCallback"]),
            ("config", "config", ["RunConfig", "ScalingConfig", "LoggingConfig"]),
            ("train.context", "context", ["TrainContext"]),
            ("train.trainer", "data_parallel_trainer", ["DataParallelTrainer"]),
            ("errors", "exceptions", ["ControllerError", "PreemptionError", "WorkerGroupError"]),
            ("train.context", "preemption", ["PreemptionInfo"]),
            ("config", "report_config", ["CheckpointConsistencyMode", "CheckpointUploadMode"]),
            ("train.api", "reported_checkpoint", ["ReportedCheckpoint"]),
            ("result", "result", ["Result"]),
            (
                "train.validation",
                "validation_config",
                ["ValidationConfig", "ValidationFn", "ValidationTaskConfig"],
            ),
            ("train.api", "train_fn_utils", ["report", "get_checkpoint", "get_context"]),
        )
        for name in names
    ),
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
    ["train.api.get_dataset_shard", "train.get_dataset_shard", "air.session.get_dataset_shard"],
    ["data.config.DataConfig", "data.DataConfig", "train.DataConfig"],
    [
        "data.config.DatasetConfig",
        "data.DatasetConfig",
        "train.DatasetConfig",
        "air.DatasetConfig",
        "air.config.DatasetConfig",
    ],
    ["train.context.TrainContext", "train.TrainContext", "tune.TuneContext"],
    ["train.trainer.BaseTrainer", "train.BaseTrainer", "train.base_trainer.BaseTrainer"],
    [
        "train.trainer.DataParallelTrainer",
        "train.DataParallelTrainer",
        "train.data_parallel_trainer.DataParallelTrainer",
    ],
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
    [
        "train.tensorflow.keras.Callback",
        "air.integrations.keras.Callback",
        "air.callbacks.keras.Callback",
    ],
    [
        "tune.schedulers.async_hyperband.AsyncHyperBandScheduler",
        "tune.schedulers.async_hyperband.ASHAScheduler",
        "tune.schedulers.AsyncHyperBandScheduler",
        "tune.schedulers.ASHAScheduler",
    ],
    *(
        [f"tune.schedulers.{module}.{name}", f"tune.schedulers.{name}"]
        for module, name in (
            ("hyperband", "HyperBandScheduler"),
            ("median_stopping_rule", "MedianStoppingRule"),
            ("pbt", "PopulationBasedTraining"),
            ("pbt_replay", "PopulationBasedTrainingReplay"),
            ("trial_scheduler", "FIFOScheduler"),
            ("trial_scheduler", "TrialScheduler"),
        )
    ),
    *(
        [f"tune.search.{module}.{name}", f"tune.search.{name}"]
        for module, name in (
            ("basic_variant", "BasicVariantGenerator"),
            ("concurrency_limiter", "ConcurrencyLimiter"),
            ("repeater", "Repeater"),
            ("searcher", "Searcher"),
        )
    ),
    *(
        [f"tune.search.sample.{name}", f"tune.{name}"]
        for name in ("choice", "grid_search", "loguniform", "sample_from", "uniform")
    ),
    ["tune.trainable.Trainable", "tune.Trainable"],
    ["tune.stopper.Stopper", "tune.Stopper"],
    ["errors.WorkerDiedError", "exceptions.WorkerDiedError", "exceptions.RayActorError"],
    [
        "errors.TrainingFailedError",
        "exceptions.TrainingFailedError",
        "train.TrainingFailedError",
        "train.base_trainer.TrainingFailedError",
    ],
]

OLD_SPELLINGS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        *(ROOT / "air").rglob("*.py"),
        ROOT / "exceptions.py",
        ROOT / "tune" / "callback.py",
        *(ROOT / "tune" / "logger").rglob("*.py"),
        *(ROOT / "train" / "v2").rglob("*.py"),
        ROOT / "train" / "torch" / "torch_trainer.py",
        ROOT / "train" / "torch" / "torch_checkpoint.py",
        ROOT / "train" / "torch" / "train_loop_utils.py",
        *(
            ROOT / "tune" / "integration" / f"{name}.py"
            for name in ("__init__", "comet", "mlflow", "wandb")
        ),
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


def test_what_catches_rays_user_code_exception_catches_the_users_own() -> None:
    import lockstep.data
    from lockstep.exceptions import UserCodeException

    def fail(row: dict[str, int]) -> dict[str, int]:
        raise ValueError("on purpose")

    with pytest.raises(UserCodeException, match="on purpose") as raised:
        lockstep.data.range(2).map(fail).take_all()
    assert raised.type is ValueError


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
    of_ray = {"RayActorError", "RayError", "RayTaskError", "UserCodeException"}
    of_ray.add("WorkerCrashedError")
    assert set(exceptions.__all__) == {*errors.__all__, *of_ray}
    assert all(getattr(exceptions, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.parametrize(
    "spelling",
    [
        "air.checkpoint.Checkpoint",
        "air.config.ScalingConfig",
        "air.result.Result",
        "air.session.report",
        "data.read_csv",
        "exceptions.RayActorError",
        "train.base_trainer.TrainingFailedError",
        "train.data_parallel_trainer.DataParallelTrainer",
        "train.horovod.HorovodTrainer",
        "train.tensorflow.TensorflowTrainer",
        "train.torch.prepare_model",
        "tune.logger.LoggerCallback",
        "tune.tuner.TuneConfig",
    ],
)
def test_after_a_plain_import_names_are_found_when_they_are_used(spelling: str) -> None:
    """In an interpreter of its own: what other tests have imported is found anyway."""
    code = f"import lockstep as ray; ray.{spelling}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=150
    )
    assert done.returncode == 0, done.stderr
