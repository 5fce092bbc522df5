"""What a run leaves behind: its directory, and the Result read from that alone."""

from __future__ import annotations

import csv
import json
import math
import pickle
import re
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import air, train
from lockstep.errors import StorageError
from lockstep.run_layout import MANIFEST
from lockstep.train import Checkpoint, CheckpointConfig, Result
from tests.integration.runs import failure, fit, run_script, trainer

DATE = r"\d{4}-\d{2}-\d{2}_\d{2}-\d{2}-\d{2}"


class Unlucky(Exception):
    pass


def train_func(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    for epoch in range(config.get("epochs", 3)):
        train.log({"fine": epoch}, step=epoch)
        train.report(
            {"epoch": epoch, "loss": math.nan if epoch == 0 else 1 / epoch, "rank": rank},
            checkpoint=Checkpoint.from_dict({"epoch": epoch}) if epoch < 2 else None,
        )
    if config.get("fail"):
        raise Unlucky("not today", 13)


def same(one: Result, other: Result) -> None:
    """Everything a user reads off the two is equal."""
    assert repr(one.metrics) == repr(other.metrics)
    assert repr(one.reported_metrics) == repr(other.reported_metrics)
    assert repr(one.metrics_by_rank) == repr(other.metrics_by_rank)
    assert one.metrics_dataframe.equals(other.metrics_dataframe)
    assert one.rank_dataframe.equals(other.rank_dataframe)
    assert one.log_dataframe.equals(other.log_dataframe)
    assert (one.state, one.config) == (other.state, other.config)
    assert type(one.error) is type(other.error)
    assert str(one.error) == str(other.error)
    assert sorted(one.worker_failures) == sorted(other.worker_failures)
    assert [
        (checkpoint.to_dict(), repr(metrics)) for checkpoint, metrics in one.best_checkpoints
    ] == [(checkpoint.to_dict(), repr(metrics)) for checkpoint, metrics in other.best_checkpoints]


# ------------------------------------------------------------------------------------------ metrics


def test_the_last_row_has_every_automatic_key() -> None:
    result = fit(train_func, config={"epochs": 2})
    row = result.metrics
    kinds: dict[str, type] = {
        "_time_this_iter_s": float,
        "_timestamp": int,
        "_training_iteration": int,
        "config": dict,
        "date": str,
        "done": bool,
        "episodes_total": type(None),
        "experiment_id": str,
        "experiment_tag": str,
        "hostname": str,
        "iterations_since_restore": int,
        "node_ip": str,
        "pid": int,
        "time_since_restore": float,
        "time_this_iter_s": float,
        "time_total_s": float,
        "timestamp": int,
        "timesteps_since_restore": int,
        "timesteps_total": type(None),
        "training_iteration": int,
        "trial_id": str,
        "warmup_time": float,
    }
    assert {key: type(row[key]) for key in kinds} == kinds
    assert set(row) == {*kinds, "epoch", "loss", "rank", "checkpoint_dir_name"}
    assert row["training_iteration"] == row["_training_iteration"] == 2
    assert row["iterations_since_restore"] == 2
    assert (row["epoch"], row["done"], row["experiment_tag"]) == (1, True, "0")
    assert row["config"] == {"train_loop_config": {"epochs": 2}}
    assert re.fullmatch(DATE, row["date"])
    assert re.fullmatch(r"[0-9a-f]{32}", row["experiment_id"])
    assert re.fullmatch(r"[0-9a-f]{5}_00000", row["trial_id"])
    assert row["hostname"] == socket.gethostname()
    socket.inet_aton(row["node_ip"])
    assert 0 < row["time_this_iter_s"] <= row["time_since_restore"] == row["time_total_s"]
    assert row["timesteps_since_restore"] == 0
    assert result.reported_metrics == {"epoch": 1, "loss": 1.0, "rank": 0}


def test_the_dataframe_has_one_row_a_report() -> None:
    frame = fit(train_func).metrics_dataframe
    assert frame["epoch"].tolist() == [0, 1, 2]
    assert frame["training_iteration"].tolist() == [1, 2, 3]
    assert frame["attempt"].tolist() == [1, 1, 1]
    assert frame["checkpoint_dir_name"].fillna("").tolist() == [
        "checkpoint_000000",
        "checkpoint_000001",
        "",
    ]
    assert len(set(frame["pid"])) == 1
    assert frame["time_total_s"].is_monotonic_increasing


def test_a_config_that_json_cannot_hold_is_described() -> None:
    def function(config: dict[str, Any]) -> None:
        train.report({"ok": config["callable"](2)})

    result = fit(function, config={"callable": math.sqrt, "lr": 0.1}, workers=1)
    assert result.metrics["ok"] == math.sqrt(2)
    assert result.config == {"callable": repr(math.sqrt), "lr": 0.1}


def test_the_repr_shows_what_was_reported_and_not_what_was_added() -> None:
    result = fit(train_func, config={"epochs": 2})
    text = repr(result)
    assert "'epoch': 1" in text
    assert result.path in text
    assert "checkpoint_000001" in text
    assert "trial_id" not in text
    assert "error" not in text
    failed = failure(train_func, config={"fail": True}).result
    assert "Unlucky('not today', 13)" in repr(failed)


# --------------------------------------------------------------------------------------- directory


def test_the_directory_is_laid_out_as_documented(tmp_path: Path) -> None:
    result = fit(train_func, storage_path=tmp_path)
    run = result.log_dir
    assert isinstance(run, Path)
    assert str(run) == result.path
    assert run.parent.parent == tmp_path
    assert re.fullmatch(f"DataParallelTrainer_{DATE}", run.parent.name)
    trial_id = result.metrics["trial_id"]
    assert re.fullmatch(f"DataParallelTrainer_{trial_id}_0_{DATE}", run.name)
    assert {path.name for path in run.iterdir()} == {
        "checkpoint_000000",
        "checkpoint_000001",
        "environment.json",
        "journal.jsonl",
        "logs",
        "params.json",
        "progress.csv",
        "result.json",
        "trainer.pkl",
    }
    assert {path.name for path in (run / "logs").iterdir()} == {"rank_0.log", "rank_1.log"}


def test_a_name_is_the_experiment_directory(tmp_path: Path) -> None:
    first = fit(train_func, storage_path=str(tmp_path), name="mine")
    second = fit(train_func, storage_path=str(tmp_path), name="mine")
    assert first.log_dir.parent == second.log_dir.parent == tmp_path / "mine"
    assert first.log_dir != second.log_dir


def test_the_default_place_is_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "elsewhere"))
    assert fit(train_func).log_dir.parents[1] == tmp_path / "elsewhere"
    monkeypatch.delenv("LOCKSTEP_STORAGE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert fit(train_func).log_dir.parents[1] == tmp_path / "home" / "lockstep_results"


def test_a_relative_storage_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = fit(train_func, storage_path="here")
    assert result.log_dir.parents[1] == tmp_path / "here"


def test_the_log_files_hold_every_row() -> None:
    result = fit(train_func, config={"epochs": 3, "lr": 0.5})
    lines = [json.loads(line) for line in (result.log_dir / "result.json").read_text().splitlines()]
    assert [row["epoch"] for row in lines] == [0, 1, 2]
    assert math.isnan(lines[0]["loss"])
    assert [row["done"] for row in lines] == [False] * 3
    assert set(lines[0]) == set(result.metrics)
    assert set(lines[-1]) == set(result.metrics) - {"config"}  # it has not changed
    with (result.log_dir / "progress.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["epoch"] for row in table] == ["0", "1", "2"]
    assert table[0]["loss"] == "nan"
    assert json.loads((result.log_dir / "params.json").read_text()) == {
        "train_loop_config": {"epochs": 3, "lr": 0.5}
    }


# ------------------------------------------------------------------------------- reading it again


def test_from_path_gives_the_same_result(tmp_path: Path) -> None:
    result = fit(train_func, storage_path=tmp_path)
    again = Result.from_path(result.path)
    same(result, again)
    assert again.path == result.path
    assert again.checkpoint == result.checkpoint
    assert again.error is None
    same(result, Result.from_path(result.log_dir))
    same(result, Result.from_path(result.log_dir.parent))
    assert air.Result is train.Result is Result


def test_from_path_after_a_failure() -> None:
    error = failure(train_func, config={"fail": True})
    assert error.result is not None
    again = Result.from_path(error.result.path)
    same(error.result, again)
    assert type(again.error) is Unlucky
    assert again.error.args == ("not today", 13)
    assert again.error.__traceback__ is not None
    assert again.state == "failed"
    assert again.checkpoint is not None


def test_from_path_after_the_directory_has_moved(tmp_path: Path) -> None:
    result = fit(train_func, storage_path=tmp_path / "here")
    frames = result.metrics_dataframe, result.log_dataframe
    before = [checkpoint.to_dict() for checkpoint, _ in result.best_checkpoints]
    shutil.move(tmp_path / "here", tmp_path / "there")
    place = tmp_path / "there" / result.log_dir.relative_to(tmp_path / "here")
    again = Result.from_path(place)
    assert again.path == str(place)
    assert repr(again.metrics) == repr(result.metrics)
    assert again.metrics_dataframe.equals(frames[0])
    assert again.log_dataframe.equals(frames[1])
    assert [checkpoint.to_dict() for checkpoint, _ in again.best_checkpoints] == before
    assert again.checkpoint is not None
    assert again.checkpoint.path == str(place / "checkpoint_000001")


def test_a_copy_beside_the_checkpoints_is_none_of_them(tmp_path: Path) -> None:
    result = fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=2))
    assert result.checkpoint is not None
    result.checkpoint.to_directory(f"{result.path}/best")
    half = Path(result.path, "half")
    shutil.copytree(result.checkpoint.path or "", half)
    (half / MANIFEST).write_bytes(b"")
    same(result, Result.from_path(result.path))
    # Nor does it push out another one when the run continues.
    again = trainer(train_func).restore(
        result.path, train_loop_per_worker=lambda: train.report({"more": 1})
    )
    kept = [Path(str(c.path)).name for c, _ in again.fit().best_checkpoints]
    assert kept == ["checkpoint_000000", "checkpoint_000001"]
    assert all(Path(result.path, name).is_dir() for name in (*kept, "best", "half"))


