"""What a fork server prepares for the workers that it forks."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from pathlib import Path

from lockstep.engine.forkserver import skip_library_finalizers
from tests.repository import SRC


class Library:
    """Something that has a finalizer."""


def removed() -> None:
    """As torch has one for each library of operators."""


def test_torch_s_operators_are_not_removed_at_exit() -> None:
    library, directory = Library(), Library()
    removed.__module__ = "torch.library"
    of_torch = weakref.finalize(library, removed)
    of_another = weakref.finalize(directory, os.getpid)
    try:
        skip_library_finalizers()
        assert (of_torch.atexit, of_another.atexit) == (False, True)
        del library
        assert not of_torch.alive  # it runs where its object is deleted, as before
    finally:
        of_another.detach()


def test_modules_of_the_working_directory_are_not_python_s_own(tmp_path: Path) -> None:
    (tmp_path / "signal.py").write_text("raise ImportError('not this one')\n")
    script = tmp_path / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(
        "from lockstep import train\n"
        "train.DataParallelTrainer(\n"
        "    lambda: train.report({'x': 1}),\n"
        "    scaling_config=train.ScalingConfig(num_workers=1),\n"
        f"    run_config=train.RunConfig(storage_path={str(tmp_path)!r}, verbose=0),\n"
        ").fit()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_WARM": "0"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
