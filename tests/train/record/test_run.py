"""A run's books, without workers: whose directories are whose, and what is cleared away."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from lockstep.checkpoint import Checkpoint
from lockstep.config import CheckpointUploadMode, RunConfig
from lockstep.engine.base import WorkerInfo
from lockstep.errors import CheckpointError
from lockstep.journal.records import RunRecords, address_from, existing_checkpoints
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import JOURNAL_FILE, MANIFEST, lock_path, snapshot_prefix
from lockstep.storage import Storage, open_storage
from lockstep.train.driver.events import Phase
from lockstep.train.protocol import CheckpointReport, Report
from lockstep.train.record.run import Run, RunPlace
from lockstep.tune.execution.donor import copy_donor_checkpoint

IDENTITY = {"experiment_id": "e", "experiment_tag": "0", "experiment_name": "exp"}


def create(storage: Storage, trial_id: str = "abcde_00000") -> Run:
    place = RunPlace(storage, {**IDENTITY, "trial_id": trial_id})
    return Run.create("T", RunConfig(), {}, place)


def record(name: str, number: int = 0, *, uploaded: bool = False) -> CheckpointRecord:
    return CheckpointRecord(number, name, number, None, {}, 1, uploaded)


def report(location: str) -> Report:
    part = CheckpointReport({}, CheckpointUploadMode.NO_UPLOAD, None, None, location)
    return Report(1, {}, part, None, 0.0, 0.0)


@pytest.fixture
def tree(tmp_path: Path) -> fs.FileSystem:
    """A filesystem that is local and is treated as if it were not."""
    (tmp_path / "remote").mkdir()
    return fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())


@pytest.fixture
def remote(tree: fs.FileSystem) -> Storage:
    return open_storage("runs/exp/run", tree)


# ------------------------------------------------------------- what users put into the directory


@pytest.mark.parametrize("moved", [False, True])
def test_restoring_leaves_a_directory_that_the_user_reported_in_place(
    tree: fs.FileSystem, remote: Storage, moved: bool
) -> None:
    run = create(remote)
    remote.write("checkpoint_000007/file", b"mine")
    remote.write("checkpoint_000008/file", b"half a checkpoint")
    run.record_checkpoint(record("./checkpoint_000007"))
    run.end(Phase.FAILED.value)
    run.finish_copy()
    run.close()
    storage = remote
    if moved:
        tree.create_dir("archive/exp")
        tree.move("runs/exp/run", "archive/exp/run")
        storage = open_storage("archive/exp/run", tree)
    again = Run.reopen(storage, RunConfig(), {})
    again.close()
    assert storage.read("checkpoint_000007/file") == b"mine"
    assert not storage.exists("checkpoint_000008")
    assert "checkpoint_000007" in again.past()["committed"]


def test_a_users_directory_stays_when_the_driver_is_killed_after_its_report(
    remote: Storage,
) -> None:
    run = create(remote)
    run.sync()
    run.begin_attempt(1, [WorkerInfo(0, 1, "host", "127.0.0.1")], 0.0)
    remote.write("checkpoint_000007/file", b"mine")
    run.record_report([report("./checkpoint_000007")], "checkpoint_000000")
    run.publish(record("./checkpoint_000007"))  # now the worker is answered
    run.close()
    again = Run.reopen(remote, RunConfig(), {})
    again.close()
    assert remote.read("checkpoint_000007/file") == b"mine"
    assert again.past()["committed"] == {"checkpoint_000007"}


def test_a_users_directory_is_no_place_for_what_is_adopted(tmp_path: Path) -> None:
    experiment = open_storage(tmp_path)
    donor, run = (create(experiment.child(name)) for name in ("donor", "run"))
    checkpoint = Checkpoint.from_dict({"n": 1})
    checkpoint.save_files(donor.storage, donor.storage.stage("best"), checkpoint.files())
    donor.publish(record("best", uploaded=True))
    donor.close()
    (tmp_path / "run" / "checkpoint_000001").mkdir()
    run.record_checkpoint(record("./checkpoint_000001"))
    run.close()
    run = Run.reopen(run.storage, RunConfig(), {})
    copy_donor_checkpoint(run, experiment, "donor/best")
    run.close()
    newest = run.newest_checkpoint()
    assert newest is not None
    assert (newest.id, newest.name) == (2, "checkpoint_000002")
    assert list((tmp_path / "run" / "checkpoint_000001").iterdir()) == []


def test_nothing_is_adopted_from_what_is_no_run(tmp_path: Path) -> None:
    experiment = open_storage(tmp_path)
    run = create(experiment.child("run"))
    (tmp_path / "shared" / "mine").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="the checkpoint mine of shared"):
        copy_donor_checkpoint(run, experiment, "shared/mine")
    run.close()


def test_what_a_later_version_has_written_is_read(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    run = create(storage)
    for name, said in (("checkpoint_000003", "checkpoint_000003"), ("copy", "checkpoint_000003")):
        written = {**asdict(record(said, 3, uploaded=True)), "colour": "red"}
        (tmp_path / name).mkdir()
        (tmp_path / name / MANIFEST).write_text(json.dumps(written))
    run._journal.append("checkpoint", **asdict(record("./mine")), colour="red")
    run.close()
    records = RunRecords(storage)
    found = existing_checkpoints(storage, records.checkpoints)
    assert [one.name for one in found] == ["./mine", "checkpoint_000003"]


# ------------------------------------------------------------------------------------ addresses


class Anonymous(fs.FSSpecHandler):  # type: ignore[misc]
    """Of two of the same store, neither knows that."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


