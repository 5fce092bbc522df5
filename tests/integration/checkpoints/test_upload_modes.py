"""When report() returns, relative to its checkpoint: SYNC, ASYNC and NO_UPLOAD."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import CheckpointError, StorageError
from lockstep.jobs import JobThread
from lockstep.journal.records import RunRecords
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import MANIFEST
from lockstep.storage import local, open_storage
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    Result,
    UserCallback,
)
from lockstep.train.record.run import Run
from tests.integration.runs import failure, fit

SYNC, ASYNC, NO_UPLOAD = (
    CheckpointUploadMode.SYNC,
    CheckpointUploadMode.ASYNC,
    CheckpointUploadMode.NO_UPLOAD,
)


class Gate:
    """Holds this worker's uploads, at their flush, until it is opened. Made in the worker."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        flush = local._fsync

        def held(path: str) -> None:
            self.opened.wait()
            flush(path)

        local._fsync = held

    def open(self) -> None:
        self.opened.set()


def fail_flushes(times: int = 1) -> None:
    """From now on, this worker's next flushes fail."""
    flush = local._fsync
    left = [times]

    def failing(path: str) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        flush(path)

    local._fsync = failing


def pretend_devices(root: str) -> None:
    """From now on, this worker cannot rename anything into ``root``."""
    stat, rename = os.stat, local._rename

    def other_device(path: Any, **options: Any) -> os.stat_result:
        status = stat(path, **options)
        if os.fspath(path) == root:
            return os.stat_result((*status[:2], status.st_dev + 1, *status[3:]))
        return status

    def failing(source: str, destination: str) -> None:
        if destination.startswith(root):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        rename(source, destination)

    os.stat = other_device
    local._rename = failing


def here(name: str) -> Path:
    """In a worker: something in the run's directory."""
    return Path(train.get_context().get_trial_dir(), name)


def set_aside(run: str | Path) -> list[Path]:
    """What workers of the run in this directory have still to upload."""
    elsewhere = Path(tempfile.gettempdir()).glob(".snapshot-*_*-*")
    ids = {path: path.name.removeprefix(".snapshot-").partition("-")[0] for path in elsewhere}
    return [*Path(run).glob(".snapshot-*"), *(path for path in ids if ids[path] in str(run))]


def newest(result: Result) -> Checkpoint:
    assert result.checkpoint is not None
    return result.checkpoint


def events(result: Result, kind: str) -> list[dict[str, Any]]:
    lines = Path(result.path, "journal.jsonl").read_text().splitlines()
    return [event for line in lines if (event := json.loads(line))["event"] == kind]


def directory(text: str) -> Checkpoint:
    folder = tempfile.mkdtemp(prefix="mine-")
    Path(folder, "file").write_text(text)
    return Checkpoint.from_directory(folder)


def content(checkpoint: Checkpoint) -> str:
    assert checkpoint.path is not None
    return Path(checkpoint.path, "file").read_text()


# ------------------------------------------------------------------------------------------ SYNC


def test_sync_returns_when_it_is_committed() -> None:
    def train_func() -> None:
        for step in range(3):
            train.report({}, checkpoint=Checkpoint.from_dict({"step": step}))
            assert here(f"checkpoint_{step:06d}/{MANIFEST}").is_file()
            kinds = [json.loads(line)["event"] for line in here("journal.jsonl").open()]
            assert kinds.count("checkpoint") == step + 1

    fit(train_func)


