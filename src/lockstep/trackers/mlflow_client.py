"""What both ways of tracking with MLflow share: which run is ours, and what MLflow allows."""

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
from lockstep.trackers.values import Outcome, parameters_in, run_key

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
"""What a restored run is found by."""

_LONGEST_VALUE = 6000
_NOT_IN_NAMES = re.compile(r"[^\w\-./ ]")


_LOGIN = ("MLFLOW_TRACKING_", "MLFLOW_HTTP_", "MLFLOW_S3_", "DATABRICKS_")
_NO_LOGIN = "MLFLOW_TRACKING_URI"


def log_in(token: str | None) -> None:
    """Make all of this process's MLflow log in with what ``lockstep.init()`` has set, for good."""
    os.environ.update(init_variables("MLFLOW_", "DATABRICKS_"))
    if token is not None:
        os.environ["MLFLOW_TRACKING_TOKEN"] = token


class Login:
    """``with`` it, MLflow logs in with what ``lockstep.init()`` has set, and with ``token``.

    MLflow takes that from this process's environment, each time it needs it. Afterwards that is as
    it was, once no other login is under way.
    """

    _lock = threading.Lock()
    _under_way: ClassVar[list[Login]] = []
    _before: ClassVar[dict[str, str | None]] = {}

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
            self._under_way.append(self)
            os.environ.update(self._set)

    def __exit__(self, *details: object) -> None:
        with self._lock:
            self._under_way.remove(self)
            for name, own in self._set.items():
                others = [login._set[name] for login in self._under_way if name in login._set]
                value = others[-1] if others else self._before.pop(name)
                if not others and os.environ.get(name) != own:
                    continue  # somebody else has changed it meanwhile
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            self._set = {}


@contextmanager
def file_store_allowed(tracking_uri: str | None) -> Iterator[None]:
    """While a client is made: allow the store of files that ``tracking_uri`` names."""
    uri = tracking_uri or "databricks"
    is_files = urlsplit(uri).scheme in ("", "file") and not uri.startswith("databricks")
    # Newer MLflow refuses such a store unless a variable is set; who names one means it.
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
    """The experiment to log to, the default one where nothing is named.

    Raises:
        ValueError: there is none of that name, and it is not to be made.
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
        found = client.get_experiment_by_name(name)  # another process was faster
        if found is None:
            raise
        return str(found.experiment_id)


def run_tags(experiment_name: str, trial_id: str) -> dict[str, str]:
    """The tags that say which run of ours an MLflow run is."""
    return {TRIAL_TAG: trial_id, KEY_TAG: run_key(experiment_name, trial_id)}


def earlier_run(client: Any, experiment_id: str, experiment_name: str, trial_id: str) -> Any:
    """The MLflow run that an earlier attempt at this trial began, None where there is none."""
    query = f"tags.`{KEY_TAG}` = '{run_key(experiment_name, trial_id)}'"
    found = client.search_runs([experiment_id], query, max_results=1)
    return found[0] if found else None


def mlflow_parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """A config as MLflow takes parameters: flat, with names and lengths it allows."""
    flat = parameters_in(config)
    return {mlflow_name(key): str(value)[:_LONGEST_VALUE] for key, value in flat.items()}


def mlflow_name(key: str) -> str:
    """A name that MLflow takes."""
    parts = _NOT_IN_NAMES.sub("_", key)[:250].split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"
