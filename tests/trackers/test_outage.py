"""A real MLflow server that cannot be reached for a while, or that never answers."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import lockstep.trackers.service as service
from lockstep import train
from lockstep.callback import LoggerCallback, TrialSnapshot
from tests.integration.runs import fit
from tests.trackers.installed import need

need("mlflow")

pytestmark = pytest.mark.timeout(180)


class Line:
    """A proxy between client and server that can cut the connection."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.port = 0
        self.mend()

    def mend(self) -> None:
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._sockets = [listener]
        self._spawn(self._accept, listener)

    def cut(self) -> None:
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()
        self._threads = []

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._spawn(self._pump, near, far)
                self._spawn(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _spawn(self, target: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()


@pytest.fixture
def line(mlflow_server: str, libraries: None) -> Iterator[Line]:
    address = urlsplit(mlflow_server)
    line = Line((str(address.hostname), int(address.port or 0)))
    yield line
    line.cut()


class Outage(LoggerCallback):
    """Cuts the connection at one report and restores it at another."""

    def __init__(self, line: Line, cut_at: int, mend_at: int) -> None:
        self._line, self._cut_at, self._mend_at = line, cut_at, mend_at

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        if iteration == self._cut_at:
            self._line.cut()
        elif iteration == self._mend_at:
            self._line.mend()

    def __reduce__(self) -> Any:
        return Outage, (None, 0, 0)


def eight_reports() -> None:
    for step in range(1, 9):
        train.log({"step_loss": 2 / step}, step=10 * step)
        train.report({"loss": 1 / step})


def test_a_line_that_is_mended_costs_nothing(
    line: Line,
    mlflow_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mlflow import MlflowClient

    from lockstep.trackers import MLflowLoggerCallback

    monkeypatch.setattr(service, "RETRY_S", 0.1)
    # A captured warning about a connection would keep that connection open.
    caplog.set_level(logging.ERROR, "urllib3.connectionpool")
    callback = MLflowLoggerCallback(f"http://127.0.0.1:{line.port}", experiment_name="outage")
    callbacks = [callback, Outage(line, cut_at=2, mend_at=6)]
    fit(eight_reports, workers=1, callbacks=callbacks, verbose=1)
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("outage")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert {metric.step for metric in history} == set(range(1, 9))
    shown = capfd.readouterr()
    assert "reports are not at the service" not in shown.out + shown.err


def test_what_a_server_missed_is_sent_later(
    line: Line,
    mlflow_server: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    from mlflow import MlflowClient

    from lockstep.cli import main
    from lockstep.trackers import MLflowLoggerCallback

    monkeypatch.setattr(service, "END_SHARE", 0.0)
    caplog.set_level(logging.ERROR, "urllib3.connectionpool")
    line.cut()
    callback = MLflowLoggerCallback(f"http://127.0.0.1:{line.port}", experiment_name="later")
    result = fit(eight_reports, workers=1, callbacks=[callback], verbose=1)
    text = capfd.readouterr().err
    assert "16 rows and the run's outcome are not at the service" in text
    assert f"lockstep sync {result.path}" in text

    assert main(["sync", result.path]) == 1
    assert "no MLflow server answers" in capfd.readouterr().err
    line.mend()
    assert main(["sync", result.path]) == 0
    assert "sent 16 rows and the outcome to MLflowLoggerCallback" in capfd.readouterr().out
    client = MlflowClient(mlflow_server)
    experiment = client.get_experiment_by_name("later")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    for name, steps in (("loss", range(1, 9)), ("log/step_loss", range(10, 90, 10))):
        history = client.get_metric_history(run.info.run_id, name)
        assert {metric.step for metric in history} == set(steps)
    assert main(["sync", result.path]) == 0
    assert "nothing to send" in capfd.readouterr().out


def test_a_server_that_never_answers_delays_nothing(
    libraries: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from lockstep.trackers import MLflowLoggerCallback

    monkeypatch.setenv("LOCKSTEP_CALLBACK_FLUSH_S", "0.5")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        callback = MLflowLoggerCallback(uri)
        result = fit(eight_reports, workers=1, callbacks=[callback], verbose=1)
    assert len(result.metrics_dataframe) == 8
    shown = capfd.readouterr()
    assert "0.5 s after the run ended, so their last events may be missing: MLflow" in (
        shown.out + shown.err
    )
    hanging = [t for t in threading.enumerate() if "MLflowLoggerCallback" in t.name]
    for thread in hanging:
        thread.join(120)  # closing the socket has reset its connection
