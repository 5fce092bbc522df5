"""Restoring an experiment: its trials, and the events to replay to searcher and scheduler.

A searcher's or scheduler's state is never stored. Both are recreated, and everything that had
happened is replayed to them, in the order in which it happened:

    of each trial:   added ─▶ reported, … ─▶ paused ─▶ reported, … ─▶ completed | failed
    of all trials:   merged by time, so that the trials interleave as they did

Reports are replayed up to the checkpoint from which a trial resumes. Later ones are skipped: the
trial runs from that checkpoint and reports them again. A trial that is over has all its reports
replayed, and a trial that restarts from the beginning has none.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lockstep.hooks import call_hook
from lockstep.journal.records import RunRecords, existing_checkpoints, open_checkpoint
from lockstep.retention import CheckpointRecord
from lockstep.trackers.complete import complete_tables
from lockstep.train.driver.early_stopping import EarlyStopping
from lockstep.tune.experiment.configs import decode_config
from lockstep.tune.experiment.records import ExperimentRecords, TrialRecord, final_status
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.search.space import evaluated_params
from lockstep.tune.stopper import Stopper

__all__ = ["RestoredTrials", "Resumption", "restore_trials"]


@dataclass(frozen=True)
class Resumption:
    """Which trials ``Tuner.restore`` resumes or restarts."""

    unfinished: bool = True
    errored: bool = False
    restart_errored: bool = False


@dataclass
class RestoredTrials:
    """The trials of an experiment when its driver ended or died; empty for a new experiment."""

    trials: list[Trial] = field(default_factory=list)
    donor_checkpoints: dict[str, str] = field(default_factory=dict)
    """Trial id → the other trial's checkpoint from which the trial continues."""
    restarted: list[Trial] = field(default_factory=list)
    """Trials that start from the beginning, in a new directory."""
    stopped: list[Trial] = field(default_factory=list)
    """Trials whose last report got the decision STOP before the driver died."""
    abandoned: list[Trial] = field(default_factory=list)
    """Unfinished trials that are not resumed."""
    unrecorded: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """(number, config) of trials that were suggested, and left no line in the journal."""
    problems: list[str] = field(default_factory=list)