def test_a_failed_write_is_raised_where_it_was_reported() -> None:
    def train_func() -> None:
        fail_flushes()
        try:
            train.report({}, checkpoint=Checkpoint.from_dict({}))
        except StorageError as error:
            raise ValueError("seen") from error

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, ValueError)
    assert isinstance(error.__cause__.__cause__, StorageError)
    assert error.result is not None
    assert error.result.checkpoint is None
    assert not Path(error.result.path, ".staging").exists()


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_directory_may_be_taken_over(mode: CheckpointUploadMode) -> None:
    def train_func() -> None:
        checkpoint = directory("moved")
        number = os.stat(os.path.join(str(checkpoint.path), "file")).st_ino
        train.report(
            {"inode": number, "path": checkpoint.path},
            checkpoint=checkpoint,
            checkpoint_upload_mode=mode,
            delete_local_checkpoint_after_upload=True,
        )

    result = fit(train_func, workers=1)
    assert content(newest(result)) == "moved"
    assert os.stat(f"{newest(result).path}/file").st_ino == result.metrics["inode"]
    assert not os.path.exists(result.metrics["path"])


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("all_seen", [False, True])
def test_ranks_that_share_a_directory_take_over_their_own_files(
    mode: CheckpointUploadMode, all_seen: bool, tmp_path: Path
) -> None:
    """Whether every rank has the same files, or each reports when it sees only some of them."""

    def train_func() -> None:
        rank = train.world_rank()
        for step in range(3):
            folder = tmp_path / str(step)
            (folder / "sub").mkdir(parents=True, exist_ok=True)
            (folder / "sub" / f"of_{rank}").write_text(f"{rank} {step}")
            if all_seen:
                train.report({})  # now each rank sees all
            train.report(
                {},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_upload_mode=mode,
                delete_local_checkpoint_after_upload=True,
            )

    result = fit(train_func, workers=3)
    assert len(result.best_checkpoints) == 3
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        for rank in range(3):
            assert Path(str(checkpoint.path), "sub", f"of_{rank}").read_text() == f"{rank} {step}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_what_was_not_ordered_is_not_deleted(mode: CheckpointUploadMode, tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tmp_path / str(train.world_rank())
        folder.mkdir()
        (folder / "file").write_text("the same")
        train.report(
            {},
            checkpoint=Checkpoint.from_directory(folder),
            checkpoint_upload_mode=mode,
            delete_local_checkpoint_after_upload=True,
        )

    assert content(newest(fit(train_func))) == "the same"
    assert [path.name for path in tmp_path.iterdir()] == ["1"]  # it had nothing to write


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("kept", [SYNC, NO_UPLOAD])
def test_a_committed_checkpoint_is_never_taken_over(
    mode: CheckpointUploadMode, kept: CheckpointUploadMode
) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=directory("first"), checkpoint_upload_mode=kept)
        train.report(
            {},
            checkpoint=train.get_checkpoint(),
            checkpoint_upload_mode=mode,
            delete_local_checkpoint_after_upload=True,
        )

    result = fit(train_func, workers=1)
    assert [content(checkpoint) for checkpoint, _ in result.best_checkpoints] == ["first"] * 2


# ----------------------------------------------------------------------------------------- ASYNC


@pytest.mark.parametrize("kind", ["dict", "directory", "taken over"])
def test_async_returns_before_the_upload_ends_and_the_run_waits_for_it(kind: str) -> None:
    def train_func() -> None:
        gate = Gate()
        checkpoint = Checkpoint.from_dict({"a": 1}) if kind == "dict" else directory("1")
        train.report(
            {"a": 1},
            checkpoint=checkpoint,
            checkpoint_upload_mode=ASYNC,
            delete_local_checkpoint_after_upload=kind == "taken over",
        )
        assert not here("checkpoint_000000").exists()
        assert train.get_checkpoint() is None
        train.report({"a": 2})
        assert not here("checkpoint_000000").exists()
        threading.Timer(0.05, gate.open).start()  # after the function has returned

    result = fit(train_func, workers=1)
    assert result.metrics["a"] == 2
    assert result.metrics_dataframe["checkpoint_dir_name"][0] == "checkpoint_000000"
    if kind == "dict":
        assert newest(result).to_dict()["a"] == 1
    else:
        assert content(newest(result)) == "1"


def test_async_metrics_are_those_of_its_own_report() -> None:
    def train_func() -> None:
        gate = Gate()
        for loss in (1.0, 5.0):
            train.report(
                {"loss": loss},
                checkpoint=Checkpoint.from_dict({"n": loss}),
                checkpoint_upload_mode=ASYNC,
            )
        train.report({"loss": 3.0})
        gate.open()

    config = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")
    result = fit(train_func, workers=1, checkpoint_config=config)
    assert [metrics["loss"] for _, metrics in result.best_checkpoints] == [5.0, 1.0]
    assert [c.to_dict()["n"] for c, _ in result.best_checkpoints] == [5.0, 1.0]


