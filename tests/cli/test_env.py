"""What a run was started with is recorded without secrets, and shown by ``lockstep env``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import cli, train, tune
from lockstep.journal.environment import hidden_secrets
from lockstep.run_layout import ENVIRONMENT_FILE
from tests.integration.runs import fit
from tests.repository import SRC

SCRIPT = """
import sys
from lockstep import train
result = train.DataParallelTrainer(
    lambda: train.report({"loss": 1}),
    run_config=train.RunConfig(name="noted", storage_path=sys.argv[1], verbose=0),
).fit()
"""


PATIENT = """
import runpy, sys
from lockstep.journal import environment
environment._CLOSE_S = 60
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def report() -> None:
    train.report({"loss": 0.5})


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("dirty", [False, True])
def test_a_script_in_a_repository(
    dirty: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "x")
    if dirty:
        script.write_text(SCRIPT + "# s3://ada:hunter2@bucket/x\n")
    out = str(tmp_path / "out")
    subprocess.run(
        # The end of so short a run waits for git only for a moment.
        [sys.executable, "-c", PATIENT, str(script), out, "--api-key", "hunter2"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        cwd="/",
        check=True,
        timeout=150,
    )
    assert cli.main(["env", f"{out}/noted", "--json"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    head, diff = git(tmp_path, "rev-parse", "HEAD"), found["git"].pop("diff")
    assert found["git"] == {"commit": head, "dirty": dirty}
    assert ("\n+# s3://" in diff) is dirty
    assert found["command"][1:] == [str(script), out, "--api-key", "…"]
    assert found["directory"] == "/"
    assert "hunter2" not in text
    assert cli.main(["env", f"{out}/noted"]) == 0
    shown = capsys.readouterr().out
    assert f"git:         {found['git']['commit']}, " in shown
    assert f"{found['cpus']} CPUs" in shown
    assert ("not committed: 1 file, +1 -0 lines" in shown) is dirty
    assert cli.main(["env", f"{out}/noted", "--diff"]) == 0
    assert capsys.readouterr().out == diff
    assert cli.main(["show", f"{out}/noted"]) == 0
    assert f"git:         {found['git']['commit']}, " in capsys.readouterr().out


def test_a_trial_has_the_environment_of_its_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = tune.Tuner(
        lambda config: train.report({"x": 1}),
        run_config=train.RunConfig(name="e", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not Path(grid[0].path, ENVIRONMENT_FILE).exists()
    capsys.readouterr()
    assert cli.main(["env", grid[0].path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hostname"]


def test_the_file_is_its_owner_s_only_and_may_be_missing_or_damaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = fit(report, workers=1).path
    file = Path(run, ENVIRONMENT_FILE)
    assert file.stat().st_mode & 0o077 == 0
    file.write_text("[]")
    assert cli.main(["env", run]) == 1
    assert "is not what lockstep writes" in capsys.readouterr().err
    file.write_text("{}")
    assert cli.main(["env", run]) == 1
    assert "it has no 'time'" in capsys.readouterr().err
    assert cli.main(["show", run]) == 0
    assert "it has no 'time'" in capsys.readouterr().out
    file.unlink()
    assert cli.main(["env", run]) == 1
    assert "its environment was not recorded" in capsys.readouterr().err
    assert cli.main(["show", run]) == 0


def test_secrets_of_a_command_line() -> None:
    command = ["p", "--token=a", "--api_key", "b", "--lr", "1", "s3://u:c@h/x", "--password", "-v"]
    assert hidden_secrets(command) == [
        *("p", "--token=…", "--api_key", "…", "--lr", "1", "s3://h/x", "--password", "-v")
    ]
