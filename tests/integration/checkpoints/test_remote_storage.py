"""Whole runs on remote storage: S3 on loopback, and any other Arrow filesystem."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.callback import UserCallback
from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError, StorageError
from lockstep.jobs import JobThread
from lockstep.journal import Journal
from lockstep.run_layout import JOURNAL_FILE, MANIFEST, spool_prefix
from lockstep.storage import Storage, open_storage
from lockstep.train import CheckpointConfig, CheckpointUploadMode, Result, RunConfig
from tests.faulty import Faults, faulty_filesystem
from tests.integration.runs import failure, fit, run_script, trainer
from tests.s3 import new_bucket, s3_filesystem, s3_uri

SYNC, ASYNC, NO_UPLOAD = (
    CheckpointUploadMode.SYNC,
    CheckpointUploadMode.ASYNC,
    CheckpointUploadMode.NO_UPLOAD,
)
ALWAYS = {"journal.jsonl", "logs/rank_0.log", "progress.csv", "result.json"}


def newest(result: Result) -> Checkpoint:
    assert result.checkpoint is not None
    return result.checkpoint


def place(result: Result) -> Storage:
    return open_storage(result.path, result.filesystem)


def epochs(config: dict[str, Any]) -> None:
    """Every rank's own file and one that all have, in three checkpoints."""
    rank = train.get_context().get_world_rank()
    print(f"hello from rank {rank}")
    for epoch in range(3):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"rank_{rank}").write_text(str(epoch))
            Path(folder, "sub").mkdir()
            Path(folder, "sub", "shared").write_text("same")
            train.report(
                {"epoch": epoch},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_upload_mode=CheckpointUploadMode(config["mode"]),
            )
        if config["mode"] == "sync":
            found = train.get_checkpoint()
            assert found is not None
            with found.as_directory() as folder:
                assert Path(folder, f"rank_{rank}").read_text() == str(epoch)


def check_epochs(result: Result) -> None:
    files = place(result).walk_files()
    kept = ["checkpoint_000001", "checkpoint_000002"]
    parts = (MANIFEST, "rank_0", "rank_1", "sub/shared")
    expected = {f"{name}/{part}" for name in kept for part in parts}
    assert set(files) > ALWAYS | {"logs/rank_1.log"}
    assert {name for name in files if name.startswith("checkpoint")} == expected
    for number, (checkpoint, metrics) in zip((1, 2), result.best_checkpoints, strict=True):
        assert metrics["epoch"] == number
        assert checkpoint.path == f"{result.path}/{kept[number - 1]}"
        with checkpoint.as_directory() as folder:
            assert Path(folder, "rank_1").read_text() == str(number)
            assert Path(folder, "sub", "shared").read_text() == "same"
    assert result.checkpoint == result.best_checkpoints[-1][0]
    assert result.metrics_dataframe["epoch"].tolist() == [0, 1, 2]
    storage = place(result)
    assert storage.read("logs/rank_1.log") == b"hello from rank 1\n"
    rows = [json.loads(line) for line in storage.read("result.json").splitlines()]
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    table = list(csv.DictReader(storage.read("progress.csv").decode().splitlines()))
    assert [row["epoch"] for row in table] == ["0", "1", "2"]


KEEP_TWO = CheckpointConfig(num_to_keep=2)


