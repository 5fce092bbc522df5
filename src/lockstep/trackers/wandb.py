"""Weights & Biases: a run's config, metrics and checkpoints, online or in offline files."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.checkpoint import Checkpoint
from lockstep.errors import StorageError
from lockstep.metrics import flatten
from lockstep.trackers.credentials import check_wandb_key, init_variables, read_key, require
from lockstep.trackers.service import Row, ServiceLoggerCallback, TrackedRun
from lockstep.trackers.values import Outcome, numbers_in

__all__ = ["WANDB_EXIT_CODE", "WandbLoggerCallback", "given_settings", "wandb_settings"]

WANDB_EXIT_CODE: dict[Outcome, int] = {"finished": 0, "failed": 1, "stopped": 255}
"""255 is what wandb itself uses for Ctrl-C; it shows such a run as killed."""

INIT_S = 30.0
"""How long to wait for the service; a process that exits meanwhile waits as long."""

_OURS = ("config", "id", "reinit", "resume")


class WandbLoggerCallback(ServiceLoggerCallback):
    """Logs every trial to Weights & Biases: its config, each report, how it ended.

    The run's id is the trial's, so a restored trial goes on in its run. The step is the training
    iteration, or the next one that is free after a retry went back to a checkpoint; charts are
    drawn over ``training_iteration``.

    Args:
        project, group: the run's; the group is the experiment's name without.
        api_key: the key; without: ``WANDB_API_KEY``, or what ``wandb login`` has stored.
        api_key_file: a file with the key.
        excludes: metrics and parameters to leave out.
        log_config: log the config's numbers with each report, too.
        upload_checkpoints: upload each checkpoint as an artifact.
        save_checkpoints: the older name of that.
        upload_timeout: how many seconds the end of the run may wait for the upload.
        **kwargs: for ``wandb.init``, such as ``mode="offline"``, ``dir``, ``entity``, ``tags``.

    Raises:
        ImportError: wandb is not installed.
        ValueError: both a key and a key file, or an argument that is not the caller's to choose.
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
        for name in _OURS:
            if name in kwargs:
                raise ValueError(
                    f"WandbLoggerCallback({name}={kwargs[name]!r}): the callback chooses it, so "
                    "that each trial has one run; leave it out."
                )
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
        """Refuses to go online without a key."""
        if read_key(self.api_key, self.api_key_file) is None:
            settings = given_settings(self.kwargs.get("settings"))
            check_wandb_key(self.kwargs.get("mode") or settings.get("mode"))

    def open_run(self, trial: TrialSnapshot) -> TrackedRun:
        """Begins the run, or goes on with it."""
        return _WandbRun(self, trial)

    def values_of(self, result: dict[str, Any]) -> dict[str, Any]:
        """The numbers."""
        values: dict[str, Any] = numbers_in(result, self.excludes)
        if self.log_config:
            values.update(numbers_in(flatten({"config": result.get("config", {})}), self.excludes))
        return values


class _WandbRun(TrackedRun):
    def __init__(self, callback: WandbLoggerCallback, trial: TrialSnapshot) -> None:
        import wandb

        self._callback = callback
        self._trial = trial
        config = {k: v for k, v in trial.config.items() if k not in callback.excludes}
        chosen: dict[str, Any] = {
            "project": callback.project,
            "group": callback.group or trial.experiment_name,
            "name": str(trial),
            **callback.kwargs,
        }
        key = read_key(callback.api_key, callback.api_key_file)
        self._run = wandb.init(
            id=trial.trial_id,
            resume="allow",  # offline, too: `wandb sync` then knows which files belong together
            config=config,
            reinit="create_new",  # the user's own run in this process, if any, stays as it is
            **{**chosen, "settings": wandb_settings(key, chosen.get("settings"))},
        )
        self._run.define_metric("training_iteration", hidden=True)
        self._run.define_metric("*", step_metric="training_iteration")
        self._step = self._run.step - 1 if self._run.resumed else -1

    def log(self, rows: list[Row]) -> None:
        for row in rows:
            # wandb's steps only grow, and a retry reports some iterations once more.
            self._step = max(row.step, self._step + 1)
            self._run.log(row.values, step=self._step)

    def save(self, checkpoint: Checkpoint) -> None:
        import wandb

        if not self._callback.upload_checkpoints or checkpoint.path is None:
            return
        artifact = wandb.Artifact(f"checkpoint_{self._trial.trial_id}", type="model")
        try:
            with checkpoint.as_directory() as directory:
                for path in sorted(Path(directory).rglob("*")):
                    if path.is_file():  # add_dir would print
                        artifact.add_file(str(path), str(path.relative_to(directory)))
        except (FileNotFoundError, StorageError):
            return  # CheckpointConfig(num_to_keep=…) has deleted it meanwhile
        self._run.log_artifact(artifact, aliases=["latest", Path(checkpoint.path).name])

    def end(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=WANDB_EXIT_CODE[outcome])


def wandb_settings(api_key: str | None, given: Any = None) -> Any:
    """Settings for a run in the driver: it neither prints nor takes over the driver's output."""
    import wandb

    settings = wandb.Settings(console="off", silent=True, init_timeout=INIT_S)
    settings.update_from_env_vars(init_variables("WANDB_"))
    if api_key is not None:
        settings.api_key = api_key
    for name, value in given_settings(given).items():
        setattr(settings, name, value)
    return settings


def given_settings(given: Any) -> dict[str, Any]:
    """What a user has chosen in ``settings``, a dict or wandb's own object."""
    if given is None or isinstance(given, dict):
        return dict(given or {})
    return {name: getattr(given, name) for name in given.model_fields_set}
