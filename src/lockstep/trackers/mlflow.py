"""MLflow: a run's parameters, metrics and checkpoints on a tracking server or in a local store."""

from __future__ import annotations

import csv
import getpass
import json
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from lockstep.callback import TrialSnapshot
from lockstep.run_layout import MANIFEST, PROGRESS_FILE, RESULT_FILE
from lockstep.trackers.credentials import check_databricks, require, variable
from lockstep.trackers.mlflow_client import (
    MLFLOW_STATUS,
    Login,
    earlier_run,
    experiment_id_of,
    file_store_allowed,
    mlflow_name,
    mlflow_parameters,
    run_tags,
)
from lockstep.trackers.service import Row, ServiceLoggerCallback, TrackedRun
from lockstep.trackers.undelivered import plain_arguments, without_login
from lockstep.trackers.values import Outcome, numeric_metrics

__all__ = ["MLflowLoggerCallback"]

CONNECT_S = 5.0
FILES_S = 5.0
_METRICS_AT_ONCE = 1000
_PARAMETERS_AT_ONCE = 100


class MLflowLoggerCallback(ServiceLoggerCallback):
    """Logs every trial to MLflow: config as parameters, each report as metrics, the outcome.

    The step of a metric is the training iteration. A restored trial resumes its MLflow run.

    Args:
        tracking_uri: the server or store; MLflow's own default if None.
        registry_uri: the model registry.
        experiment_name: created if it does not exist; by default ``MLFLOW_EXPERIMENT_NAME``, or
            MLflow's default experiment.
        tags: set on each run.
        tracking_token: used instead of ``MLFLOW_TRACKING_TOKEN``.
        save_artifact: upload each checkpoint when it is committed, and at the end the run's small
            files.
        log_params_on_trial_end: log the parameters at the end instead of at the start.

    Raises:
        ImportError: mlflow is not installed.
    """

    secrets: ClassVar[tuple[str, ...]] = ("tracking_token",)

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: Mapping[str, Any] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
    ) -> None:
        require("mlflow", "mlflow", "MLflowLoggerCallback")
        super().__init__()
        if tags is not None and not isinstance(tags, Mapping):
            raise TypeError(f"MLflowLoggerCallback(tags={tags!r}): expected a dict.")
        self.tracking_uri = None if tracking_uri is None else os.fspath(tracking_uri)
        self.registry_uri = registry_uri
        self.experiment_name = experiment_name
        self.tags = dict(tags or {})
        self.tracking_token = tracking_token
        self.save_artifact = self.uses_directory = save_artifact
        self.log_params_on_trial_end = log_params_on_trial_end

    def check_before_run(self) -> None:
        """Raise ValueError for ``databricks`` without a login."""
        check_databricks(self.tracking_uri)

    def arguments(self) -> dict[str, Any]:
        """What ``lockstep sync`` creates this callback with."""
        return plain_arguments(
            {
                "tracking_uri": without_login(self.tracking_uri),
                "registry_uri": without_login(self.registry_uri),
                "experiment_name": self.experiment_name,
                "tags": {key: str(value) for key, value in self.tags.items()},
            }
        )

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Create the run, or find the run of a restored trial."""
        with self.login():
            return _MLflowRun(self, trial)

    def login(self) -> Login:
        """Return a context manager to be entered only while MLflow is called."""
        return Login(self.tracking_token)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers."""
        return numeric_metrics(result)