class TestS3:
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_by_uri(self, s3_port: int, mode: str) -> None:
        uri = s3_uri(s3_port, new_bucket())
        result = fit(
            epochs,
            config={"mode": mode},
            name="named",
            storage_path=uri,
            checkpoint_config=KEEP_TWO,
        )
        assert result.state == "finished"
        check_epochs(result)
        again = Result.from_path(uri.replace("prefix?", "prefix/named?"))
        assert again.path == result.path
        check_epochs(again)
        kind, text = newest(result).get_internal_representation()
        assert (kind, text) == ("uri", newest(again).uri)
        assert text.startswith("s3://")
        assert "secret" not in text
        assert open_storage(text).root == newest(result).path

    def test_no_upload_with_another_token(self, s3_port: int) -> None:
        from pyarrow import fs

        newer = fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{s3_port}",
            scheme="http",
            region="us-east-1",
            access_key="key",
            secret_key="secret",
            session_token="newer",
        )
        filesystem, bucket = s3_filesystem(s3_port), new_bucket()
        assert not filesystem.equals(newer)
        open_storage(f"{bucket}/mine", filesystem).write("file", b"x")

        def train_func() -> None:
            checkpoint = Checkpoint(f"{bucket}/mine", newer)
            train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

        result = fit(
            train_func, workers=1, storage_path=f"{bucket}/runs", storage_filesystem=filesystem
        )
        assert newest(result).files() == {"file": 1}

    def test_by_filesystem(self, s3_port: int) -> None:
        filesystem = s3_filesystem(s3_port)
        result = fit(
            epochs,
            config={"mode": "async"},
            storage_path=f"{new_bucket()}/runs",
            storage_filesystem=filesystem,
            checkpoint_config=KEEP_TWO,
        )
        check_epochs(result)
        check_epochs(Result.from_path(result.path, filesystem))
        check_epochs(Result.from_path(result.log_dir.parent, filesystem))

    def test_resume_from_there(self, s3_port: int) -> None:
        def train_func() -> None:
            known = train.load_checkpoint()
            start = known["epoch"] + 1 if known else 0
            train.report({}, checkpoint=Checkpoint.from_dict({"epoch": start}))

        uri = s3_uri(s3_port, new_bucket())
        first = fit(train_func, storage_path=uri)
        again = trainer(train_func, storage_path=uri)
        again.resume_from_checkpoint = newest(first)
        data = newest(again.fit()).to_dict()
        assert (data["epoch"], data["_current_checkpoint_id"]) == (1, 0)

    def test_a_server_that_is_not_there(self) -> None:
        with pytest.raises(StorageError, match="bucket") as caught:
            fit(epochs, storage_path="bucket/x", storage_filesystem=s3_filesystem(port=1))
        assert "\n" not in str(caught.value)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """A filesystem that is local and is treated as if it were not."""
    from pyarrow import fs

    (tmp_path / "disk").mkdir()
    (tmp_path / "remote").symlink_to("disk")
    tree = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    return {"storage_path": "runs", "storage_filesystem": tree}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_on_any_filesystem(
    options: dict[str, Any], workers: int, mode: CheckpointUploadMode
) -> None:
    def train_func() -> None:
        for step in range(3):
            checkpoint = Checkpoint.from_dict({"step": step})
            train.report({"step": step}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

    result = fit(train_func, workers=workers, **options)
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [0, 1, 2]
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == [0, 1, 2]


def test_on_an_fsspec_filesystem(tmp_path: Path) -> None:
    filesystem = pytest.importorskip("fsspec").filesystem("file")

    def train_func() -> None:
        known = train.load_checkpoint()
        step = known["step"] + 1 if known else 0
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
        if step == 0:
            raise RuntimeError("not yet")

    storage = {"storage_path": str(tmp_path), "storage_filesystem": filesystem}
    first = failure(train_func, workers=1, name="named", **storage).result
    assert first is not None
    found = Result.from_path(tmp_path / "named", filesystem)
    assert (found.path, newest(found).to_dict()["step"]) == (first.path, 0)
    again = trainer(train_func).restore(tmp_path / "named", filesystem).fit()
    assert (again.path, newest(again).to_dict()["step"]) == (first.path, 1)


def test_none_to_keep(options: dict[str, Any]) -> None:
    config = CheckpointConfig(num_to_keep=0)
    result = fit(epochs, config={"mode": "sync"}, checkpoint_config=config, **options)
    assert result.checkpoint is None
    assert set(place(result).walk_files()) >= ALWAYS
    assert not [name for name in place(result).listdir() if name.startswith("checkpoint")]


def test_a_directory_may_be_taken_over(options: dict[str, Any]) -> None:
    def train_func() -> None:
        folder = tempfile.mkdtemp(prefix="mine-")
        Path(folder, "file").write_text("x")
        train.report(
            {"folder": folder},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_upload_mode=ASYNC,
            delete_local_checkpoint_after_upload=True,
        )

    result = fit(train_func, workers=1, **options)
    assert newest(result).files() == {"file": 1}
    assert not os.path.exists(result.metrics["folder"])


def test_a_name_used_twice_leaves_the_first_alone(options: dict[str, Any]) -> None:
    def train_func() -> None:
        for n in range(2):
            train.report({}, checkpoint=Checkpoint.from_dict({"n": n}), checkpoint_dir_name="best")

    error = failure(train_func, **options)
    assert isinstance(error.__cause__, CheckpointError)
    assert error.result is not None
    assert newest(error.result).to_dict()["n"] == 0


class Broken(Checkpoint):
    """Says that it has a file that cannot be read."""

    def files(self) -> dict[str, int]:
        return {**super().files(), "missing": 1}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_a_lost_attempt_uploaded_is_cleared_away(options: dict[str, Any], mode: str) -> None:
    def train_func() -> None:
        context = train.get_context()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"attempt_{context.attempt}").write_text("x")
            kind = Broken if context.attempt == 1 and context.get_world_rank() == 1 else Checkpoint
            train.report(
                {}, checkpoint=kind(folder), checkpoint_upload_mode=CheckpointUploadMode(mode)
            )

    result = fit(train_func, max_failures=1, **options)
    assert newest(result).files() == {"attempt_2": 1}
    assert [name for name in place(result).listdir() if "checkpoint" in name] == [
        "checkpoint_000001"
    ]


