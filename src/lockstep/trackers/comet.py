"""Comet: a run's parameters, metrics and checkpoints, online or in an offline archive."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.trackers.credentials import check_comet_key, read_key, require, variable
from lockstep.trackers.service import Row, ServiceLoggerCallback, TrackedRun, refuse_arguments
from lockstep.trackers.undelivered import plain_arguments
from lockstep.trackers.values import Outcome, flat_parameters, numeric_metrics, run_key

__all__ = [
    "CometLoggerCallback",
    "comet_arguments",
    "end_experiment",
    "open_experiment",
    "quiet_comet",
]

_RESERVED = ("experiment_key", "previous_experiment")
# Comet's automatic logs would describe this process, but the workers train, not the driver.
_DRIVER_ARGUMENTS = {
    "log_code": False,
    "log_env_details": False,
    "log_graph": False,
    "parse_args": False,
    "auto_output_logging": False,
    "auto_param_logging": False,
    "auto_metric_logging": False,
    "auto_log_co2": False,
    "display_summary_level": 0,
}
_OPENING_LOCK = threading.Lock()


class CometLoggerCallback(ServiceLoggerCallback):
    """Logs every trial to Comet: its config as parameters, each report as metrics, the outcome.

    The experiment's key is made from the trial's id, so a restored trial resumes its experiment.

    Args:
        online: False writes an archive for ``comet upload`` instead.
        tags: added to each experiment.
        save_checkpoints: upload each checkpoint as a model.
        **experiment_kwargs: for Comet, such as ``api_key``, ``project_name``, ``workspace`` and,
            offline, ``offline_directory``; all others are arguments of ``ExperimentConfig``.
            ``fit()`` raises for an argument that Comet does not know, before anything starts.

    Raises:
        ImportError: comet_ml is not installed.
        ValueError: an argument is given that the callback chooses.
    """

    secrets: ClassVar[tuple[str, ...]] = ("api_key",)

    def __init__(
        self,
        online: bool = True,
        tags: Sequence[str] | None = None,
        save_checkpoints: bool = False,
        **experiment_kwargs: Any,
    ) -> None:
        require("comet_ml", "comet", "CometLoggerCallback")
        super().__init__()
        refuse_arguments("CometLoggerCallback", experiment_kwargs, _RESERVED, "experiment")
        if isinstance(tags, str):
            raise TypeError(f"CometLoggerCallback(tags={tags!r}): expected a list.")
        self.online = online
        self.tags = tuple(tags or ())
        self.save_checkpoints = save_checkpoints
        self.api_key = read_key(experiment_kwargs.pop("api_key", None), None)
        self.experiment_kwargs = experiment_kwargs

    def check_before_run(self) -> None:
        """Raise for arguments that Comet does not know, and for a missing key."""
        comet_arguments("CometLoggerCallback", self.experiment_kwargs)
        if self.online and self.api_key is None:
            check_comet_key()

    def arguments(self) -> dict[str, Any]:
        """What ``lockstep sync`` creates this callback with."""
        arguments = plain_arguments({**self.experiment_kwargs, "tags": list(self.tags)})
        return {"online": self.online, **arguments}

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Create the experiment, or resume it."""
        return _CometRun(self, trial)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers."""
        return numeric_metrics(result)


class _CometRun(TrackedRun):
    def __init__(self, callback: CometLoggerCallback, trial: TrialSnapshot) -> None:
        self.saves_checkpoints = callback.save_checkpoints
        arguments = comet_arguments("CometLoggerCallback", callback.experiment_kwargs)
        with _keeping_current_experiment():
            self._experiment = open_experiment(
                online=callback.online,
                key=run_key(trial.experiment_name, trial.trial_id),
                exists=trial.restored,
                api_key=callback.api_key,
                **_DRIVER_ARGUMENTS | arguments,
            )
        self._experiment.set_name(trial.title)
        if callback.tags:
            self._experiment.add_tags([*callback.tags])
        self._experiment.log_parameters(flat_parameters(trial.config))
        self._experiment.log_other("trial_id", trial.trial_id)

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            self._experiment.log_metrics(row.values, step=row.step)

    def save(self, name: str, directory: str) -> None:
        # Copied, because Comet uploads later, when the checkpoint may be deleted.
        self._experiment.log_model(name, directory, copy_to_tmp=True)

    def end(self, outcome: Outcome) -> None:
        end_experiment(self._experiment, outcome)


def comet_arguments(who: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for Comet under the names that ``open_experiment`` takes.

    Raises:
        TypeError: Comet does not know an argument, or it was given twice.
    """
    import comet_ml

    named = dict(arguments)
    if "project" in named:
        if "project_name" in named:
            raise TypeError(f"{who}() got both project and project_name; give one of them.")
        named["project_name"] = named.pop("project")
    known = {"project_name", "workspace", *inspect.signature(comet_ml.ExperimentConfig).parameters}
    for name, value in named.items():
        if name not in known:
            raise TypeError(
                f"{who}({name}={value!r}): Comet's ExperimentConfig has no such argument; leave "
                f"it out, or use one of {', '.join(sorted(known))}."
            )
    return named


def open_experiment(
    *,
    online: bool,
    key: str | None,
    exists: bool,
    api_key: str | None,
    project_name: str | None = None,
    workspace: str | None = None,
    **arguments: Any,
) -> Any:
    """Create the experiment with this key, or resume it if it ``exists``.

    Offline, a resumed experiment has an archive of its own. It can be uploaded without the first
    archive, which a killed process leaves empty.
    """
    import comet_ml

    with quiet_comet(logging.CRITICAL):  # errors are raised as well
        return comet_ml.start(
            # Comet itself does not see the variables that were given to lockstep.init().
            api_key=api_key or variable("COMET_API_KEY"),
            project_name=project_name or variable("COMET_PROJECT_NAME"),
            workspace=workspace or variable("COMET_WORKSPACE"),
            experiment_key=key,
            mode="get_or_create" if exists else "create",
            online=online,
            experiment_config=comet_ml.ExperimentConfig(**arguments),
        )


@contextmanager
def _keeping_current_experiment() -> Iterator[None]:
    """Keep the process's current experiment open, which Comet would end when another starts."""
    from comet_ml.config import get_global_experiment, set_global_experiment

    with _OPENING_LOCK:
        current = get_global_experiment()
        set_global_experiment(None)
        try:
            yield
        finally:
            set_global_experiment(current)


def end_experiment(experiment: Any, outcome: Outcome) -> None:
    """Record the outcome, wait for the upload, and release everything."""
    experiment.log_other("status", outcome)
    if outcome != "finished":
        experiment.add_tag(outcome)
    with quiet_comet():
        experiment.end()


@contextmanager
def quiet_comet(level: int = logging.ERROR) -> Iterator[None]:
    """Print only Comet's errors: the driver's terminal shows the run."""
    logger = logging.getLogger("comet_ml")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