def test_what_changes_after_the_report_does_not_reach_it() -> None:
    def train_func() -> None:
        gate = Gate()
        checkpoint = directory("before")
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=ASYNC)
        with open(os.path.join(str(checkpoint.path), "file"), "r+") as file:
            file.write("after!")
        state = {"weights": [1]}
        other = Checkpoint.from_dict(state)
        train.report({}, checkpoint=other, checkpoint_upload_mode=ASYNC)
        state["weights"].append(2)
        gate.open()
        assert content(checkpoint) == "after!"  # the user's own stays

    result = fit(train_func, workers=1)
    first, second = (checkpoint for checkpoint, _ in result.best_checkpoints)
    assert content(first) == "before"
    assert second.to_dict()["weights"] == [1]


def test_a_temporary_directory_may_end_before_the_upload() -> None:
    def train_func() -> None:
        gate = Gate()
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").write_text(f"of rank {train.world_rank()}")
            train.report(
                {}, checkpoint=Checkpoint.from_directory(folder), checkpoint_upload_mode=ASYNC
            )
        gate.open()

    assert content(newest(fit(train_func))) == "of rank 0"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_directory_taken_over_may_end_before_the_upload(elsewhere: bool) -> None:
    def train_func() -> None:
        rank, gate = train.world_rank(), Gate()
        if elsewhere:
            # As if the run's directory were on another device than the temporary ones.
            pretend_devices(str(here("")))
        with tempfile.TemporaryDirectory() as folder:
            inner = Path(folder, "inner")
            inner.mkdir()
            (inner / f"of_{rank}").write_text(str(rank))
            (inner / "file").write_text("shared")
            train.report(
                {},
                checkpoint=Checkpoint.from_directory(inner),
                checkpoint_upload_mode=ASYNC,
                delete_local_checkpoint_after_upload=True,
            )
        gate.open()

    result = fit(train_func)
    checkpoint = newest(result)
    assert content(checkpoint) == "shared"
    for rank in range(2):
        assert Path(str(checkpoint.path), f"of_{rank}").read_text() == str(rank)
    assert not set_aside(result.path)


@pytest.mark.parametrize("place", ["temporary", "run"])
def test_what_a_worker_that_died_had_to_upload_is_cleared_away(place: str, tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        first = not (tmp_path / "died").exists()
        pretend_devices(str(here("")))
        if config["place"] == "run":  # as the callbacks of frameworks do
            Path(tempfile.mkdtemp(prefix=".snapshot-keras-", dir=here("")), "file").touch()
        else:
            Gate()
            train.report(
                {},
                checkpoint=directory("lost"),
                checkpoint_upload_mode=ASYNC,
                delete_local_checkpoint_after_upload=True,
            )
        if len(set_aside(here(""))) == 1:  # in the second attempt, its own
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL if first else signal.SIGSEGV)
        os.kill(os.getpid(), signal.SIGILL)

    error = failure(train_func, workers=1, config={"place": place}, max_failures=1)
    assert "SIGSEGV" in str(error)
    assert error.result is not None
    assert not set_aside(error.result.path)


def test_async_checkpoints_are_committed_in_order_with_every_ranks_part() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(8):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, f"rank_{rank}").write_text(str(step))
                mode = SYNC if step == 5 else ASYNC
                train.report(
                    {"step": step},
                    checkpoint=Checkpoint.from_directory(folder),
                    checkpoint_upload_mode=mode,
                )
            known = train.get_all_reported_checkpoints()
            assert [metrics["step"] for _, metrics in known] == list(range(len(known)))
            if step == 5:
                assert len(known) == 6

    result = fit(train_func)
    assert [event["id"] for event in events(result, "checkpoint")] == list(range(8))
    for step, (checkpoint, metrics) in enumerate(result.best_checkpoints):
        assert metrics["step"] == step
        folder = Path(str(checkpoint.path))
        assert [Path(folder, f"rank_{rank}").read_text() for rank in (0, 1)] == [str(step)] * 2


def test_a_checkpoint_shows_up_once_it_is_committed() -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({"a": 1}), checkpoint_upload_mode=ASYNC)
        while train.get_checkpoint() is None:
            train.report({})
        assert (train.load_checkpoint() or {})["a"] == 1
        assert len(train.get_all_reported_checkpoints()) == 1

    fit(train_func, workers=1)


