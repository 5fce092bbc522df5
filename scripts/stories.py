"""Draw what a terminal shows in the stories of the pages: a fault, and what one sees of it.

    python -m scripts.stories       # renews fork, guard, reload, replay and verify.svg

The example ``23_going_back.py`` is run, and the commands after it, in a pseudo terminal; the end
of each is drawn. Paths of this machine are shortened.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pyte

from scripts import cast

IMAGES = cast.ROOT / "docs" / "images"

# A generator of its own, which no checkpoint has: the fault that verify finds.
LEAKY = """
import random
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig

def train_func(config):
    dice = random.Random()
    state = train.State(total=0.0, step=0)
    state.restore()
    for step in range(state.step, 8):
        state.total += config["scale"] * dice.random()
        state.step = step + 1
        train.report({"total": state.total}, checkpoint=state)

DataParallelTrainer(
    train_func,
    train_loop_config={"scale": 1.0},
    run_config=RunConfig(name="leaky", verbose=0),
).fit()
"""

# A learning rate that is too large, which somebody corrects while the run is running.
GROWING = """
import time
from lockstep import train
from lockstep.train import CheckpointConfig, DataParallelTrainer, RunConfig

LR = 1.05

def train_func():
    state = train.State(x=1.0, step=0)
    state.restore()
    while state.step < 60:
        time.sleep(0.02)
        state.x -= LR * 2 * state.x
        state.step += 1
        if state.step % 5 == 0:
            print(f"step {state.step}: loss {state.x ** 2:.4f}", flush=True)
        train.report({"loss": state.x ** 2}, checkpoint=state)

config = RunConfig(name="growing", checkpoint_config=CheckpointConfig(every="10min"))
DataParallelTrainer(train_func, run_config=config).fit()
"""

# Who edits: each change is saved when the terminal has shown a text.
EDITOR = """
until grep -q 'step 25' seen; do sleep 0.01; done; sed -i 's/LR = 1.05/LR = 0.1/' growing.py
until grep -q 'step 40' seen; do sleep 0.01; done; sed -i 's/LR = 0.1/LR = = 0.1/' growing.py
until grep -q 'paused' seen; do sleep 0.01; done; sed -i 's/LR = = 0.1/LR = 0.1/' growing.py
"""

STORIES = {
    "fork": (
        ["lockstep fork leaky@5 --set scale=2 --name doubled", "lockstep ls --tree results"],
        9,
    ),
    "guard": (["python train.py 2>&1 | grep -A3 '^Step'"], 8),
    "reload": (["lockstep run --reload growing.py"], 33),
    "replay": (["lockstep replay broken --step 5"], 12),
    "verify": (["lockstep verify broken@2 --steps 3", "lockstep verify leaky@2 --steps 3"], 11),
}
"""By picture: the commands, and the lines of its terminal."""


def main() -> None:
    """Run the stories and write the pictures."""
    with tempfile.TemporaryDirectory(prefix="", dir="/tmp") as folder:
        directory = Path(folder, "work")
        programs = Path(folder, "bin")
        directory.mkdir()
        programs.mkdir()
        example = (cast.ROOT / "examples" / "23_going_back.py").read_text(encoding="utf-8")
        # The run alone: what follows in the example is what the commands do.
        (directory / "train.py").write_text(example.partition("    def probe")[0])
        (directory / "leaky.py").write_text(LEAKY)
        (directory / "growing.py").write_text(GROWING)
        (directory / "edit.sh").write_text(EDITOR)
        (programs / "python").symlink_to(sys.executable)
        command = f'#!/bin/sh\nexec {sys.executable} -m lockstep "$@"\n'
        (programs / "lockstep").write_text(command)
        (programs / "lockstep").chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(cast.ROOT / "src"),
            "LOCKSTEP_STORAGE": str(directory / "results"),
            "TERM": "xterm-256color",
        }
        silent = cast.Recorder()
        silent.run(f"{sys.executable} leaky.py", directory, environment)
        for name, (commands, lines) in STORIES.items():
            cast.LINES = lines
            recorder = _Shortened(f"{directory}/")
            for command in commands:
                recorder.type(command)
                real = command.replace("python", sys.executable, 1)
                if "--reload" in real:
                    real = f"touch seen; bash edit.sh & {real} 2>&1 | tee seen"
                recorder.run(f"bash -c {_quoted(real)}", directory, environment)
            path = IMAGES / f"{name}.svg"
            path.write_text(cast.picture([(0.0, recorder.frames[-1][1])]), encoding="utf-8")
            print(path)


class _Shortened(cast.Recorder):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.screen = pyte.Screen(cast.COLUMNS, cast.LINES)
        self.stream = pyte.ByteStream(self.screen)
        self._place = place.encode()

    def feed(self, data: bytes, waited: float) -> None:
        data = re.sub(rb"DataParallelTrainer_\w+?_00000_0_[-\w]+", b"run", data)
        super().feed(data.replace(self._place, b""), waited)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


if __name__ == "__main__":
    main()
