"""A run is found by what its user calls it, among that user's own directories."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli, train
from lockstep.journal.lookup import find_place, find_run, is_own_directory
from lockstep.run_layout import JOURNAL_FILE, spool_prefix
from tests.integration.runs import fit


def train_func() -> None:
    train.report({"loss": 0.5})


def another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on disk belongs to somebody else from now on."""
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)


def test_a_result_by_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = fit(train_func, workers=1, name="mine")
    run = Path(result.path)
    trial_id = "_".join(run.name.split("_")[1:3])
    names = ["mine", f"mine/{run.name}", run.name, trial_id, trial_id[:5], str(run)]
    monkeypatch.chdir(run.parent)
    for name in (*names, f"DataParallelTrainer_{trial_id}", ".", run.name):
        assert train.Result.from_path(name).path == result.path, name
    with pytest.raises(FileNotFoundError, match="'nobody' is neither a directory nor a name"):
        train.Result.from_path("nobody")
    assert train.Result.from_path(run).path == result.path


def test_the_beginning_of_several_trial_ids_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path))
    for number in range(7):
        (tmp_path / "search" / f"train_abcde_{number:05d}_{number}_lr=1").mkdir(parents=True)
    with pytest.raises(
        FileNotFoundError,
        match=r"'abcde' is the beginning of 7 trial ids: abcde_00000, .* and 2 more; give the",
    ):
        find_place("abcde")
    assert find_place("abcde_00003").root.endswith("train_abcde_00003_3_lr=1")
    (tmp_path / "abcde").mkdir()  # a name is a name
    assert find_place("abcde").root == str(tmp_path / "abcde")


def test_a_name_leads_to_no_other_user_s_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result = fit(train_func, workers=1, name="theirs")
    another_user(monkeypatch)
    with pytest.raises(FileNotFoundError, match="belongs to another user; give the run's dir"):
        find_run("theirs")
    with pytest.raises(FileNotFoundError, match=r"'[^']*' is neither"):
        find_run(Path(result.path).name)
    assert find_run(result.path).root == result.path


def test_another_user_s_spool_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spool = tmp_path / f"{spool_prefix()}x"
    spool.mkdir()
    os.mkfifo(spool / JOURNAL_FILE)  # to open it would never end
    assert cli.main(["show", "anything"]) == 1  # our own: it is not a regular file
    another_user(monkeypatch)
    monkeypatch.setattr("lockstep.journal.lookup.RunRecords", None)  # would be called
    assert cli.main(["stack", "anything"]) == 1
    assert "is neither a directory nor a name" in capsys.readouterr().err


def test_own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    assert is_own_directory(str(tmp_path))
    assert not any(is_own_directory(str(tmp_path / name)) for name in ("link", "file", "none"))
    another_user(monkeypatch)
    assert not is_own_directory(str(tmp_path))


@pytest.mark.parametrize("text", ["../x", "/none", "nope", "a/../../b"])
def test_nothing_outside_the_root_is_a_name(text: str) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a directory nor a name"):
        find_place(text)


def plant(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.symlink_to(path.parent)


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
@pytest.mark.parametrize("file", [JOURNAL_FILE, "checkpoint_000000/.lockstep_checkpoint.json"])
def test_only_regular_files_of_a_run_are_read(
    kind: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def function() -> None:
        train.report({"x": 1}, checkpoint=train.Checkpoint.from_dict({"a": 1}))

    run = Path(fit(function, workers=1, name="planted").path)
    plant(run / file, kind)
    said: list[Any] = []
    for read in (
        lambda: train.Result.from_path(run).checkpoint.get_metadata(),  # type: ignore[union-attr]
        lambda: train.Result.from_path(run).checkpoint.to_dict(),  # type: ignore[union-attr]
        lambda: train.Result.from_path("planted"),
    ):
        try:
            read()
        except (OSError, RuntimeError) as error:
            said.append(str(error))
    if file == JOURNAL_FILE:
        assert len(said) == 3
        assert all("is not a regular file" in text or "irectory" in text for text in said), said
    cli.main(["show", str(run)])
    assert "Traceback" not in capsys.readouterr().err


def test_a_piece_of_a_name_and_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # without others' spools
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "root"))
    first = fit(train_func, workers=1, name="digits-small")
    second = fit(train_func, workers=1, name="digits-large")
    for text, result in (("-1", second), ("-2", first), ("small", first), ("s-l", second)):
        assert find_run(text, pieces=True).root == result.path, text
        with pytest.raises(FileNotFoundError):
            find_run(text)  # a script means what it says
    trial_id = Path(first.path).name.split("_")[1]
    assert find_place(f"{trial_id}_0000", pieces=True).root == first.path
    for text, words in (
        ("digits", "'digits' is a piece of 2 names: digits-large, digits-small; give more"),
        ("DataParallelTr", "'DataParallelTr' is a piece of 2 names: digits-large/DataParallel"),
        ("-3", "there is no run -3: there are only 2 runs below "),
        ("nothing", "is neither a directory nor a name"),
    ):
        with pytest.raises(FileNotFoundError, match=words):
            find_run(text, pieces=True)
        assert cli.main(["show", text]) == 1
        assert words in capsys.readouterr().err
    assert cli.main(["show", "-1"]) == 0
    assert "in digits-large" in capsys.readouterr().out


def test_a_piece_leads_to_no_other_user_s_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fit(train_func, workers=1, name="theirs")
    another_user(monkeypatch)
    for text in ("heir", "-1", "DataParallel"):
        with pytest.raises(FileNotFoundError):
            find_run(text, pieces=True)
