"""A tracking service that is slow, down or raising: the run continues, with one warning."""

from __future__ import annotations

import importlib.util
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lockstep.trackers.service as module
from lockstep import train
from lockstep.callback import RunContext, TrialSnapshot
from lockstep.config import RunConfig, ScalingConfig
from lockstep.errors import LockstepError
from lockstep.trackers import undelivered
from lockstep.trackers.service import Row, ServiceLoggerCallback, TrackedRun
from lockstep.trackers.tracker_callback import TrackerProblem
from lockstep.trackers.values import Outcome, numeric_metrics
from lockstep.train.driver.callbacks import CallbackDispatcher
from tests.integration.runs import fit

TRIAL = TrialSnapshot("4913f_00000", "TorchTrainer", "/results/run", "experiment")


class Service(ServiceLoggerCallback):
    """A service that can be down; ``steps`` and ``outcome`` are what it received."""

    refused: tuple[int, ...] = ()

    secrets = ("key",)

    def __init__(self, up: bool = True) -> None:
        super().__init__()
        self.up = up
        self.key = "secret"
        self.opened = 0
        self.asked: list[bool] = []
        self.steps: list[int] = []
        self.outcome: Outcome | None = None

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        self.asked.append(trial.restored)
        self.need()
        self.opened += 1
        return _RecordedRun(self)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        return numeric_metrics(result)

    def need(self) -> None:
        if not self.up:
            raise ConnectionError("the service is down")


class _RecordedRun(TrackedRun):
    rows_at_once = 4

    def __init__(self, service: Service) -> None:
        self._service = service

    def log(self, rows: list[Row]) -> None:
        self._service.need()
        steps = [row.step for row in rows]
        if {*steps} & {*self._service.refused}:
            raise ValueError(f"not {steps}")
        self._service.steps += steps

    def save(self, name: str, directory: str) -> None:
        self._service.need()

    def end(self, outcome: Outcome) -> None:
        self._service.need()
        self._service.outcome = outcome


@pytest.fixture(autouse=True)
def _short_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SHARE", 0.0)
    monkeypatch.setattr(module, "END_RETRY_S", 0.01)


def report(service: Service, *steps: int) -> None:
    for step in steps:
        service.log_trial_result(step, TRIAL, {"loss": 1.0, "timestamp": int(time.time())})


def test_an_outage_costs_nothing_if_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    service = Service(up=False)
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    report(service, 1, 2)
    service.flush_batch()  # the same error again
    service.up = True
    report(service, 3, 4, 5)
    service.flush_batch()
    assert service.steps == [1, 2, 3, 4, 5]
    service.up = False
    report(service, 6)
    service.flush_batch()
    service.up = True
    service.log_trial_end(TRIAL)
    assert service.steps == [1, 2, 3, 4, 5, 6]
    assert (service.opened, service.outcome) == (1, "finished")


def test_a_service_that_is_down_is_not_called_for_a_while() -> None:
    now = 1000.0
    service = Service(up=False)
    service._clock = lambda: now
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    service.up = True
    report(service, 1)
    now += module.RETRY_S - 0.1
    service.flush_batch()
    assert service.opened == 0
    now += 0.1
    service.flush_batch()
    assert (service.opened, service.steps) == (1, [1])


def test_the_end_does_not_wait_until_a_service_may_be_called_again() -> None:
    service = Service(up=False)
    service._clock = lambda: 1000.0
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    service.up = True
    report(service, 1)
    service.log_trial_end(TRIAL, failed=True)  # one more attempt
    assert (service.steps, service.outcome) == ([1], "failed")


def test_waiting_rows_are_bounded_with_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    service = Service(up=False)
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    report(service, 1, 2, 3)
    with pytest.raises(OverflowError, match=r"3 rows wait.*progress.csv"):
        report(service, 4)
    report(service, 5, 6)
    service.up = True
    service.log_trial_end(TRIAL)
    with pytest.raises(LockstepError, match=r"left out 3 rows, .*progress.csv has every report"):
        service.on_experiment_end([TRIAL])
    assert service.steps == [1, 2, 3]


def test_an_end_without_the_service_counts_missing_rows() -> None:
    service = Service()
    service.log_trial_start(TRIAL)
    report(service, 1, 2)
    service.up = False
    with pytest.raises(TrackerProblem, match="reports wait"):
        service.log_trial_end(TRIAL)
    reason = r"2 rows and the run's outcome .* \(ConnectionError: the service is down\); progress"
    with pytest.raises(LockstepError, match=reason):
        service.on_experiment_end([TRIAL])
    service.on_experiment_end([TRIAL])  # the next experiment has all rows


def test_missing_rows_are_reported_once_for_all_trials() -> None:
    problems: list[str] = []
    service = Service(up=False)
    dispatcher = CallbackDispatcher([service], problems.append, 30.0, trials=[])
    dispatcher.begin(None, 3)
    context = RunContext(RunConfig(), "", "", "", None, ScalingConfig())
    for number in range(3):
        trial = TrialSnapshot(f"4913f_0000{number}", "train", "/results/run", "experiment")
        dispatcher.start(trial, context)
        for step in range(number + 1):
            dispatcher.report(step, trial, {}, [{}], None)
        dispatcher.end(number, trial, failed=number == 1)
    dispatcher.finish([])
    dispatcher.close()
    (problem,) = [problem for problem in problems if "are not at the service" in problem]
    assert "6 rows and the outcomes of 3 runs are not at the service" in problem


