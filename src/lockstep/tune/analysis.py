"""The result of ``tune.run``: an experiment's trials, and which of them is best."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lockstep.callback import TrialStatus
from lockstep.metrics import flatten, look_up
from lockstep.result import Result
from lockstep.run_layout import error_file
from lockstep.storage import open_storage
from lockstep.tune.experiment.records import ExperimentRecords
from lockstep.tune.result_grid import NoBestTrial, ResultGrid
from lockstep.tune.search.space import evaluated_params

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.fs

    from lockstep.checkpoint import Checkpoint

__all__ = ["AnalysedTrial", "ExperimentAnalysis"]

_STATUS: dict[str, TrialStatus] = {"finished": "TERMINATED", "failed": "ERROR"}


class AnalysedTrial:
    """A trial of an experiment that has run, under the names of Ray's ``Trial``.

    Attributes:
        result: the trial's Result.
    """

    PENDING: ClassVar[TrialStatus] = "PENDING"
    RUNNING: ClassVar[TrialStatus] = "RUNNING"
    PAUSED: ClassVar[TrialStatus] = "PAUSED"
    TERMINATED: ClassVar[TrialStatus] = "TERMINATED"
    ERROR: ClassVar[TrialStatus] = "ERROR"

    def __init__(self, result: Result, param_space: Mapping[str, Any] | None = None) -> None:
        self.result = result
        self._space = param_space

    @property
    def trial_id(self) -> str:
        """The trial's id."""
        return str(self.last_result.get("trial_id") or Path(self.path).name)

    @property
    def config(self) -> dict[str, Any]:
        """The trial's config."""
        return self.result.config

    @property
    def evaluated_params(self) -> dict[str, Any]:
        """The searched part of the config; all of it if the space is not known."""
        if self._space is None:
            return flatten(self.config)
        return evaluated_params(self._space, self.config)

    @property
    def last_result(self) -> dict[str, Any]:
        """The trial's last row."""
        return self.result.metrics

    @property
    def metric_analysis(self) -> dict[str, dict[str, float]]:
        """The largest, smallest, last and average value of each reported number."""
        frame = self.result.metrics_dataframe.select_dtypes("number")
        return {
            str(name): {
                "max": column.max(),
                "min": column.min(),
                "avg": column.mean(),
                "last": column.iloc[-1],
                "last-5-avg": column.tail(5).mean(),
                "last-10-avg": column.tail(10).mean(),
            }
            for name, column in frame.items()
        }

    @property
    def status(self) -> TrialStatus:
        """``TERMINATED``, ``ERROR``, or ``PENDING`` if the trial is unfinished."""
        return _STATUS.get(self.result.state, "PENDING")

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The trial's newest checkpoint."""
        return self.result.checkpoint

    @property
    def path(self) -> str:
        """The trial's directory."""
        return self.result.path

    logdir = local_path = path

    @property
    def local_dir(self) -> str:
        """The experiment's directory."""
        return self.path.rpartition("/")[0]

    def is_finished(self) -> bool:
        """Whether the trial is over."""
        return self.status in ("TERMINATED", "ERROR")

    @property
    def error_file(self) -> str | None:
        """The file with the tracebacks of the trial's failures; None if there is none."""
        return error_file(self.path)

    def __getattr__(self, name: str) -> Any:
        """The other attributes of the Result."""
        if name.startswith("_") or name == "result":
            raise AttributeError(name)
        return getattr(self.result, name)

    def __repr__(self) -> str:
        return f"AnalysedTrial({self.trial_id}, {self.status})"


