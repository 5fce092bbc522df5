"""What a failed or stuck run says: the rank that did it, in one sentence, and where it is."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import HangError, TrainingFailedError, WorkerDiedError
from lockstep.train import RunConfig, ScalingConfig, WorkerGroupError
from lockstep.train.torch import TorchTrainer
from tests.integration.runs import failure

HERE = str(Path(__file__))


# ------------------------------------------------------------------------- a broken process group


def distributed_steps(config: dict[str, Any]) -> None:
    """Training in which one rank ends in the middle, while the others wait for its gradient."""
    import torch

    rank = train.get_context().get_world_rank()
    noticed = Path(train.get_context().get_trial_dir(), "noticed")
    model = torch.nn.Linear(4, 1)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if config["ddp"] else model
    for step in range(100):
        if step == 3 and rank == config["culprit"]:
            time.sleep(0.2)  # the others are inside the collective by now
            if config["ending"] == "raise":
                raise ValueError("bad input")
            if config["ending"] == "leave":
                torch.distributed.destroy_process_group()
                while not noticed.exists():  # a training script may clean up after its error
                    time.sleep(0.005)
                raise ValueError("bad input")
            if config["ending"] == "exit":
                print("out of here")
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        wrapped(torch.ones(2, 4)).sum().backward()
        if not config["ddp"]:
            try:
                torch.distributed.all_reduce(model.weight.grad)
            except RuntimeError:
                noticed.touch()
                raise


def torch_failure(
    ending: str, culprit: int, workers: int = 2, ddp: bool = False
) -> tuple[WorkerGroupError, float]:
    trainer = TorchTrainer(
        distributed_steps,
        train_loop_config={"ending": ending, "culprit": culprit, "ddp": ddp},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
    )
    started = time.monotonic()
    with pytest.raises(WorkerGroupError) as raised:
        trainer.fit()
    return raised.value, time.monotonic() - started


@pytest.mark.parametrize(
    ("ending", "ddp", "words"),
    [
        ("raise", True, "failed with ValueError: bad input"),
        ("leave", False, "failed with ValueError: bad input"),
        ("exit", False, "exited with code 3 before its function returned"),
        ("kill", True, "was killed by SIGKILL"),
    ],
)
def test_the_rank_that_broke_the_group_is_named(ending: str, ddp: bool, words: str) -> None:
    error, seconds = torch_failure(ending, culprit=1, ddp=ddp)
    assert str(error).startswith(f"Rank 1 of 2 {words}")
    assert "failed, too" not in str(error)
    assert next(iter(error.worker_failures)) == 1
    assert error.__cause__ is error.worker_failures[1]
    if ending in ("raise", "leave"):
        assert type(error.__cause__) is ValueError
        trace = error.__cause__.__traceback__
        assert trace is not None
        assert trace.tb_frame.f_code.co_name == "distributed_steps"
        assert trace.tb_next is None
    else:
        assert isinstance(error.__cause__, WorkerDiedError)
    if ending == "leave":
        assert "(rank 0 lost its connection to it)" in str(error)
    assert seconds < 100  # torch's own time-out is half an hour


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE"])
def test_a_crash_shows_its_stack(name: str) -> None:
    def inner(rank: int) -> None:
        if rank == 1:
            print("nearly there")
            os.kill(os.getpid(), signal.Signals[name])
        time.sleep(100)

    def train_func() -> None:
        inner(train.get_context().get_world_rank())

    error = failure(train_func, workers=2)
    text, _, crash = str(error).partition("\nWhere rank 1 crashed:\n")
    assert text.startswith("Rank 1 of 2 crashed (")
    assert text.endswith("The last lines of rank 1's log:\n    nearly there")
    lines = crash.splitlines()
    assert lines[0].strip() == "Stack (most recent call last):"
    assert [line.rpartition(" ")[2] for line in lines[1:]] == ["train_func", "inner"]
    assert all(HERE in line for line in lines[1:])
    assert error.result is not None
    log = Path(error.result.path, "logs", "rank_1.log").read_text()
    assert "Fatal Python error: " in log


def test_a_kill_shows_the_peak_of_memory() -> None:
    def train_func() -> None:
        held = b"x" * 300_000_000
        os.kill(os.getpid(), signal.SIGKILL if held else 0)

    found = re.match(
        r"Rank 0 was killed by SIGKILL \(its memory peaked at ([\d.]+) ([MG])B; "
        r"(this machine has|its cgroup may use) [\d.]+ [MG]B\)\. ",
        str(failure(train_func, workers=1)),
    )
    assert found is not None
    assert float(found[1]) * {"M": 1, "G": 1000}[found[2]] > 300


def test_an_unexpected_message_fails_its_rank() -> None:
    def train_func() -> None:
        from lockstep.train.worker import session

        current = session.current()
        assert current is not None
        current._channel.send("nonsense")
        time.sleep(100)

    text = str(failure(train_func, workers=1))
    assert text.startswith("Rank 0 sent 'nonsense', which nobody expects")


def test_consequences_on_several_ranks_are_collapsed() -> None:
    error, _ = torch_failure("kill", culprit=1, workers=3)
    assert str(error).startswith("Rank 1 of 3 was killed by SIGKILL")
    assert "failed, too" not in str(error)
    for rank in error.worker_failures.keys() - {1}:
        assert "lost" in str(error)
        assert "peer" in str(error.worker_failures[rank])


# ------------------------------------------------------------------------------ the rank's log


def test_a_death_comes_with_the_last_lines_of_the_log() -> None:
    def train_func() -> None:
        for line in range(30):
            print(f"line {line}")
        print("\r10%\r20%\r30%", flush=True)
        print("x" * 5000)
        print("the last line", end="", flush=True)
        os._exit(1)

    text = str(failure(train_func, workers=1))
    tail = text.partition("The last lines of rank 0's log:\n")[2].splitlines()
    assert len(tail) == 10
    assert tail[:7] == [f"    line {line}" for line in range(23, 30)]
    assert tail[7] == "    30%"
    assert tail[8].startswith("    xxx")
    assert len(tail[8]) < 500
    assert tail[9] == "    the last line"


def test_the_last_lines_are_there_on_remote_storage(tmp_path: Path) -> None:
    from pyarrow import fs

    def train_func() -> None:
        print("famous last words")
        os._exit(1)

    remote = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    error = failure(train_func, workers=1, storage_path="runs", storage_filesystem=remote)
    assert "famous last words" in str(error)


def test_an_error_of_the_users_own_needs_no_log() -> None:
    def train_func() -> None:
        print("chatter")
        raise ValueError("bad input")

    text = str(failure(train_func))
    assert text.startswith("Rank ")
    assert "of 2 failed with ValueError: bad input" in text
    assert "chatter" not in text
    assert "\n" not in text


def test_the_journal_keeps_the_sentence() -> None:
    def train_func() -> None:
        os._exit(4)

    error = failure(train_func, workers=1, max_failures=1)
    assert error.result is not None
    journal = Path(error.result.path, "journal.jsonl").read_text()
    assert journal.count('"message":"Rank 0 exited with code 4 before its function returned."') == 2
    assert str(error).startswith(
        "Rank 0 exited with code 4 before its function returned (in attempt 2). "
    )


# --------------------------------------------------------------------------------------- a hang


def stuck_below(depth: int) -> None:
    if depth:
        stuck_below(depth - 1)
    else:
        while True:  # a signal wakes it
            ctypes.PyDLL(None).sleep(100_000)  # with the interpreter lock: no Python code runs


def meet_before_the_hang() -> None:
    """Rank 0 continues when rank 1 is about to be stuck, not while that one still starts."""
    ready = Path(train.get_context().get_trial_dir(), "ready")
    if train.get_context().get_world_rank() == 1:
        ready.touch()
    while not ready.exists():
        time.sleep(0.005)


def test_a_quiet_run_says_where_the_stack_of_a_hang_is(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        meet_before_the_hang()
        if train.get_context().get_world_rank() == 1:
            stuck_below(1)
        train.report({"a": 1})

    error = failure(train_func, verbose=0, hang_warning_s=0.5, hang_timeout_s=1.5)
    shown, told = capfd.readouterr()
    assert error.result is not None
    logs = Path(error.result.path, "logs")
    assert shown == ""
    assert told.count(f"for rank 1; its stack is in {logs}.") == 1
    assert "stuck_below" in (logs / "rank_1.log").read_text()


def test_a_hang_shows_a_tidy_stack(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        meet_before_the_hang()
        if train.get_context().get_world_rank() == 1:
            stuck_below(1)
        train.report({"a": 1})

    error = failure(train_func, verbose=1, hang_warning_s=0.5, hang_timeout_s=1.5)
    shown, told = capfd.readouterr()
    assert isinstance(error.__cause__, HangError)
    assert isinstance(error, TrainingFailedError)
    assert re.match(
        r"Rank 1 did not come to report 1 within \d+\.\d s, where rank 0 waited; "
        r"its stack is in its log\. The run is in ",
        str(error),
    )
    assert told.count("for rank 1; its stack follows.") == 1
    lines = [line for line in shown.splitlines() if line.startswith("[rank 1]")]
    first = inspect.getsourcelines(stuck_below)[1]
    caller = inspect.getsourcelines(train_func)[1] + 3
    assert lines == [
        "[rank 1] Stack (most recent call last):",
        f'[rank 1]   File "{HERE}", line {caller}, in train_func',
        "[rank 1]     stuck_below(1)",
        f'[rank 1]   File "{HERE}", line {first + 2}, in stuck_below',
        "[rank 1]     stuck_below(depth - 1)",
        f'[rank 1]   File "{HERE}", line {first + 5}, in stuck_below',
        "[rank 1]     ctypes.PyDLL(None).sleep(100_000)  "
        "# with the interpreter lock: no Python code runs",
    ]
    assert error.result is not None
    log = Path(error.result.path, "logs", "rank_1.log").read_text()
    assert log.count("(most recent call first):") == 2  # the raw form, with lockstep's own thread
    assert "_run_worker" in log


def test_a_timeout_without_a_warning_shows_the_stack(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        meet_before_the_hang()
        if train.get_context().get_world_rank() == 1:
            stuck_below(0)
        train.report({"a": 1})

    failure(train_func, verbose=1, hang_warning_s=None, hang_timeout_s=0.5)
    assert capfd.readouterr().out.count("in stuck_below") == 1
