"""``num_workers=0``: the same run, in this process, where a debugger can stop it."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import train
from lockstep.errors import WorkerDiedError
from lockstep.train import (
    Checkpoint,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
    UserCallback,
    WorkerGroupError,
)
from lockstep.train.worker.session import current
from lockstep.tune import Callback
from tests.console.pseudo_terminal import on_terminal
from tests.integration.runs import failure, fit, run_script


def train_func(config: dict[str, Any]) -> None:
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    print("starting at", start)
    for epoch in range(start, 3):
        if epoch == 2 and config.get("fail", 0) >= train.get_context().get_attempt():
            raise ValueError("at two")
        train.log({"fine": epoch})
        train.report(
            {"epoch": epoch, "pid_is": os.getpid()},
            checkpoint=Checkpoint.from_dict({"epoch": epoch}),
        )


def names(result: Result) -> set[str]:
    return {str(path.relative_to(result.path)) for path in result.log_dir.rglob("*")}


def test_the_same_run_as_with_a_worker() -> None:
    here, there = fit(train_func, workers=0), fit(train_func, workers=1)
    assert here.metrics["pid_is"] == here.metrics["pid"] == os.getpid()
    assert there.metrics["pid_is"] == there.metrics["pid"] != os.getpid()
    assert names(here) == names(there)
    assert set(here.metrics) == set(there.metrics)
    assert list(here.metrics_dataframe.columns) == list(there.metrics_dataframe.columns)
    assert here.metrics_dataframe["epoch"].tolist() == [0, 1, 2]
    assert here.log_dataframe["fine"].tolist() == [0, 1, 2]
    assert here.checkpoint is not None
    assert here.checkpoint.to_dict()["_current_checkpoint_id"] == 2
    assert (here.state, here.metrics["done"]) == ("finished", True)
    log = (here.log_dir / "logs" / "rank_0.log").read_text()
    assert log == (there.log_dir / "logs" / "rank_0.log").read_text() == "starting at 0\n"


def test_the_context_is_one_of_one() -> None:
    def function() -> None:
        context = train.get_context()
        train.report({"place": [context.get_world_rank(), context.get_world_size()]})

    assert fit(function, workers=0).metrics["place"] == [0, 1]
    assert current() is None


def test_callbacks_see_the_same() -> None:
    class Hooks(Callback, UserCallback):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def on_trial_start(self, *args: Any, **info: Any) -> None:
            self.calls.append("start")

        def on_trial_result(self, *args: Any, **info: Any) -> None:
            self.calls.append("result")

        def on_trial_complete(self, *args: Any, **info: Any) -> None:
            self.calls.append("complete")

        def after_report(self, *args: Any, **info: Any) -> None:
            self.calls.append(f"report of {len(info['metrics'])}")

    seen = []
    for workers in (0, 1):
        hooks = Hooks()
        fit(train_func, workers=workers, callbacks=[hooks])
        seen.append(hooks.calls)
    assert seen[0] == seen[1]
    assert seen[0][0] == "start"
    assert seen[0][-1] == "complete"
    assert seen[0].count("report of 1") == 3


def test_a_failure_is_the_exception_itself_with_its_lines() -> None:
    class Local(Exception):
        pass

    def function() -> None:
        raise Local("here")

    error = failure(function, workers=0)
    assert type(error.__cause__) is Local
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    assert frames[-1].line == 'raise Local("here")'
    assert current() is None


def test_retries_resume_here_too() -> None:
    result = fit(train_func, workers=0, config={"fail": 2}, max_failures=2)
    frame = result.metrics_dataframe
    assert frame["epoch"].tolist() == [0, 1, 2]
    assert frame["attempt"].tolist() == [1, 1, 3]
    assert frame["training_iteration"].tolist() == [1, 2, 3]


def test_stopping_and_exiting() -> None:
    def endless() -> None:
        while True:
            train.report({"a": 1})

    result = fit(endless, workers=0, stop={"training_iteration": 4})
    assert len(result.metrics_dataframe) == 4
    assert fit(lambda: sys.exit(0), workers=0).state == "finished"
    error = failure(lambda: sys.exit(2), workers=0).__cause__
    assert isinstance(error, WorkerDiedError)
    assert error.exitcode == 2


@pytest.mark.parametrize("fails", [False, True])
def test_this_process_is_left_as_it_was(fails: bool, tmp_path: Path) -> None:
    def function() -> None:
        os.environ["LEFT_BEHIND"] = "1"
        os.environ.pop("HOME", None)
        assert os.environ["FROM_INIT"] == "yes"
        assert Path.cwd() == Path(train.get_context().get_trial_dir())
        train.report({})
        if fails:
            raise RuntimeError

    before = dict(os.environ), os.getcwd(), sys.stdout, sys.stderr, list(sys.path), sys.argv[:]
    lockstep.init(runtime_env={"env_vars": {"FROM_INIT": "yes"}})
    try:
        options: dict[str, Any] = {"workers": 0, "working_dir": "run"}
        _ = failure(function, **options) if fails else fit(function, **options)
    finally:
        lockstep.shutdown()
    assert before == (
        dict(os.environ),
        os.getcwd(),
        sys.stdout,
        sys.stderr,
        list(sys.path),
        sys.argv[:],
    )


def test_what_the_function_prints_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(lambda: print("plainly"), workers=0)
    assert capsys.readouterr().out == "plainly\n"
    assert (result.log_dir / "logs" / "rank_0.log").read_text() == "plainly\n"


def test_without_standard_streams_it_goes_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)

    def function() -> None:
        print("unseen", flush=True)
        sys.stderr.write("too\n")

    result = fit(function, workers=0)
    assert sys.stdout is sys.stderr is None
    assert (result.log_dir / "logs" / "rank_0.log").read_text() == "unseen\ntoo\n"


def test_a_function_may_remove_the_directory_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function() -> None:
        os.environ["LEFT_BEHIND"] = "1"
        os.chdir("/")
        here.rmdir()

    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert fit(function, workers=0).state == "finished"
    assert "LEFT_BEHIND" not in os.environ


@pytest.mark.parametrize("workers", [0, 2])
def test_a_current_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    error = failure(lambda: None, workers=workers, storage_path=str(tmp_path))
    assert "he current directory, in which workers would start, has been removed" in str(error)


def test_breakpoint_stops_in_the_function(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from lockstep import train
        from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

        def train_func():
            x = 41
            breakpoint()
            train.report({"x": x})

        result = DataParallelTrainer(
            train_func, scaling_config=ScalingConfig(num_workers=0)
        ).fit()
        print("RESULT", result.metrics["x"])
        """,
        stdin="p x + 1\nw\nc\n",
    )
    assert "(Pdb) 42" in done.stdout
    assert "train_func()" in done.stdout
    assert "RESULT 41" in done.stdout


