"""Storage that fails: tried again where that helps, else one clear error, and nothing is lost."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import StorageError
from lockstep.storage import Storage, open_storage, remote
from lockstep.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer, Result
from lockstep.train.driver.notifier import RunNotifier
from lockstep.train.driver.storage_queue import StorageQueue
from lockstep.tune import Callback
from tests.faulty import Faults, faulty_filesystem
from tests.integration.runs import failure, fit, trainer


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    return Faults(tmp_path / "faults")


@pytest.fixture
def filesystem(tmp_path: Path, faults: Faults) -> Any:
    return faulty_filesystem(tmp_path / "remote", faults)


@pytest.fixture
def options(filesystem: Any) -> dict[str, Any]:
    return {"storage_path": "runs", "storage_filesystem": filesystem, "name": "faulty"}


def count(config: dict[str, Any]) -> None:
    """Four steps with a checkpoint each."""
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 0, 4):
        train.report(
            {"step": step},
            checkpoint=Checkpoint.from_dict({"step": step, "weights": b"x" * 1000}),
            checkpoint_upload_mode=CheckpointUploadMode(config.get("mode", "sync")),
        )


def newest_step(result: Result | None) -> int:
    assert result is not None
    assert result.checkpoint is not None
    step: int = result.checkpoint.to_dict()["step"]
    return step


class TestTriedAgain:
    @pytest.fixture
    def place(self, filesystem: Any, monkeypatch: pytest.MonkeyPatch) -> Storage:
        monkeypatch.setattr(remote, "_PAUSES_S", (0.0, 0.0))
        return open_storage("place", filesystem)

    def use(self, place: Storage, source: Path) -> None:
        """Every operation there is."""
        source.write_bytes(b"from a file")
        place.make_directory("made")
        place.write("written", b"data")
        place.put("put", str(source))
        place.put_bytes("bytes", b"more")
        assert place.read("written") == b"data"
        assert place.walk_files() == {"bytes": 4, "put": 11, "written": 4}
        place.put_bytes(f"{place.stage('c')}/part", b"part")
        place.publish("c", b"{}")
        assert place.is_published("c")
        place.get("c", str(source.parent / "copy"))
        assert (source.parent / "copy" / "part").read_bytes() == b"part"
        place.unpublish("c")
        assert not place.exists("c/part")
        assert place.read("put") == b"from a file"

    @pytest.mark.parametrize(
        "operation",
        [
            "get_file_info",
            "list",
            "create_dir",
            "delete_dir",
            "delete_file",
            "move",
            "open_input",
            "open_output_stream",
        ],
    )
    def test_what_fails_twice(
        self, place: Storage, faults: Faults, operation: str, tmp_path: Path
    ) -> None:
        faults.add(operation, 2)
        self.use(place, tmp_path / "source")
        assert faults.left() == 0

    def test_what_fails_three_times_is_an_error(self, place: Storage, faults: Faults) -> None:
        faults.add("open_output_stream", 4)
        with pytest.raises(StorageError, match=r"write 'place/x': the connection was reset"):
            place.write("x", b"")
        assert faults.left() == 1

    @pytest.mark.parametrize("kind", ["permission", "denied"])
    def test_not_what_would_be_the_same_again(
        self, place: Storage, faults: Faults, kind: str
    ) -> None:
        faults.add("open_output_stream", 2, kind=kind)
        with pytest.raises(StorageError):
            place.write("x", b"")
        assert faults.left() == 1

    def test_not_what_is_missing(self, place: Storage) -> None:
        with pytest.raises(FileNotFoundError):
            place.read("nothing")

    def test_a_broken_read_resumes_at_its_position(
        self, place: Storage, faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = bytes(range(256)) * 4
        place.write("long", data)
        monkeypatch.setattr(remote, "CHUNK", 100)
        faults.add("read", 2)
        assert place.read("long") == data
        assert faults.left() == 0

    def test_what_comes_from_an_iterator_cannot_be(self, place: Storage, faults: Faults) -> None:
        faults.add("open_output_stream", 2)
        with pytest.raises(StorageError):
            place.put_stream("x", iter([b"once"]))
        assert faults.left() == 1


class TestRuns:
    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_that_fail_now_and_then(
        self, faults: Faults, options: dict[str, Any], mode: str
    ) -> None:
        faults.add("open_output_stream", 1, path="checkpoint_000001")
        faults.add("move", 1, path="checkpoint_000002")
        faults.add("create_dir", 1, path="checkpoint_000003")
        faults.add("open_output_stream", 1, path="logs")
        result = fit(count, config={"mode": mode}, **options)
        assert faults.left() == 0
        assert result.metrics_dataframe["attempt"].tolist() == [1, 1, 1, 1]
        assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [0, 1, 2, 3]

    @pytest.mark.parametrize("mode", ["sync", "async"])
    @pytest.mark.parametrize(
        ("operation", "path"),
        [("open_output_stream", "checkpoint_000002/dict"), ("move", "checkpoint_000002")],
        ids=["upload", "publish"],
    )
    def test_that_always_fail(
        self,
        faults: Faults,
        options: dict[str, Any],
        filesystem: Any,
        operation: str,
        path: str,
        mode: str,
    ) -> None:
        faults.add(operation, 50, path=path)
        error = failure(count, config={"mode": mode}, workers=1, **options)
        assert isinstance(error.__cause__, StorageError)
        assert "checkpoint_000002" in str(error.__cause__)
        assert "the connection was reset" in str(error.__cause__)
        assert newest_step(error.result) == 1
        faults.clear()
        again = DataParallelTrainer.restore("runs/faulty", filesystem).fit()
        assert newest_step(again) == 3
        assert [c.to_dict()["step"] for c, _ in again.best_checkpoints] == [0, 1, 2, 3]

    def test_that_cannot_even_begin(self, faults: Faults, options: dict[str, Any]) -> None:
        faults.add("create_dir", 3)
        with pytest.raises(StorageError, match=r"runs/faulty.*the connection was reset"):
            fit(count, config={}, **options)

    def test_that_stall(
        self,
        faults: Faults,
        options: dict[str, Any],
        capfd: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def train_func() -> None:
            train.report({"step": 0}, checkpoint=Checkpoint.from_dict({"step": 0}))

        original = RunNotifier.warn_once

        def warn_and_end_the_stall(self: RunNotifier, kind: str, text: str) -> None:
            original(self, kind, text)
            faults.clear()

        monkeypatch.setattr(RunNotifier, "warn_once", warn_and_end_the_stall)
        faults.add("open_output_stream", kind="stall", path="checkpoint_000000/dict")
        result = fit(train_func, hang_warning_s=0.1, workers=1, **options)
        printed = capfd.readouterr().err
        assert "checkpoint_000000 is on its way to runs/faulty/" in printed
        assert "rank(s) 0 still write its files." in printed
        assert newest_step(result) == 0


STALL_S = 2.0
"""Longer than what works takes, on a busy machine as well."""


def place_of_records(error: StorageError) -> str:
    found = re.search("records are kept in '(.*)'", str(error))
    assert found is not None
    return found[1]


class TestGivenUp:
    """Storage that never answers ends a run, and what is committed stays."""

    @pytest.fixture(autouse=True)
    def _end_the_stall(self, faults: Faults) -> Iterator[None]:
        yield
        faults.clear()

    def test_files_of_a_rank(self, faults: Faults, options: dict[str, Any]) -> None:
        faults.add("open_output_stream", kind="stall", path="checkpoint_000001/dict")
        error = failure(count, config={}, workers=1, storage_timeout_s=STALL_S, **options)
        assert isinstance(error.__cause__, StorageError)
        assert str(error).startswith(
            "Checkpoint_000001 timed out after RunConfig(storage_timeout_s=2): "
            "it is on its way to runs/faulty/"
        )
        assert "rank(s) 0 still write its files." in str(error)
        assert newest_step(error.result) == 0

    def test_a_commit_and_another_attempt(
        self, faults: Faults, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = StorageQueue.abandon

        def abandon_and_end_the_stall(self: StorageQueue) -> None:
            original(self)
            faults.clear()

        monkeypatch.setattr(StorageQueue, "abandon", abandon_and_end_the_stall)
        faults.add("open_output_stream", kind="stall", path="checkpoint_000001/.lockstep-tmp")
        result = fit(
            count, config={}, workers=1, max_failures=1, storage_timeout_s=STALL_S, **options
        )
        rows = result.metrics_dataframe
        assert rows["step"].tolist() == [0, 1, 1, 2, 3]
        assert rows["attempt"].tolist() == [1, 1, 2, 2, 2]
        assert newest_step(result) == 3

    @pytest.mark.parametrize("when", ["from the beginning", "at the end"])
    def test_the_records(
        self,
        when: str,
        faults: Faults,
        options: dict[str, Any],
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        class Stall(Callback):
            def on_trial_complete(self, *args: Any, **info: Any) -> None:
                faults.add("open_output_stream", kind="stall")

        if when == "from the beginning":
            faults.add("move", kind="stall", path="journal.jsonl")
        else:
            options = {**options, "callbacks": [Stall()]}
        with pytest.raises(StorageError, match=f"did not answer within {STALL_S:g} s") as raised:
            fit(
                lambda: train.report({"step": 0}),
                workers=1,
                hang_warning_s=0.3,
                storage_timeout_s=STALL_S,
                **options,
            )
        assert "has not answered for 0.3 s; Ctrl-C abandons it." in capfd.readouterr().err
        kept = place_of_records(raised.value)
        try:
            assert Result.from_path(kept).metrics["step"] == 0
            assert Result.from_path(kept).state == "finished"
        finally:
            shutil.rmtree(kept)

    def test_an_old_journal_that_gets_through_late(
        self, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A write that timed out ends after the run has: the newest journal stays."""
        original = remote.RemoteStorage.write
        go_on = threading.Event()
        late: list[threading.Thread] = []

        def write(self: remote.RemoteStorage, name: str, data: bytes) -> None:
            if name == "journal.jsonl" and b'"report"' in data and not late:
                late.append(threading.current_thread())
                go_on.wait(120)
            original(self, name, data)

        monkeypatch.setattr(remote.RemoteStorage, "write", write)
        fit(count, config={}, workers=1, max_failures=1, storage_timeout_s=STALL_S, **options)
        go_on.set()
        late[0].join()
        result = Result.from_path(
            f"runs/{options['name']}", storage_filesystem=options["storage_filesystem"]
        )
        assert (result.state, newest_step(result)) == ("finished", 3)

    @pytest.mark.parametrize("when", ["from the beginning", "at the end"])
    def test_by_ctrl_c(
        self,
        when: str,
        faults: Faults,
        options: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Pressed when it is said that storage does not answer."""
        told: list[str] = []

        def press(where: str, seconds: float) -> str:
            if where not in told:
                told.append(where)
                presser.start()
            return "not yet"

        presser = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
        for module in ("storage_queue", "drive"):
            monkeypatch.setattr(f"lockstep.train.driver.{module}.unanswered_note", press)

        class Stall(Callback):
            def on_trial_complete(self, *args: Any, **info: Any) -> None:
                faults.add("open_output_stream", kind="stall")

        if when == "from the beginning":
            faults.add("move", kind="stall", path="journal.jsonl")
        else:
            options = {**options, "callbacks": [Stall()]}
        with pytest.raises(StorageError, match="did not answer until Ctrl-C") as raised:
            fit(
                lambda: train.report({"step": 0}),
                workers=1,
                hang_warning_s=0.1,
                storage_timeout_s=None,
                **options,
            )
        presser.join()
        shutil.rmtree(place_of_records(raised.value))


def fill(path: Path) -> None:
    """Take all the room that is left."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("needs the right to mount a filesystem")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


class TestFullDisk:
    @staticmethod
    def grow(config: dict[str, Any]) -> None:
        """Checkpoints of 300 kB until there is no more room."""
        known = train.load_checkpoint()
        for step in range(known["step"] + 1 if known else 0, config["total"]):
            data = {"step": step, "weights": os.urandom(300_000)}
            train.report(
                {"step": step},
                checkpoint=Checkpoint.from_dict(data),
                checkpoint_upload_mode=CheckpointUploadMode(config["mode"]),
            )

    @pytest.mark.parametrize("mode", ["sync", "async"])
    def test_a_checkpoint_that_does_not_fit(self, small_disk: Path, mode: str) -> None:
        error = failure(
            self.grow,
            config={"mode": mode, "total": 9},
            workers=1,
            max_failures=1,
            storage_path=small_disk,
        )
        assert isinstance(error.__cause__, StorageError)
        assert "No space left on device" in str(error)
        assert newest_step(error.result) == 2
        assert error.result is not None
        assert len(error.result.attempts) == 2
        assert not list(Path(error.result.path).glob(".staging/*"))
        assert newest_step(Result.from_path(error.result.path)) == 2

    def test_the_journal_does_not_fit(self, small_disk: Path) -> None:
        def train_func(config: dict[str, Any]) -> None:
            known = train.load_checkpoint()
            for step in range(known["step"] + 1 if known else 0, 3):
                train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))
                if step == 1 and not known:
                    fill(Path(config["ballast"]))
                    train.report({"text": "x" * 20_000})

        ballast = small_disk / "ballast"
        run = trainer(
            train_func,
            config={"ballast": str(ballast)},
            workers=1,
            storage_path=small_disk,
            name="full",
        )
        with pytest.raises(StorageError, match=r"journal\.jsonl.*No space left on device"):
            run.fit()
        ballast.unlink()
        result = Result.from_path(small_disk / "full")
        assert (result.state, newest_step(result)) == ("unfinished", 1)
        again = DataParallelTrainer.restore(small_disk / "full").fit()
        assert again.metrics_dataframe["step"].tolist() == [0, 1, 2]

    def test_no_room_to_begin(self, small_disk: Path) -> None:
        fill(small_disk / "ballast")
        with pytest.raises(StorageError, match="No space left on device"):
            fit(count, config={}, storage_path=small_disk)


class TestReadOnly:
    def remount(self, disk: Path, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)

    def test_a_new_run(self, small_disk: Path) -> None:
        self.remount(small_disk, "ro")
        with pytest.raises(StorageError, match=rf"{small_disk}.*Read-only file system"):
            fit(count, config={}, storage_path=small_disk)

    def test_an_earlier_run(self, small_disk: Path) -> None:
        def train_func(config: dict[str, Any]) -> None:
            count({})
            raise RuntimeError("at the end")

        failure(train_func, config={}, storage_path=small_disk, name="earlier")
        self.remount(small_disk, "ro")
        assert newest_step(Result.from_path(small_disk / "earlier")) == 3
        restored = DataParallelTrainer.restore(small_disk / "earlier")
        with pytest.raises(StorageError, match="Read-only file system"):
            restored.fit()
        self.remount(small_disk, "rw")
        with pytest.raises(train.WorkerGroupError):
            restored.fit()