@pytest.mark.parametrize("kind", ["dict", "directory"])
def test_an_upload_may_end_before_its_report_returns(kind: str) -> None:
    def train_func() -> None:
        submit = JobThread.submit

        def at_once(self: JobThread, job: Callable[..., Any], *args: Any) -> Any:
            future = submit(self, job, *args)
            self.drain()
            return future

        JobThread.submit = at_once  # type: ignore[method-assign]
        for n in range(2):
            checkpoint = Checkpoint.from_dict({}) if kind == "dict" else directory(str(n))
            train.report({"n": n}, checkpoint=checkpoint, checkpoint_upload_mode=ASYNC)

    result = fit(train_func, workers=1)
    assert [metrics["n"] for _, metrics in result.best_checkpoints] == [0, 1]


@pytest.mark.parametrize("last", [True, False])
def test_a_failed_upload_fails_the_run(last: bool) -> None:
    def train_func() -> None:
        train.report({"n": 0}, checkpoint=Checkpoint.from_dict({"n": 0}))
        fail_flushes()
        for n in (1, 2):
            train.report(
                {"n": n}, checkpoint=Checkpoint.from_dict({"n": n}), checkpoint_upload_mode=ASYNC
            )
        while not last:
            train.report({"n": -1})

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, StorageError)
    assert "No space left on device" in str(error)
    assert error.result is not None
    assert newest(error.result).to_dict()["n"] == 0
    assert not Path(error.result.path, ".staging").exists()


def test_uploads_under_way_are_kept_when_the_function_raises() -> None:
    def train_func() -> None:
        gate = Gate()
        train.report({}, checkpoint=Checkpoint.from_dict({"a": 1}), checkpoint_upload_mode=ASYNC)
        threading.Timer(0.05, gate.open).start()
        raise ValueError("after the report")

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, ValueError)
    assert error.result is not None
    assert newest(error.result).to_dict()["a"] == 1


@pytest.mark.parametrize("mode", list(CheckpointUploadMode))
def test_in_process(mode: CheckpointUploadMode) -> None:
    def train_func() -> None:
        for n in range(4):
            checkpoint = directory(str(n))
            train.report({"n": n}, checkpoint=checkpoint, checkpoint_upload_mode=mode)

    result = fit(train_func, workers=0)
    assert [content(checkpoint) for checkpoint, _ in result.best_checkpoints] == list("0123")
    assert [metrics["n"] for _, metrics in result.best_checkpoints] == [0, 1, 2, 3]


def test_async_in_process_is_committed_while_the_function_runs() -> None:
    def train_func() -> None:
        for n in range(4):
            checkpoint = directory(str(n))
            train.report({"n": n}, checkpoint=checkpoint, checkpoint_upload_mode=ASYNC)
        patience = time.monotonic() + 120
        while not here("checkpoint_000003").exists() and time.monotonic() < patience:
            time.sleep(0.01)
            train.report({"n": 4})
        train.report({"n": 5, "exists": here("checkpoint_000003").exists()})

    assert fit(train_func, workers=0, checkpoint_config=CheckpointConfig(1)).metrics["exists"]


def test_no_report_waits_until_old_checkpoints_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned = tmp_path / "returned"
    waited: list[bool] = []

    def train_func() -> None:
        for n in range(3):
            train.report({"n": n}, checkpoint=directory(str(n)))
        returned.touch()

    def delete(run: Run, record: CheckpointRecord) -> None:
        patience = time.monotonic() + 120
        while not returned.exists() and time.monotonic() < patience:
            time.sleep(0.01)
        waited.append(not returned.exists())
        run.storage.unpublish(record.name)

    monkeypatch.setattr(Run, "delete", delete)
    result = fit(train_func, workers=1, checkpoint_config=CheckpointConfig(1))
    assert waited == [False, False]
    assert [content(checkpoint) for checkpoint, _ in result.best_checkpoints] == ["2"]


# ------------------------------------------------------------------------------------- NO_UPLOAD


class Seen(UserCallback):
    def __init__(self) -> None:
        self.checkpoints: list[Checkpoint | None] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        self.checkpoints.append(checkpoint)


