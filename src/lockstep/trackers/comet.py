"""Comet: a run's parameters, metrics and checkpoints, online or in an offline archive."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.errors import StorageError
from lockstep.trackers.credentials import check_comet_key, read_key, require, variable
from lockstep.trackers.service import Row, ServiceLoggerCallback, TrackedRun
from lockstep.trackers.values import Outcome, numbers_in, parameters_in, run_key

__all__ = [
    "CometLoggerCallback",
    "comet_arguments",
    "end_experiment",
    "open_experiment",
    "quiet_comet",
]

_OURS = ("experiment_key", "previous_experiment")
# What Comet logs by itself is about this process, and this process does not train.
_DRIVER = {
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
_OPENING = threading.Lock()


class CometLoggerCallback(ServiceLoggerCallback):
    """Logs every trial to Comet: its config as parameters, each report as metrics, how it ended.

    The experiment's key is made from the trial's id, so a restored trial goes on in its experiment.

    Args:
        online: False writes an archive for ``comet upload`` instead.
        tags: added to each experiment.
        save_checkpoints: upload each checkpoint as a model.
        **experiment_kwargs: for Comet, such as ``api_key``, ``project_name``, ``workspace`` and,
            offline, ``offline_directory``; else those of its ``ExperimentConfig``. One that Comet
            does not know is an error of ``fit()``, before anything starts.

    Raises:
        ImportError: comet_ml is not installed.
        ValueError: an argument that is not the caller's to choose.
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
        for name in _OURS:
            if name in experiment_kwargs:
                raise ValueError(
                    f"CometLoggerCallback({name}={experiment_kwargs[name]!r}): the callback "
                    "chooses it, so that each trial has one experiment; leave it out."
                )
        if isinstance(tags, str):
            raise TypeError(f"CometLoggerCallback(tags={tags!r}): expected a list.")
        self.online = online
        self.tags = tuple(tags or ())
        self.save_checkpoints = save_checkpoints
        self.api_key = read_key(experiment_kwargs.pop("api_key", None), None)
        self.experiment_kwargs = experiment_kwargs

    def check_before_run(self) -> None:
        """Refuses to go online without a key, and arguments that Comet does not know."""
        comet_arguments("CometLoggerCallback", self.experiment_kwargs)
        if self.online and self.api_key is None:
            check_comet_key()

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Begins the experiment, or goes on with it."""
        return _CometRun(self, trial)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """The numbers."""
        return numbers_in(result)


class _CometRun(TrackedRun):
    def __init__(self, callback: CometLoggerCallback, trial: TrialSnapshot) -> None:
        self._callback = callback
        with _beside_others():
            self._experiment = open_experiment(
                online=callback.online,
                key=run_key(trial.experiment_name, trial.trial_id),
                goes_on=trial.restored,
                api_key=callback.api_key,
                **_DRIVER | comet_arguments("CometLoggerCallback", callback.experiment_kwargs),
            )
        self._experiment.set_name(str(trial))
        if callback.tags:
            self._experiment.add_tags([*callback.tags])
        self._experiment.log_parameters(parameters_in(trial.config))
        self._experiment.log_other("trial_id", trial.trial_id)

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            self._experiment.log_metrics(row.values, step=row.step)

    def save(self, checkpoint: Checkpoint) -> None:
        if not self._callback.save_checkpoints or checkpoint.path is None:
            return
        try:
            with checkpoint.as_directory() as directory:
                name = Path(checkpoint.path).name
                # Copied: what is read later may have been deleted by then.
                self._experiment.log_model(name, directory, copy_to_tmp=True)
        except (FileNotFoundError, StorageError):
            pass  # CheckpointConfig(num_to_keep=…) has deleted it meanwhile

    def end(self, outcome: Outcome) -> None:
        end_experiment(self._experiment, outcome)


def comet_arguments(who: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for Comet under the names that ``open_experiment`` takes.

    Raises:
        TypeError: Comet does not know one of them, or it was given twice.
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
    goes_on: bool,
    api_key: str | None,
    project_name: str | None = None,
    workspace: str | None = None,
    **arguments: Any,
) -> Any:
    """A new experiment under this key, or the existing one of that key.

    Offline, what goes on is in an archive of its own. It may be uploaded without the first, which
    a process that was killed has not left.
    """
    import comet_ml

    with quiet_comet(logging.CRITICAL):  # what goes wrong is raised as well
        return comet_ml.start(
            # Comet itself would not see the variables that are lockstep.init()'s.
            api_key=api_key or variable("COMET_API_KEY"),
            project_name=project_name or variable("COMET_PROJECT_NAME"),
            workspace=workspace or variable("COMET_WORKSPACE"),
            experiment_key=key,
            mode="get_or_create" if goes_on else "create",
            online=online,
            experiment_config=comet_ml.ExperimentConfig(**arguments),
        )


@contextmanager
def _beside_others() -> Iterator[None]:
    """Comet ends the experiment of this process when another begins: here both go on."""
    from comet_ml.config import get_global_experiment, set_global_experiment

    with _OPENING:
        current = get_global_experiment()
        set_global_experiment(None)
        try:
            yield
        finally:
            set_global_experiment(current)


def end_experiment(experiment: Any, outcome: Outcome) -> None:
    """Say how it ended, wait for the upload, and release everything."""
    experiment.log_other("status", outcome)
    if outcome != "finished":
        experiment.add_tag(outcome)
    with quiet_comet():
        experiment.end()


@contextmanager
def quiet_comet(level: int = logging.ERROR) -> Iterator[None]:
    """Only Comet's errors are printed: the driver's terminal shows the run."""
    logger = logging.getLogger("comet_ml")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