def test_only_the_rows_that_are_refused_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    service = Service()
    service.refused = (3, 9)
    service.log_trial_start(TRIAL)
    report(service, 1, 2, 3, 4, 5, 6)
    with pytest.raises(ValueError, match="not"):
        service.flush_batch()
    for _ in range(4):
        service.flush_batch()
    assert service.steps == [1, 2, 4, 5, 6]
    report(service, 7, 8, 9, 10)
    service.log_trial_end(TRIAL)
    with pytest.raises(LockstepError, match=r"left out 2 rows, .*progress.csv has every report"):
        service.on_experiment_end([TRIAL])
    assert service.steps == [1, 2, 4, 5, 6, 7, 8, 10]
    assert service.outcome == "finished"


def test_refused_rows_that_follow_each_other_hold_nothing_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    service = Service()
    service.refused = (3, 4, 5)
    service.log_trial_start(TRIAL)
    report(service, *range(1, 11))
    with pytest.raises(ValueError, match="not"):
        service.flush_batch()
    for _ in range(6):
        service.flush_batch()
    assert sorted(service.steps) == [1, 2, 6, 7, 8, 9, 10]
    service.log_trial_end(TRIAL)
    with pytest.raises(LockstepError, match=r"left out 3 rows"):
        service.on_experiment_end([TRIAL])


@pytest.mark.parametrize("failures", [1, 2, 3, 4])
def test_a_service_that_comes_back_during_a_retry_has_every_row(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)

    class Unsteady(Service):
        left = 0

        def need(self) -> None:
            if self.left:
                self.left -= 1
                raise ConnectionError("reset by peer")

    service = Unsteady()
    service.log_trial_start(TRIAL)
    report(service, *range(1, 6))
    service.left = failures
    with pytest.raises(TrackerProblem):
        service.flush_batch()
    for _ in range(3):
        service.flush_batch()
    service.log_trial_end(TRIAL)
    service.on_experiment_end([TRIAL])
    assert sorted(service.steps) == [1, 2, 3, 4, 5]


def test_a_full_queue_is_reported_after_a_refused_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROWS", 3)
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    service = Service()
    service.refused = (1,)
    service.log_trial_start(TRIAL)
    report(service, 1, 2)
    with pytest.raises(ValueError, match="not"):
        service.flush_batch()
    service.flush_batch()
    assert service.steps == [2]
    service.up = False
    report(service, 3, 4, 5)
    with pytest.raises(OverflowError, match=r"3 rows wait"):
        report(service, 6)


def test_what_is_opened_again_may_be_there_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    service = Service(up=False)
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    service.up = True
    report(service, 1)
    service.flush_batch()
    assert service.asked == [False, True]


def test_another_kind_of_error_is_reported() -> None:
    service = Service(up=False)
    with pytest.raises(TrackerProblem):
        service.log_trial_start(TRIAL)
    service.up, service.refused = True, (1,)
    report(service, 1)
    with pytest.raises(ValueError, match="not"):
        service.log_trial_end(TRIAL)
    with pytest.raises(LockstepError, match=r"left out 1 row, "):
        service.on_experiment_end([TRIAL])


def test_one_end_that_fails_leaves_no_other_run_open() -> None:
    ended = []

    class Open(_RecordedRun):
        def end(self, outcome: Outcome) -> None:
            ended.append(outcome)
            raise ConnectionError("gone")

    class Ending(Service):
        def open_run(self, trial: TrialSnapshot) -> TrackedRun:
            return Open(self)

    service = Ending()
    trials = [
        TrialSnapshot(f"4913f_0000{i}", "TorchTrainer", "/results/run", "e") for i in range(3)
    ]
    for trial in trials:
        service.log_trial_start(trial)
    with pytest.raises(TrackerProblem):
        service.on_experiment_end(trials)
    assert ended == ["stopped"] * 3


def test_trials_without_an_end_are_stopped_with_the_experiment() -> None:
    service = Service()
    service.log_trial_start(TRIAL)
    report(service, 1)
    service.on_experiment_end([TRIAL])
    assert (service.steps, service.outcome) == ([1], "stopped")


def test_a_trial_that_starts_again_keeps_its_open_run() -> None:
    service = Service()
    service.log_trial_start(TRIAL)
    service.log_trial_start(TRIAL)
    assert service.opened == 1


def test_neither_secrets_nor_open_runs_are_pickled() -> None:
    service = Service()
    service.log_trial_start(TRIAL)
    copy = pickle.loads(pickle.dumps(service))
    assert (copy.key, copy.opened, copy._followed) == (None, 1, {})
    assert b"secret" not in pickle.dumps(service)


