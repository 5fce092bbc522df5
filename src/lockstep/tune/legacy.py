"""``tune.run`` and what it returns, for scripts that were written before ``Tuner``."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.config import CheckpointConfig, FailureConfig, RunConfig
from lockstep.errors import TrainingFailedError
from lockstep.result import Result
from lockstep.tune.parameters import with_resources
from lockstep.tune.result_grid import ResultGrid
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.tune_config import TuneConfig
from lockstep.tune.tuner import Tuner

if TYPE_CHECKING:
    import pandas as pd

    from lockstep.checkpoint import Checkpoint

__all__ = ["ExperimentAnalysis", "run"]


def run(
    run_or_experiment: Any,
    *,
    name: str | None = None,
    metric: str | None = None,
    mode: str | None = None,
    stop: Any = None,
    time_budget_s: float | datetime.timedelta | None = None,
    config: Mapping[str, Any] | None = None,
    resources_per_trial: Any = None,
    num_samples: int = 1,
    storage_path: str | Path | None = None,
    local_dir: str | Path | None = None,
    search_alg: Searcher | None = None,
    scheduler: TrialScheduler | None = None,
    checkpoint_config: CheckpointConfig | None = None,
    keep_checkpoints_num: int | None = None,
    checkpoint_score_attr: str | None = None,
    checkpoint_freq: int = 0,
    checkpoint_at_end: bool = False,
    verbose: int = 1,
    callbacks: Sequence[Any] = (),
    max_failures: int = 0,
    fail_fast: Any = False,
    resume: bool | str = False,
    reuse_actors: bool | None = None,
    raise_on_failed_trial: bool = True,
    trial_name_creator: Callable[[Any], str] | None = None,
    trial_dirname_creator: Callable[[Any], str] | None = None,
    max_concurrent_trials: int | None = None,
) -> ExperimentAnalysis:
    """Run trials: the older spelling of ``Tuner(…).fit()``.

    Args:
        run_or_experiment: what ``Tuner`` takes.
        name: the experiment's directory in ``storage_path`` (``local_dir`` is its older name).
        config: ``Tuner``'s ``param_space``.
        resources_per_trial: as for ``tune.with_resources``.
        checkpoint_config: or, in its older parts, ``keep_checkpoints_num``,
            ``checkpoint_score_attr`` (``"min-loss"`` for the smallest), ``checkpoint_freq`` and
            ``checkpoint_at_end``.
        resume: True or ``"AUTO"`` goes on with an unfinished experiment of this name.
        raise_on_failed_trial: raise if a trial has failed.
        metric, mode, stop, time_budget_s, num_samples, search_alg, scheduler, verbose, callbacks,
            max_failures, fail_fast, reuse_actors, trial_name_creator, trial_dirname_creator,
            max_concurrent_trials: see ``TuneConfig``, ``RunConfig`` and ``FailureConfig``.

    Raises:
        TrainingFailedError: trials have failed; ``.worker_failures`` has their errors by number.
    """
    if storage_path is not None and local_dir is not None:
        raise ValueError("tune.run(local_dir=…) is the older name of storage_path; give one.")
    trainable = run_or_experiment
    if resources_per_trial is not None:
        trainable = with_resources(trainable, resources_per_trial)
    if resume not in (False, None, True, "AUTO", "auto", "LOCAL"):
        raise ValueError(f"tune.run(resume={resume!r}): expected True, False or 'AUTO'.")
    kept = checkpoint_config or _older_checkpoint_config(
        keep_checkpoints_num, checkpoint_score_attr, checkpoint_freq, checkpoint_at_end
    )
    run_config = RunConfig(
        name=name,
        storage_path=storage_path or local_dir,
        failure_config=FailureConfig(max_failures=max_failures, fail_fast=fail_fast),
        checkpoint_config=kept,
        callbacks=tuple(callbacks or ()),
        stop=stop,
        verbose=min(verbose, 2),  # type: ignore[arg-type]
        resume="auto" if resume and name is not None else "never",
    )
    tune_config = TuneConfig(
        metric=metric,
        mode=mode,
        search_alg=search_alg,
        scheduler=scheduler,
        num_samples=num_samples,
        max_concurrent_trials=max_concurrent_trials,
        time_budget_s=time_budget_s,
        reuse_actors=reuse_actors,
        trial_name_creator=trial_name_creator,
        trial_dirname_creator=trial_dirname_creator,
    )
    tuner = Tuner(trainable, param_space=config, tune_config=tune_config, run_config=run_config)
    analysis = ExperimentAnalysis(tuner.fit(), metric, mode)
    if raise_on_failed_trial and analysis.grid.num_errors:
        failed = {
            index: error
            for index, result in enumerate(analysis.grid)
            if (error := result.error) is not None
        }
        first = next(iter(failed.values()), None)
        raise TrainingFailedError(
            f"{analysis.grid.num_errors} of {len(analysis.grid)} trials failed, the first with "
            f"{type(first).__name__}: {first}; they are in {analysis.experiment_path}, and "
            "raise_on_failed_trial=False returns what the others achieved.",
            failed,
        ) from first
    return analysis


def _older_checkpoint_config(
    keep: int | None, attribute: str | None, frequency: int, at_end: bool
) -> CheckpointConfig:
    config = CheckpointConfig(
        num_to_keep=keep, checkpoint_frequency=frequency, checkpoint_at_end=at_end or None
    )
    if attribute is not None:
        smallest = attribute.startswith("min-")
        config = replace(
            config,
            checkpoint_score_attribute=attribute.removeprefix("min-"),
            checkpoint_score_order="min" if smallest else "max",
        )
    return config


class ExperimentAnalysis:
    """The results of ``tune.run``. ``.grid`` is the ResultGrid behind it.

    A "trial" here is its Result, which has ``.config``, ``.metrics`` and ``.checkpoint``.
    """

    def __init__(
        self, grid: ResultGrid, default_metric: str | None = None, default_mode: str | None = None
    ) -> None:
        self.grid = grid
        self.default_metric = default_metric
        self.default_mode = default_mode

    @property
    def experiment_path(self) -> str:
        """The experiment's directory."""
        return self.grid.experiment_path

    @property
    def trials(self) -> list[Result]:
        """Every trial's Result."""
        return list(self.grid)

    @property
    def best_trial(self) -> Result:
        """The Result of the best trial."""
        return self.get_best_trial()

    @property
    def best_config(self) -> dict[str, Any]:
        """The config of the best trial."""
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """The last row of the best trial."""
        return self.best_trial.metrics

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of the best trial."""
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_logdir(self) -> str:
        """The directory of the best trial."""
        return self.best_trial.path

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """Every row of the best trial."""
        return self.best_trial.metrics_dataframe

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Trial id → the trial's last row."""
        return {_trial_id(result): result.metrics for result in self.grid}

    @property
    def results_df(self) -> pd.DataFrame:
        """One row a trial, its id as the index."""
        frame = self.grid.get_dataframe()
        return frame.set_index("trial_id") if "trial_id" in frame else frame

    @property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """A trial's directory → every row of it."""
        return {result.path: result.metrics_dataframe for result in self.grid}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """One row a trial: the last, or with a metric and a mode the best."""
        return self.grid.get_dataframe(metric, mode)

    def get_all_configs(self) -> dict[str, dict[str, Any]]:
        """A trial's directory → its config."""
        return {result.path: result.config for result in self.grid}

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The Result of the best trial; see ``ResultGrid.get_best_result``."""
        return self.grid.get_best_result(
            metric or self.default_metric, mode or self.default_mode, scope, filter_nan_and_inf
        )

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any]:
        """The config of the best trial."""
        return self.get_best_trial(metric, mode, scope).config

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> str:
        """The directory of the best trial."""
        return self.get_best_trial(metric, mode, scope).path

    def get_best_checkpoint(
        self, trial: Result, metric: str | None = None, mode: str | None = None
    ) -> Checkpoint | None:
        """A trial's best checkpoint; its newest where there is no metric."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None or mode is None:
            return trial.checkpoint
        return trial.get_best_checkpoint(metric, mode)  # type: ignore[arg-type]

    def get_last_checkpoint(self, trial: Result | None = None) -> Checkpoint | None:
        """The newest checkpoint of a trial, by default of the best one."""
        return (trial or self.best_trial).checkpoint

    def __repr__(self) -> str:
        best = ""
        with suppress(ValueError):
            best = f", best config {self.best_config}"
        return f"ExperimentAnalysis({len(self.grid)} trials in {self.experiment_path!r}{best})"


def _trial_id(result: Result) -> str:
    return str(result.metrics.get("trial_id") or Path(result.path).name)
