"""One view of a run's data in any tracker, so that one suite can check all trackers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.callback import Callback
from lockstep.tune.integration.comet import CometLoggerCallback
from lockstep.tune.integration.mlflow import MLflowLoggerCallback
from lockstep.tune.integration.wandb import WandbLoggerCallback
from lockstep.tune.logger import TBXLoggerCallback
from tests.trackers import readers

EXPERIMENT = "lifecycle"


@dataclass
class View:
    """The data of a tracker: the ids of its runs, and the rest of all runs, merged."""

    ids: list[str]
    parameters: dict[str, str]
    losses: list[tuple[int, float]]
    status: str
    checkpoints: list[str]
    logged: list[tuple[int, float]]


@dataclass(frozen=True)
class Tracker:
    """How to create a callback that logs below a directory, and how to read its logs."""

    make: Callable[[bool], Callback]
    read: Callable[[str], View]


def all_trackers(directory: Path, mlflow_uri: str) -> dict[str, Tracker]:
    """Every built-in tracker by name. ``read`` takes the run's directory."""
    files = f"file:{directory}/mlruns"
    return {
        "mlflow server": _mlflow(mlflow_uri),
        "mlflow files": _mlflow(files),
        "wandb": Tracker(
            lambda save: WandbLoggerCallback(
                project="pages", mode="offline", dir=str(directory), upload_checkpoints=save
            ),
            lambda run: _wandb_view(directory),
        ),
        "comet": Tracker(
            lambda save: CometLoggerCallback(
                online=False,
                offline_directory=str(directory / "comet"),
                save_checkpoints=save,
                tags=["suite"],
            ),
            lambda run: _comet_view(directory / "comet"),
        ),
        "tensorboard": Tracker(lambda save: TBXLoggerCallback(), _tensorboard_view),
    }


def _mlflow(uri: str) -> Tracker:
    return Tracker(
        lambda save: MLflowLoggerCallback(
            uri, experiment_name=EXPERIMENT, tags={"suite": "yes"}, save_artifact=save
        ),
        lambda run: _mlflow_view(uri, run),
    )


def _mlflow_view(uri: str, run_directory: str) -> View:
    from mlflow import MlflowClient

    from lockstep.trackers.mlflow_client import file_store_allowed

    with file_store_allowed(uri):
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name(EXPERIMENT)
    trial_id = "_".join(Path(run_directory).name.split("_")[1:3])
    query = f"tags.`lockstep.trial_id` = '{trial_id}'"
    runs = client.search_runs([experiment.experiment_id], query)
    assert all(run.data.tags["suite"] == "yes" for run in runs)
    newest = runs[0]
    history = client.get_metric_history(newest.info.run_id, "loss")
    artifacts = [item.path for item in client.list_artifacts(newest.info.run_id)]
    return View(
        [run.info.run_id for run in runs],
        dict(newest.data.params),
        sorted((metric.step, metric.value) for metric in history),
        {"FINISHED": "finished", "FAILED": "failed", "KILLED": "stopped"}[newest.info.status],
        [name for name in artifacts if name.startswith("checkpoint_")],
        sorted(
            (metric.step, metric.value)
            for metric in client.get_metric_history(newest.info.run_id, "log/detail")
        ),
    )


def _wandb_view(directory: Path) -> View:
    runs = readers.wandb_runs(directory)
    newest = runs[-1]
    assert newest.project == "pages"
    config = newest.config["train_loop_config"]
    history = [row for run in runs for row in run.history]
    return View(
        [run.id for run in runs],
        {f"train_loop_config/{key}": str(value) for key, value in config.items()},
        sorted((row["training_iteration"], row["loss"]) for row in history if "loss" in row),
        {0: "finished", 1: "failed", 255: "stopped"}[newest.exit_code or 0],
        [name for run in runs for name in run.artifacts],
        sorted((row["log_step"], row["log/detail"]) for row in history if "log/detail" in row),
    )


def _comet_view(directory: Path) -> View:
    archives = readers.comet_archives(directory)
    newest = archives[-1]
    assert "suite" in newest.tags

    def values_of(metric: str) -> list[tuple[int, float]]:
        return sorted(
            (step, value)
            for archive in archives
            for name, value, step in archive.metrics
            if name == metric
        )

    strategies = ["create", "get_or_create"][: len(archives)]
    assert [archive.strategy for archive in archives] == strategies
    return View(
        [archive.key for archive in archives],
        {key: str(value) for key, value in newest.parameters.items()},
        values_of("loss"),
        newest.others["status"],
        [name for archive in archives for name in archive.files],
        values_of("log/detail"),
    )


def _tensorboard_view(run_directory: str) -> View:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    events = readers.accumulated(Path(run_directory))

    def plugin_data(tag: str) -> Any:
        content = events.SummaryMetadata(f"_hparams_/{tag}").plugin_data.content
        return HParamsPluginData.FromString(content)

    hparams = plugin_data("session_start_info").session_start_info.hparams
    values = {
        key: value.string_value or f"{value.number_value:g}" for key, value in hparams.items()
    }
    status = 0
    if "_hparams_/session_end_info" in events.summary_metadata:
        status = plugin_data("session_end_info").session_end_info.status
    return View(
        ["the directory"],
        values,
        readers.scalars(Path(run_directory))["loss"],
        {1: "finished", 2: "failed", 0: "stopped"}[status],
        [],
        readers.scalars(Path(run_directory, "log"))["detail"],
    )
