"""Bringing an experiment back: its trials, and what searcher and scheduler have to be told again.

Nothing of a searcher or scheduler is kept. They are made anew and told what had happened, in the
order it happened: which configs there were, what each trial reported, how it ended.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.records import RunRecords, existing_checkpoints, open_checkpoint
from lockstep.retention import CheckpointRecord
from lockstep.tune.experiment.configs import decode_config
from lockstep.tune.experiment.experiment import ExperimentRecords, TrialRecord
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.result_grid import ResultGrid
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.search.space import evaluated_params
from lockstep.tune.stopper import Stopper

__all__ = ["RestoredTrials", "Resumption", "outcome", "read_grid", "read_run", "revive"]


@dataclass(frozen=True)
class Resumption:
    """What ``Tuner.restore`` was told to go on with."""

    unfinished: bool = True
    errored: bool = False
    restart_errored: bool = False


@dataclass
class RestoredTrials:
    """The trials of an experiment, as they stood."""

    trials: list[Trial] = field(default_factory=list)
    exploits: dict[str, str] = field(default_factory=dict)
    """Of those that are to go on from another trial's checkpoint: which."""
    restarted: list[Trial] = field(default_factory=list)
    """They need a directory of their own again."""
    stopped: list[Trial] = field(default_factory=list)
    """The scheduler had said so at their last report, and the driver died before their end."""
    given_up: list[Trial] = field(default_factory=list)
    """They were not over, and are not gone on with."""
    lost: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Numbers and configs of trials that left nothing but a gap between the others."""
    problems: list[str] = field(default_factory=list)


def read_run(records: ExperimentRecords, trial: TrialRecord) -> RunRecords | None:
    """The journal of a trial's run, None if it has none yet.

    Raises:
        StorageError: it cannot be read, or is damaged.
    """
    with suppress(FileNotFoundError):
        return RunRecords(records.run_storage(trial))
    return None


def outcome(trial: TrialRecord, run: RunRecords | None) -> str:
    """How a trial stands: its run's word counts where the driver was killed before its own."""
    if trial.status in ("TERMINATED", "ERROR"):
        return trial.status
    if run is not None and run.state == "finished":
        return "TERMINATED"
    if run is not None and run.state == "failed":
        return "ERROR"
    return "PAUSED" if trial.status == "PAUSED" else "PENDING"


def read_grid(records: ExperimentRecords, metric: Any, mode: Any) -> ResultGrid:
    """What an experiment has achieved so far."""
    directories: list[str] = []
    failed: list[int] = []
    terminated = 0
    for trial in records.trials.values():
        run = read_run(records, trial)
        if run is None:
            continue
        how = outcome(trial, run)
        if how == "ERROR":
            failed.append(len(directories))
        terminated += how == "TERMINATED"
        directories.append(trial.directory)
    return ResultGrid(records.storage, directories, failed, terminated, metric, mode)


def revive(
    records: ExperimentRecords,
    searcher: Searcher,
    scheduler: TrialScheduler,
    stopper: Any,
    *,
    space: Any,
    trainable_name: str,
    metric: str | None,
    resumption: Resumption,
) -> RestoredTrials:
    """The experiment's trials; ``searcher`` and ``scheduler`` have been told of them."""
    revived = RestoredTrials()
    past = _Past(records, revived, searcher, scheduler, stopper, metric)

    def bring_back(record: TrialRecord) -> _Back:
        run = read_run(records, record)
        kept = _newest(records, record, run)
        trial = _trial(records, record, run, space, trainable_name, revived)
        if kept is not None:
            trial.checkpoint = open_checkpoint(records.run_storage(record), kept)
        ended = outcome(record, run)
        final = ended
        again = ended == "ERROR" and (resumption.errored or resumption.restart_errored)
        if trial.error and not record.error:
            final = "ERROR"  # its config is lost
        elif again:
            final, trial.error = "PENDING", None
        elif not resumption.unfinished and ended in ("PENDING", "PAUSED"):
            final = "TERMINATED"
            revived.given_up.append(trial)
        if again and resumption.restart_errored:
            trial.begun, trial.checkpoint, trial.reports = False, None, 0
            revived.restarted.append(trial)
            run = None
        suggested = _suggested(record, trial, space)
        return _Back(trial, run, suggested, final, 0 if kept is None else kept.index)

    stories = [past.story(record, bring_back) for record in records.trials.values()]
    # Each story goes on when its time has come, and tells what happened then.
    for _ in heapq.merge(*stories):
        pass
    order = {trial_id: place for place, trial_id in enumerate(records.trials)}
    revived.trials.sort(key=lambda trial: order[trial.trial_id])
    return revived


