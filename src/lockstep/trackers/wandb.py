"""Weights & Biases: a run's config, metrics and checkpoints, online or in offline files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.metrics import flatten
from lockstep.trackers.credentials import check_wandb_key, init_variables, read_key, require
from lockstep.trackers.service import (
    LOG_PREFIX,
    Row,
    ServiceLoggerCallback,
    TrackedRun,
    refuse_arguments,
)
from lockstep.trackers.undelivered import plain_arguments
from lockstep.trackers.values import Outcome, numeric_metrics

__all__ = ["WANDB_EXIT_CODE", "WandbLoggerCallback", "given_settings", "wandb_settings"]

WANDB_EXIT_CODE: dict[Outcome, int] = {"finished": 0, "failed": 1, "stopped": 255}
"""wandb itself uses 255 for Ctrl-C, and shows such a run as killed."""

INIT_S = 30.0
"""How long ``wandb.init`` waits for the service; a process that exits waits as long."""

LOG_STEP = "log_step"
"""The step of ``train.log()``; charts of its metrics are drawn over it."""

_RESERVED = ("config", "id", "reinit", "resume")


class WandbLoggerCallback(ServiceLoggerCallback):
    """Logs every trial to Weights & Biases: its config, each report, the outcome.

    The run's id is the trial's id, so a restored trial resumes its run. The step is the training
    iteration, or the next free step after a retry went back to a checkpoint; charts are drawn over
    ``training_iteration``.

    Args:
        project, group: of the run; the group is by default the experiment's name.
        api_key: the key; by default ``WANDB_API_KEY``, or what ``wandb login`` has stored.
        api_key_file: a file with the key.
        excludes: metrics and parameters to leave out.
        log_config: also log the config's numbers with each report.
        upload_checkpoints: upload each checkpoint as an artifact.
        save_checkpoints: the older name of ``upload_checkpoints``.
        upload_timeout: how many seconds the end of the run may wait for the upload.
        **kwargs: for ``wandb.init``, such as ``mode="offline"``, ``dir``, ``entity``, ``tags``.

    Raises:
        ImportError: wandb is not installed.
        ValueError: both a key and a key file are given, or an argument that the callback chooses.
    """

    secrets: ClassVar[tuple[str, ...]] = ("api_key",)

    def __init__(
        self,
        project: str | None = None,
        group: str | None = None,
        api_key_file: str | os.PathLike[str] | None = None,
        api_key: str | None = None,
        excludes: Collection[str] | None = None,
        log_config: bool = False,
        upload_checkpoints: bool = False,
        save_checkpoints: bool = False,
        upload_timeout: float | None = None,
        **kwargs: Any,
    ) -> None:
        require("wandb", "wandb", "WandbLoggerCallback")
        super().__init__()
        refuse_arguments("WandbLoggerCallback", kwargs, _RESERVED, "run")
        if isinstance(excludes, str):
            raise TypeError(f"WandbLoggerCallback(excludes={excludes!r}): expected a list.")
        if kwargs.get("settings") is not None:
            kwargs["settings"] = settings = given_settings(kwargs["settings"])
            api_key = settings.pop("api_key", None) or api_key
        read_key(api_key, api_key_file)
        self.project = project
        self.group = group
        self.api_key_file = None if api_key_file is None else os.fspath(api_key_file)
        self.api_key = api_key
        self.excludes = tuple(excludes or ())
        self.log_config = log_config
        self.upload_checkpoints = upload_checkpoints or save_checkpoints
        self.end_timeout_s = upload_timeout
        self.kwargs = kwargs

    def check_before_run(self) -> None:
        """Raise ValueError if the run is online and there is no key."""
        if read_key(self.api_key, self.api_key_file) is None:
            settings = given_settings(self.kwargs.get("settings"))
            check_wandb_key(self.kwargs.get("mode") or settings.get("mode"))

    def arguments(self) -> dict[str, Any]:
        """What ``lockstep sync`` creates this callback with."""
        own = {"project": self.project, "group": self.group, "excludes": self.excludes}
        return plain_arguments({**self.kwargs, **own, "log_config": self.log_config})

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Create the run, or resume it."""
        return _WandbRun(self, trial)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return the numbers."""
        values: dict[str, Any] = numeric_metrics(result, self.excludes)
        if self.log_config:
            values.update(
                numeric_metrics(flatten({"config": result.get("config", {})}), self.excludes)
            )
        return values


class _WandbRun(TrackedRun):
    def __init__(self, callback: WandbLoggerCallback, trial: TrialSnapshot) -> None:
        import wandb

        self.saves_checkpoints = callback.upload_checkpoints
        self._trial_id = trial.trial_id
        config = {k: v for k, v in trial.config.items() if k not in callback.excludes}
        chosen: dict[str, Any] = {
            "project": callback.project,
            "group": callback.group or trial.experiment_name,
            "name": trial.title,
            **callback.kwargs,
        }
        key = read_key(callback.api_key, callback.api_key_file)
        self._run = wandb.init(
            id=trial.trial_id,
            resume="allow",  # also offline: `wandb sync` then knows which files belong together
            config=config,
            reinit="create_new",  # a run of the user's own in this process stays open
            **{**chosen, "settings": wandb_settings(key, chosen.get("settings"))},
        )
        self._run.define_metric("training_iteration", hidden=True)
        self._run.define_metric("*", step_metric="training_iteration")
        self._run.define_metric(LOG_STEP, hidden=True)
        self._run.define_metric(f"{LOG_PREFIX}*", step_metric=LOG_STEP)
        self._step = self._run.step - 1 if self._run.resumed else -1

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            # wandb's steps must increase, but a retry reports some iterations again.
            self._step = max(0 if row.logged else row.step, self._step + 1)
            values = {**row.values, LOG_STEP: row.step} if row.logged else row.values
            self._run.log(values, step=self._step)

    def save(self, name: str, directory: str) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoint_{self._trial_id}", type="model")
        for path in sorted(Path(directory).rglob("*")):
            if path.is_file():  # add_dir would print
                artifact.add_file(str(path), str(path.relative_to(directory)))
        self._run.log_artifact(artifact, aliases=["latest", name])

    def end(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=WANDB_EXIT_CODE[outcome])


def wandb_settings(api_key: str | None, given: Any = None) -> Any:
    """Return settings for a run in the driver: wandb neither prints nor captures output."""
    import wandb

    settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_S)
    settings.update_from_env_vars(init_variables("WANDB_"))
    if api_key is not None:
        settings.api_key = api_key
    for name, value in given_settings(given).items():
        setattr(settings, name, value)
    return settings


def given_settings(given: Any) -> dict[str, Any]:
    """Return the settings that the user chose, in a dict or in wandb's own object."""
    if given is None or isinstance(given, dict):
        return dict(given or {})
    return {name: getattr(given, name) for name in given.model_fields_set}
