"""``lockstep run --reload``: a script whose files are saved while it runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.result import Result
from lockstep.run_layout import MANIFEST
from lockstep.warm.reload import imported_files
from tests.warm.warm_runs import LIMIT_S, Warm

SCRIPT = """
import sys
import time
from pathlib import Path

from lockstep import train
from lockstep.train import CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig

here = Path(sys.argv[1])


def note(text):
    with open(here / "log", "a") as file:
        print(text, file=file)


def first():
    note("first")
    train.report({"step": 1})


def second():
    import code_of_the_user

    state = train.State(step=0)
    state.restore()
    began, steps = state.step, code_of_the_user.STEPS
    while not steps or state.step != began + steps:
        state.step += 1
        time.sleep(0.01)  # a step: the test needs no thousands of them
        train.report({"step": state.step, "version": code_of_the_user.VERSION}, checkpoint=state)
        # After the first report: then both ranks have imported this version.
        if state.step == began + 1 and train.get_context().get_world_rank() == 0:
            note(f"begin {state.step} {code_of_the_user.VERSION}")


if __name__ == "__main__":
    place = str(here / "runs")
    once = DataParallelTrainer(first, run_config=RunConfig(name="first", storage_path=place))
    assert once.fit().metrics["step"] == 1
    workers = ScalingConfig(num_workers=2)
    # Saved only because the run stops, then.
    seldom = CheckpointConfig(every="1h", num_to_keep=2)
    config = RunConfig(name="second", storage_path=place, checkpoint_config=seldom)
    result = DataParallelTrainer(second, scaling_config=workers, run_config=config).fit()
    note(f"end {result.metrics['version']}")
"""


class Reloading:
    """A script under ``--reload``, whose module is saved again and again."""

    def __init__(self, process: subprocess.Popen[str], warm: Warm, folder: Path) -> None:
        self.process = process
        self._warm = warm
        self._folder = folder

    def save(self, code: str) -> None:
        (self._folder / "code_of_the_user.py").write_text(code)

    def said(self) -> str:
        return (self._folder / "output").read_text()

    def log(self) -> list[str]:
        path = self._folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def wait_until(self, condition: Callable[[], object]) -> None:
        def happened() -> bool:
            assert self.process.poll() is None or condition(), self.said()
            return bool(condition())

        self._warm.wait_until(happened)

    def wait_for_version(self, version: int) -> None:
        ends = f" {version}"
        self.wait_until(lambda: any(line.endswith(ends) for line in self.log()))


@contextmanager
def reloading(warm: Warm, folder: Path, code: str, script: str = SCRIPT) -> Iterator[Reloading]:
    (folder / "train.py").write_text(script)
    (folder / "code_of_the_user.py").write_text(code)
    with (folder / "output").open("w") as output:
        process = warm.popen(
            "--reload",
            str(folder / "train.py"),
            str(folder),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Reloading(process, warm, folder)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(LIMIT_S)


def test_new_code_continues_from_the_last_state(running: Warm, tmp_path: Path) -> None:
    with reloading(running, tmp_path, "VERSION, STEPS = 1, None") as script:
        script.wait_for_version(1)
        script.save("VERSION, STEPS = 2, None")
        script.wait_for_version(2)
        script.save("VERSION, STEPS = = 3")
        # Only a worker imports the module, so it is a worker that fails.
        script.wait_until(lambda: script.said().count("paused") == 1)
        assert "SyntaxError" in script.said()
        script.save("VERSION, STEPS = 4, None\nraise RuntimeError('not yet')")
        script.wait_until(lambda: script.said().count("paused") == 2)
        assert "not yet" in script.said()
        # The script itself is watched, too.
        (tmp_path / "train.py").write_text("import no_such_module")
        script.wait_until(lambda: script.said().count("paused") == 3)
        script.save("VERSION, STEPS = 5, 3")
        (tmp_path / "train.py").write_text(SCRIPT)
        assert script.process.wait(LIMIT_S) == 0, script.said()
        log = script.log()
    assert log.count("first") == 1, "a run that has finished is not run again"
    assert log[-1] == "end 5"
    (run,) = (tmp_path / "runs" / "second").glob("DataParallelTrainer_*")
    rows = Result.from_path(run).metrics_dataframe
    assert rows["step"].tolist() == list(range(1, len(rows) + 1)), "no step is lost or run twice"
    begins = [line.split()[1:] for line in log if line.startswith("begin")]
    for step, version in begins:
        assert rows["version"][int(step) - 1] == int(version)
    said = script.said()
    assert "code_of_the_user.py has changed: the run stops at the next report." in said
    assert "code_of_the_user.py has changed: the run continues from checkpoint_" in said


LEFT = """
import time

