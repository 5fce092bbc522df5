"""``breakpoint()`` in a worker, with a user at the driver's terminal, and without."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lockstep.train import Result
from tests.console.pseudo_terminal import on_terminal
from tests.integration.runs import failure, fit

SCRIPT = """
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

def train_func(config):
    rank = train.get_context().get_world_rank()
    train.report({{"loss": 1.0}})
    secret = 40 + rank
    {stop}
    secret += 2
    print("rank", rank, "has", secret)
    train.report({{"loss": 0.5, "secret": secret}})

DataParallelTrainer(
    train_func,
    train_loop_config={{}},
    scaling_config=ScalingConfig(num_workers={workers}),
    run_config=RunConfig(
        verbose={verbose}, storage_path={storage!r}, name="exp", hang_warning_s=0.2,
        hang_timeout_s=0.4,
    ),
).fit()
print("the" + " end")
"""
STOP = {
    "breakpoint": "breakpoint()",
    "pdb": "import pdb; pdb.set_trace()",
    "rank 1": "if rank == 1: breakpoint()",
    "two": "breakpoint(); breakpoint(header='the ' + 'second')",
}
STOPS_AT_THE_CALL = sys.version_info >= (3, 13)
"""pdb stops at the call, and not at the line after it."""


def script(directory: Path, stop: str, workers: int = 1, verbose: int = 1) -> str:
    """In a file of its own: the debugger shows its lines."""
    job = directory / "job.py"
    job.write_text(
        SCRIPT.format(stop=STOP[stop], storage=str(directory), workers=workers, verbose=verbose)
    )
    return f"import runpy; runpy.run_path({str(job)!r}, run_name='__main__')"


@pytest.mark.parametrize("stop", ["breakpoint", "pdb"])
def test_look_step_and_continue(tmp_path: Path, stop: str) -> None:
    with on_terminal(script(tmp_path, stop), types=True) as terminal:
        terminal.wait_for("Rank 0 has stopped at a breakpoint")
        terminal.wait_for("(Pdb rank 0)")
        if STOPS_AT_THE_CALL:
            assert f"-> {STOP[stop]}" in terminal.text
            terminal.type_line("n")
            terminal.wait_for("-> secret += 2")
        assert "-> secret += 2" in terminal.text
        assert "1 worker" not in "\n".join(terminal.screen.display)  # the panel is paused
        terminal.type_line("p secret, 'seen'")
        terminal.wait_for("(40, 'seen')")
        terminal.type_line("n")
        terminal.wait_for("-> print(")
        terminal.type_line("p secret, 'after'")
        terminal.wait_for("(42, 'after')")
        terminal.type_line("c")
        terminal.wait_for("the end")
        assert terminal.wait() == 0
        assert "finished" in terminal.text
        assert "[rank 0] rank 0 has 42" in terminal.text
        assert "has come to no report" not in terminal.text
        assert "BdbQuit" not in terminal.text


def test_the_other_rank_waits_and_nothing_is_a_hang(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path, "rank 1", workers=2, verbose=0), types=True) as terminal:
        terminal.wait_for("(Pdb rank 1)")
        for _ in range(4):  # longer than hang_timeout_s
            terminal.type_line("import time; time.sleep(0.2); print('slept')")
        terminal.type_line("c")
        terminal.wait_for("the end")
        assert terminal.wait() == 0
    result = Result.from_path(tmp_path / "exp")
    assert result.metrics is not None
    assert result.metrics["secret"] == 42


def test_one_rank_after_the_other(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path, "breakpoint", workers=2), types=True) as terminal:
        terminal.wait_for("(Pdb rank ")
        first = 0 if "(Pdb rank 0)" in terminal.text else 1
        terminal.type_line("c")
        terminal.wait_for(f"(Pdb rank {1 - first})")
        terminal.type_line("c")
        terminal.wait_for("the end")
        assert terminal.wait() == 0


def test_two_breakpoints_are_two_stops(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path, "two"), types=True) as terminal:
        terminal.wait_for("(Pdb rank 0)")
        terminal.type_line("c")
        terminal.wait_for("the second")
        if not STOPS_AT_THE_CALL:
            terminal.wait_for("-> secret += 2")
        terminal.type_line("c")
        terminal.wait_for("the end")
        assert terminal.wait() == 0


def test_stepping_past_the_end_of_the_function(tmp_path: Path) -> None:
    with on_terminal(script(tmp_path, "breakpoint"), types=True) as terminal:
        lines = ["-> secret += 2", "-> print(", "-> train.report(", "--Return--"]
        if STOPS_AT_THE_CALL:
            lines.insert(0, "-> breakpoint()")
        for line in lines:
            terminal.wait_for(line)
            terminal.type_line("n")
        terminal.wait_for("the end")
        assert terminal.wait() == 0
        assert "lockstep/train" not in terminal.text


@pytest.mark.parametrize("how", ["q", "ctrl-c"])
def test_quitting_interrupts_the_run(tmp_path: Path, how: str) -> None:
    with on_terminal(script(tmp_path, "breakpoint", workers=2), types=True) as terminal:
        terminal.wait_for("(Pdb rank ")
        if how == "q":
            terminal.type_line("q")
        else:
            terminal.press_ctrl_c()
        terminal.wait_for("To resume:")
        assert terminal.wait() != 0
        assert "BdbQuit" not in terminal.text
    assert Result.from_path(tmp_path / "exp").state == "interrupted"


def test_without_a_terminal_one_sentence_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.train.driver.terminal_loan.os.isatty", lambda fd: False)

    def train_func() -> None:
        breakpoint()

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, RuntimeError)
    assert "the driver has no terminal to debug on. Run it on a terminal" in str(error)
    assert "or use ScalingConfig(num_workers=0)" in str(error)


def test_another_debugger_is_the_users_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.print")

    def train_func() -> None:
        breakpoint("not pdb")

    result = fit(train_func, workers=1)
    assert Path(result.path, "logs", "rank_0.log").read_text() == "not pdb\n"
