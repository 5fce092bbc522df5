"""The commands on a run that is on remote storage, by its URI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep import cli, train
from tests.integration.runs import fit
from tests.s3 import new_bucket, s3_uri


def talk(config: dict[str, float]) -> None:
    print("hello", flush=True)
    train.report({"loss": config["lr"]})


def test_every_command_on_an_object_store(
    s3_port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)  # in a repository, env would show what was changed there
    root = s3_uri(s3_port, new_bucket())
    for name, lr in (("a", 1.0), ("b", 2.0)):
        fit(talk, workers=1, name=name, config={"lr": lr}, storage_path=root)

    def at(name: str) -> str:
        return root.replace("/prefix?", f"/prefix/{name}?")

    def printed(*arguments: str) -> str:
        capsys.readouterr()
        code = cli.main(list(arguments))
        out, err = capsys.readouterr()
        assert (code, err) == (0, ""), out
        assert "secret" not in out
        return out

    runs = json.loads(printed("ls", root, "--json"))
    assert [run["experiment"] for run in runs] == ["b", "a"]
    assert "state:       finished\n" in printed("show", at("a"))
    assert printed("logs", at("a"), "-f") == "hello\n"
    assert json.loads(printed("env", at("a"), "--json"))["cpus"]
    assert "a DataParallelTrainer_" in printed("plot", at("a"), at("b"), "loss")
    compared = json.loads(printed("compare", at("a"), at("b"), "--json"))
    assert compared["metrics"]["loss"] == [1.0, 2.0]
    assert len(json.loads(printed("rm", at("a"), "--yes", "--json"))["deleted"]) == 1
    assert [run["experiment"] for run in json.loads(printed("ls", root, "--json"))] == ["b"]
    assert "ok   storage" in printed("doctor", root, "--no-run")
