"""A whole run as a person at a terminal sees it: the live panel, Ctrl-C, a pipe, a notebook."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from lockstep.train import Result
from tests.console.pseudo_terminal import on_terminal
from tests.repository import SRC

SCRIPT = """
from lockstep import train
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig

def train_func(config):
    rank = train.get_context().get_world_rank()
    print("hello from everyone")
    for epoch in range(config["epochs"]):
        state = Checkpoint.from_dict({{"epoch": epoch}}) if rank == 0 else None
        train.report({{"epoch": epoch, "loss": 0.5}}, checkpoint=state)
    print(f"rank {{rank}} is at the end")
    {ending}

DataParallelTrainer(
    train_func,
    train_loop_config={{"epochs": 3}},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(verbose={verbose}, storage_path={storage!r}, name="exp"),
).fit()
"""

HANG = """
    import pathlib, time
    try:
        print(f"rank {{rank}} hangs")
        time.sleep(1e6)
    finally:
        pathlib.Path(config.get("mark", {mark!r}) + str(rank)).write_text("cleaned up")
"""

STUBBORN = """
    import signal, time
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"rank {rank} will not listen")
    time.sleep(1e6)
"""


def script(storage: Path, ending: str = "", verbose: int = 1) -> str:
    return SCRIPT.format(ending=ending.strip(), storage=str(storage), verbose=verbose)


def workers_of(storage: Path) -> list[int]:
    """The pids of the run's workers, as its journal has them."""
    (journal,) = storage.glob("exp/*/journal.jsonl")
    events = map(json.loads, journal.read_text().splitlines())
    return [w["pid"] for event in events if event["event"] == "attempt" for w in event["workers"]]


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def test_the_live_panel_ends_with_the_outcome(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path)) as terminal:
        assert terminal.wait() == 0
    assert "finished" in terminal.text
    assert "3 reports" in terminal.text
    assert "checkpoint_000002" in terminal.text
    assert "[all ranks] hello from everyone" in terminal.text
    assert "[rank 1] rank 1 is at the end" in terminal.text
    assert terminal.cursor_shown


def test_ctrl_c_once_stops_cleanly_and_says_how_to_resume(tmp_path: Path) -> None:
    ending = HANG.format(mark=str(tmp_path / "mark"))
    with on_terminal(script(tmp_path, ending)) as terminal:
        terminal.wait_for("rank 1 hangs")
        terminal.wait_for("rank 0 hangs")
        pids = workers_of(tmp_path)
        terminal.press_ctrl_c()
        code = terminal.wait()
    assert code == -signal.SIGINT
    text = " ".join(terminal.text.split())
    assert "Traceback" not in text
    assert "Interrupted: 3 reports and 3 checkpoints are kept in" in text
    # Where a long path is folded depends on where the test runs.
    assert "Toresume:DataParallelTrainer.restore(" in text.replace(" ", "")
    assert terminal.cursor_shown
    assert not any(map(alive, pids))
    assert (tmp_path / "mark0").read_text() == (tmp_path / "mark1").read_text() == "cleaned up"
    result = Result.from_path(tmp_path / "exp")
    assert result.state == "interrupted"
    assert result.error is None
    assert len(result.metrics_dataframe) == 3
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 2


PROMPT = """
import os, signal
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig
driver = os.getpid()
class Kept:
    value = 42

def train_func():
    train.report({{"value": Kept.value}})
    if train.get_context().get_world_rank() == 0:
        os.kill(driver, signal.SIGINT)
    signal.pause()

two = ScalingConfig(num_workers=2)
quiet = RunConfig(verbose=0, storage_path={storage!r}, name="exp")
DataParallelTrainer(train_func, scaling_config=two, run_config=quiet).fit()
print("still here,", Kept.value)
"""


