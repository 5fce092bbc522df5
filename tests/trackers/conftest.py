"""Trackers in tests: a real MLflow server on loopback, no telemetry, nothing left running."""

from __future__ import annotations

import gc
import importlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

OFFLINE = {
    # On a busy machine no row may be lost by a timeout.
    "LOCKSTEP_CALLBACK_FLUSH_S": "100",
    "LOCKSTEP_STOP_GRACE_S": "60",
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "COMET_ERROR_TRACKING_ENABLE": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_NO_OBSERVABILITY": "true",
}


@pytest.fixture(scope="session", autouse=True)
def offline_trackers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the machine's keys and settings, and send nothing anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith(("WANDB_", "COMET_", "MLFLOW_", "DATABRICKS_")):
                patch.delenv(name)
        home = tmp_path_factory.mktemp("home")
        for name in ("HOME", "WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
            patch.setenv(name, str(home))
        for name, value in OFFLINE.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def imported(offline_trackers: None) -> None:
    """Import the trackers' libraries before the leak check of a test."""
    for name in ("comet_ml", "mlflow", "tensorboardX.record_writer", "wandb"):
        importlib.import_module(name)


@pytest.fixture
def libraries(imported: None) -> Iterator[None]:
    """Close what the trackers' libraries keep open after the test."""
    yield
    from mlflow.utils.request_utils import _cached_get_request_session

    importlib.import_module("wandb").teardown()
    _cached_get_request_session.cache_clear()
    gc.collect()


@pytest.fixture(scope="session")
def mlflow_server(
    tmp_path_factory: pytest.TempPathFactory, offline_trackers: None
) -> Iterator[str]:
    """The URI of an MLflow server with a SQLite store."""
    directory = tmp_path_factory.mktemp("mlflow")
    server, uri = _start_server(directory)
    try:
        yield uri
    finally:
        _stop(server)


def _start_server(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the server; if another process takes the port first, try another port."""
    for attempt in range(3):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
        command += ["--artifacts-destination", str(directory / "artifacts")]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        log = directory / f"log_{attempt}.txt"
        with open(log, "wb") as file:
            server = subprocess.Popen(command, cwd=directory, stdout=file, stderr=file)
        try:
            if _is_healthy(server, f"http://127.0.0.1:{port}"):
                return server, f"http://127.0.0.1:{port}"
        except BaseException:
            _stop(server)
            raise
        _stop(server)
    raise RuntimeError(f"the MLflow server does not start: {log.read_text()}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    server.wait(120)


def _is_healthy(server: subprocess.Popen[bytes], uri: str) -> bool:
    """Wait until the running server answers; the test's own time limit applies."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{uri}/health", timeout=5):
                return True
        except OSError:
            time.sleep(0.1)
    return False
