"""``lockstep ls``: runs and experiments in a directory, whatever state they are in."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli, train, tune
from lockstep.cli.command import Command
from lockstep.cli.program import COMMANDS
from lockstep.journal.lock import Lock
from tests.integration.runs import failure, fit


@pytest.fixture(autouse=True)
def no_spools(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of other tests on this machine are not in the lists."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path_factory.mktemp("root")))


def losses() -> None:
    for loss in (0.5, 0.25, 0.375):
        train.report({"loss": loss})


def fail() -> None:
    losses()
    raise ValueError("the disk is on fire")


def trial(config: dict[str, float]) -> None:
    train.report({"loss": config["x"] / 2})
    if config["x"] == 3:
        raise ValueError("three is too much")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert cli.main(["ls", *arguments, "--json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return found


def test_runs_and_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = fit(losses, workers=2, name="good")
    failure(fail, workers=1, name="bad")
    tune.Tuner(
        trial,
        param_space={"x": tune.grid_search([1.0, 2.0, 3.0])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=train.RunConfig(name="search", verbose=0),
    ).fit()
    capsys.readouterr()
    assert cli.main(["ls"]) == 0
    head, search, reason, bad, why, first = capsys.readouterr().out.splitlines()
    assert head.split() == ["STATE", "NAME", "AGE", "WORKERS", "REPORTS", "LAST", "BEST"]
    assert search.startswith("finished  search ")
    assert "2 TERMINATED, 1 ERROR" in search
    assert "loss=0.5 (trial " in search
    assert "three is too much" in reason
    assert bad.startswith("failed    bad DataParallelTrainer_")
    assert "Rank 0 failed with ValueError: the disk is on fire" in why
    assert first.split()[0] == "finished"
    assert first.split()[-4:] == ["loss=0.375", "loss=0.25", "(report", "2)"]

    def names(*options: str) -> list[str]:
        return [one.get("experiment", one["name"]) for one in listed(capsys, *options)]

    assert names() == ["search", "bad", "good"]
    assert names("--sort", "name") == ["bad", "good", "search"]
    assert names("--failed") == ["search", "bad"]
    assert names("--running") == []
    one = listed(capsys, "good")[0]
    assert one["path"] == good.path
    assert (one["state"], one["workers"], one["reports"]) == ("finished", 2, 3)
    assert one["metrics"] == {"loss": 0.375}
    assert one["best"] == {"metric": "loss", "value": 0.25, "report": 2}
    # In the experiment itself, its trials; from a directory or a URI alike.
    root = Path(good.path).parents[1]
    kinds = [found["kind"] for found in listed(capsys, "search")]
    assert sorted(kinds) == ["experiment", "run", "run", "run"]
    assert len(listed(capsys, str(root))) == len(listed(capsys, root.as_uri())) == 3


def test_what_runs_and_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("live", "broken", "other"):
        result = fit(losses, workers=1, name=name, storage_path=str(tmp_path))
        journal = Path(result.path, "journal.jsonl")
        if name == "live":
            lines = journal.read_text().splitlines(keepends=True)
            journal.write_text("".join(line for line in lines if '"end"' not in line))
            lock = Lock(str(journal))
        elif name == "broken":
            journal.write_text('{"event": 3}\n')
    try:
        assert [one["state"] for one in listed(capsys, str(tmp_path), "--running")] == ["running"]
    finally:
        lock.release()
    states = [one["state"] for one in listed(capsys, str(tmp_path), "--sort", "state")]
    assert states == ["damaged", "finished", "unfinished"]
    assert cli.main(["ls", str(tmp_path), "--failed"]) == 0
    assert "is not a record of a run" in capsys.readouterr().out


def test_where_nothing_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"There is no run in {tmp_path}.\n"
    assert listed(capsys, str(tmp_path)) == []
    assert cli.main(["ls", (tmp_path / "none").as_uri()]) == 1
    assert "there is no directory" in capsys.readouterr().err
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "none"))
    assert listed(capsys) == []


def test_the_results_root_shows_only_one_s_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fit(losses, workers=1, name="theirs")
    real = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: real + 1)
    assert listed(capsys) == []
    (one,) = listed(capsys, str(Path(result.path).parents[1]))  # by its path, somebody else's, too
    assert one["experiment"] == "theirs"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_has_examples(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command.name, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"\nexamples:\n  lockstep {command.name}" in text
    assert "exit codes:" in text
    assert ("--json" in text) == command.has_json  # a script's arguments are its own


def test_the_best_of_an_ended_run_is_found_without_parsing_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = fit(losses, workers=1, storage_path=str(tmp_path))
    journal = Path(result.path) / "journal.jsonl"
    # Rows that cannot be parsed, except the last one, which is shown.
    lines = journal.read_bytes().split(b"\n")
    rows = [n for n, line in enumerate(lines) if line.startswith(b'{"event":"report"')]
    for number in rows[:-1]:
        lines[number] = lines[number][:-1]
    journal.write_bytes(b"\n".join(lines))
    assert cli.main(["ls", str(tmp_path), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["best"] == {"metric": "loss", "value": 0.25, "report": 2}
