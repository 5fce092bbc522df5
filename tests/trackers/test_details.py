"""Behaviour of single trackers."""

from __future__ import annotations

import csv
import json
import pickle
import time
from pathlib import Path
from typing import Any, cast

import pytest

from lockstep import train
from lockstep.callback import Callback, TrialSnapshot
from lockstep.trackers import (
    CometLoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)
from lockstep.trackers.mlflow_client import file_store_allowed, mlflow_name, mlflow_parameters
from lockstep.trackers.values import flat_parameters, numeric_metrics, run_key
from lockstep.train import Checkpoint, DataParallelTrainer, Result
from tests.integration.runs import fit, run_script
from tests.trackers import readers
from tests.trackers.installed import need

need("comet_ml", "mlflow", "tensorboardX", "wandb")

# Importing the libraries takes long on a busy machine.
pytestmark = pytest.mark.timeout(180)


def three_reports(config: dict[str, Any]) -> None:
    for step in range(1, 4):
        metrics = {"loss": 1 / step, "val": {"acc": step}, "weights": [1.0, step]}
        train.report(metrics, checkpoint=Checkpoint.from_dict({"step": step}))


def run(callback: Callback, **config: Any) -> Result:
    return fit(three_reports, workers=1, config=config, callbacks=[callback])


def mlflow_run(uri: str, experiment: str) -> tuple[Any, Any]:
    from mlflow import MlflowClient

    with file_store_allowed(uri):
        client = MlflowClient(uri)
        found = client.get_experiment_by_name(experiment)
    (logged,) = client.search_runs([found.experiment_id])
    return client, logged


def test_mlflow_has_the_complete_small_files(libraries: None, tmp_path: Path) -> None:
    uri = f"file:{tmp_path}/mlruns"
    result = run(MLflowLoggerCallback(uri, experiment_name="e", save_artifact=True))
    client, logged = mlflow_run(uri, "e")
    copies = Path(client.download_artifacts(logged.info.run_id, ""))
    with (copies / "progress.csv").open() as rows:
        assert len(list(csv.DictReader(rows))) == 3
    lines = (copies / "result.json").read_text().splitlines()
    assert [json.loads(line)["training_iteration"] for line in lines] == [1, 2, 3]
    assert (copies / "logs" / "rank_0.log").exists()
    assert not list(copies.glob("*.pkl"))
    saved = copies / "checkpoint_000002"
    assert Checkpoint.from_directory(str(saved)).to_dict()["step"] == 3
    assert Path(result.path, "checkpoint_000002").is_dir()