def _trial(
    records: ExperimentRecords,
    record: TrialRecord,
    run: RunRecords | None,
    space: Any,
    trainable_name: str,
    revived: RestoredTrials,
) -> Trial:
    error = record.error
    changed = record.exploit or {}
    try:
        config = decode_config(changed.get("config", record.config), space)
    except ValueError as lost:
        config = dict(run.run["config"]) if run is not None else {}
        if record.status not in ("TERMINATED", "ERROR"):
            error = f"trial {record.trial_id} cannot go on: {lost}"
            revived.problems.append(error)
    trial = Trial(
        record.trial_id,
        record.index,
        config,
        trainable_name=trainable_name,
        experiment_tag=record.tag,
        evaluated_params=evaluated_params(space, config),
        directory=record.directory,
        path=records.storage.path(record.directory),
    )
    trial.error = error
    trial.begun = run is not None
    if changed.get("checkpoint"):
        revived.exploits[trial.trial_id] = changed["checkpoint"]
    return trial


def _newest(
    records: ExperimentRecords, record: TrialRecord, run: RunRecords | None
) -> CheckpointRecord | None:
    """What a trial goes on from, if it does."""
    if run is None or record.status == "TERMINATED":
        return None
    found = existing_checkpoints(records.run_storage(record), run.checkpoints)
    return found[-1] if found else None


def _suggested(record: TrialRecord, trial: Trial, space: Any) -> dict[str, Any]:
    """What the searcher had suggested, whatever a scheduler has made of it."""
    if record.exploit is not None:
        with suppress(ValueError):
            return dict(decode_config(record.config, space))
    return trial.config


class _Back(NamedTuple):
    """A trial that is back, and what there is to tell of it."""

    trial: Trial
    run: RunRecords | None
    suggested: dict[str, Any]
    final: str
    """What it is from now on."""
    told: int
    """The report of the checkpoint that it goes on from, if it does."""


class _Past:
    """Tells searcher, scheduler and stopper what had happened. The scheduler's tune_controller."""

    def __init__(
        self,
        records: ExperimentRecords,
        revived: RestoredTrials,
        searcher: Searcher,
        scheduler: TrialScheduler,
        stopper: Any,
        metric: str | None,
    ) -> None:
        known = {trial.index for trial in records.trials.values()}
        self._gaps = deque(index for index in range(max(known, default=0)) if index not in known)
        self._metric = metric
        self._searcher = searcher
        self._scheduler = scheduler
        self._stopper = stopper if isinstance(stopper, Stopper) else None
        self._revived = revived
        self._known: dict[str, Trial] = {}

    def get_trials(self) -> Sequence[Trial]:
        """Every trial there had been by then."""
        return list(self._known.values())

    def get_live_trials(self) -> Sequence[Trial]:
        """Those that were not over then."""
        return [trial for trial in self._known.values() if not trial.over]

    def stop_trial(self, trial: Trial) -> None:
        """It was, then."""

    def exploit(self, trial: Trial, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """It did, then."""
        return False

    def story(
        self, record: TrialRecord, bring_back: Callable[[TrialRecord], _Back]
    ) -> Iterator[tuple[float, int]]:
        """What happened to a trial, in order: yields when, and tells it when asked to go on.

        Its journal is read when its time has come, and once, so that only those of trials that ran
        side by side are in memory. What a trial reported after the checkpoint that it goes on from,
        it will report again.
        """
        now, index = record.time, record.index
        yield now, index
        trial, run, suggested, final, told = bring_back(record)
        self._revived.trials.append(trial)
        self._fill_gaps(record)
        self._known[trial.trial_id] = trial
        self._searcher.recall(trial.trial_id, suggested)
        self._scheduler.on_trial_add(self, trial)

        decision: str = TrialScheduler.CONTINUE
        pauses = [when for when, status in record.changes if status == "PAUSED"]
        for report in run.reports() if run is not None else ():
            assert run is not None
            if final == "PENDING" and report["index"] > told:
                break
            while pauses and pauses[0] <= report["time"]:
                now = max(now, pauses.pop(0))
                yield now, index
                trial.status = "PAUSED"
            now = max(now, report["time"])
            yield now, index
            row = run.row(report)
            trial.status = "RUNNING"
            trial.last_result = row
            trial.reports += 1
            self._searcher.on_trial_result(trial.trial_id, row)
            decision = self._scheduler.on_trial_result(self, trial, row)
            if self._stopper is not None:
                self._stopper(trial.trial_id, row)

        yield max([now, *pauses, *(when for when, _ in record.changes[-1:])]), index
        trial.status = final  # type: ignore[assignment]
        result = trial.last_result or None
        if final == "ERROR":
            self._searcher.on_trial_complete(trial.trial_id, result, error=True)
            self._scheduler.on_trial_error(self, trial)
        elif final == "TERMINATED":
            self._searcher.on_trial_complete(trial.trial_id, result)
            self._scheduler.on_trial_complete(self, trial, result)
        elif final == "PENDING" and decision == TrialScheduler.STOP:
            self._revived.stopped.append(trial)
        if trial.over:
            trial.trim(self._metric)

    def _fill_gaps(self, record: TrialRecord) -> None:
        """Let the searcher suggest what was suggested before this trial and left no trace."""
        prefix = record.trial_id.rpartition("_")[0]
        while self._gaps and self._gaps[0] < record.index:
            index = self._gaps.popleft()
            config = self._searcher.suggest(f"{prefix}_{index:05d}")
            if isinstance(config, dict):
                self._revived.lost.append((index, config))