def restore_trials(
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
    """Restore the trials, and replay their events to searcher, scheduler and stopper."""
    restored = RestoredTrials()

    def restore_trial(record: TrialRecord) -> _RestoredTrial:
        run = records.read_run(record)
        if run is not None and records.storage.is_local:
            # The last rows may be missing in the tables of a killed driver. The journal has them.
            complete_tables(records.storage.path(record.directory), run)
        newest = _newest_checkpoint(records, record, run)
        trial = _make_trial(records, record, run, space, trainable_name, restored)
        if newest is not None:
            trial.checkpoint = open_checkpoint(records.run_storage(record), newest)
        status = final_status(record, run)
        again = status == "ERROR" and (resumption.errored or resumption.restart_errored)
        if trial.error and not record.error:
            status = "ERROR"  # the config cannot be restored
        elif again:
            status, trial.error = "PENDING", None
        elif not resumption.unfinished and status in ("PENDING", "PAUSED"):
            status = "TERMINATED"
            restored.abandoned.append(trial)
        if again and resumption.restart_errored:
            trial.begun, trial.checkpoint, trial.reports = False, None, 0
            restored.restarted.append(trial)
            run = None
        suggested = _suggested_config(record, trial, space)
        return _RestoredTrial(trial, run, suggested, status, 0 if newest is None else newest.index)

    replay = _Replay(records, restored, searcher, scheduler, stopper, metric)
    events = [replay.events(record, restore_trial) for record in records.trials.values()]
    # merge() takes the trial whose next event is the earliest and advances its generator. Advancing
    # replays that event, so nothing is left to do in the loop's body.
    for _ in heapq.merge(*events):
        pass
    # They were added in order of time, and trials of the same moment in any order.
    order = {trial_id: place for place, trial_id in enumerate(records.trials)}
    restored.trials.sort(key=lambda trial: order[trial.trial_id])
    return restored


def _make_trial(
    records: ExperimentRecords,
    record: TrialRecord,
    run: RunRecords | None,
    space: Any,
    trainable_name: str,
    restored: RestoredTrials,
) -> Trial:
    error = record.error
    exploit = record.exploit or {}
    try:
        config = decode_config(exploit.get("config", record.config), space)
    except ValueError as lost:
        config = dict(run.run["config"]) if run is not None else {}
        if record.status not in ("TERMINATED", "ERROR"):
            error = f"trial {record.trial_id} cannot resume: {lost}"
            restored.problems.append(error)
    trial = Trial(
        record.trial_id,
        record.index,
        config,
        trainable_name=trainable_name,
        experiment_tag=record.experiment_tag,
        evaluated_params=evaluated_params(space, config),
        directory=record.directory,
        path=records.storage.path(record.directory),
    )
    trial.error = error
    trial.begun = run is not None
    if exploit.get("checkpoint"):
        restored.donor_checkpoints[trial.trial_id] = exploit["checkpoint"]
    return trial


def _newest_checkpoint(
    records: ExperimentRecords, record: TrialRecord, run: RunRecords | None
) -> CheckpointRecord | None:
    """The checkpoint from which a trial would resume."""
    if run is None or record.status == "TERMINATED":
        return None
    found = existing_checkpoints(records.run_storage(record), run.checkpoints)
    return found[-1] if found else None


def _suggested_config(record: TrialRecord, trial: Trial, space: Any) -> dict[str, Any]:
    """The config that the searcher suggested, before a scheduler replaced it."""
    if record.exploit is not None:
        with suppress(ValueError):
            return dict(decode_config(record.config, space))
    return trial.config


class _RestoredTrial(NamedTuple):
    """A trial, and what the replay of its events needs."""

    trial: Trial
    run: RunRecords | None
    suggested: dict[str, Any]
    status: str
    """The status from now on."""
    checkpoint_report: int
    """The number of the report that the newest checkpoint belongs to; 0 without a checkpoint."""


class _Replay:
    """Replays events to searcher, scheduler and stopper. The scheduler's ``tune_controller``."""

    def __init__(
        self,
        records: ExperimentRecords,
        restored: RestoredTrials,
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
        self._stopper = stopper if isinstance(stopper, (Stopper, EarlyStopping)) else None
        self._restored = restored
        self._added: dict[str, Trial] = {}

    def get_trials(self) -> Sequence[Trial]:
        """Every trial that had been added by then."""
        return list(self._added.values())

    def get_live_trials(self) -> Sequence[Trial]:
        """The trials that were not over by then."""
        return [trial for trial in self._added.values() if not trial.over]

    def stop_trial(self, trial: Trial) -> None:
        """Nothing: the end of the trial is an event of its own."""

    def exploit(self, trial: Trial, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Nothing: the journal has the config and the checkpoint that the trial got."""
        return False

    def events(
        self, record: TrialRecord, restore_trial: Callable[[TrialRecord], _RestoredTrial]
    ) -> Iterator[tuple[float, int]]:
        """Yield the time of each event of a trial, and replay the event when advanced.

        A run's journal is read when the trial is added, and once. So only the journals of trials
        that ran at the same time are in memory together.
        """
        now, index = record.time, record.index
        # Before the journal is read: merge() takes the first item of every generator at once.
        yield now, index
        trial, run, suggested, status, checkpoint_report = restore_trial(record)
        self._restored.trials.append(trial)
        self._suggest_gaps(record)
        self._added[trial.trial_id] = trial
        # The journal has the suggestion, so the searcher need not make it again.
        self._searcher.recall(trial.trial_id, suggested)
        self._schedule("on_trial_add", trial=trial)

        decision: str = TrialScheduler.CONTINUE
        pauses = [when for when, changed in record.status_changes if changed == "PAUSED"]
        for report in run.reports() if run is not None else ():
            assert run is not None
            if status == "PENDING" and report["index"] > checkpoint_report:
                break  # the trial resumes before this report and repeats it
            # A scheduler that pauses trials sees the pause before the report that followed it.
            while pauses and pauses[0] <= report["time"]:
                now = max(now, pauses.pop(0))
                yield now, index
                trial.status = "PAUSED"
            # max(): the clock may have been set back, and merge() needs growing times.
            now = max(now, report["time"])
            yield now, index
            row = run.row(report)
            trial.status = "RUNNING"
            trial.last_result = row
            trial.reports += 1
            call_hook(self._searcher.on_trial_result, trial_id=trial.trial_id, result=row)
            decision = self._schedule("on_trial_result", trial=trial, result=row)
            if self._stopper is not None:
                self._stopper(trial.trial_id, row)

        # The end is after everything else of the trial, whatever the clocks said.
        yield max([now, *pauses, *(when for when, _ in record.status_changes[-1:])]), index
        self._replay_end(trial, status, decision)

    def _replay_end(self, trial: Trial, status: str, decision: str) -> None:
        trial.status = status  # type: ignore[assignment]  # of a journal
        result = trial.last_result or None
        if trial.over:
            complete, error = self._searcher.on_trial_complete, status == "ERROR"
            call_hook(complete, trial_id=trial.trial_id, result=result, error=error)
        if status == "ERROR":
            self._schedule("on_trial_error", trial=trial)
        elif status == "TERMINATED":
            self._schedule("on_trial_complete", trial=trial, result=result)
        elif status == "PENDING" and decision == TrialScheduler.STOP:
            self._restored.stopped.append(trial)
        if trial.over:
            trial.trim(self._metric)

    def _schedule(self, hook: str, **arguments: Any) -> Any:
        return call_hook(getattr(self._scheduler, hook), tune_controller=self, **arguments)

    def _suggest_gaps(self, record: TrialRecord) -> None:
        """Let the searcher suggest again the trials before this one that the journal lacks.

        Remote storage gets the journal now and then, so the newest lines may be lost. A searcher
        that is called as often as before returns the same suggestions.
        """
        prefix = record.trial_id.rpartition("_")[0]
        while self._gaps and self._gaps[0] < record.index:
            index = self._gaps.popleft()
            config = self._searcher.suggest(f"{prefix}_{index:05d}")
            if isinstance(config, dict):
                self._restored.unrecorded.append((index, config))
