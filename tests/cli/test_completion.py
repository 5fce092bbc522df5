"""The tab key: commands, options and names of runs, as a shell asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import cli
from tests.repository import SRC


def complete(line: str, root: Path) -> list[str]:
    """What the shell would offer after ``line``."""
    answer = root / "answer"
    environment = {
        **os.environ,
        "PYTHONPATH": str(SRC),
        "LOCKSTEP_STORAGE": str(root),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "IFS": "\n",
    }
    subprocess.run(
        [sys.executable, "-m", "lockstep"], env=environment, check=True, timeout=150, text=True
    )
    return answer.read_text().split("\x0b") if answer.exists() else []


def test_commands_options_and_runs(tmp_path: Path) -> None:
    (tmp_path / "mnist-a").mkdir()
    (tmp_path / "digits" / "TorchTrainer_3f2a1_00000_0_2026-01-31_12-00-00").mkdir(parents=True)
    assert complete("lockstep lo", tmp_path) == ["logs"]
    assert "--follow" in complete("lockstep logs --fo", tmp_path)
    assert complete("lockstep show mn", tmp_path) == ["mnist-a"]
    assert complete("lockstep ls dig", tmp_path) == ["digits"]
    (run,) = complete("lockstep show Torch", tmp_path)
    assert run.startswith("TorchTrainer_3f2a1")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_loads(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", shell]) == 0
    code = capsys.readouterr().out
    assert "lockstep" in code
    assert cli.main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"shell": shell, "code": code.strip()}