def test_from_path_in_another_process_without_the_users_code(tmp_path: Path) -> None:
    error = failure(train_func, config={"fail": True})
    assert error.result is not None
    done = run_script(
        tmp_path,
        f"""
        from lockstep.train import Result

        result = Result.from_path({error.result.path!r})
        print(type(result.error).__name__, result.error.args, result.metrics["epoch"])
        print(result.checkpoint.to_dict()["epoch"], result.state)
        raise result.error
        """,
        check=False,
    )
    assert done.stdout.splitlines() == [
        """RemoteError ("Unlucky: ('not today', 13)",) 2""",
        "1 failed",
    ]
    if sys.version_info >= (3, 11):  # the first Python that shows notes
        assert 'raise Unlucky("not today", 13)' in done.stderr


def test_from_path_of_an_experiment_is_its_newest_run(tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage_path": tmp_path, "name": "experiment"}
    fit(train_func, config={"epochs": 1}, **options)
    newest = fit(train_func, config={"epochs": 2}, **options)
    assert Result.from_path(tmp_path / "experiment").path == newest.path


def test_from_path_of_an_experiment_prefers_a_run_to_its_copy(tmp_path: Path) -> None:
    result = fit(train_func, storage_path=tmp_path, name="experiment", workers=1)
    for name in (f"{result.log_dir.name}.bak", "copy"):
        shutil.copytree(result.path, tmp_path / "experiment" / name)
    assert Result.from_path(tmp_path / "experiment").path == result.path


def test_a_damaged_row_of_an_older_run_is_no_hindrance(tmp_path: Path) -> None:
    options: dict[str, Any] = {"storage_path": tmp_path, "name": "experiment", "workers": 1}
    older = fit(train_func, **options)
    newest = fit(train_func, **options)
    with (older.log_dir / "journal.jsonl").open("a") as journal:
        journal.write("{not json\n")
    assert Result.from_path(tmp_path / "experiment").path == newest.path
    (older.log_dir / "journal.jsonl").write_text("{not json\n")
    with pytest.raises(StorageError, match="line 1 of"):
        Result.from_path(tmp_path / "experiment")


def test_from_path_of_no_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path))):
        Result.from_path(tmp_path)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Result.from_path(tmp_path / "nowhere")