def three_reports() -> None:
    for step in range(3):
        train.report({"loss": 1 / (step + 1)})


class Raising(Service):
    def need(self) -> None:
        raise RuntimeError("no quota left")


def test_a_raising_tracker_is_named_once_and_costs_the_run_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    result = fit(three_reports, workers=1, callbacks=[Raising()], verbose=1)
    assert len(result.metrics_dataframe) == 3
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert text.count("no quota left") == 1
    assert "Callback Raising.on_trial_start raised RuntimeError" in text
    assert "3 rows and the run's outcome are not at the service. They are kept" in text
    assert "training continues" in text


class Hanging(Service):
    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.thread: threading.Thread | None = None

    def need(self) -> None:
        self.thread = threading.current_thread()
        self.go.wait()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    service = Hanging()
    yield service
    service.go.set()
    if service.thread is not None:
        service.thread.join(120)


def test_the_end_of_a_run_waits_a_bounded_time_for_a_tracker_that_hangs(
    hanging: Hanging, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOCKSTEP_CALLBACK_FLUSH_S", "0.2")
    result = fit(three_reports, workers=1, callbacks=[hanging], verbose=1)
    assert hanging.thread is not None
    assert hanging.thread.is_alive()  # the run did not wait for it
    assert len(result.metrics_dataframe) == 3
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert "Not finished 0.2 s after the run ended" in text
    assert "Hanging: 3 rows and the run's outcome are not at the service" in text


def test_mlflow_that_refuses_the_connection(capfd: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed")
    from lockstep.air.integrations.mlflow import MLflowLoggerCallback

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = fit(three_reports, workers=1, callbacks=[MLflowLoggerCallback(uri)], verbose=1)
    assert len(result.metrics_dataframe) == 3
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert "MLflowLoggerCallback cannot reach its service (ConnectionError: no MLflow" in text
    assert "raised" not in text
    assert f"lockstep sync {result.path}" in text
    assert "Not finished" not in text


class Mended(Service):
    """A service that is down at its first calls."""

    def __init__(self) -> None:
        super().__init__(up=False)
        self.calls = 3

    def need(self) -> None:
        self.calls -= 1
        self.up = self.calls <= 0
        super().need()


def test_the_end_waits_for_a_service_that_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_SHARE", 0.8)
    service = Mended()
    with pytest.raises(TrackerProblem, match=r"cannot reach its service .* Training continues"):
        service.log_trial_start(TRIAL)
    report(service, 1, 2)
    service.log_trial_end(TRIAL)
    service.on_experiment_end([TRIAL])
    assert (service.steps, service.outcome) == ([1, 2], "finished")


def test_what_a_service_did_not_get_is_kept_and_sent_by_the_next_driver(tmp_path: Path) -> None:
    trial = replace(TRIAL, path=str(tmp_path), config={"lr": 0.1, "object": object()})
    service = Service(up=False)
    with pytest.raises(TrackerProblem):
        service.log_trial_start(trial)
    report(service, 1, 2)
    service.log_trial_rows(trial.trial_id, 1, [{"step": 7, "time": 5.0, "metrics": {"x": 1}}])
    service.log_trial_end(trial, failed=True)
    with pytest.raises(TrackerProblem, match=f"lockstep sync {tmp_path}"):
        service.on_experiment_end([trial])
    (file,) = tmp_path.iterdir()
    kept = undelivered.read(file.read_bytes(), str(tmp_path))
    assert (kept.tracker, kept.outcome, kept.trial.config["lr"]) == ("Service", "failed", 0.1)
    assert kept.rows[-1] == Row(7, 5.0, {"log/rank_1/x": 1}, True)

    resumed = Service()
    resumed.log_trial_start(replace(trial, restored=True))
    report(resumed, 3)
    resumed.flush_batch()
    assert resumed.steps == [1, 2, 7, 3]
    resumed.log_trial_end(trial)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]\n", b'{"tracker": 1}\n{"', b"\xff\xfe"])
def test_a_damaged_file_is_one_sentence(data: bytes) -> None:
    with pytest.raises(LockstepError, match=r"in /run cannot be read .*progress.csv"):
        undelivered.read(data, "/run")


def test_a_login_is_not_kept() -> None:
    assert undelivered.without_login("https://me:pw@host:1/x") == "https://host:1/x"
    assert undelivered.without_login("sqlite:///a@b.db") == "sqlite:///a@b.db"


def logs_much() -> None:
    for step in range(3000):
        train.log({"x": float(step)}, step=step)
    train.report({"loss": 1.0})


class Counting(Service):
    logged = 0

    def log_trial_rows(self, trial_id: str, rank: int, rows: list[dict[str, Any]]) -> None:
        self.logged += len(rows)


def test_rows_of_log_are_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    service = Counting()
    result = fit(logs_much, workers=1, callbacks=[service], verbose=1)
    assert len(result.log_dataframe) == 3000
    shown = capfd.readouterr()
    assert service.logged > 0
    assert service.logged == 3000 or "at most 1,000 rows of train.log() a second" in (
        shown.out + shown.err
    )