def test_mlflow_takes_the_experiment_from_the_environment_and_parameters_at_the_end(
    libraries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"file:{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    run(MLflowLoggerCallback(log_params_on_trial_end=True), lr=0.5)
    _, logged = mlflow_run(uri, "from the environment")
    assert logged.data.params == {"train_loop_config/lr": "0.5"}
    assert logged.data.metrics["val/acc"] == 3


def test_names_that_mlflow_refuses_are_made_to_fit(libraries: None, tmp_path: Path) -> None:
    def odd(config: dict[str, Any]) -> None:
        train.report({"a//b": 1, "../c": 2, "loss@5": 3, "/": 4, "nan": float("nan")})

    uri = f"file:{tmp_path}/mlruns"
    fit(odd, workers=1, config={"k" * 300: "v" * 9000}, callbacks=[MLflowLoggerCallback(uri)])
    _, logged = mlflow_run(uri, "Default")
    assert {"a/b", "c", "loss_5", "_", "nan"} <= logged.data.metrics.keys()
    ((key, value),) = logged.data.params.items()
    assert (len(key), len(value)) == (250, 6000)
    assert mlflow_name("plain/name-1.x") == "plain/name-1.x"
    assert mlflow_parameters({"a": {"b": None}}) == {"a/b": "None"}


def test_a_token_is_set_for_mlflow_and_kept_nowhere(
    libraries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "before")
    uri = f"file:{tmp_path}/mlruns"
    result = run(MLflowLoggerCallback(uri, tracking_token="a secret token"))
    assert os.environ["MLFLOW_TRACKING_TOKEN"] == "before"
    for path in Path(result.path).rglob("*"):
        assert path.is_dir() or b"a secret token" not in path.read_bytes()


def test_wandb_leaves_out_what_is_excluded_and_logs_the_config(
    libraries: None, tmp_path: Path
) -> None:
    callback = WandbLoggerCallback(
        project="p",
        group="g",
        mode="offline",
        dir=str(tmp_path),
        excludes=["val", "time_total_s"],
        log_config=True,
        tags=["a"],
    )
    run(callback, lr=0.5)
    (logged,) = readers.wandb_runs(tmp_path)
    assert (logged.project, logged.group) == ("p", "g")
    assert [row["_step"] for row in logged.history] == [1, 2, 3]
    last = logged.history[-1]
    assert last["config/train_loop_config/lr"] == 0.5
    assert "time_this_iter_s" in last
    assert not {"val/acc", "time_total_s", "pid", "weights"} & last.keys()


def test_wandb_keeps_its_key_off_the_disk(libraries: None, tmp_path: Path) -> None:
    import wandb

    key = "0123456789" * 4
    callback = WandbLoggerCallback(api_key=key, mode="offline", dir=str(tmp_path / "here"))
    result = run(callback)
    for place in (Path(result.path), tmp_path):
        for path in place.rglob("*"):
            assert path.is_dir() or key.encode() not in path.read_bytes()
    assert pickle.loads(pickle.dumps(callback)).api_key is None
    for settings in ({"api_key": key}, wandb.Settings(api_key=key)):
        callback = WandbLoggerCallback(settings=settings)
        assert callback.api_key == key
        assert key.encode() not in pickle.dumps(callback)


def test_the_users_own_wandb_run_stays_open(libraries: None, tmp_path: Path) -> None:
    import wandb

    own = cast(Any, wandb.init(mode="offline", dir=str(tmp_path / "own"), id="mine"))
    run(WandbLoggerCallback(mode="offline", dir=str(tmp_path / "theirs")))
    still_the_current_one = wandb.run is own
    assert still_the_current_one
    own.log({"still": "here"})
    own.finish()
    (mine,) = readers.wandb_runs(tmp_path / "own")
    assert (mine.id, mine.exit_code, len(mine.history)) == ("mine", 0, 1)


def test_the_users_own_comet_experiment_stays_open(libraries: None, tmp_path: Path) -> None:
    import comet_ml

    own = comet_ml.OfflineExperiment(
        offline_directory=str(tmp_path / "own"), log_env_details=False, display_summary_level=0
    )
    run(CometLoggerCallback(online=False, offline_directory=str(tmp_path / "theirs")))
    assert comet_ml.get_running_experiment() is own
    assert not own.ended
    own.log_metric("still", 1)
    own.end()
    (mine,) = readers.comet_archives(tmp_path / "own")
    assert [name for name, _, _ in mine.metrics if name == "still"]
    (theirs,) = readers.comet_archives(tmp_path / "theirs")
    assert [step for name, _, step in theirs.metrics if name == "loss"] == [1, 2, 3]


def test_the_settings_of_wandb_and_the_older_name_of_uploads(
    libraries: None, tmp_path: Path
) -> None:
    import wandb

    settings = wandb.Settings(mode="offline", root_dir=str(tmp_path))
    run(WandbLoggerCallback(settings=settings, save_checkpoints=True))
    (logged,) = readers.wandb_runs(tmp_path)
    assert len(logged.history) == len(logged.artifacts) == 3


def test_a_run_that_was_created_before_an_error_is_resumed(
    libraries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    import lockstep.trackers.service as service

    failed: list[bool] = []
    log_batch = MlflowClient.log_batch

    def fails_once(self: Any, *args: Any, **options: Any) -> Any:
        if not failed:
            failed.append(True)
            raise ConnectionError("reset by peer")
        return log_batch(self, *args, **options)

    monkeypatch.setattr(MlflowClient, "log_batch", fails_once)
    monkeypatch.setattr(service, "RETRY_S", 0.0)
    uri = f"file:{tmp_path}/mlruns"
    run(MLflowLoggerCallback(uri, experiment_name="e"), lr=0.5)
    client, logged = mlflow_run(uri, "e")  # the only run
    assert failed
    assert logged.data.params == {"train_loop_config/lr": "0.5"}
    history = client.get_metric_history(logged.info.run_id, "loss")
    assert sorted(metric.step for metric in history) == [1, 2, 3]


def test_tensorboard_with_torchs_writer(
    libraries: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboardX" else find(name)
    )
    result = run(TBXLoggerCallback(), lr=0.5)
    found = readers.scalars(Path(result.path))
    assert [step for step, _ in found["val/acc"]] == [1, 2, 3]
    assert found["loss"][-1][1] == pytest.approx(1 / 3)


def test_tensorboard_draws_a_list_as_a_histogram(libraries: None) -> None:
    result = run(TBXLoggerCallback())
    events = readers.accumulated(Path(result.path))
    assert events.Tags()["histograms"] == ["weights"]
    assert {"loss", "val/acc", "training_iteration"} <= set(events.Tags()["scalars"])
    assert not {"pid", "timestamp", "done"} & set(events.Tags()["scalars"])


def test_a_restored_run_shows_its_later_values_in_tensorboard(libraries: None) -> None:
    def count(config: dict[str, Any]) -> None:
        known = train.load_checkpoint()
        attempt = train.get_context().get_attempt()
        for step in range(known["step"] + 1 if known else 1, 5):
            saved = Checkpoint.from_dict({"step": step}) if step == 2 else None
            train.report({"attempt": attempt}, checkpoint=saved)
            if step == 3 and attempt == 1:
                raise ValueError("once")

    with pytest.raises(RuntimeError) as raised:
        fit(count, workers=1, callbacks=[TBXLoggerCallback()])
    result = DataParallelTrainer.restore(raised.value.result.path).fit()  # type: ignore[attr-defined]
    found = readers.scalars(Path(result.path))
    assert found["attempt"] == [(1, 1), (2, 1), (3, 2), (4, 2)]


@pytest.mark.parametrize(
    "callback",
    [
        MLflowLoggerCallback("file:here", tags={"a": 1}),
        WandbLoggerCallback(mode="offline", project="p"),
        CometLoggerCallback(online=False, project_name="p"),
        TBXLoggerCallback(),
    ],
    ids=lambda callback: type(callback).__name__,
)
def test_a_tracker_is_kept_with_its_run(callback: Callback) -> None:
    copy = pickle.loads(pickle.dumps(callback))
    assert vars(copy).keys() == vars(callback).keys()
    assert copy.__getstate__() == callback.__getstate__()


def test_what_counts_as_a_number_and_as_a_parameter() -> None:
    row = {"loss": 1, "ok": True, "word": "x", "none": None, "a": {"b": 2.5}, "l": [1]}
    row |= {"pid": 7, "time_since_restore": 1.5, "iterations_since_restore": 2}
    assert numeric_metrics(row) == {"loss": 1, "ok": True, "a/b": 2.5}
    assert numeric_metrics(row, ["a", "loss"]) == {"ok": True}
    assert numeric_metrics(row, ["a/b"]) == {"loss": 1, "ok": True}
    config = {"lr": 0.1, "f": len, "empty": {}, "n": {"x": [1, 2]}, "none": None}
    assert flat_parameters(config) == {
        "lr": 0.1,
        "f": "<built-in function len>",
        "empty": "{}",
        "n/x": "[1, 2]",
        "none": "None",
    }
    assert run_key("e", "t") == run_key("e", "t") != run_key("e2", "t")
    assert len(run_key("e", "t")) == 32


def test_every_trial_of_an_experiment_has_a_run_of_its_own(libraries: None, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from lockstep import tune
    from lockstep.train import RunConfig

    def trial(config: dict[str, Any]) -> None:
        tune.report({"score": config["lr"]})
        # Both trials run at once: neither continues before the trackers have started both.
        while len(list(Path(config["place"]).glob("wandb/offline-run-*"))) < 2:
            time.sleep(0.05)
        tune.report({"score": config["lr"]})
        if config["lr"] == 2:
            raise ValueError("this one fails")

    uri = f"file:{tmp_path}/mlruns"
    callbacks = [
        MLflowLoggerCallback(uri, experiment_name="tune"),
        WandbLoggerCallback(mode="offline", dir=str(tmp_path)),
        CometLoggerCallback(online=False, offline_directory=str(tmp_path / "comet")),
    ]
    tune.Tuner(
        trial,
        param_space={"lr": tune.grid_search([1, 2]), "place": str(tmp_path)},
        run_config=RunConfig(callbacks=callbacks, verbose=0),
    ).fit()
    with file_store_allowed(uri):
        client = MlflowClient(uri)
        found = client.get_experiment_by_name("tune")
    runs = {run.data.params["lr"]: run for run in client.search_runs([found.experiment_id])}
    assert {lr: run.info.status for lr, run in runs.items()} == {"1": "FINISHED", "2": "FAILED"}
    assert all(run.data.metrics["score"] == float(lr) for lr, run in runs.items())
    logged = readers.wandb_runs(tmp_path)
    assert sorted((run.config["lr"], run.exit_code) for run in logged) == [(1, 0), (2, 1)]
    archives = readers.comet_archives(tmp_path / "comet")
    by_lr = {int(archive.parameters["lr"]): archive for archive in archives}
    assert {lr: by_lr[lr].others["status"] for lr in by_lr} == {1: "finished", 2: "failed"}
    for lr, archive in by_lr.items():
        scores = [(value, step) for name, value, step in archive.metrics if name == "score"]
        assert scores == [(lr, 1), (lr, 2)]


def test_what_trackers_write_and_read_in_a_trial_reaches_remote_storage(
    libraries: None, tmp_path: Path
) -> None:
    from mlflow import MlflowClient
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    from lockstep import tune
    from lockstep.train import RunConfig

    def trial(config: dict[str, Any]) -> None:
        for step in range(1, 4):
            tune.report({"score": config["x"] * step})

    uri = f"file:{tmp_path}/mlruns"
    callbacks = [
        TBXLoggerCallback(),
        MLflowLoggerCallback(uri, experiment_name="far", save_artifact=True),
    ]
    run_config = RunConfig(
        storage_path="far",
        storage_filesystem=SubTreeFileSystem(str(tmp_path), LocalFileSystem()),
        name="e",
        callbacks=callbacks,
        verbose=0,
    )
    tune.Tuner(trial, param_space={"x": tune.grid_search([1, 2])}, run_config=run_config).fit()
    scores = [readers.scalars(path)["score"] for path in sorted(tmp_path.glob("far/e/trial_*"))]
    assert scores == [[(1, 1), (2, 2), (3, 3)], [(1, 2), (2, 4), (3, 6)]]
    with file_store_allowed(uri):
        client = MlflowClient(uri)
        found = client.get_experiment_by_name("far")
    for logged in client.search_runs([found.experiment_id]):
        files = {item.path for item in client.list_artifacts(logged.info.run_id)}
        assert {"progress.csv", "result.json", "params.json"} <= files


def test_tensorboard_follows_a_paused_trial_to_another_directory(tmp_path: Path) -> None:
    callback = TBXLoggerCallback()
    for step, name in enumerate(("before", "after"), 1):
        directory = tmp_path / name
        directory.mkdir()
        trial = TrialSnapshot("4913f_00000", "train", str(directory))
        callback.log_trial_start(trial)
        callback.log_trial_start(trial)
        callback.log_trial_result(step, trial, {"loss": 0.5})
    callback.log_trial_end(trial)
    for step, name in enumerate(("before", "after"), 1):
        assert len(list((tmp_path / name).iterdir())) == 1
        assert readers.scalars(tmp_path / name) == {"loss": [(step, 0.5)]}


def test_tensorboard_keeps_steps_that_are_logged_out_of_order(tmp_path: Path) -> None:
    """Two rows at one step, and epochs beside steps; only another attempt replaces values."""
    callback = TBXLoggerCallback()
    trial = TrialSnapshot("4913f_00000", "train", str(tmp_path))
    callback.log_trial_start(trial)

    def log(rank: int, step: int, **metrics: float) -> None:
        callback.log_trial_rows(
            trial.trial_id, rank, [{"step": step, "time": 1.0 + step, "metrics": metrics}]
        )

    for step in (100, 200, 300):
        log(0, step, loss=1.0)
        log(0, step, acc=0.5)
        log(1, step, loss=2.0)
        log(0, step // 100, epoch_loss=3.0)
    callback.on_trial_recover(1, [trial], trial)
    log(0, 200, loss=4.0)
    log(1, 200, loss=5.0)
    callback.log_trial_end(trial)
    assert len(list((tmp_path / "log").iterdir())) == 2
    found = readers.scalars(tmp_path / "log")
    assert found["loss"] == [(100, 1.0), (200, 4.0)]
    assert found["rank_1/loss"] == [(100, 2.0), (200, 5.0)]
    assert found["acc"] == [(100, 0.5)]
    assert found["epoch_loss"] == [(1, 3.0), (2, 3.0), (3, 3.0)]


def test_the_callbacks_of_the_page(libraries: None, tmp_path: Path) -> None:
    """Page 004's MLflow and TensorBoard example, with its store in the working directory."""
    script = """
        from lockstep.air import RunConfig, ScalingConfig, session
        from lockstep.train.torch import TorchTrainer
        from lockstep.tune.integration.mlflow import MLflowLoggerCallback
        from lockstep.tune.logger import TBXLoggerCallback

        def train_func():
            for i in range(3):
                session.report(dict(epoch=i))

        if __name__ == "__main__":
            trainer = TorchTrainer(
                train_func,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(
                    callbacks=[
                        MLflowLoggerCallback(experiment_name="train_experiment"),
                        TBXLoggerCallback(),
                    ]
                ),
            )
            result = trainer.fit()
            print("Run directory:", result.log_dir.parent)
    """
    environment = {"MLFLOW_TRACKING_URI": "file:mlflow"}
    done = run_script(tmp_path, script, environment=environment, timeout_s=150)
    parent = Path(done.stdout.rpartition("Run directory: ")[2].strip())
    (run_directory,) = parent.iterdir()
    assert readers.scalars(run_directory)["epoch"] == [(1, 0.0), (2, 1.0), (3, 2.0)]
    client, logged = mlflow_run(f"file:{tmp_path}/mlflow", "train_experiment")
    assert logged.info.status == "FINISHED"
    history = client.get_metric_history(logged.info.run_id, "epoch")
    assert sorted((metric.step, metric.value) for metric in history) == [(1, 0), (2, 1), (3, 2)]
