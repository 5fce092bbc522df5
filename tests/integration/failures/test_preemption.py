"""A SIGTERM, to the driver or to a worker: everyone hears of it, saves, and the run continues."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.console.text import plural
from lockstep.errors import PreemptedError, TrainingPreempted
from lockstep.run_layout import JOURNAL_FILE
from lockstep.train import Checkpoint, DataParallelTrainer, FailureConfig, Result, RunConfig
from tests.integration.runs import failure, fit, run_script, trainer

FOREVER_S = 1e6


def count(config: dict[str, Any]) -> None:
    """``sender`` sends SIGTERMs at step 2; everyone saves only when told to; then two steps more.

    How many reports it takes until they are told is a matter of luck.
    """
    rank = train.get_context().get_world_rank()
    known = train.load_checkpoint()
    start = known["step"] + 1 if known else 0
    for step in range(start, start + 2 if known else config["total"]):
        if step == 2 and rank == config["sender"] and not known:
            targets = {"driver": config["driver"], "me": os.getpid(), "server": os.getppid()}
            for name in config["targets"]:
                os.kill(targets[name], signal.SIGTERM)
        info = train.get_preemption_info()
        assert (info is None) is (not train.checkpoint_requested())
        train.report(
            {"step": step, "told": info is not None, "by": info.rank if info else None},
            checkpoint=Checkpoint.from_dict({"step": step}) if info else None,
        )
        assert info is None, "the group stops at this report"


def config_for(*targets: str, total: int = 100_000) -> dict[str, Any]:
    return {"total": total, "sender": 1, "targets": targets, "driver": os.getpid()}


def preempted(function: Any, **options: Any) -> Result:
    with pytest.raises(TrainingPreempted) as raised:
        fit(function, **options)
    assert raised.value.code == 143
    assert raised.value.result is not None
    return raised.value.result


def check_told(result: Result, by: int | None) -> None:
    """Both ranks heard of it at the same report, and stopped at the next one, having saved."""
    lines = Path(result.path, JOURNAL_FILE).read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["event"] == "report"]
    first = [row["ranks"] for row in rows if row["attempt"] == 1]
    assert [rank["told"] for rank in first[-1]] == [True, True]
    assert [rank["by"] for rank in first[-1]] == [by, by]
    assert not any(rank["told"] for row in first[:-1] for rank in row)
    assert rows[len(first) - 1]["checkpoint"] == "checkpoint_000000"


def check_whole(result: Result) -> None:
    """No step is lost, none is there twice, and the last two are the second attempt's."""
    frame = result.metrics_dataframe
    assert frame["step"].tolist() == list(range(len(frame)))
    assert frame["attempt"].tolist() == [1] * (len(frame) - 2) + [2, 2]
    assert result.state == "finished"


class TestDriver:
    def test_saves_stops_and_restores(self, capfd: pytest.CaptureFixture[str]) -> None:
        first = preempted(count, config=config_for("driver"))
        assert first.state == "preempted"
        check_told(first, None)
        rows = len(first.metrics_dataframe)
        told = capfd.readouterr().err
        assert f"Preempted: {plural(rows, 'report')} and 1 checkpoint are kept" in told
        assert f"restore({first.path!r}, train_loop_per_worker=count).fit()" in told
        result = DataParallelTrainer.restore(first.path).fit()
        assert len(result.metrics_dataframe) == rows + 2
        check_whole(result)

    def test_every_process_gets_the_notice(self) -> None:
        config = config_for("server", "me", "driver")
        first = preempted(count, config=config)
        assert first.state == "preempted"
        assert first.checkpoint is not None
        assert first.checkpoint.to_dict()["step"] == first.metrics["step"]

    def test_resumed_by_name(self) -> None:
        options: dict[str, Any] = {"name": "preempted-by-name", "resume": "auto"}
        preempted(count, config=config_for("driver"), **options)
        check_whole(fit(count, config=config_for(), **options))

    def test_a_script_ends_with_143(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path,
            """
            import os, signal
            from lockstep import train

            def train_func(config):
                for step in range(100):
                    if step == 1:
                        os.kill(config["driver"], signal.SIGTERM)
                    info = train.get_preemption_info()
                    checkpoint = train.Checkpoint.from_dict({"step": step}) if info else None
                    train.report({"step": step}, checkpoint=checkpoint)
                signal.pause()

            train.DataParallelTrainer(
                train_func,
                train_loop_config={"driver": os.getpid()},
                run_config=train.RunConfig(name="script"),
            ).fit()
            """,
            check=False,
        )
        assert done.returncode == 143, done.stderr
        assert "Preempted: " in done.stderr
        assert "Traceback" not in done.stderr
        assert Result.from_path(tmp_path / "results" / "script").checkpoint is not None

    def test_nobody_reports_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCKSTEP_PREEMPTION_GRACE_S", "0.3")

        def train_func(config: dict[str, Any]) -> None:
            train.report({"step": 0}, checkpoint=Checkpoint.from_dict({"step": 0}))
            os.kill(config["driver"], signal.SIGTERM)
            time.sleep(FOREVER_S)

        started = time.monotonic()
        result = preempted(train_func, config={"driver": os.getpid()})
        assert time.monotonic() - started < 100
        assert result.state == "preempted"
        assert result.checkpoint is not None

    def test_twice_does_not_wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCKSTEP_PREEMPTION_GRACE_S", "150")

        def train_func(config: dict[str, Any]) -> None:
            if train.get_context().get_world_rank() == 0:
                os.kill(config["driver"], signal.SIGTERM)
            while train.get_preemption_info() is None:
                train.report({})
            if train.get_context().get_world_rank() == 0:
                os.kill(config["driver"], signal.SIGTERM)
            time.sleep(FOREVER_S)

        started = time.monotonic()
        preempted(train_func, config={"driver": os.getpid()})
        assert time.monotonic() - started < 100

    def test_one_that_finishes_in_time_has_finished(self) -> None:
        def train_func(config: dict[str, Any]) -> None:
            train.report({})
            os.kill(config["driver"], signal.SIGTERM)
            while train.get_preemption_info() is None:
                train.report({})

        result = fit(train_func, config={"driver": os.getpid()}, workers=1)
        assert result.state == "finished"

    def test_a_handler_of_the_users_own_stays(self) -> None:
        received: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
        try:
            result = fit(count, config=config_for("driver", total=50))
        finally:
            signal.signal(signal.SIGTERM, before)
        assert received == [signal.SIGTERM]
        assert not result.metrics_dataframe["told"].any()

    def test_a_handler_of_rays_does_not(self) -> None:
        def sigterm_handler(number: int, frame: Any) -> None:
            raise AssertionError("ray.init() has installed it; it ends the process")

        sigterm_handler.__module__ = "ray._private.worker"
        before = signal.signal(signal.SIGTERM, sigterm_handler)
        try:
            check_told(preempted(count, config=config_for("driver")), None)
            assert signal.getsignal(signal.SIGTERM) is sigterm_handler
        finally:
            signal.signal(signal.SIGTERM, before)


