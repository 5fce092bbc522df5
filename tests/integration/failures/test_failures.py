"""A failure says one cause, at once, and a run with attempts left continues from where it was."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import (
    InsufficientResourcesError,
    RemoteError,
    TrainingFailedError,
    WorkerDiedError,
)
from lockstep.train import (
    Backend,
    BackendConfig,
    Checkpoint,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from tests.integration.runs import failure, fit, run_script, trainer, wait_for_every_rank


class ModuleError(Exception):
    pass


class TwoArguments(Exception):
    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"code {code}: {detail}")
        self.code = code
        self.detail = detail


class Decorated(Exception):
    """Built again from its own message it would say it twice."""

    def __init__(self, name: str) -> None:
        super().__init__(f"could not find {name}")
        self.name = name


class HoldsALock(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


# --------------------------------------------------------------------------------------- the cause


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_failing_rank_does_not_wait_for_one_that_sleeps(
    culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", "150")

    def train_func(config: dict[str, int]) -> None:
        if train.get_context().get_world_rank() != config["culprit"]:
            time.sleep(1e6)
        raise RuntimeError("this one")

    started = time.monotonic()
    error = failure(train_func, config={"culprit": culprit})
    assert time.monotonic() - started < 100
    assert type(error.__cause__) is RuntimeError
    assert error.__cause__.args == ("this one",)
    assert list(error.worker_failures) == [culprit]
    assert str(error).startswith(f"Rank {culprit} of 2 failed with RuntimeError: this one. ")


def test_a_failing_rank_does_not_wait_for_one_at_the_barrier() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 1:
            raise RuntimeError("never reports")
        train.report({"a": 1})

    error = failure(train_func)
    assert str(error.__cause__) == "never reports"
    assert list(error.worker_failures) == [1]


def test_a_failing_rank_ends_one_that_is_stuck_in_c_code() -> None:
    def train_func() -> None:
        if train.get_context().get_world_rank() == 0:
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
            ctypes.PyDLL(None).sleep(100_000)  # keeps the interpreter lock
        raise RuntimeError("the other")

    started = time.monotonic()
    assert str(failure(train_func).__cause__) == "the other"
    assert time.monotonic() - started < 100


@pytest.mark.parametrize(
    ("ending", "exitcode", "words"),
    [
        ("exit", 3, "exited with code 3 before its function returned"),
        ("exit0", 0, "exited with code 0 before its function returned"),
        ("kill", -signal.SIGKILL, "was killed by SIGKILL"),
        ("segv", -signal.SIGSEGV, "crashed (segmentation fault, SIGSEGV)"),
    ],
)
def test_a_process_that_dies_is_named_with_how(ending: str, exitcode: int, words: str) -> None:
    def train_func(config: dict[str, str]) -> None:
        if train.get_context().get_world_rank() == 0:
            train.report({"waits": True})
        if config["ending"] == "exit":
            os._exit(3)
        if config["ending"] == "exit0":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL if config["ending"] == "kill" else signal.SIGSEGV)

    error = failure(train_func, config={"ending": ending})
    assert isinstance(error.__cause__, WorkerDiedError)
    assert error.__cause__.exitcode == exitcode
    memory = " (its memory peaked at " if ending == "kill" else ". "
    assert f"{error.__cause__} ".startswith(f"rank 1 {words}{memory}")
    assert str(error).startswith(f"Rank 1 of 2 {words}{memory}")
    assert list(error.worker_failures) == [1]


def test_sys_exit_0_is_a_return() -> None:
    def train_func() -> None:
        train.report({"a": 1})
        sys.exit(0)

    assert fit(train_func).metrics["a"] == 1
    assert fit(lambda: sys.exit()).state == "finished"


@pytest.mark.parametrize(("code", "exitcode"), [(2, 2), ("no data", 1)])
def test_sys_exit_with_anything_else_is_a_failure(code: Any, exitcode: int) -> None:
    def train_func(config: dict[str, Any]) -> None:
        sys.exit(config["code"])

    error = failure(train_func, workers=1, config={"code": code})
    assert isinstance(error.__cause__, WorkerDiedError)
    assert error.__cause__.exitcode == exitcode
    assert f"sys.exit({code!r})" in str(error)


def test_stop_iteration_is_a_failure_like_any_other() -> None:
    def train_func() -> None:
        raise StopIteration("from a generator")

    assert type(failure(train_func, workers=1).__cause__) is StopIteration


def test_all_ranks_fail_and_all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_every_rank(monkeypatch)

    def train_func() -> None:
        train.report({"together": True})
        raise ValueError(f"rank {train.get_context().get_world_rank()}")

    error = failure(train_func, workers=4)
    assert sorted(error.worker_failures) == [0, 1, 2, 3]
    for rank, cause in error.worker_failures.items():
        assert type(cause) is ValueError
        assert str(cause) == f"rank {rank}"
    first = next(iter(error.worker_failures.values()))
    assert error.__cause__ is first
    assert error.result is not None
    assert error.result.error is first
    assert "failed, too" in str(error)


def test_a_death_goes_before_the_errors_it_brings_about(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_every_rank(monkeypatch)

    def train_func() -> None:
        train.report({"together": True})
        if train.get_context().get_world_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ConnectionError("peer is gone")

    error = failure(train_func)
    assert next(iter(error.worker_failures)) == 1
    assert isinstance(error.__cause__, WorkerDiedError)


# ----------------------------------------------------------------------------- the exception itself


def test_a_local_exception_class_keeps_its_identity_and_its_traceback() -> None:
    class LocalError(Exception):
        pass

    def inner() -> None:
        raise LocalError("deep down", 7)

    def train_func() -> None:
        inner()

    error = failure(train_func)
    cause = error.__cause__
    assert type(cause) is LocalError
    assert cause.args == ("deep down", 7)
    frames = traceback.extract_tb(cause.__traceback__)
    assert [frame.name for frame in frames] == ["train_func", "inner"]
    assert {frame.filename for frame in frames} == {__file__}
    assert frames[-1].line == 'raise LocalError("deep down", 7)'
    shown = "".join(traceback.format_exception(error))
    assert 'raise LocalError("deep down", 7)' in shown
    assert shown.index("inner()") < shown.index("direct cause")


def test_a_module_level_exception_class_keeps_its_identity() -> None:
    def train_func() -> None:
        raise ModuleError("x")

    with pytest.raises(WorkerGroupError) as raised:
        fit(train_func)
    assert type(raised.value.__cause__) is ModuleError


def test_an_exception_with_an_init_of_its_own() -> None:
    def train_func() -> None:
        raise TwoArguments(5, "why") if train.world_rank() == 0 else Decorated("it")

    failures = [failure(train_func, workers=1).__cause__]

    def other() -> None:
        raise Decorated("it")

    failures.append(failure(other, workers=1).__cause__)
    assert isinstance(failures[0], TwoArguments)
    assert (failures[0].code, failures[0].detail) == (5, "why")
    assert str(failures[0]) == "code 5: why"
    assert isinstance(failures[1], Decorated)
    assert failures[1].name == "it"
    assert str(failures[1]) == "could not find it"


def test_an_exception_that_cannot_be_sent_is_described() -> None:
    def train_func() -> None:
        raise HoldsALock

    error = failure(train_func, workers=1)
    assert isinstance(error.__cause__, RemoteError)
    assert str(error.__cause__) == "HoldsALock: holds a lock"
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert frames[-1].name == "train_func"


def test_an_exception_keeps_what_it_was_raised_from() -> None:
    def train_func() -> None:
        try:
            os.environ["MISSING_VARIABLE"]
        except KeyError as error:
            raise ValueError("bad config") from error

    cause = failure(train_func, workers=1).__cause__
    assert cause is not None
    assert isinstance(cause.__cause__, KeyError)
    assert "MISSING_VARIABLE" in "".join(traceback.format_exception(cause))


def test_an_exception_whose_str_fails() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    def train_func() -> None:
        raise Rude("x")

    error = failure(train_func, workers=1)
    assert "Rude" in str(error)


def test_the_error_pickles_with_all_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_every_rank(monkeypatch)

    class LocalError(Exception):
        pass

    def train_func() -> None:
        train.report({"a": 1})
        raise LocalError(train.get_context().get_world_rank())

    error = failure(train_func)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is WorkerGroupError
    assert isinstance(again, TrainingFailedError)
    assert isinstance(again, RuntimeError)
    assert str(again) == str(error)
    assert sorted(again.worker_failures) == [0, 1]
    assert type(again.worker_failures[1]) is LocalError
    assert type(again.__cause__) is LocalError
    assert error.result is not None
    assert again.result is not None
    assert again.result.metrics == error.result.metrics


def test_the_result_at_the_failure() -> None:
    def train_func() -> None:
        train.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}))
        train.report({"a": 2})
        raise ModuleError("late")

    error = failure(train_func)
    result = error.result
    assert result is not None
    assert result.state == "failed"
    assert result.error is error.__cause__
    assert result.metrics["a"] == 2
    assert result.metrics["done"] is False
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["a"] == 1
    assert result.path in str(error)


# --------------------------------------------------------------------------------------- attempts


def count_to(config: dict[str, Any]) -> None:
    """Counts to ``total`` with a checkpoint a step; fails once in each step of ``fail_at``."""
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 0
    context = train.get_context()
    for step in range(start, config["total"]):
        if step in config["fail_at"] and context.get_attempt() <= config["fail_at"][step]:
            raise RuntimeError(f"at step {step}")
        train.report(
            {"step": step, "id": context.get_trial_id()},
            checkpoint=Checkpoint.from_dict({"step": step}),
        )


def test_a_retry_resumes_from_the_newest_checkpoint() -> None:
    result = fit(count_to, config={"total": 5, "fail_at": {2: 1, 4: 2}}, max_failures=2)
    frame = result.metrics_dataframe
    assert frame["step"].tolist() == [0, 1, 2, 3, 4]
    assert frame["attempt"].tolist() == [1, 1, 2, 2, 3]
    assert frame["training_iteration"].tolist() == [1, 2, 3, 4, 5]
    assert frame["iterations_since_restore"].tolist() == [1, 2, 1, 2, 1]
    assert frame["checkpoint_dir_name"].tolist() == [f"checkpoint_{n:06}" for n in range(5)]
    assert set(frame["trial_id"]) == set(frame["id"]) == {result.metrics["trial_id"]}
    assert frame["time_total_s"].is_monotonic_increasing
    assert result.state == "finished"
    assert result.error is None
    assert result.metrics["done"] is True


def test_failures_are_counted_and_the_last_one_is_raised() -> None:
    error = failure(count_to, config={"total": 5, "fail_at": {2: 9}}, max_failures=2)
    assert "in attempt 3" in str(error)
    assert error.result is not None
    assert error.result.metrics_dataframe["step"].tolist() == [0, 1]


def test_without_limit() -> None:
    result = fit(count_to, config={"total": 3, "fail_at": {1: 3}}, max_failures=-1)
    assert result.metrics_dataframe["attempt"].tolist() == [1, 4, 4]


def test_an_error_that_repeats_at_once_is_named_as_repeated(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func() -> None:
        raise KeyError("learning_rate")

    error = failure(train_func, max_failures=2, verbose=1)
    printed = " ".join("".join(capfd.readouterr()).split())
    assert "Starting attempt 2 from the beginning." in printed
    assert "The last 2 attempts failed at the same place, and none got further" in printed
    assert "Attempt 3 starts in 0.5 s, from the beginning; Ctrl-C ends the run." in printed
    assert "The last 3 attempts failed at the same place" in str(error)


def test_ctrl_c_during_the_wait_before_an_attempt(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, signal
        from lockstep.train import DataParallelTrainer, FailureConfig, RunConfig, UserCallback

        class StopAtTheFourth(UserCallback):
            failures = 0
            def after_exception(self, run_context, worker_exceptions):
                self.failures += 1
                if self.failures == 4:  # two seconds of waiting follow
                    os.kill(os.getpid(), signal.SIGINT)

        def train_func():
            raise KeyError("learning_rate")

        config = RunConfig(
            failure_config=FailureConfig(max_failures=-1), callbacks=[StopAtTheFourth()]
        )
        DataParallelTrainer(train_func, run_config=config).fit()
        """,
        check=False,
    )
    assert done.returncode == -signal.SIGINT
    assert "Attempt 5 starts in 2 s" in " ".join((done.stdout + done.stderr).split())
    assert "To resume" in done.stderr


