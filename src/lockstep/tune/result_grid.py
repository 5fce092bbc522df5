"""ResultGrid: the results of an experiment's trials, read from their directories on access."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from lockstep.journal.records import RunRecords
from lockstep.metrics import first_of, flatten, look_up
from lockstep.result import Result
from lockstep.storage import Storage, open_storage
from lockstep.tune import plots
from lockstep.tune.experiment.records import ExperimentRecords, final_status

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.fs

__all__ = ["NoBestTrial", "ResultGrid", "check_scope"]

_SCOPES = ("last", "avg", "last-5-avg", "last-10-avg", "all")


_RETURNED = "_metric"
"""What a number that a function returns is reported as."""


class NoBestTrial(ValueError):
    """No trial has reported the metric."""


class ResultGrid(Sequence[Result]):
    """The results of an experiment's trials, in the order of the trials.

    A result is read from its directory when it is accessed, so thousands of trials cost nothing.

    Args:
        experiment: the experiment's directory.
        statuses: the directory of each trial's run → the trial's status, in order.
        metric, mode: which trial is best.

    Attributes:
        experiment_path: the experiment's directory.
    """

    def __init__(
        self, experiment: Storage, statuses: Mapping[str, str], metric: Any = None, mode: Any = None
    ) -> None:
        self._experiment = experiment
        self._directories = list(statuses)
        self._failed = [i for i, status in enumerate(statuses.values()) if status == "ERROR"]
        self._terminated = sum(status == "TERMINATED" for status in statuses.values())
        self._metric, self._mode = first_of(metric), first_of(mode)

    @classmethod
    def from_path(
        cls,
        path: str | os.PathLike[str],
        storage_filesystem: pyarrow.fs.FileSystem | None = None,
    ) -> ResultGrid:
        """Read the results of the experiment in a directory, also while it runs.

        Metric and mode are those of the experiment's ``TuneConfig``. Nothing that the directory
        contains is executed.

        Args:
            path: the experiment's directory.
            storage_filesystem: a ``pyarrow.fs.FileSystem`` that ``path`` is a path on.

        Raises:
            FileNotFoundError: there is no experiment.
        """
        records = ExperimentRecords(open_storage(path, storage_filesystem))
        return cls.of(records, records.header["metric"], records.header["mode"])

    @classmethod
    def of(cls, records: ExperimentRecords, metric: Any, mode: Any) -> ResultGrid:
        """Internal: the results of an experiment whose journal was read."""
        statuses = {
            trial.directory: final_status(trial, run)
            for trial in records.trials.values()
            if (run := records.read_run(trial)) is not None
        }
        return cls(records.storage, statuses, metric, mode)

    @property
    def experiment_path(self) -> str:
        """The experiment's directory (a path on ``filesystem``)."""
        return self._experiment.root

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The Arrow filesystem that ``experiment_path`` is on."""
        return self._experiment.filesystem

    def __len__(self) -> int:
        return len(self._directories)

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> list[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | list[Result]:
        if isinstance(index, slice):
            return [Result(self._experiment.child(name)) for name in self._directories[index]]
        return Result(self._experiment.child(self._directories[index]))

    def __iter__(self) -> Iterator[Result]:
        return (Result(self._experiment.child(name)) for name in self._directories)

    def index_of(self, directory: str) -> int:
        """Internal: the position of the trial whose run is in this directory."""
        return self._directories.index(directory)

    @property
    def errors(self) -> list[BaseException]:
        """The exceptions of the trials that failed."""
        found = (self[index].error for index in self._failed)
        return [error for error in found if error is not None]

    @property
    def num_errors(self) -> int:
        """How many trials failed."""
        return len(self._failed)

    @property
    def num_terminated(self) -> int:
        """How many trials ended without an error, early or not."""
        return self._terminated

    def get_best_result(
        self,
        metric: str | None = None,
        mode: str | None = None,
        scope: str = "last",
        filter_nan_and_inf: bool = True,
    ) -> Result:
        """The result of the best trial.

        Args:
            metric, mode: which trial is best; by default the ``TuneConfig``'s.
            scope: which of a trial's reports count: the ``"last"``, their average (``"avg"``,
                ``"last-5-avg"``, ``"last-10-avg"``), or the best of ``"all"``.
            filter_nan_and_inf: ignore values that are not finite.

        Raises:
            ValueError: no metric or no mode is given (a single trial is the best without them), or
                no trial has reported it.
        """
        known = (metric or self._metric) is not None and (mode or self._mode) is not None
        if len(self) == 1 and not known:
            return self[0]
        metric, mode = self._objective("get_best_result", metric, mode)
        check_scope("get_best_result", scope)
        best: tuple[float, int] | None = None
        for index in range(len(self)):
            score = self._score(index, metric, mode, scope, filter_nan_and_inf)
            if score is None:
                continue
            if best is None or (score > best[0] if mode == "max" else score < best[0]):
                best = (score, index)
        if best is None:
            raise NoBestTrial(
                f"get_best_result(metric={metric!r}): none of {len(self)} trial(s) has reported "
                f"a finite number of that name. {self._reported()}; look at .errors, too, or give "
                "filter_nan_and_inf=False."
            )
        return self[best[1]]

    def get_dataframe(
        self, filter_metric: str | None = None, filter_mode: str | None = None
    ) -> pd.DataFrame:
        """One row a trial: the last report, or with a metric and a mode the best one.

        Configs are in ``config/…`` columns; ``logdir`` is the trial's directory.

        Raises:
            ValueError: no trial has reported ``filter_metric``; names what trials have reported.
        """
        import pandas as pd

        if filter_metric is None and filter_mode is not None:
            raise ValueError(
                f"get_dataframe(filter_mode={filter_mode!r}): give filter_metric=…, too."
            )
        if filter_mode not in (None, "min", "max"):
            raise ValueError(
                f"get_dataframe(filter_mode={filter_mode!r}): expected 'min' or 'max'."
            )
        rows = []
        scored = filter_metric is None or not self._directories
        for index, name in enumerate(self._directories):
            row = self._row(index, filter_metric, filter_mode)
            scored = scored or look_up(row, str(filter_metric)) is not None
            flat = flatten({key: value for key, value in row.items() if key != "config"})
            config = flatten({"config": row["config"]})
            rows.append({**flat, **config, "logdir": self._experiment.path(name)})
        if not scored:
            raise ValueError(
                f"get_dataframe(filter_metric={filter_metric!r}): no trial has reported it. "
                f"{self._reported()}."
            )
        return pd.DataFrame(rows)

    def plot_history(self, metric: str | None = None, mode: str | None = None) -> Any:
        """See :func:`lockstep.tune.plots.plot_history`."""
        return plots.plot_history(self, metric, mode)

    def plot_learning_curves(
        self, metric: str | None = None, mode: str | None = None, top: int | None = None
    ) -> Any:
        """See :func:`lockstep.tune.plots.plot_learning_curves`."""
        return plots.plot_learning_curves(self, metric, mode, top)

    def plot_parallel_coordinates(
        self,
        params: Sequence[str] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> Any:
        """See :func:`lockstep.tune.plots.plot_parallel_coordinates`."""
        return plots.plot_parallel_coordinates(self, params, metric, mode)

    def plot_importance(
        self,
        params: Sequence[str] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> Any:
        """See :func:`lockstep.tune.plots.plot_importance`."""
        return plots.plot_importance(self, params, metric, mode)

    def __repr__(self) -> str:
        return (
            f"ResultGrid({len(self)} trials, {self.num_terminated} terminated, "
            f"{self.num_errors} failed, {self._experiment.uri!r})"
        )

    def _objective(self, caller: str, metric: str | None, mode: str | None) -> tuple[str, str]:
        """The metric and the mode, by default the experiment's own. ``plots`` asks, too."""
        metric = metric or self._metric
        mode = mode or self._mode
        if metric is None and any(_RETURNED in result.reported_metrics for result in self):
            metric = _RETURNED  # functions that return a number
        if metric is None or mode is None:
            missing = "metric" if metric is None else "mode"
            raise ValueError(
                f"{caller}(): give {missing}=…, here or to TuneConfig; without it no trial is "
                "the best."
            )
        if mode not in ("min", "max"):
            raise ValueError(f"{caller}(mode={mode!r}): expected 'min' or 'max'.")
        return metric, mode

    def _reported(self) -> str:
        """Which metrics there are, for an error."""
        found: dict[str, None] = {}
        for result in self:
            found |= dict.fromkeys(flatten(result.reported_metrics))
        return f"Reported were {', '.join(map(repr, found)) or 'no metrics'}"

    def _records(self, index: int) -> RunRecords:
        return RunRecords(self._experiment.child(self._directories[index]))

    def _rows(self, index: int) -> Iterator[dict[str, Any]]:
        records = self._records(index)
        return (records.row(report) for report in records.reports())

    def _score(
        self, index: int, metric: str, mode: str, scope: str, finite_only: bool
    ) -> float | None:
        if scope == "last":
            values = [look_up(self[index].metrics, metric)]
        else:
            values = [look_up(row, metric) for row in self._rows(index)]
            if scope.startswith("last-"):
                values = values[-int(scope.split("-")[1]) :]
        numbers = [
            float(value)
            for value in values
            if isinstance(value, (int, float)) and (math.isfinite(value) or not finite_only)
        ]
        if not numbers:
            return None
        if scope == "all":
            return max(numbers) if mode == "max" else min(numbers)
        return sum(numbers) / len(numbers)

    def _row(self, index: int, metric: str | None, mode: str | None) -> dict[str, Any]:
        result = self[index]
        row = result.metrics
        if metric is not None and mode is not None:
            scored = [
                (value, row)
                for row in self._rows(index)
                if isinstance(value := look_up(row, metric), (int, float)) and value == value
            ]
            if scored:
                pick = max if mode == "max" else min
                row = pick(scored, key=lambda pair: pair[0])[1]
        return {**row, "config": result.config}


def check_scope(caller: str, scope: str) -> None:
    """Raise unless ``get_best_result`` knows this ``scope``."""
    if scope not in _SCOPES:
        raise ValueError(f"{caller}(scope={scope!r}): expected one of {', '.join(_SCOPES)}.")