def anonymous() -> fs.FileSystem:
    fsspec = pytest.importorskip("fsspec")
    return fs.PyFileSystem(Anonymous(fsspec.filesystem("file")))


def test_one_filesystem_that_does_not_know_itself(tmp_path: Path) -> None:
    (tmp_path / "run" / "mine").mkdir(parents=True)
    (tmp_path / "run" / "mine" / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    run = open_storage(str(tmp_path / "run"), anonymous())
    inside = Checkpoint(str(tmp_path / "run" / "mine"), anonymous())
    assert inside.storage is not None
    assert not run.same_filesystem(inside.storage)
    assert address_from(run, inside) == "./mine"
    with pytest.raises(CheckpointError, match="another filesystem"):
        address_from(run, Checkpoint(str(tmp_path / "empty"), anonymous()))


def test_another_filesystem_of_the_same_kind_and_layout(tmp_path: Path) -> None:
    places = []
    for number in (0, 1):
        (tmp_path / str(number) / "mine").mkdir(parents=True)
        file = tmp_path / str(number) / "mine" / "file"
        file.write_text(str(number))
        os.utime(file, (number, number))
        places.append(fs.SubTreeFileSystem(str(tmp_path / str(number)), fs.LocalFileSystem()))
    with pytest.raises(CheckpointError, match="another filesystem"):
        address_from(open_storage("run", places[0]), Checkpoint("mine", places[1]))


def test_an_address_is_one_however_it_was_written(tree: fs.FileSystem, remote: Storage) -> None:
    for path in ("runs/exp/run/mine", "/runs/exp/run/mine", "runs/exp/run/mine/"):
        assert address_from(remote, Checkpoint(path, tree)) == "./mine"
    for end in ("", "?endpoint_override=http://host/"):
        for path in (f"s3://bucket/x{end}", f"s3://bucket/x/{end}"):
            assert address_from(open_storage("/run"), Checkpoint(path)) == f"s3://bucket/x{end}"


# ------------------------------------------------------------------------------------ snapshots


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def test_each_attempt_stages_its_files_in_a_place_of_its_own(tmp_path: Path) -> None:
    run = create(open_storage(tmp_path / "run"))
    run.begin_attempt(1, [], 0.0)
    frozen = run.begin_save("best")  # a worker has this order, and does not answer
    run.storage.put_bytes(f"{frozen}/old", b"1")
    run.discard("best")
    run.begin_attempt(2, [], 0.0)
    run.storage.put_bytes(f"{run.begin_save('best')}/part", b"2")
    # The worker comes back, and continues with its order: before the commit, and after.
    run.storage.put_bytes(f"{frozen}/part", b"1")
    run.publish(record("best", uploaded=True))
    run.storage.put_bytes(f"{frozen}/late", b"1")
    kept = tmp_path / "run" / "best"
    assert {path.name for path in kept.iterdir()} == {"part", MANIFEST}
    assert (kept / "part").read_bytes() == b"2"
    run.end(Phase.FAILED.value)
    run.close()


def set_aside(run: Run, folder: str | None = None) -> Path:
    prefix = snapshot_prefix(run.trial_id, run.storage.root)
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    (path / "file").touch()
    return path


@pytest.mark.parametrize("phase", [Phase.FINISHED, Phase.FAILED, Phase.INTERRUPTED])
def test_nothing_set_aside_stays_after_the_end(
    tmp_path: Path, temporary: Path, phase: Phase
) -> None:
    run = create(open_storage(tmp_path / "run"))
    run.begin_save("checkpoint_000000")  # workers set files aside when a save is ordered
    aside = [set_aside(run), set_aside(run, run.directory)]
    run.end(phase.value)
    run.close()
    assert [path.exists() for path in aside] == [False, False]


def test_what_another_run_of_the_same_id_set_aside_stays(tmp_path: Path, temporary: Path) -> None:
    run = create(open_storage(tmp_path / "run"))
    aside = set_aside(run)
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "run" / JOURNAL_FILE, tmp_path / "copy" / JOURNAL_FILE)
    copy = Run.reopen(open_storage(tmp_path / "copy"), RunConfig(), {})
    copy.begin_attempt(2, [], 0.0)
    copy.end(Phase.FAILED.value)
    copy.close()
    assert aside.exists()
    run.begin_attempt(2, [], 0.0)
    assert not aside.exists()
    run.close()