def test_fail_fast() -> None:
    def train_func() -> None:
        raise ModuleError("at once")

    run = trainer(train_func)
    run.run_config = RunConfig(verbose=0, failure_config=FailureConfig(fail_fast=True))
    with pytest.raises(WorkerGroupError, match="at once"):
        run.fit()
    run.run_config = RunConfig(verbose=0, failure_config=FailureConfig(fail_fast="raise"))
    with pytest.raises(ModuleError, match="at once") as raised:
        run.fit()
    assert raised.traceback[-1].name == "train_func"


def test_a_retry_without_a_checkpoint_starts_over() -> None:
    def train_func() -> None:
        assert train.get_checkpoint() is None
        for step in range(3):
            if step == 2 and train.get_context().get_attempt() == 1:
                os._exit(1)
            train.report({"step": step})

    frame = fit(train_func, max_failures=1).metrics_dataframe
    assert frame["step"].tolist() == [0, 1, 0, 1, 2]
    assert frame["attempt"].tolist() == [1, 1, 2, 2, 2]
    assert frame["training_iteration"].tolist() == [1, 2, 1, 2, 3]


@pytest.mark.parametrize("ending", ["raise", "kill", "mismatch"])
def test_every_kind_of_failure_is_retried(ending: str) -> None:
    def train_func(config: dict[str, str]) -> None:
        context = train.get_context()
        if context.get_attempt() == 1 and context.get_world_rank() == 1:
            if config["ending"] == "raise":
                raise RuntimeError("once")
            if config["ending"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            return
        train.report({"attempt": context.get_attempt()})

    assert fit(train_func, config={"ending": ending}, max_failures=1).metrics["attempt"] == 2


def test_a_retry_is_shown_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    fit(count_to, config={"total": 3, "fail_at": {1: 1}}, max_failures=1, verbose=1)
    printed = "".join(capfd.readouterr())
    assert "RuntimeError: at step 1" in printed
    assert "Starting attempt 2 from checkpoint_000000" in printed


def test_get_checkpoint_and_earlier_reports_after_a_retry() -> None:
    def train_func() -> None:
        known = [c.to_dict()["n"] for c, _ in train.get_all_reported_checkpoints()]
        if train.get_context().get_attempt() == 2:
            assert known == [0, 1]
            return
        for n in range(2):
            train.report({"n": n}, checkpoint=Checkpoint.from_dict({"n": n}))
            newest = train.get_checkpoint()
            assert newest is not None
            assert newest.to_dict()["n"] == n
        raise RuntimeError

    assert fit(train_func, max_failures=1).state == "finished"


# --------------------------------------------------------------------- before the function begins


class BadBackend(Backend):
    def __init__(self, where: str) -> None:
        self.where = where

    def announce(self, rank: int, address: str) -> Any:
        if self.where == "announce":
            raise OSError("no free port")
        return rank

    def setup(self, wiring: Any) -> None:
        assert wiring.announcements == (0, 1)
        if self.where == "setup" and wiring.context.world_rank == 1:
            raise ConnectionRefusedError("no rendezvous")
        if self.where == "setup":
            time.sleep(1e6)


class BadBackendConfig(BackendConfig):
    def __init__(self, where: str) -> None:
        self.where = where

    def make_backend(self) -> Backend:
        return BadBackend(self.where)


@pytest.mark.parametrize(
    ("where", "kind"), [("announce", OSError), ("setup", ConnectionRefusedError)]
)
def test_a_backend_that_cannot_be_set_up(where: str, kind: type[Exception]) -> None:
    with pytest.raises(WorkerGroupError) as raised:
        DataParallelTrainer(
            lambda: None,
            backend_config=BadBackendConfig(where),
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures=1)),
        ).fit()
    assert type(raised.value.__cause__) is kind
    assert raised.value.result is not None
    assert raised.value.result.metrics == {}
    # A connection may be refused once; what else fails here would fail again.
    retried = kind is ConnectionRefusedError
    assert len(raised.value.result.attempts) == (2 if retried else 0)
    assert ("before the training function was called" in str(raised.value)) is not retried
    assert ("Another attempt would fail" in str(raised.value)) is not retried