def test_quitting_the_debugger_fails_the_run_in_words(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from lockstep.train import DataParallelTrainer, ScalingConfig

        def train_func():
            breakpoint()
            x = 1

        DataParallelTrainer(train_func, scaling_config=ScalingConfig(num_workers=0)).fit()
        """,
        stdin="q\n",
        check=False,
    )
    assert done.returncode == 1
    assert "BdbQuit" in done.stderr


def test_a_run_inside_a_run() -> None:
    def outer() -> None:
        inner = fit(lambda: train.report({"who": "inner"}), workers=1)
        train.report({"inner": inner.metrics["who"], "rank": train.world_rank()})

    assert fit(outer, workers=0).reported_metrics == {"inner": "inner", "rank": 0}


def test_torch_works_in_process() -> None:
    from lockstep.train.torch import TorchTrainer, prepare_model

    def function() -> None:
        import torch

        model = prepare_model(torch.nn.Linear(2, 1))
        train.report({"shape": list(model(torch.ones(3, 2)).shape)})

    def trainer(function: Any, max_failures: int = 0) -> TorchTrainer:
        return TorchTrainer(
            function,
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(verbose=0, failure_config=FailureConfig(max_failures)),
        )

    def failing() -> None:
        if train.get_context().get_attempt() == 1:
            raise RuntimeError("once")
        function()

    # Each finds the process group of the one before it gone.
    assert trainer(function).fit().metrics["shape"] == [3, 1]
    with pytest.raises(WorkerGroupError, match="once"):
        trainer(failing).fit()
    assert trainer(failing, max_failures=1).fit().metrics["shape"] == [3, 1]


def test_an_engine_in_this_process_leaves_the_terminal_to_the_function(tmp_path: Path) -> None:
    code = f"""
import lockstep
from lockstep.train import DataParallelTrainer, RunConfig
def train_func():
    breakpoint()
lockstep.init(engine="inprocess")
DataParallelTrainer(train_func, run_config=RunConfig(storage_path={str(tmp_path)!r})).fit()
"""
    with on_terminal(code) as terminal:
        terminal.wait_for("(Pdb)")
        terminal.type_line("p 6 * 7")
        terminal.wait_for("42")
        terminal.type_line("c")
        assert terminal.wait() == 0
    assert "╭" not in terminal.text
