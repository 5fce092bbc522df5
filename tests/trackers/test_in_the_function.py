"""Tracking from inside the training function: the helpers, and direct calls of the libraries."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.air.integrations.comet import setup_comet
from lockstep.air.integrations.mlflow import setup_mlflow
from lockstep.air.integrations.wandb import setup_wandb
from lockstep.errors import HangError
from lockstep.train import Checkpoint
from lockstep.train.tracking.worker import StandIn, within_time
from tests.integration.runs import failure, fit
from tests.trackers import readers
from tests.trackers.installed import need

need("comet_ml", "mlflow", "wandb")

pytestmark = pytest.mark.timeout(180)


def tracked(config: dict[str, Any]) -> None:
    """Every rank logs three steps to all three trackers, as if it were the only rank."""
    logged = {key: config[key] for key in ("lr", "layers")}
    place = config["place"]
    mlflow = setup_mlflow(
        logged,
        tracking_uri=config["uri"],
        experiment_name="inside",
        create_experiment_if_not_exists=True,
        tags={"place": place},
    )
    run = setup_wandb(logged, project="inside", mode="offline", dir=place)
    experiment = setup_comet(
        logged,
        online=False,
        offline_directory=f"{place}/comet",
        tags=["inside"],
        log_env_details=False,
        log_env_network=False,
    )
    Path(place, "all open").touch()
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 1, 4):
        metrics = {"loss": 1 / step}
        mlflow.log_metrics(metrics, step=step)
        run.log(metrics, step=step)
        experiment.log_metrics(metrics, step=step)
        train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == 2 and config["fails"] >= train.get_context().get_attempt():
            raise ValueError("on purpose")
    if config.get("finish_yourself"):
        mlflow.end_run()
        run.finish()
        experiment.end()


def inside(place: Path, uri: str, **options: Any) -> dict[str, Any]:
    config = {"lr": 0.1, "layers": {"depth": 2}, "fails": 0, "place": str(place), "uri": uri}
    return {"config": {**config, **options}, "name": "inside"}


def mlflow_runs(uri: str, place: Path) -> Any:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("inside")
    runs = client.search_runs([experiment.experiment_id], f"tags.place = '{place}'")
    return client, runs


def losses(client: Any, run: Any) -> list[tuple[int, float]]:
    history = client.get_metric_history(run.info.run_id, "loss")
    return sorted((metric.step, metric.value) for metric in history)


def test_one_run_on_rank_0_through_a_restart(
    mlflow_server: str, libraries: None, tmp_path: Path
) -> None:
    result = fit(tracked, max_failures=1, **inside(tmp_path, mlflow_server, fails=1))
    trial_id = result.metrics["trial_id"]

    client, (run,) = mlflow_runs(mlflow_server, tmp_path)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"DataParallelTrainer_{trial_id}"
    assert run.data.params == {"lr": "0.1", "layers/depth": "2"}
    assert losses(client, run) == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]

    first, second = readers.wandb_runs(tmp_path)
    assert first.id == second.id == trial_id
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert first.config["layers"] == {"depth": 2}
    assert [row["_step"] for row in first.history + second.history] == [1, 2, 3]

    begun, continued = readers.comet_archives(tmp_path / "comet")
    assert begun.key == continued.key
    assert (begun.strategy, continued.strategy) == ("create", "get_or_create")
    assert (begun.others["status"], continued.others["status"]) == ("failed", "finished")
    steps = [step for name, _, step in begun.metrics + continued.metrics if name == "loss"]
    assert steps == [1, 2, 3]


def test_a_failure_is_the_end_that_is_logged(
    mlflow_server: str, libraries: None, tmp_path: Path
) -> None:
    failure(tracked, workers=0, **inside(tmp_path, mlflow_server, fails=1))
    _, (run,) = mlflow_runs(mlflow_server, tmp_path)
    assert run.info.status == "FAILED"
    assert [run.exit_code for run in readers.wandb_runs(tmp_path)] == [1]
    (archive,) = readers.comet_archives(tmp_path / "comet")
    assert archive.others["status"] == "failed"


def alone(config: dict[str, Any]) -> None:
    """Rank 0 logs and reports; the other rank never reports."""
    if train.get_context().get_world_rank() == 0:
        tracked(config)
    while not Path(config["place"], "all open").exists():  # trackers take long to open: no hang
        train.log({})
        time.sleep(0.1)
    time.sleep(1000)


def test_the_failure_of_another_rank_is_the_end_that_is_logged(
    mlflow_server: str, libraries: None, tmp_path: Path
) -> None:
    error = failure(alone, hang_timeout_s=2.0, **inside(tmp_path, mlflow_server))
    assert isinstance(error.__cause__, HangError)
    client, (run,) = mlflow_runs(mlflow_server, tmp_path)
    assert (run.info.status, losses(client, run)) == ("FAILED", [(1, 1.0)])
    (logged,) = readers.wandb_runs(tmp_path)
    assert (logged.exit_code, [row["loss"] for row in logged.history]) == (1, [1.0])
    (archive,) = readers.comet_archives(tmp_path / "comet")
    assert archive.others["status"] == "failed"
    assert ("loss", 1.0, 1) in archive.metrics


def test_in_process_and_finished_by_the_function_itself(
    mlflow_server: str, libraries: None, tmp_path: Path
) -> None:
    fit(tracked, workers=0, **inside(tmp_path, mlflow_server, finish_yourself=True))
    fit(tracked, workers=0, **inside(tmp_path, mlflow_server))
    client, runs = mlflow_runs(mlflow_server, tmp_path)
    assert [run.info.status for run in runs] == ["FINISHED"] * 2
    assert all(len(losses(client, run)) == 3 for run in runs)
    assert [run.exit_code for run in readers.wandb_runs(tmp_path)] == [0, 0]
    assert len(readers.comet_archives(tmp_path / "comet")) == 2


def test_every_rank_may_have_a_run_of_its_own(libraries: None, tmp_path: Path) -> None:
    def log_rank(config: dict[str, Any]) -> None:
        rank = train.get_context().get_world_rank()
        settings = {"mode": "offline", "root_dir": config["place"]}
        run = setup_wandb(config, settings=settings, rank_zero_only=False)
        run.log({"rank": rank})

    result = fit(log_rank, config={"place": str(tmp_path)})
    trial_id = result.metrics.get("trial_id") or Path(result.path).name.split("_0_")[0][-11:]
    runs = {run.id: run.history[0]["rank"] for run in readers.wandb_runs(tmp_path)}
    assert runs == {f"{trial_id}_rank_0": 0, f"{trial_id}_rank_1": 1}


def pages(config: dict[str, Any]) -> None:
    """Page 002: rank 0 logs with plain library calls, in four steps, with the stable trial id."""
    import comet_ml
    import mlflow
    import wandb

    context = train.get_context()
    place = config["save_dir"]
    if context.get_world_rank() == 0:
        os.environ["WANDB_MODE"] = "offline"
        wandb.init(id=context.get_trial_id(), name="page", project="page", dir=place)
        mlflow.set_tracking_uri(f"file:{place}/mlruns")
        mlflow.set_experiment("page")
        mlflow.start_run()
        experiment = comet_ml.OfflineExperiment(offline_directory=f"{place}/comet")
    for epoch in range(2):
        metrics = {"loss": 0.5**epoch}
        if context.get_world_rank() == 0:
            wandb.log(metrics)
            mlflow.log_metrics(metrics)
            experiment.log_metrics(metrics)
        train.report(metrics)
    if context.get_world_rank() == 0:
        wandb.finish()
        experiment.end()  # the worker's exit ends the MLflow run


def test_the_plain_calls_of_the_page(libraries: None, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from lockstep.trackers.mlflow_client import file_store_allowed

    result = fit(pages, config={"save_dir": str(tmp_path)})
    (run,) = readers.wandb_runs(tmp_path)
    assert run.id == result.metrics["trial_id"]
    assert ([row["loss"] for row in run.history], run.exit_code) == ([1, 0.5], 0)
    uri = f"file:{tmp_path}/mlruns"
    with file_store_allowed(uri):
        client = MlflowClient(uri)
        experiment = client.get_experiment_by_name("page")
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert [value for _, value in losses(client, logged)] == [0.5, 1.0]
    (archive,) = readers.comet_archives(tmp_path / "comet")
    assert [value for name, value, _ in archive.metrics if name == "loss"] == [1.0, 0.5]


def test_a_missing_key_is_the_pages_advice() -> None:
    def online() -> None:
        setup_wandb(project="p")

    error = failure(online, workers=1)
    assert isinstance(error.__cause__, ValueError)
    assert "WANDB_API_KEY" in str(error.__cause__)
    assert "wandb login" in str(error.__cause__)


@pytest.mark.parametrize("setup", [setup_mlflow, setup_wandb, setup_comet])
def test_a_config_that_is_no_dict_is_refused(setup: Any) -> None:
    with pytest.raises(TypeError, match=rf"{setup.__name__}\(config=\['lr'\]\): expected a dict"):
        setup(["lr"])


def test_the_stand_in_takes_everything_in_silence() -> None:
    silent = StandIn()
    with silent.start_run() as run:
        run.summary["best"] = 1
        run.config.lr = 0.1
    silent.log({"loss": 1})
    assert not silent.Api().runs("x")[0].history
    assert list(silent.find()) == []
    assert "silent" in repr(silent)
    with pytest.raises(AttributeError):
        silent.__deepcopy__  # noqa: B018


def test_an_end_that_hangs_or_raises_is_printed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import threading

    def broken() -> None:
        raise ConnectionError("no route")

    go = threading.Event()
    monkeypatch.setenv("LOCKSTEP_CALLBACK_FLUSH_S", "0.05")
    assert not within_time(go.wait, "wandb")  # type: ignore[arg-type]
    go.set()
    monkeypatch.setenv("LOCKSTEP_CALLBACK_FLUSH_S", "10")
    assert not within_time(broken, "MLflow")
    assert within_time(lambda: None, "Comet")
    hung, raised = capfd.readouterr().err.splitlines()
    assert "wandb run has not finished within 0.05 s" in hung
    assert "MLflow run raised ConnectionError: no route" in raised


def test_a_worker_does_not_use_the_drivers_wandb_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def variables() -> None:
        train.report({"service": os.environ.get("WANDB_SERVICE")})

    monkeypatch.setenv("WANDB_SERVICE", "3-1234-unix-elsewhere")
    assert fit(variables, workers=1).metrics["service"] is None