def test_a_function_whose_module_cannot_be_imported_in_the_worker(tmp_path: Path) -> None:
    (tmp_path / "fickle.py").write_text(
        "from lockstep import train\n"
        "from lockstep.train.worker.session import current\n"
        "if current() is not None:\n"
        "    raise ImportError('not in a worker')\n"
        "def train_func():\n"
        "    train.report({})\n"
    )
    done = run_script(
        tmp_path,
        """
        from fickle import train_func
        from lockstep.train import DataParallelTrainer, WorkerGroupError

        try:
            DataParallelTrainer(train_func).fit()
        except WorkerGroupError as error:
            cause = error.__cause__
            print("CAUSE", type(cause).__name__, cause)
            print("FRAME", cause.__traceback__.tb_frame.f_code.co_filename)
            while cause.__traceback__.tb_next is not None:
                cause = cause.with_traceback(cause.__traceback__.tb_next)
            print("LAST", cause.__traceback__.tb_frame.f_code.co_filename)
        """,
    )
    assert "CAUSE ImportError not in a worker" in done.stdout
    assert f"LAST {tmp_path / 'fickle.py'}" in done.stdout


def test_gpus_that_are_not_there_are_an_immediate_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(InsufficientResourcesError, match=r"need 2, but this machine has 0"):
        DataParallelTrainer(
            lambda: None, scaling_config=ScalingConfig(num_workers=2, use_gpu=True)
        ).fit()


def test_a_failed_script_shows_the_users_lines(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from lockstep.train import DataParallelTrainer

        def train_func():
            return 1 / 0  # the user's line

        DataParallelTrainer(train_func).fit()
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "return 1 / 0  # the user's line" in done.stderr
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "WorkerGroupError: Rank 0 failed with ZeroDivisionError" in done.stderr


def test_the_next_run_after_a_failure_is_a_fresh_one() -> None:
    failing = trainer(count_to, config={"total": 2, "fail_at": {0: 9}})
    with pytest.raises(WorkerGroupError):
        failing.fit()
    assert fit(count_to, config={"total": 2, "fail_at": {}}).metrics["step"] == 1


def test_failed_runs_are_read_back_with_their_error() -> None:
    error = failure(count_to, config={"total": 2, "fail_at": {1: 9}}, max_failures=1)
    assert error.result is not None
    again = Result.from_path(error.result.path)
    assert (type(again.error), str(again.error)) == (RuntimeError, "at step 1")
    assert again.state == "failed"
