"""A program that ends while rows are on their way to processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import pathlib, sys, time
import lockstep.data

begun = pathlib.Path(sys.argv[1])

def wait_for_ever(batch):
    if batch["id"][0]:
        begun.touch()
        time.sleep(600)
    return batch

dataset = lockstep.data.range(40, override_num_blocks=40)
dataset = dataset.map_batches(wait_for_ever, processes=True, concurrency=1)
batches = iter(dataset.iter_batches(batch_size=1))
next(batches)
while not begun.exists():
    time.sleep(0.01)
print("exits", flush=True)
"""


def test_a_program_that_exits_does_not_wait(tmp_path: Path) -> None:
    """The iterator is still there, as it is below an exception that nobody has caught."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        [sys.executable, script, tmp_path / "begun"],
        capture_output=True, text=True, timeout=150, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("exits\n", "")
