"""The script that builds Horovod says what is missing. That it builds, its environment shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.repository import ROOT

SCRIPT = ROOT / "scripts" / "install_horovod.py"


def run(*arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "PATH": path},
    )


def test_tools_that_are_missing_are_named(tmp_path: Path) -> None:
    for name in ("c++", "make", "cmake"):
        (tmp_path / name).symlink_to("/bin/true")
    whole = run(str(SCRIPT), "--check", path=str(tmp_path))
    assert whole.returncode == 0, whole.stderr
    assert "everything that the build needs is here" in whole.stdout

    (tmp_path / "c++").unlink()
    (tmp_path / "make").unlink()
    lacking = run(str(SCRIPT), path=str(tmp_path))
    assert lacking.returncode == 1
    (message,) = lacking.stderr.splitlines()
    assert message.startswith("install_horovod: there is no C++ compiler: apt install g++")
    assert "; there is no make: apt install make" in message


def test_an_environment_without_pytorch(tmp_path: Path) -> None:
    # -I -S: this interpreter without any installed package.
    lacking = run("-I", "-S", str(SCRIPT), "--check", path=str(tmp_path))
    assert lacking.returncode == 1
    assert f"PyTorch is not installed for {sys.executable}" in lacking.stderr