def test_a_name_of_a_lost_attempt_is_not_used_again(options: dict[str, Any]) -> None:
    """A lost worker may still write there: what cannot be renamed is written where it stays."""

    def train_func() -> None:
        context = train.get_context()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"attempt_{context.attempt}").write_text("x")
            kind = Broken if context.attempt == 1 and context.get_world_rank() == 1 else Checkpoint
            train.report({}, checkpoint=kind(folder), checkpoint_dir_name="mine")

    result = fit(train_func, max_failures=1, **options)
    assert newest(result).files() == {"attempt_2": 1}
    assert str(newest(result).path).endswith("/mine_attempt_2")


def test_no_upload_of_what_is_there_or_here(tmp_path: Path, options: dict[str, Any]) -> None:
    filesystem = options["storage_filesystem"]
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("here")
    (tmp_path / "remote" / "there").mkdir()
    (tmp_path / "remote" / "there" / "file").write_text("there")

    def train_func() -> None:
        for checkpoint in (Checkpoint(tmp_path / "here"), Checkpoint("there", filesystem)):
            train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    result = fit(train_func, workers=1, **options)
    texts = []
    for checkpoint, _ in result.best_checkpoints:
        with checkpoint.as_directory() as folder:
            texts.append(Path(folder, "file").read_text())
    assert texts == ["here", "there"]


def test_no_upload_in_the_runs_own_directory_moves_with_it(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    def train_func() -> None:
        context = train.get_context()
        name = f"runs/{context.get_experiment_name()}/{config['run']}/checkpoint_000007"
        (tmp_path / "remote" / name).mkdir()
        (tmp_path / "remote" / name / "file").write_text("moves")
        checkpoint = Checkpoint(name, options["storage_filesystem"])
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    first = fit(lambda: train.report({}), workers=1, **options)
    config = {"run": first.log_dir.name}
    result = first
    for function in (train_func, lambda: train.report({})):  # the second time it is there already
        again = trainer(train_func).restore(
            first.path, options["storage_filesystem"], train_loop_per_worker=function
        )
        result = again.fit()
        assert newest(result).path == f"{first.path}/checkpoint_000007"
    shutil.move(tmp_path / "remote" / result.path, tmp_path / "local")
    with newest(Result.from_path(tmp_path / "local")).as_directory() as folder:
        assert Path(folder, "file").read_text() == "moves"


def test_no_upload_is_the_users_when_it_is_one_too_many(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    def train_func() -> None:
        name = f"runs/named/{config['run']}/checkpoint_000000"
        (tmp_path / "remote" / name).mkdir()
        checkpoint = Checkpoint(name, options["storage_filesystem"])
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)
        train.report({}, checkpoint=Checkpoint.from_dict({}))

    keep_one = RunConfig(verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1))
    first = fit(lambda: train.report({}), workers=1, name="named", **options)
    config = {"run": first.log_dir.name}
    for function in (train_func, lambda: train.report({})):
        again = trainer(train_func).restore(
            first.path,
            options["storage_filesystem"],
            train_loop_per_worker=function,
            run_config=keep_one,
        )
        paths = [checkpoint.path for checkpoint, _ in again.fit().best_checkpoints]
        assert paths == [f"{first.path}/checkpoint_000001"]
        assert (tmp_path / "remote" / first.path / "checkpoint_000000").is_dir()


