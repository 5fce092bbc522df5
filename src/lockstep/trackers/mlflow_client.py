"""What the MLflow callback and ``setup_mlflow`` share: logins, finding runs, allowed names."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import urlsplit

from lockstep import settings
from lockstep.trackers.credentials import init_variables, variable
from lockstep.trackers.values import Outcome, flat_parameters, run_key

__all__ = [
    "MLFLOW_STATUS",
    "Login",
    "earlier_run",
    "experiment_id_of",
    "file_store_allowed",
    "log_in",
    "mlflow_name",
    "mlflow_parameters",
    "run_tags",
]

MLFLOW_STATUS: dict[Outcome, str] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
}

TRIAL_TAG = "lockstep.trial_id"
KEY_TAG = "lockstep.run_key"
"""The tag by which a restored run is found."""

_MAX_VALUE = 6000
_NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")

_LOGIN = ("MLFLOW_TRACKING_", "MLFLOW_HTTP_", "MLFLOW_S3_", "DATABRICKS_")
_NO_LOGIN = "MLFLOW_TRACKING_URI"


def log_in(token: str | None) -> None:
    """Set the login variables of ``lockstep.init()`` in this process, permanently."""
    os.environ.update(init_variables("MLFLOW_", "DATABRICKS_"))
    if token is not None:
        os.environ["MLFLOW_TRACKING_TOKEN"] = token


class Login:
    """A context in which MLflow logs in with ``lockstep.init()``'s variables and ``token``.

    MLflow reads its login from this process's environment at each call. Several callbacks may be
    inside at the same time: the environment is restored when the last of them leaves.
    """

    _lock = threading.Lock()
    _active: ClassVar[list[Login]] = []
    _before: ClassVar[dict[str, str | None]] = {}  # the variables as they were without a login

    def __init__(self, token: str | None) -> None:
        self._values = init_variables(*_LOGIN)
        self._values.pop(_NO_LOGIN, None)
        if token is not None:
            self._values["MLFLOW_TRACKING_TOKEN"] = token
        self._set: dict[str, str] = {}

    def __enter__(self) -> None:
        with self._lock:
            for name, value in self._values.items():
                if name in self._before or os.environ.get(name) != value:
                    self._set[name] = value
                    self._before.setdefault(name, os.environ.get(name))
            self._active.append(self)
            os.environ.update(self._set)

    def __exit__(self, *details: object) -> None:
        with self._lock:
            self._active.remove(self)
            for name, own in self._set.items():
                others = [login._set[name] for login in self._active if name in login._set]
                value = others[-1] if others else self._before.pop(name)
                if not others and os.environ.get(name) != own:
                    continue  # other code has changed it in the meantime
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            self._set = {}


@contextmanager
def file_store_allowed(tracking_uri: str | None) -> Iterator[None]:
    """Allow the file store that ``tracking_uri`` names, while a client is created."""
    uri = tracking_uri or "databricks"
    is_files = urlsplit(uri).scheme in ("", "file") and not uri.startswith("databricks")
    # Newer MLflow refuses file stores unless a variable is set; a user who names one wants it.
    needed = settings.tracker_environment() if is_files else {}
    os.environ.update(needed)
    try:
        yield
    finally:
        for name in needed:
            os.environ.pop(name, None)


def experiment_id_of(
    client: Any,
    experiment_id: str | None,
    name: str | None,
    *,
    create: bool,
    artifact_location: str | None = None,
) -> str:
    """Return the experiment to log to; MLflow's default experiment if no name is given.

    Raises:
        ValueError: the experiment does not exist, and ``create`` is False.
    """
    experiment_id = experiment_id or (None if name else variable("MLFLOW_EXPERIMENT_ID"))
    if experiment_id is not None:
        return str(experiment_id)
    name = name or variable("MLFLOW_EXPERIMENT_NAME") or "Default"
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    if not create:
        raise ValueError(
            f"experiment_name={name!r}: MLflow has no such experiment; create it, or give "
            "create_experiment_if_not_exists=True."
        )
    try:
        return str(client.create_experiment(name, artifact_location))
    except Exception:
        found = client.get_experiment_by_name(name)  # another process has created it first
        if found is None:
            raise
        return str(found.experiment_id)


def run_tags(experiment_name: str, trial_id: str) -> dict[str, str]:
    """Return the tags that connect an MLflow run to a trial."""
    return {TRIAL_TAG: trial_id, KEY_TAG: run_key(experiment_name, trial_id)}


def earlier_run(client: Any, experiment_id: str, experiment_name: str, trial_id: str) -> Any:
    """Return the MLflow run that an earlier attempt of this trial created, or None."""
    query = f"tags.`{KEY_TAG}` = '{run_key(experiment_name, trial_id)}'"
    found = client.search_runs([experiment_id], query, max_results=1)
    return found[0] if found else None


def mlflow_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config as MLflow's parameters: flat, with allowed names and lengths."""
    flat = flat_parameters(config)
    return {mlflow_name(key): str(value)[:_MAX_VALUE] for key, value in flat.items()}


def mlflow_name(key: str) -> str:
    """Return ``key`` as a name that MLflow allows."""
    parts = _NOT_IN_NAMES.sub("_", key)[:250].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"