def test_a_run_whose_driver_died_is_read_as_far_as_it_got(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal
        from lockstep import train
        from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig

        def train_func():
            for n in range(3):
                train.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))
            os.kill(os.environ["DRIVER"] and int(os.environ["DRIVER"]), signal.SIGKILL)
            train.report({"n": "never"})

        os.environ["DRIVER"] = str(os.getpid())
        DataParallelTrainer(train_func, run_config=RunConfig(name="killed")).fit()
        """,
        check=False,
    )
    assert done.returncode == -9
    result = Result.from_path(tmp_path / "results" / "killed")
    assert result.state == "unfinished"
    assert result.metrics_dataframe["n"].tolist() == [0, 1, 2]
    assert result.metrics["done"] is False
    assert result.error is None
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["n"] == 2


def test_a_run_whose_directory_was_deleted_meanwhile() -> None:
    def function() -> None:
        shutil.rmtree(train.get_context().get_trial_dir())
        train.report({"n": 1})

    with pytest.raises(StorageError, match="is gone, and the run's records with it"):
        fit(function, workers=1)


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    result = fit(train_func, storage_path=tmp_path)
    with (result.log_dir / "journal.jsonl").open("a") as journal:
        journal.write('{"event":"report","index":4,"ra')
    same(result, Result.from_path(result.path))


@pytest.mark.parametrize("garbage", ["{not json", '{"event":"report","index":', "5", "{}"])
def test_a_damaged_line_is_named(garbage: str) -> None:
    result = fit(train_func, workers=1)
    journal = result.log_dir / "journal.jsonl"
    lines = journal.read_text().splitlines()
    first = next(n for n, line in enumerate(lines, 1) if line.startswith('{"event":"report"'))
    for number in (first, len(lines)):
        journal.write_text("\n".join([*lines[: number - 1], garbage, *lines[number:]]) + "\n")
        with pytest.raises(StorageError, match=f"line {number} of {re.escape(str(journal))}"):
            # A row before the last is read when the rows are.
            Result.from_path(result.path).metrics_dataframe  # noqa: B018


@pytest.mark.parametrize("fail", [False, True])
def test_a_result_pickles(fail: bool) -> None:
    if fail:
        result = failure(train_func, config={"fail": True}).result
        assert result is not None
    else:
        result = fit(train_func)
    result.metrics_dataframe  # noqa: B018  read once, and not sent along
    data = pickle.dumps(result)
    assert len(data) < 20_000
    same(result, pickle.loads(data))


# ------------------------------------------------------------------------------------- checkpoints


def test_checkpoints_of_the_result() -> None:
    def function() -> None:
        for n, loss in enumerate([0.5, 0.1, 0.9, 0.7]):
            train.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"n": n}))

    config = CheckpointConfig(2, "loss", "min")
    result = fit(function, checkpoint_config=config)
    again = Result.from_path(result.path)
    for each in (result, again):
        assert [c.to_dict()["n"] for c, _ in each.best_checkpoints] == [0, 1]
        assert [metrics["loss"] for _, metrics in each.best_checkpoints] == [0.5, 0.1]
        assert each.checkpoint is not None
        assert each.checkpoint.to_dict()["n"] == 3
        best = each.get_best_checkpoint("loss", "min")
        assert best is not None
        assert best.to_dict()["n"] == 1
        with pytest.raises(RuntimeError, match=r"metric='accuracy'.*the newest has 'loss'"):
            each.get_best_checkpoint("accuracy", "max")
        with pytest.raises(ValueError, match="'best'"):
            each.get_best_checkpoint("loss", "best")  # type: ignore[arg-type]


def test_the_reported_metrics_are_the_first_columns() -> None:
    def function() -> None:
        train.report({"loss": 1.0, "nested": {"a": 1}})
        train.report({"loss": 0.5, "later": 2, "done": True, "attempt": "mine"})

    frame = fit(function, workers=1).metrics_dataframe
    own = ["loss", "nested/a", "later", "done", "metrics/attempt"]
    assert list(frame.columns[:5]) == own
    assert "training_iteration" in frame.columns[5:]
    assert fit(lambda: None, workers=1).metrics_dataframe.empty
