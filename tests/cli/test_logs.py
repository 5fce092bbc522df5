"""``lockstep logs``: what the ranks printed, after a run and during it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import cli, train
from tests.cli.test_commands import live_run, run_directory
from tests.integration.runs import fit
from tests.repository import SRC


def talk() -> None:
    rank = train.get_context().get_world_rank()
    print(f"hello from {rank}\n10%\r50%\r100%\n\x1b[31mred\x1b[0m \x1b[2Jevil\u202e", flush=True)
    train.report({"x": 1})
    print("no end", end="", flush=True)


def test_logs_of_a_run_that_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    run = fit(talk, workers=2).path

    def printed(*options: str, code: int = 0) -> list[str]:
        capsys.readouterr()
        assert cli.main(["logs", run, *options]) == code
        return capsys.readouterr().out.splitlines()

    lines = ["hello from 1", "100%", "red evil ", "no end"]
    assert printed("--rank", "1") == lines
    assert printed("--rank", "1", "-n", "2") == lines[2:]
    assert printed()[:1] == ["[rank 0] hello from 0"]
    assert printed("--grep", "from [1-9]") == ["[rank 1] hello from 1"]
    assert printed("--grep", "nothing like it", code=1) == []
    assert printed("-f") == printed()  # it has ended: there is nothing to wait for
    objects = [json.loads(line) for line in printed("--json", "--grep", "hello")]
    assert objects == [{"rank": rank, "line": f"hello from {rank}"} for rank in (0, 1)]
    assert cli.main(["logs", run, "--rank", "7"]) == 1
    assert "rank 7 has printed nothing in " in capsys.readouterr().err


def test_following_a_run_ends_with_it(tmp_path: Path) -> None:
    with live_run(tmp_path) as driver:
        follower = subprocess.Popen(
            [sys.executable, "-m", "lockstep", "logs", str(run_directory(tmp_path)), "-f"],
            env={**os.environ, "PYTHONPATH": str(SRC)},
            stdout=subprocess.PIPE,
            text=True,
        )
        log = run_directory(tmp_path) / "logs" / "rank_0.log"
        try:
            assert follower.stdout is not None
            with log.open("a") as file:
                file.write(" and running\n")
            assert follower.stdout.readline() == "[rank 0] up and running\n"
            assert follower.poll() is None
            driver.kill()
            driver.wait()
            rest, _ = follower.communicate(timeout=150)
            assert rest.splitlines() == ["[rank 1] up", "[rank 2] up"]
            assert follower.returncode == 0
        finally:
            follower.kill()
            follower.communicate()