class ExperimentAnalysis:
    """The results of ``tune.run``, or of the experiment in a directory.

    Args:
        experiment: a ``ResultGrid`` (it is ``.grid``), or the directory of an experiment.
        default_metric, default_mode: which trial is best; by default the experiment's own.
        storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``experiment`` is a path on.
        param_space: the space that the experiment searched.
    """

    def __init__(
        self,
        experiment: ResultGrid | str | os.PathLike[str],
        default_metric: str | None = None,
        default_mode: str | None = None,
        *,
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
        param_space: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(experiment, ResultGrid):
            records = ExperimentRecords(open_storage(experiment, storage_filesystem))
            default_metric = default_metric or records.header["metric"]
            default_mode = default_mode or records.header["mode"]
            experiment = ResultGrid.of(records, default_metric, default_mode)
        self.grid: ResultGrid = experiment
        self.default_metric = default_metric
        self.default_mode = default_mode
        self._space = param_space

    @property
    def experiment_path(self) -> str:
        """The experiment's directory."""
        return self.grid.experiment_path

    @property
    def trials(self) -> list[AnalysedTrial]:
        """Every trial."""
        return [AnalysedTrial(result, self._space) for result in self.grid]

    @property
    def best_trial(self) -> AnalysedTrial:
        """The best trial."""
        best = self.get_best_trial()
        if best is None:
            raise ValueError(
                f"best_trial: none of {len(self.grid)} trial(s) has reported a finite "
                f"{self.default_metric!r}."
            )
        return best

    @property
    def best_config(self) -> dict[str, Any]:
        """The config of the best trial."""
        return self.best_trial.config

    @property
    def best_result(self) -> dict[str, Any]:
        """The last row of the best trial."""
        return self.best_trial.last_result

    @property
    def best_checkpoint(self) -> Checkpoint | None:
        """The best checkpoint of the best trial."""
        return self.get_best_checkpoint(self.best_trial)

    @property
    def best_logdir(self) -> str:
        """The directory of the best trial."""
        return self.best_trial.path

    @property
    def best_result_df(self) -> pd.DataFrame:
        """The last row of the best trial, with the trial's id as the index."""
        frame = self.results_df
        return frame.loc[[self.best_trial.trial_id]]

    @property
    def best_dataframe(self) -> pd.DataFrame:
        """Every row of the best trial."""
        return self.best_trial.result.metrics_dataframe

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """Trial id → the trial's last row."""
        return {trial.trial_id: trial.last_result for trial in self.trials}

    @property
    def results_df(self) -> pd.DataFrame:
        """One row a trial, with the trial's id as the index."""
        frame = self.grid.get_dataframe()
        return frame.set_index("trial_id") if "trial_id" in frame else frame

    @property
    def trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """A trial's directory → every row of the trial."""
        return {result.path: result.metrics_dataframe for result in self.grid}

    def dataframe(self, metric: str | None = None, mode: str | None = None) -> pd.DataFrame:
        """One row a trial: the last, or with a metric and a mode the best."""
        return self.grid.get_dataframe(metric, mode)

    def fetch_trial_dataframes(self) -> dict[str, pd.DataFrame]:
        """The older way to ``trial_dataframes``."""
        return self.trial_dataframes

    def get_all_configs(self, prefix: bool = False) -> dict[str, dict[str, Any]]:
        """A trial's directory → the trial's config.

        Args:
            prefix: put ``config/`` before each name.
        """
        before = "config/" if prefix else ""
        return {
            result.path: {before + name: value for name, value in (result.config or {}).items()}
            for result in self.grid
        }

    def get_best_trial(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> AnalysedTrial | None:
        """The best trial; see ``ResultGrid.get_best_result``. None if no trial has the metric."""
        try:
            best = self.grid.get_best_result(
                metric or self.default_metric, mode or self.default_mode, scope, filter_nan_and_inf
            )
        except NoBestTrial as error:
            warnings.warn(f"{error}", UserWarning, stacklevel=2)
            return None
        return AnalysedTrial(best, self._space)

    def get_best_config(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> dict[str, Any] | None:
        """The config of the best trial; None if no trial has the metric."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.config

    def get_best_logdir(
        self, metric: str | None = None, mode: str | None = None, scope: str = "last"
    ) -> str | None:
        """The directory of the best trial; None if no trial has the metric."""
        best = self.get_best_trial(metric, mode, scope)
        return None if best is None else best.path

    def get_trial_checkpoints_paths(
        self, trial: AnalysedTrial | Result, metric: str | None = None
    ) -> list[tuple[str, Any]]:
        """The path of each of a trial's checkpoints, with the metric it was reported with.

        Args:
            trial: the trial.
            metric: by default the analysis's own; without any, ``training_iteration``.
        """
        name = metric or self.default_metric or "training_iteration"
        result = trial.result if isinstance(trial, AnalysedTrial) else trial
        return [
            (str(checkpoint.path), look_up(metrics, name))
            for checkpoint, metrics in result.best_checkpoints
        ]

    def get_best_checkpoint(
        self,
        trial: AnalysedTrial | Result,
        metric: str | None = None,
        mode: str | None = None,
    ) -> Checkpoint | None:
        """A trial's best checkpoint; the newest one if there is no metric."""
        metric, mode = metric or self.default_metric, mode or self.default_mode
        if metric is None or mode is None:
            return trial.checkpoint
        result = trial.result if isinstance(trial, AnalysedTrial) else trial
        return result.get_best_checkpoint(metric, mode)  # type: ignore[arg-type]  # checked there

    def get_last_checkpoint(
        self,
        trial: AnalysedTrial | Result | None = None,
        metric: str = "training_iteration",
        mode: str = "max",
    ) -> Checkpoint | None:
        """The newest checkpoint of a trial, by default of the trial that is best by the metric."""
        chosen = trial or self.get_best_trial(metric, mode)
        return None if chosen is None else chosen.checkpoint

    def __repr__(self) -> str:
        best = ""
        with suppress(ValueError):
            best = f", best config {self.best_config}"
        return f"ExperimentAnalysis({len(self.grid)} trials in {self.experiment_path!r}{best})"