class TestWorker:
    def test_the_run_continues_with_a_new_worker(self) -> None:
        result = fit(count, config=config_for("me"))
        check_whole(result)
        check_told(result, 1)
        lines = Path(result.path, JOURNAL_FILE).read_text().splitlines()
        (leave,) = [
            event for event in map(json.loads, lines) if event["event"] == "attempt_stopped"
        ]
        assert (leave["kind"], leave["rank"], leave["next_size"]) == ("preemption", 1, 2)

    def test_is_told_in_one_line(self, capfd: pytest.CaptureFixture[str]) -> None:
        fit(count, config=config_for("me"), verbose=1)
        printed = "".join(capfd.readouterr())
        assert "Rank 1 was preempted: starting attempt 2 with 2, from checkpoint_000000" in printed

    def test_nobody_reports_in_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCKSTEP_PREEMPTION_GRACE_S", "0.2")

        def train_func() -> None:
            train.report({"attempt": train.get_context().get_attempt()})
            if train.get_context().get_attempt() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(FOREVER_S)

        assert fit(train_func).metrics["attempt"] == 2

    @pytest.mark.parametrize("allowed", [0, 1])
    def test_more_often_than_allowed(self, allowed: int) -> None:
        def train_func() -> None:
            known = train.load_checkpoint()
            step = known["step"] + 1 if known else 0
            if train.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            while True:
                info = train.get_preemption_info()
                train.report(
                    {"step": step},
                    checkpoint=Checkpoint.from_dict({"step": step}) if info else None,
                )
                step += 1

        options = FailureConfig(max_preemption_failures=allowed)
        run = trainer(train_func)
        run.run_config = RunConfig(verbose=0, failure_config=options)
        with pytest.raises(train.WorkerGroupError, match="max_preemption_failures") as raised:
            run.fit()
        assert isinstance(raised.value.__cause__, PreemptedError)
        result = raised.value.result
        assert result is not None
        assert len(result.attempts) == allowed + 1
        assert result.checkpoint is not None
        steps = result.metrics_dataframe["step"].tolist()
        assert steps == list(range(len(steps)))

    def test_failures_are_counted_apart(self) -> None:
        def train_func(config: dict[str, Any]) -> None:
            count(config)
            if train.get_context().get_attempt() == 2:
                raise RuntimeError("an ordinary failure")

        config = config_for("me")
        result = fit(train_func, config=config, max_failures=1)
        assert len(result.attempts) == 3
        assert "an ordinary failure" in str(failure(train_func, config=config))

    def test_an_error_after_the_notice_is_part_of_it(self) -> None:
        def train_func() -> None:
            if train.get_context().get_attempt() == 2:
                return
            if train.get_context().get_world_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            while train.get_preemption_info() is None:
                train.report({})
            raise ConnectionError("the neighbour is going")

        result = fit(train_func)
        assert (result.state, len(result.attempts)) == ("finished", 2)


class TestProcessesOfWorkers:
    def test_a_forked_child_dies_of_it(self) -> None:
        def train_func() -> None:
            fork = multiprocessing.get_context("fork")
            child = fork.Process(target=time.sleep, args=(FOREVER_S,))
            child.start()
            child.terminate()
            child.join()
            with fork.Pool(2) as pool:
                squares = pool.map(abs, range(4))
            train.report({"exitcode": child.exitcode, "squares": squares})

        result = fit(train_func)
        assert result.metrics["exitcode"] == -signal.SIGTERM
        assert result.metrics["squares"] == [0, 1, 2, 3]
        assert len(result.attempts) == 1

    def test_a_handler_of_the_users_own_is_inherited(self) -> None:
        def train_func() -> None:
            def own(signum: int, frame: object) -> None:
                os._exit(42)

            signal.signal(signal.SIGTERM, own)
            child = multiprocessing.get_context("fork").Process(
                target=time.sleep, args=(FOREVER_S,)
            )
            child.start()
            child.terminate()
            child.join()
            train.report({"exitcode": child.exitcode})

        assert fit(train_func).metrics["exitcode"] == 42