class _MLflowRun(TrackedRun):
    def __init__(self, callback: MLflowLoggerCallback, trial: TrialSnapshot) -> None:
        import mlflow

        self.saves_checkpoints = callback.save_artifact
        self._callback = callback
        self._trial = trial
        self._last: Row | None = None
        self._uri = callback.tracking_uri or variable("MLFLOW_TRACKING_URI")
        self._check_reachable()
        with file_store_allowed(self._uri):
            registry = callback.registry_uri or variable("MLFLOW_REGISTRY_URI")
            self._client = mlflow.MlflowClient(self._uri, registry)
            experiment = experiment_id_of(self._client, None, callback.experiment_name, create=True)
        earlier = (
            earlier_run(self._client, experiment, trial.experiment_name, trial.trial_id)
            if trial.restored
            else None
        )
        if earlier is None:
            tags = {
                "mlflow.user": _user(),
                "trial_name": str(trial),
                **run_tags(trial.experiment_name, trial.trial_id),
                **callback.tags,
            }
            run = self._client.create_run(experiment, run_name=trial.title, tags=tags)
            self._id, self._known = run.info.run_id, frozenset[str]()
        else:
            self._id, self._known = earlier.info.run_id, frozenset(earlier.data.params)
            self._client.update_run(self._id, status="RUNNING")
        if not callback.log_params_on_trial_end:
            self._log_parameters()

    def log(self, rows: list[Row]) -> None:
        from mlflow.entities import Metric

        self._check_reachable()
        newest = max(rows, key=lambda row: row.time)
        if self._last is None or newest.time >= self._last.time:
            self._last = newest
        metrics = [
            Metric(mlflow_name(key), float(value), round(row.time * 1000), row.step)
            for row in rows
            for key, value in row.values.items()
        ]
        for start in range(0, len(metrics), _METRICS_AT_ONCE):
            with self._callback.login():
                self._client.log_batch(self._id, metrics[start : start + _METRICS_AT_ONCE])

    def save(self, name: str, directory: str) -> None:
        with self._callback.login():
            self._client.log_artifacts(self._id, directory, artifact_path=name)

    def end(self, outcome: Outcome) -> None:
        self._check_reachable()
        if self._callback.save_artifact and self._last is not None:
            _wait_for_rows(Path(self._trial.path), self._last.step)
        with self._callback.login():
            if self._callback.log_params_on_trial_end:
                self._log_parameters()
            try:
                if self._callback.save_artifact:
                    self._save_small_files()
            finally:
                self._client.set_terminated(self._id, MLFLOW_STATUS[outcome])

    def _log_parameters(self) -> None:
        from mlflow.entities import Param

        # MLflow's parameters cannot change: a restored run keeps those it has.
        named = mlflow_parameters(self._trial.config)
        new = [Param(key, value) for key, value in named.items() if key not in self._known]
        for start in range(0, len(new), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=new[start : start + _PARAMETERS_AT_ONCE])

    def _save_small_files(self) -> None:
        run_directory = Path(self._trial.path)
        for path in sorted(run_directory.rglob("*")):
            relative = path.relative_to(run_directory)
            hidden = any(part.startswith(".") for part in relative.parts)
            in_checkpoint = (run_directory / relative.parts[0] / MANIFEST).exists()
            if path.is_file() and not hidden and path.suffix != ".pkl" and not in_checkpoint:
                folder = None if len(relative.parts) == 1 else str(relative.parent)
                self._client.log_artifact(self._id, str(path), artifact_path=folder)

    def _check_reachable(self) -> None:
        # MLflow itself retries for minutes, and the end of the run would wait for that.
        parts = urlsplit(self._uri or "")
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            return
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), CONNECT_S).close()
        except OSError as error:
            raise ConnectionError(
                f"no MLflow server answers at {parts.scheme}://{parts.hostname}:{port} ({error})"
            ) from None


def _wait_for_rows(run_directory: Path, step: int) -> None:
    """Wait up to ``FILES_S`` until the last report is in the files, which other callbacks write."""
    deadline = time.monotonic() + FILES_S
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError, IndexError, KeyError):
            with open(run_directory / PROGRESS_FILE, newline="") as rows:
                newest = deque(csv.DictReader(rows), maxlen=1)[0]
            lines = (run_directory / RESULT_FILE).read_bytes().splitlines()
            iterations = int(newest["training_iteration"]), json.loads(lines[-1])
            if iterations[0] == iterations[1]["training_iteration"] == step:
                return
        time.sleep(0.05)


def _user() -> str:
    try:
        return getpass.getuser()
    except Exception:
        return "unknown"