def test_a_users_directory_is_no_place_for_a_checkpoint(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    def train_func() -> None:
        (run,) = (tmp_path / "remote" / "runs" / "named").iterdir()
        mine = run / "checkpoint_000001"
        mine.mkdir()
        (mine / "file").write_text("precious")
        checkpoint = Checkpoint(f"runs/named/{run.name}/{mine.name}", options["storage_filesystem"])
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)
        for n in range(2):
            train.report({}, checkpoint=Checkpoint.from_dict({"n": n}))

    config = CheckpointConfig(num_to_keep=1)
    result = fit(train_func, workers=1, name="named", checkpoint_config=config, **options)
    mine = tmp_path / "remote" / result.path / "checkpoint_000001"
    assert [path.name for path in mine.iterdir()] == ["file"]
    assert newest(result).path == f"{result.path}/checkpoint_000003"
    assert newest(result).to_dict()["n"] == 1


class Seen(UserCallback):
    def __init__(self) -> None:
        self.paths: list[tuple[str | None, bool]] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.paths.append((checkpoint.path, checkpoint.storage.is_directory()))


def test_callbacks_get_the_checkpoint_where_it_lies(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "remote" / "mine").mkdir()

    def train_func() -> None:
        checkpoint = Checkpoint("mine", options["storage_filesystem"])
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)
        train.report({}, checkpoint=Checkpoint.from_dict({}))

    seen = Seen()
    result = fit(train_func, workers=1, callbacks=[seen], **options)
    assert seen.paths == [("mine", True), (f"{result.path}/checkpoint_000001", True)]


def test_no_upload_of_a_run_in_another_thread(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    filesystem = fsspec.filesystem("file")  # which is not equal to another thread's
    (tmp_path / "mine").mkdir()

    def train_func() -> None:
        checkpoint = Checkpoint(str(tmp_path / "mine"), fsspec.filesystem("file"))
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    place = {"storage_path": str(tmp_path / "runs"), "storage_filesystem": filesystem}
    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(lambda: fit(train_func, workers=1, **place)).result()
    assert newest(result).path == str(tmp_path / "mine")


def test_what_a_killed_driver_had_to_upload_is_cleared_away(options: dict[str, Any]) -> None:
    dead, driven = (Path(tempfile.mkdtemp(prefix=spool_prefix())) for _ in range(2))
    try:
        for spool in (dead, driven):
            (spool / ".snapshot-1").mkdir()
            (spool / ".snapshot-1" / "file").touch()
            (spool / JOURNAL_FILE).write_text('{"event":"run"}\n')  # not copied: it stays
        journal = Journal(str(driven / JOURNAL_FILE))
        fit(lambda: train.report({}), workers=1, **options)
        journal.close()
        assert [path.name for path in dead.iterdir()] == [JOURNAL_FILE]
        assert (driven / ".snapshot-1" / "file").exists()
    finally:
        for spool in (dead, driven):
            shutil.rmtree(spool)


class TestFailingStorage:
    @pytest.mark.parametrize("mode", [SYNC, ASYNC])
    def test_one_checkpoint_cannot_be_written(
        self, tmp_path: Path, options: dict[str, Any], mode: CheckpointUploadMode
    ) -> None:
        def train_func() -> None:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "file").write_text("x")
                checkpoint = Checkpoint.from_directory(folder)
                train.report({"n": 0}, checkpoint=checkpoint)
                known = train.get_checkpoint()
                assert known is not None
                where = tmp_path / "remote" / str(known.path)
                (where.parent / "checkpoint_000001").write_text("in the way")
                train.report({"n": 1}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

        error = failure(train_func, workers=1, **options)
        assert isinstance(error.__cause__, StorageError)
        assert "checkpoint_000001" in str(error)
        assert error.result is not None
        assert newest(error.result).files() == {"file": 1}
        assert error.result.state == "failed"

    def test_it_is_gone_for_good(self, tmp_path: Path, options: dict[str, Any]) -> None:
        def train_func() -> None:
            for n in range(2):
                train.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))
                if n == 0:
                    (tmp_path / "file").write_text("in the way")
                    os.replace(tmp_path / "file", tmp_path / "remote")

        with pytest.raises(StorageError, match=r"runs.*are kept in '(.*)'\.$") as caught:
            fit(train_func, workers=1, **options)
        assert "\n" not in str(caught.value)
        kept = str(caught.value).rpartition("kept in '")[2].rstrip("'.")
        result = Result.from_path(kept)
        assert result.state == "failed"
        assert result.metrics["n"] == 0
        assert isinstance(result.error, StorageError)
        shutil.rmtree(kept)


