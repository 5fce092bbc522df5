"""Ranks make no progress, whoever waits for whom: a warning, or a failure."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import HangError
from lockstep.train import Checkpoint, DataParallelTrainer, WorkerGroupError
from tests.integration.runs import failure, fit, hang_when

FOREVER_S = 1e6
TIMEOUT_S = 4.0
"""On a busy machine, ranks that do come may arrive this far apart, but hardly more."""


def count(config: dict[str, Any]) -> None:
    """Three steps; in the first attempt rank 1 leaves a mark and never comes to the last one."""
    known = train.load_checkpoint()
    context = train.get_context()
    for step in range(known["step"] + 1 if known else 0, 3):
        if step == 2 and context.get_world_rank() == 1 and context.get_attempt() == 1:
            if config["how"] == "stopped":
                Path(config["mark"]).touch()
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                never_comes_back(Path(config["mark"]))
        train.report({"step": step}, checkpoint=Checkpoint.from_dict({"step": step}))


def never_comes_back(mark: Path | None = None) -> None:
    if mark is not None:
        mark.touch()
    time.sleep(FOREVER_S)


@pytest.fixture(scope="module", params=["stopped", "asleep"])
def hung(
    request: pytest.FixtureRequest,
    session_environment: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> WorkerGroupError:
    """The failure of a run of three workers whose rank 1 hung: one run for several tests."""
    mark = tmp_path_factory.mktemp("hung") / "mark"
    with pytest.MonkeyPatch.context() as patch:
        # The other two wait, or would be missing, too.
        options = hang_when(patch, lambda state: mark.exists() and state.arrived == 2)
        config = {"how": request.param, "mark": str(mark)}
        return failure(count, config=config, workers=3, **options)


class TestTimeout:
    def test_is_a_failure(self, hung: WorkerGroupError) -> None:
        error = hung
        assert isinstance(error.__cause__, HangError)
        assert "rank 1 did not come to report 3" in str(error.__cause__)
        assert "ranks 0 and 2 waited" in str(error.__cause__)
        assert list(error.worker_failures) == [1]
        assert error.result is not None
        assert error.result.metrics_dataframe["step"].tolist() == [0, 1]

    @pytest.mark.parametrize("how", ["stopped", "asleep"])
    def test_another_attempt_resumes(
        self, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mark = tmp_path / "mark"
        options = hang_when(monkeypatch, lambda state: mark.exists() and state.arrived == 1)
        result = fit(count, config={"how": how, "mark": str(mark)}, max_failures=1, **options)
        assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]
        assert result.metrics_dataframe["attempt"].tolist() == [1, 1, 2]

    @pytest.mark.parametrize("hung", ["asleep"], indirect=True)
    def test_where_it_was_is_in_its_log(self, hung: WorkerGroupError) -> None:
        assert hung.result is not None
        log = Path(hung.result.path, "logs", "rank_1.log").read_text()
        assert "in never_comes_back" in log
        assert not Path(hung.result.path, "logs", "rank_0.log").read_text()

    def test_it_restores(self, hung: WorkerGroupError, tmp_path: Path) -> None:
        assert hung.result is not None
        copy = shutil.copytree(hung.result.path, tmp_path / "run")
        result = DataParallelTrainer.restore(copy).fit()
        assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]

    def test_slow_steps_are_no_hang(self) -> None:
        def train_func() -> None:
            for step in range(6):
                time.sleep(0.2 * TIMEOUT_S * (step % 2 == train.get_context().get_world_rank()))
                train.report({"step": step})

        result = fit(train_func, hang_timeout_s=TIMEOUT_S, hang_warning_s=None)
        assert result.metrics["step"] == 5
        assert result.metrics["time_total_s"] > TIMEOUT_S

    @pytest.mark.parametrize(("workers", "reports"), [(1, 0), (2, 2)])
    def test_nobody_waits_and_nothing_happens(
        self, workers: int, reports: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def train_func(config: dict[str, Any]) -> None:
            for step in range(reports):
                train.report({"step": step})
            rank = train.get_context().get_world_rank()
            never_comes_back(Path(config["marks"], str(rank)))

        options = hang_when(monkeypatch, lambda _: len(list(tmp_path.iterdir())) == workers)
        error = failure(train_func, config={"marks": str(tmp_path)}, workers=workers, **options)
        assert isinstance(error.__cause__, HangError)
        assert "did not come to a report within" in str(error.__cause__)
        assert error.result is not None
        for rank in range(workers):
            log = Path(error.result.path, "logs", f"rank_{rank}.log").read_text()
            assert "in never_comes_back" in log

    def test_a_rank_has_returned_and_another_waits_for_it_elsewhere(
        self, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def train_func() -> None:
            train.report({"step": 0})
            if train.get_context().get_world_rank() == 1:
                never_comes_back()

        error = failure(train_func, **hang_when(monkeypatch, lambda state: bool(state.returned)))
        told = capfd.readouterr().err
        assert "Rank 0 has returned, but rank 1 has not, and has come to no report for" in told
        assert "rank 1 did not come to a report within" in str(error.__cause__)
        assert "; rank 0 had returned; its stack is in its log." in str(error.__cause__)
        assert list(error.worker_failures) == [1]

    def test_rows_of_a_log_are_progress(self) -> None:
        def train_func() -> None:
            for step in range(30):
                time.sleep(0.1)
                train.log({"step": step})
            train.report({})

        assert fit(train_func, workers=1, hang_timeout_s=2.0).state == "finished"


class TestWarning:
    def until_dumped(self, what: str = "in until_dumped") -> None:
        log = Path(train.get_context().get_trial_dir(), "logs", "rank_1.log")
        while what not in log.read_text():  # the test's timeout is the limit
            time.sleep(0.005)

    def test_names_the_missing_rank_and_the_run_continues(
        self, capfd: pytest.CaptureFixture[str]
    ) -> None:
        def train_func() -> None:
            train.report({"step": 0})
            if train.get_context().get_world_rank() == 1:
                self.until_dumped()
            train.report({"step": 1})

        result = fit(train_func, hang_warning_s=0.1, verbose=1)
        assert (result.state, result.metrics["step"]) == ("finished", 1)
        printed = "".join(capfd.readouterr())
        assert "Rank 0 has waited" in printed
        assert "at report 2 for rank 1" in printed
        assert "until_dumped" in printed

    @pytest.mark.parametrize("reports", [0, 2, 4])
    def test_reports_that_all_ranks_hang(
        self, capfd: pytest.CaptureFixture[str], reports: int
    ) -> None:
        def train_func() -> None:
            for step in range(reports):
                train.report({"step": step})
            self.until_dumped("in train_func" if reports else "in ")  # it may come before

        result = fit(train_func, hang_warning_s=0.1, verbose=1)
        assert result.state == "finished"
        printed = "".join(capfd.readouterr())
        assert "No rank has come to a report for" in printed
        assert "Stack (most recent call last):" in printed