def test_ctrl_c_at_a_prompt_leaves_the_session(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-q", "-i"],
        input=PROMPT.format(storage=str(tmp_path)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        timeout=150,
    )
    assert "still here, 42" in done.stdout, done.stderr
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "Interrupted: 1 report and" in done.stderr
    assert Result.from_path(tmp_path / "exp").metrics["value"] == 42


def test_ctrl_c_twice_kills_workers_that_do_not_listen(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path, STUBBORN)) as terminal:
        terminal.wait_for("rank 0 will not listen")
        terminal.wait_for("rank 1 will not listen")
        pids = workers_of(tmp_path)
        terminal.press_ctrl_c()
        terminal.wait_for("stopping")
        terminal.press_ctrl_c()
        assert terminal.wait() == -signal.SIGINT
    assert "Traceback" not in terminal.text
    assert not any(map(alive, pids))


def test_workers_that_do_not_listen_are_killed_after_the_grace(tmp_path: Path) -> None:
    grace = {"LOCKSTEP_STOP_GRACE_S": "0.2"}
    with on_terminal(script(tmp_path, STUBBORN), environment=grace) as terminal:
        terminal.wait_for("rank 0 will not listen")
        terminal.wait_for("rank 1 will not listen")
        pids = workers_of(tmp_path)
        terminal.press_ctrl_c()
        assert terminal.wait() == -signal.SIGINT
    assert not any(map(alive, pids))


def test_ctrl_c_before_the_workers_are_up(tmp_path: Path) -> None:
    slow = "import signal, os\nos.kill(os.getpid(), signal.SIGINT)\n"
    source = script(tmp_path).replace("DataParallelTrainer(\n", "trainer = DataParallelTrainer(\n")
    source = source.replace(").fit()", ")")
    source += (
        "import lockstep.train.driver.controller as c\n"
        "start = c.Controller.start\n"
        "def interrupted(self):\n"
        "    start(self)\n"
        f"    {slow.replace(chr(10), chr(10) + '    ')}\n"
        "c.Controller.start = interrupted\n"
        "trainer.fit()\n"
    )
    with on_terminal(source) as terminal:
        assert terminal.wait() == -signal.SIGINT
    assert "Traceback" not in terminal.text
    assert "Interrupted: 0 reports and" in terminal.text


def run_piped(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        timeout=150,
    )


def test_a_pipe_gets_a_few_plain_lines(tmp_path: Path) -> None:
    done = run_piped(script(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "[all ranks] hello from everyone" in done.stdout
    assert len(done.stdout.splitlines()) < 10
    assert "finished" in done.stdout.splitlines()[-1]


def test_verbose_0_prints_nothing_and_2_every_report(tmp_path: Path) -> None:
    silent = run_piped(script(tmp_path, verbose=0))
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    every = run_piped(script(tmp_path, verbose=2))
    assert sum("loss=0.5" in line for line in every.stdout.splitlines()) >= 3


CELLS = [
    f"import sys; sys.path.insert(0, {str(SRC)!r})",
    """
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

class Model:                       # lives in the notebook: sent by value
    factor = 2

def train_func(config):
    print("from a worker")
    for step in range(20):
        train.report({"value": Model.factor * config["base"], "step": step})
""",
    """
result = DataParallelTrainer(
    train_func,
    train_loop_config={"base": 21},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=STORAGE),
).fit()
""",
    "print(result.metrics['value'], len(result.metrics_dataframe))",
]


def test_a_notebook_updates_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    v4: Any = nbformat.v4
    cells = [textwrap.dedent(cell).replace("STORAGE", repr(str(tmp_path))) for cell in CELLS]
    notebook = v4.new_notebook(cells=[v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=150, kernel_name="python3").execute()
    shown = notebook.cells[2].outputs
    displays = [output for output in shown if output.output_type == "display_data"]
    assert len(displays) == 1  # one table, however often it was updated
    assert "finished" in displays[0]["data"]["text/plain"]
    printed = "".join(output.text for output in shown if output.output_type == "stream")
    assert "from a worker" in printed
    assert notebook.cells[3].outputs[0].text == "42 20\n"