def test_no_upload_registers_what_lies_there(tmp_path: Path) -> None:
    def train_func() -> None:
        for n in range(3):
            folder = tmp_path / f"mine_{n}"
            if train.world_rank() == 0:
                folder.mkdir()
                (folder / "file").write_text(str(n))
            train.report({})
            train.report(
                {"n": n},
                checkpoint=Checkpoint.from_directory(folder),
                checkpoint_upload_mode=NO_UPLOAD,
            )
            found = train.get_checkpoint()
            assert found is not None
            assert found.path == str(folder)

    seen = Seen()
    config = CheckpointConfig(num_to_keep=1)
    result = fit(train_func, checkpoint_config=config, callbacks=[seen])
    for one in (result, Result.from_path(result.path)):
        assert newest(one).path == str(tmp_path / "mine_2")
        assert [metrics["n"] for _, metrics in one.best_checkpoints] == [2]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["mine_0", "mine_1", "mine_2"]
    assert not list(Path(result.path).glob("checkpoint_*"))
    assert [c.path for c in seen.checkpoints if c] == [
        str(tmp_path / f"mine_{n}") for n in (0, 1, 2)
    ]


def test_no_upload_of_a_directory_of_each_rank_loses_none(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tmp_path / f"of_{train.world_rank()}"
        folder.mkdir()
        train.report({}, checkpoint=Checkpoint(folder), checkpoint_upload_mode=NO_UPLOAD)

    error = failure(train_func)
    assert isinstance(error.__cause__, CheckpointError)
    assert f"rank 0: {tmp_path}/of_0, rank 1: {tmp_path}/of_1" in str(error)


@pytest.mark.parametrize("keep", [None, 1])
def test_no_upload_of_one_directory_again_and_again(tmp_path: Path, keep: int | None) -> None:
    def train_func() -> None:
        checkpoint = Checkpoint.from_directory(tmp_path)
        for n in range(3):
            (tmp_path / "file").write_text(str(n))
            train.report({"n": n}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    result = fit(train_func, workers=1, checkpoint_config=CheckpointConfig(num_to_keep=keep))
    assert newest(result).path == str(tmp_path)
    numbers = [metrics["n"] for _, metrics in result.best_checkpoints]
    assert numbers == ([0, 1, 2] if keep is None else [2])
    assert result.metrics_dataframe["checkpoint_dir_name"].tolist() == [str(tmp_path)] * 3


def test_no_upload_in_the_runs_own_directory_moves_with_it(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = here("mine/deep")
        folder.mkdir(parents=True)
        (folder / "file").write_text("moves")
        train.report({}, checkpoint=Checkpoint(folder), checkpoint_upload_mode=NO_UPLOAD)
        found = train.get_checkpoint()
        assert found is not None
        assert found.path == str(folder)

    result = fit(train_func, workers=1, storage_path=tmp_path / "here")
    assert newest(result).path == f"{result.path}/mine/deep"
    assert result.metrics["checkpoint_dir_name"] == "./mine/deep"
    (tmp_path / "here").rename(tmp_path / "there")
    moved = tmp_path / "there" / result.log_dir.relative_to(tmp_path / "here")
    assert newest(Result.from_path(moved)).path == str(moved / "mine" / "deep")
    assert content(newest(Result.from_path(moved))) == "moves"


def test_a_deleted_checkpoint_is_not_in_the_records() -> None:
    def train_func() -> None:
        for n in range(3):
            train.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))

    result = fit(train_func, workers=1, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert list(RunRecords(open_storage(result.path)).checkpoints) == [2]


def test_no_upload_of_a_dict_cannot_be() -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_upload_mode=NO_UPLOAD)

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, CheckpointError)
    assert "SYNC or ASYNC" in str(error)


def test_no_upload_of_what_could_not_be_found_again(tmp_path: Path) -> None:
    from pyarrow import fs

    (tmp_path / "there").mkdir()
    tree = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())

    def train_func() -> None:
        checkpoint = Checkpoint("there", tree)
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, CheckpointError)
    assert "path=there) is on another filesystem than the run" in str(error)
    assert "give Checkpoint a URI" in str(error)