from lockstep.storage import local
from lockstep.train.worker import session

write = local.LocalStorage.put_stream


def late(storage, path, chunks):
    # The state that the run stops with is never written here: the driver has it.
    while not session.current()._leaves_state:
        time.sleep(0.01)
    write(storage, path, chunks)


local.LocalStorage.put_stream = late
VERSION, STEPS = {}, {}
"""


def test_the_state_continues_in_memory(running: Warm, tmp_path: Path) -> None:
    with reloading(running, tmp_path, LEFT.format(1, None)) as script:
        script.wait_for_version(1)
        script.save(LEFT.format(2, None))
        script.wait_for_version(2)
        assert "the run continues from checkpoint_000000, from memory." in script.said()
        # No driver takes the next one: it is written before anything else can happen to it.
        (tmp_path / "train.py").write_text("import no_such_module")
        script.wait_until(lambda: "paused" in script.said())
        (run,) = (tmp_path / "runs" / "second").glob("DataParallelTrainer_*")
        assert (run / "checkpoint_000001" / MANIFEST).exists()
        script.save("VERSION, STEPS = 3, 3")
        (tmp_path / "train.py").write_text(SCRIPT)
        assert script.process.wait(LIMIT_S) == 0, script.said()
        log = script.log()
    assert log[-1] == "end 3"
    rows = Result.from_path(run).metrics_dataframe
    assert rows["step"].tolist() == list(range(1, len(rows) + 1)), "no step is lost or run twice"


def test_a_run_in_this_process_is_reloaded(running: Warm, tmp_path: Path) -> None:
    alone = SCRIPT.replace("num_workers=2", "num_workers=0")
    with reloading(running, tmp_path, "VERSION, STEPS = 1, None", alone) as script:
        script.wait_for_version(1)
        script.save("VERSION, STEPS = 2, 3")
        assert script.process.wait(LIMIT_S) == 0, script.said()
        assert script.log()[-1] == "end 2"
    (run,) = (tmp_path / "runs" / "second").glob("DataParallelTrainer_*")
    rows = Result.from_path(run).metrics_dataframe
    assert rows["step"].tolist() == list(range(1, len(rows) + 1)), "no step is lost or run twice"


def test_signals_end_it(running: Warm, tmp_path: Path) -> None:
    with reloading(running, tmp_path, "VERSION, STEPS = 1, None") as script:
        script.wait_for_version(1)
        script.process.terminate()
        assert script.process.wait(LIMIT_S) == 143
        assert "Preempted: " in script.said()


def test_ctrl_c_ends_the_pause(running: Warm, tmp_path: Path) -> None:
    with reloading(running, tmp_path, "", "import nothing_of_this_name") as script:
        script.wait_until(lambda: "paused" in script.said())
        script.process.send_signal(signal.SIGINT)
        assert script.process.wait(LIMIT_S) == -signal.SIGINT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "pass"], "--reload needs a script, or -m MODULE"),
        (["-"], "--reload needs a script, or -m MODULE"),
        (["nowhere.py"], "there is none for 'nowhere.py'"),
        (["-m", "no_such_module"], "there is none for 'no_such_module'"),
    ],
)
def test_there_must_be_a_file(
    running: Warm, tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = running.run("--reload", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_module_is_run_as_well(running: Warm, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "main.py").write_text("import sys; print(sys.argv[1:])")
    done = running.run("--reload", "-m", "package.main", "--lr", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['--lr', '1']\n")


def test_which_files_are_watched(tmp_path: Path) -> None:
    files = {
        "train.py": "import os, torch\nimport package.models.small\ndef f():\n    import late",
        "late.py": "def broken(:",
        "package/__init__.py": "from . import tools",
        "package/tools.py": "from .models import layers, something\nfrom ..outside import x",
        "package/models/__init__.py": "",
        "package/models/layers.py": "import train",
        "package/models/small.py": "",
        "package/unused.py": "",
        "outside.py": "",
        "other.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = imported_files(str(tmp_path / "train.py"), [str(tmp_path)])
    unused = {"package/unused.py", "other.py"}
    assert found == {str(tmp_path / name) for name in files.keys() - unused}
