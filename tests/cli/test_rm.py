"""``lockstep rm``: asks, deletes a whole run, and never one that runs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from lockstep import cli, train
from lockstep.journal.lock import Lock
from tests.integration.runs import fit


def report() -> None:
    train.report({"loss": 0.5}, checkpoint=train.Checkpoint.from_dict({"a": 1}))


def test_it_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(fit(report, workers=1, name="a", storage_path=str(tmp_path)).path)
    for answer in ("", "n\n", "what\n"):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        assert cli.main(["rm", str(run)]) == 1
        assert run.exists()
    assert f"Delete {run}: " in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cli.main(["rm", str(run)]) == 0
    assert f"Deleted {run}: " in capsys.readouterr().out
    assert list((tmp_path / "a").iterdir()) == []


@pytest.mark.parametrize("what", ["run", "experiment", "uri"])
def test_without_a_question(what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Path(fit(report, workers=1, name="a", storage_path=str(tmp_path)).path)
    place = {"run": str(run), "experiment": str(run.parent), "uri": run.as_uri()}[what]
    assert cli.main(["rm", place, "--yes", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["deleted"]) == 1
    assert not run.exists()


def test_what_runs_stays_and_all_else_that_was_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        Path(fit(report, workers=1, name=name, storage_path=str(tmp_path)).path) for name in "ab"
    ]
    journal = runs[1] / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if '"end"' not in line))
    lock = Lock(str(journal))
    try:
        for place in (runs[1], runs[1].parent):
            assert cli.main(["rm", str(runs[0]), str(place), "--yes"]) == 1
            assert "is running, or may be on another machine" in capsys.readouterr().err
    finally:
        lock.release()
    assert all(run.exists() for run in runs)


def test_no_other_directory_is_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("x")
    assert cli.main(["rm", str(tmp_path), "--yes"]) == 1
    assert "is neither a run nor an experiment" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()