class Counted(Faults):
    """Counts what is written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.written: Counter[str] = Counter()

    def occur(self, operation: str, path: str) -> None:
        if operation == "open_output_stream":
            self.written[path.rpartition("/")[2]] += 1
        super().occur(operation, path)


def test_what_has_not_changed_is_copied_once(tmp_path: Path) -> None:
    def train_func() -> None:
        for step in range(20):
            train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))

    counted = Counted(tmp_path / "faults")
    filesystem = faulty_filesystem(tmp_path / "remote", counted)
    result = fit(train_func, workers=1, storage_path="runs", storage_filesystem=filesystem)
    assert counted.written["params.json"] == 1
    assert 1 <= counted.written["result.json"] <= 22
    place(result).write("export.onnx", b"large")
    again = trainer(train_func).restore(
        result.path, filesystem, train_loop_per_worker=lambda: train.report({})
    )
    counted.written.clear()
    assert again.fit().metrics["training_iteration"] == 21
    assert counted.written["result.json"] >= 1
    assert counted.written["export.onnx"] == 0
    assert place(result).read("export.onnx") == b"large"


def test_copies_do_not_queue_up_behind_slow_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = Faults(tmp_path / "faults")
    filesystem = faulty_filesystem(tmp_path / "remote", faults)
    waiting: list[int] = []
    submit = JobThread.submit

    def note(self: JobThread, call: Any, *args: Any) -> Any:
        future = submit(self, call, *args)
        waiting.append(len(self._waiting))
        return future

    def train_func() -> None:
        time.sleep(0.3)  # many intervals
        faults.clear()

    monkeypatch.setattr(JobThread, "submit", note)
    monkeypatch.setattr("lockstep.train.driver.storage_queue.SYNC_INTERVAL_S", 0.005)
    faults.add("move", kind="stall", path="journal.jsonl")
    fit(train_func, workers=1, storage_path="runs", storage_filesystem=filesystem)
    assert max(waiting) == 1


KILLED = """
    import os, signal, time
    from pyarrow import fs
    from lockstep import train
    from lockstep.journal.segments import read_journal
    from lockstep.storage import open_storage
    from lockstep.train import DataParallelTrainer, RunConfig

    driver = os.getpid()
    tree = fs.SubTreeFileSystem(os.path.abspath("remote"), fs.LocalFileSystem())

    def train_func():
        for row in range(200):
            train.report({"row": row, "text": "x" * 1000})
        (experiment,) = open_storage("runs", tree).listdir()
        (run,) = open_storage(f"runs/{experiment}", tree).listdir()
        place = open_storage(f"runs/{experiment}/{run}", tree)
        while read_journal(place, "journal.jsonl").count(b'"event":"report"') < 200:
            time.sleep(0.01)
        os.kill(driver, signal.SIGKILL)
        time.sleep(30)

    config = RunConfig(storage_path="runs", storage_filesystem=tree, verbose=0)
    DataParallelTrainer(train_func, run_config=config).fit()
"""


def test_rows_are_on_storage_within_the_interval_when_the_driver_is_killed(tmp_path: Path) -> None:
    from pyarrow import fs

    (tmp_path / "remote").mkdir()
    (tmp_path / "tmp").mkdir()
    environment = {"LOCKSTEP_SYNC_S": "0.05", "TMPDIR": str(tmp_path / "tmp")}
    done = run_script(tmp_path, KILLED, environment=environment, check=False, timeout_s=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    tree = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    (experiment,) = open_storage("runs", tree).listdir()
    result = Result.from_path(f"runs/{experiment}", tree)
    assert result.state == "unfinished"
    assert result.metrics_dataframe["row"].tolist() == list(range(200))
