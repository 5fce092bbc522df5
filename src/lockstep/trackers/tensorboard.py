"""TensorBoard: event files in the run's directory, written by tensorboardX or by torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

from lockstep.callback import TrialSnapshot
from lockstep.metrics import flatten
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.trackers.values import (
    Outcome,
    flat_parameters,
    numeric_metrics,
    outcome_of,
    report_time,
)

__all__ = ["TBXLoggerCallback"]

LOG_RUN = "log"
"""The directory, below the run, with the event files of ``train.log()``."""

_END_STATUS: dict[Outcome, int] = {"finished": 1, "failed": 2}
"""SUCCESS and FAILURE of TensorBoard's hparams plugin."""


class TBXLoggerCallback(TrackerCallback):
    """Writes event files into the run's directory, for ``tensorboard --logdir <experiment>``.

    Each number of a report is a scalar under its flattened key, at the training iteration; a list
    of numbers is a histogram; the config is the run's hyperparameters. After a retry or a restore
    from a checkpoint, TensorBoard shows the later values. The rows of ``train.log()`` are a run of
    their own, ``log`` below the run, because they have steps of their own.

    Raises:
        ImportError: neither tensorboardX nor tensorboard with torch is installed.
    """

    batched: ClassVar[bool] = True
    takes_logs: ClassVar[bool] = True

    def __init__(self) -> None:
        if importlib.util.find_spec("tensorboardX") is None and not (
            importlib.util.find_spec("tensorboard") and importlib.util.find_spec("torch")
        ):
            raise ImportError(
                "TBXLoggerCallback needs tensorboardX, or tensorboard with torch, to write event "
                "files: pip install tensorboardX."
            )
        self._open: dict[str, _EventFile] = {}

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        """Open an event file and write the hyperparameters."""
        known = self._open.get(trial.trial_id)
        if known is None or known.directory != trial.path:
            # A trial that was paused may have another directory now.
            self._open[trial.trial_id] = _EventFile(trial)
            if known is not None:
                known.close("stopped")
        else:
            known.rewind()

    def on_trial_recover(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Steps may come again."""
        if trial.trial_id in self._open:
            self._open[trial.trial_id].rewind()

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Write the scalars."""
        if trial.trial_id in self._open:
            self._open[trial.trial_id].add(iteration, result)

    def log_trial_rows(self, trial_id: str, rank: int, rows: list[dict[str, Any]]) -> None:
        """Write the numbers of ``train.log()``."""
        if trial_id in self._open:
            self._open[trial_id].add_logs(rank, rows)

    def flush_batch(self) -> None:
        """Make the rows written so far visible."""
        for file in self._open.values():
            file.flush()

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Close the event file."""
        file = self._open.pop(trial.trial_id, None)
        if file is not None:
            file.close(outcome_of(trial, failed))

    def on_experiment_end(self, trials: Sequence[TrialSnapshot], **info: Any) -> None:
        """Close the files of trials that were interrupted or never resumed."""
        with ExitStack() as ends:  # closes every file, even if closing one of them fails
            while self._open:
                ends.callback(self._open.popitem()[1].close, "stopped")

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}


class _Library(NamedTuple):
    """The classes that tensorboardX and torch have under different names."""

    SummaryWriter: Any
    Summary: Any
    hparams: Any
    HParamsPluginData: Any


def _library() -> _Library:
    if importlib.util.find_spec("tensorboardX") is not None:
        places = ("tensorboardX", "tensorboardX.proto.summary_pb2", "tensorboardX.summary")
        plugin = "tensorboardX.proto.plugin_hparams_pb2"
    else:
        torch = "torch.utils.tensorboard"
        places = (torch, "tensorboard.compat.proto.summary_pb2", f"{torch}.summary")
        plugin = "tensorboard.plugins.hparams.plugin_data_pb2"
    writer, summary, hparams, data = map(importlib.import_module, (*places, plugin))
    return _Library(writer.SummaryWriter, summary.Summary, hparams.hparams, data.HParamsPluginData)


class _EventFile:
    def __init__(self, trial: TrialSnapshot) -> None:
        self._trial = trial
        self.directory = trial.path
        self._library = _library()
        self._last_step = 0
        self._tags: dict[str, None] = {}
        self._logs: Any = None
        self._log_steps: Counter[int] = Counter()
        """The step after the highest one, for each rank."""
        self._rewound: set[int] = set()
        """The ranks whose next step may be one that they have logged in an earlier attempt."""
        # A restored run may have written steps after the one it resumes from. They are purged
        # with the first new step, which is not known yet.
        self._writer: Any = None if trial.restored else self._begin(None)

    def add(self, step: int, result: dict[str, Any]) -> None:
        if self._writer is None or step <= self._last_step:
            self.flush()
            if self._writer is not None:
                self._writer.close()
            self._writer = self._begin(step)
        self._last_step = step
        numbers = numeric_metrics(result)
        value = self._library.Summary.Value
        values = [value(tag=key, simple_value=float(number)) for key, number in numbers.items()]
        now = report_time(result)
        self._writer.file_writer.add_summary(self._library.Summary(value=values), step, now)
        self._tags.update(dict.fromkeys(numbers))
        for key, items in flatten(result).items():
            is_numbers = isinstance(items, list) and all(isinstance(i, (int, float)) for i in items)
            if is_numbers and items:
                self._writer.add_histogram(key, items, step, walltime=now)

    def rewind(self) -> None:
        """The trial starts again, maybe with steps that it has logged.

        Only then: a function may log several rows at one step, or epochs beside steps.
        """
        self._rewound = set(self._log_steps)

    def add_logs(self, rank: int, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            next_step = self._log_steps[rank]
            step = next_step if row["step"] is None else int(row["step"])
            if self._logs is None or (rank in self._rewound and step < next_step):
                self._begin_logs(step)
                self._rewound.clear()  # the values of all ranks from that step on are replaced
            self._rewound.discard(rank)
            self._log_steps[rank] = max(step + 1, next_step)
            prefix = "" if rank == 0 else f"rank_{rank}/"
            for key, value in flatten(row["metrics"]).items():
                if isinstance(value, (int, float)):
                    self._logs.add_scalar(f"{prefix}{key}", float(value), step, row["time"])

    def _begin_logs(self, step: int) -> None:
        # After a retry or a restore, TensorBoard shows the later values.
        if self._logs is not None:
            self._logs.close()
        directory = os.path.join(self._trial.path, LOG_RUN)
        os.makedirs(directory, exist_ok=True)
        suffix = f".{len(os.listdir(directory)):03d}"
        self._logs = self._library.SummaryWriter(directory, purge_step=step, filename_suffix=suffix)

    def flush(self) -> None:
        for writer in (self._writer, self._logs):
            if writer is not None:
                writer.flush()

    def close(self, outcome: Outcome) -> None:
        if self._writer is None:
            self._writer = self._begin(None)
        experiment, _, end = self._hparams()
        self._writer.file_writer.add_summary(experiment)
        if outcome in _END_STATUS:  # a stopped run gets no end: TensorBoard keeps the first
            plugin_data = end.value[0].metadata.plugin_data
            data = self._library.HParamsPluginData.FromString(plugin_data.content)
            data.session_end_info.status = _END_STATUS[outcome]
            plugin_data.content = data.SerializeToString()
            self._writer.file_writer.add_summary(end)
        self._writer.close()
        if self._logs is not None:
            self._logs.close()

    def _begin(self, purge_step: int | None) -> Any:
        # Files opened in the same second would share a name; files are read in order of names.
        earlier = sum("tfevents" in name for name in os.listdir(self._trial.path))
        writer = self._library.SummaryWriter(
            self._trial.path, purge_step=purge_step, filename_suffix=f".{earlier:03d}"
        )
        _, start, _ = self._hparams()
        writer.file_writer.add_summary(start)
        writer.flush()
        return writer

    def _hparams(self) -> Any:
        return self._library.hparams(flat_parameters(self._trial.config), self._tags)