@pytest.fixture
def spool(remote: Storage, temporary: Path) -> Path:
    """The local directory of a driver that was killed, with something it had still to upload."""
    run = create(remote)
    copy = Path(f"{run.directory}-killed")
    (Path(run.directory) / ".snapshot-1").mkdir()
    shutil.copytree(run.directory, copy)
    run.close()
    return copy


def other_machine(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.uname_result(("Linux", "elsewhere", "", "", ""))
    monkeypatch.setattr(os, "uname", lambda: there)


def other_user(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spool / JOURNAL_FILE).unlink()
    os.mkfifo(spool / JOURNAL_FILE)  # opening it would never end
    monkeypatch.setattr(os, "getuid", lambda: spool.stat().st_uid + 1)


def link(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool.rename(spool.parent / "theirs")
    spool.symlink_to("theirs")


@pytest.mark.parametrize("whose", [other_machine, other_user, link])
def test_what_may_be_anothers_is_left_alone(
    tree: fs.FileSystem, spool: Path, monkeypatch: pytest.MonkeyPatch, whose: Any
) -> None:
    whose(spool, monkeypatch)
    create(open_storage("runs/exp/other", tree)).close()
    assert (spool / ".snapshot-1").is_dir()


def test_what_a_killed_driver_of_ours_left_is_cleared_away(
    tree: fs.FileSystem, spool: Path
) -> None:
    create(open_storage("runs/exp/other", tree)).close()
    left = {path.name for path in spool.iterdir()}
    assert left == {JOURNAL_FILE, os.path.basename(lock_path(JOURNAL_FILE))}


def test_the_names_of_runs_stay_in_no_cache(tmp_path: Path) -> None:
    fnmatch._compile_pattern.cache_clear()  # type: ignore[attr-defined]
    for number in range(3):
        run = create(open_storage(tmp_path / f"run{number}"))
        run.end(Phase.FINISHED.value)
        run.close()
    assert fnmatch._compile_pattern.cache_info().currsize == 0  # type: ignore[attr-defined]
