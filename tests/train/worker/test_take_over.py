"""Directories that a report must not move, and what becomes of those it refuses."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

from lockstep import train
from lockstep.train import Checkpoint, CheckpointUploadMode, DataParallelTrainer
from lockstep.train.worker.take_over import check_copied, check_moved, check_moved_files
from tests.integration.runs import failure, fit


def files_in(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run, on storage that lies in a project."""
    run = tmp_path / "project" / "storage" / "name" / "run"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_text('{"event":"run"}\n')
    return run


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_a_directory_that_holds_storage_is_refused_and_keeps_everything(
    tmp_path: Path, mode: CheckpointUploadMode
) -> None:
    def save() -> None:
        train.report({}, checkpoint=Checkpoint.from_dict({"step": 1}))

    def move() -> None:
        try:
            train.report(
                {},
                checkpoint=Checkpoint(tmp_path),
                checkpoint_upload_mode=mode,
                delete_local_checkpoint_after_upload=True,
            )
        except ValueError as error:
            train.report({"refused": str(error)})

    (tmp_path / "mine.txt").write_text("mine")
    storage = tmp_path / "storage"
    earlier = fit(save, workers=1, storage_path=storage)
    before = files_in(tmp_path)
    result = fit(move, workers=1, storage_path=storage)
    assert str(tmp_path) in result.metrics["refused"]
    assert "mkdtemp" in result.metrics["refused"]
    after = files_in(tmp_path)
    assert {name: after[name] for name in before} == before
    assert earlier.checkpoint is not None
    assert earlier.checkpoint.to_dict()["step"] == 1


def test_a_copy_that_would_contain_its_own_run_is_refused(tmp_path: Path) -> None:
    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint(tmp_path))

    error = failure(train_func, workers=1, storage_path=tmp_path / "storage")
    assert "the checkpoint would contain the run" in str(error)


def test_a_callback_or_a_working_directory_may_use_the_runs_directory() -> None:
    def train_func() -> None:
        for parent in (train.get_context().get_trial_dir(), "."):
            prefix = ".snapshot-" if parent != "." else "mine"
            directory = tempfile.mkdtemp(prefix=prefix, dir=parent)
            Path(directory, "file").write_text("weights")
            train.report(
                {}, checkpoint=Checkpoint(directory), delete_local_checkpoint_after_upload=True
            )
            assert not os.path.exists(directory)

    result = fit(train_func, workers=1, working_dir="rank")
    assert len(result.best_checkpoints) == 2


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/", "root of a filesystem"),
        ("~", "home directory"),
        ("~/..", "home directory"),
        (".", "working directory"),
        ("..", "working directory"),
        (sys.prefix, "this Python"),
        ("{tmp}", "temporary files"),
        ("{run}", "run's own directory"),
        ("{run}/sub", "run's own directory"),
        ("{run}/logs", "run's own directory"),
        ("{run}/.staging/x", "run's own directory"),
        ("{run}/../other/checkpoint_000000", "run's experiment"),
        ("{run}/../../old/name/run/sub", "directory of a run"),
        ("{run}/../../link/sub", "run's own directory"),
    ],
)
def test_what_is_never_moved(
    directory: str, why: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("home/me", "work/here", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "work/here")
    storage = run.parent.parent
    (storage / "old/name/run/sub").mkdir(parents=True)
    (storage / "old/name/run/journal.jsonl").write_text('{"event":"run"}\n')
    (storage / "link").symlink_to(run)
    place = os.path.expanduser(directory.format(run=run, tmp=tmp_path / "tmp"))
    with pytest.raises(ValueError, match=why):
        check_moved(place, str(run), is_spool=False)


def test_a_spool_lies_among_other_temporary_directories() -> None:
    spool, mine = (tempfile.mkdtemp() for _ in range(2))
    check_moved(mine, spool, is_spool=True)
    with pytest.raises(ValueError, match="run's own directory"):
        check_moved(os.path.join(spool, "logs"), spool, is_spool=True)
    os.rmdir(spool)
    os.rmdir(mine)


def test_what_may_be_moved(run: Path, tmp_path: Path) -> None:
    storage = run.parent.parent
    mine = tmp_path / "mine"
    beside = storage / "scratch"  # storage_path may be a directory with other things in it
    for directory in (mine, beside):
        directory.mkdir()
        (directory / "journal.jsonl").write_text("the user's own file of this name\n")
        check_copied(str(directory), str(run))
        check_moved(str(directory), str(run), is_spool=False)
        check_moved_files(str(directory), ["journal.jsonl", "weights"])


@pytest.mark.parametrize("above", ["storage", "storage/name", "storage/name/run", ""])
def test_records_of_a_run_among_the_files_are_found(run: Path, tmp_path: Path, above: str) -> None:
    directory = tmp_path / "project" / above
    names = [str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()]
    with pytest.raises(ValueError, match=r"holds '.*journal\.jsonl', the records of a run"):
        check_moved_files(str(directory), names)


def test_files_behind_a_link_are_copied(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_text("not the checkpoint's")
    made = tmp_path / "made"
    (made / "sub").mkdir(parents=True)
    (made / "sub" / "weights").write_text("w")
    (made / "data").symlink_to(tmp_path / "data")

    def train_func() -> None:
        train.report({}, checkpoint=Checkpoint(made), delete_local_checkpoint_after_upload=True)

    result = fit(train_func, workers=1)
    assert result.checkpoint is not None
    assert sorted(result.checkpoint.files()) == ["data/rows", "sub/weights"]
    assert (tmp_path / "data" / "rows").read_text() == "not the checkpoint's"
    assert not (made / "sub").exists()


def test_the_refusal_of_one_rank_ends_the_run_before_anything_moves(tmp_path: Path) -> None:
    def train_func() -> None:
        folder = tmp_path if train.world_rank() == 1 else Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "file").write_text("x")
        train.report({}, checkpoint=Checkpoint(folder), delete_local_checkpoint_after_upload=True)

    error = failure(train_func, storage_path=tmp_path / "storage")
    assert isinstance(error.__cause__, ValueError)
    assert (tmp_path / "file").read_text() == "x"
    assert DataParallelTrainer.can_restore(error.result.path if error.result else "")