def test_no_upload_of_nothing(tmp_path: Path) -> None:
    def train_func() -> None:
        checkpoint = Checkpoint.from_directory(tmp_path / "nowhere")
        train.report({}, checkpoint=checkpoint, checkpoint_upload_mode=NO_UPLOAD)

    assert isinstance(failure(train_func, workers=1).__cause__, FileNotFoundError)


# --------------------------------------------------------------------------- checkpoint_dir_name


def test_a_name_of_ones_own() -> None:
    def train_func() -> None:
        for n in range(3):
            train.report(
                {"n": n},
                checkpoint=Checkpoint.from_dict({"n": n}),
                checkpoint_dir_name=None if n == 1 else f"epoch={n}",
            )

    result = fit(train_func, checkpoint_config=CheckpointConfig(num_to_keep=2))
    paths = [Path(str(checkpoint.path)).name for checkpoint, _ in result.best_checkpoints]
    assert paths == ["checkpoint_000001", "epoch=2"]
    assert result.metrics["checkpoint_dir_name"] == "epoch=2"
    assert not Path(result.path, "epoch=0").exists()
    assert newest(result).to_dict()["_current_checkpoint_id"] == 2


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_name_used_twice(mode: CheckpointUploadMode) -> None:
    def train_func() -> None:
        for n in range(2):
            train.report(
                {"n": n},
                checkpoint=Checkpoint.from_dict({"n": n}),
                checkpoint_dir_name="best",
                checkpoint_upload_mode=mode,
            )

    error = failure(train_func)
    assert isinstance(error.__cause__, CheckpointError)
    assert "'best' is taken" in str(error)
    if mode is SYNC:
        assert error.result is not None
        assert newest(error.result).to_dict()["n"] == 0


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
def test_a_retry_that_starts_over_may_use_its_names_again(mode: CheckpointUploadMode) -> None:
    def train_func() -> None:
        attempt = train.get_context().get_attempt()
        for n in range(2):
            train.report(
                {"n": n},
                checkpoint=Checkpoint.from_dict({"n": n, "attempt": attempt}),
                checkpoint_dir_name=f"epoch={n}",
                checkpoint_upload_mode=mode,
            )
        if mode is ASYNC:  # what is not committed when an attempt ends never was
            train.report({}, checkpoint=Checkpoint.from_dict({}))
        if attempt < 3:
            raise RuntimeError("again")

    result = fit(train_func, max_failures=2)
    attempts = {
        Path(str(checkpoint.path)).name: checkpoint.to_dict().get("attempt")
        for checkpoint, metrics in result.best_checkpoints
        if "n" in metrics
    }
    assert attempts == {
        f"epoch={n}{suffix}": attempt
        for attempt, suffix in ((1, ""), (2, "_attempt_2"), (3, "_attempt_3"))
        for n in (0, 1)
    }


def test_a_number_of_ones_own_is_skipped() -> None:
    def train_func() -> None:
        for name in ("checkpoint_000001", None, None):
            train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name=name)

    result = fit(train_func)
    names = [Path(str(checkpoint.path)).name for checkpoint, _ in result.best_checkpoints]
    assert names == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000003"]


NOT_NAMES = ["", "a/b", "a\\b", "a\0b", ".hidden", ".", "..", 3, "logs", "rank_0", "journal.jsonl"]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_is_none(name: Any) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name=name)

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, ValueError)
    assert f"checkpoint_dir_name={name!r}" in str(error)


def test_a_name_that_something_else_has() -> None:
    def train_func() -> None:
        taken = Path(train.get_context().get_trial_dir()) / "mine"
        taken.mkdir()
        (taken / "file").touch()
        train.report({}, checkpoint=Checkpoint.from_dict({}), checkpoint_dir_name="mine")

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, StorageError)
    assert error.result is not None
    assert error.result.checkpoint is None


def test_a_mode_may_be_given_by_its_name() -> None:
    def train_func(config: dict[str, Any]) -> None:
        train.report({"a": 1}, checkpoint_upload_mode=config["mode"])

    assert fit(train_func, workers=1, config={"mode": "ASYNC"}).state == "finished"
    error = failure(train_func, workers=1, config={"mode": "later"}).__cause__
    assert isinstance(error, ValueError)
    assert "report(checkpoint_upload_mode='later'): expected" in str(error)
