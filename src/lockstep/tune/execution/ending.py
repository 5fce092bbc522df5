"""How an experiment ends before all of its trials are over.

reason               how the running trials stop                the experiment
-----------------    ---------------------------------------    -------------------------------
budget, Stopper      at their next report, else interrupted     finished: trials are TERMINATED
Ctrl-C, fail_fast    interrupted at once                        can be restored
SIGTERM              they save a checkpoint, then stop          can be restored
user code raised     interrupted at once                        can be restored
"""

from __future__ import annotations

from typing import Any

from lockstep import settings
from lockstep.engine.loop import EventLoop
from lockstep.tune.execution.running_trial import RunningTrials
from lockstep.tune.experiment.trial import Trial
from lockstep.tune.reporting.notices import Notices

__all__ = ["ExperimentEnding"]


class ExperimentEnding:
    """Ends an experiment early. From the loop's thread, except ``interrupt`` and ``preempt``.

    Attributes:
        reason: why the experiment ends, in a few words; None while it runs.
        leave_unfinished: unfinished trials stay as they are, for a restore.
        interrupted, preempted: Ctrl-C, SIGTERM.
        failed_trial: the trial that ended the experiment, with ``fail_fast``.
    """

    def __init__(self, loop: EventLoop, running: RunningTrials, notices: Notices) -> None:
        self._loop = loop
        self._running = running
        self._notices = notices
        self.reason: str | None = None
        self.leave_unfinished = False
        self.interrupted = False
        self.preempted = False
        self.failed_trial: Trial | None = None

    @property
    def state(self) -> str:
        """What the journal records: ``"finished"`` or ``"interrupted"``."""
        return "interrupted" if self.leave_unfinished else "finished"

    def interrupt(self) -> None:
        """Ctrl-C: once lets workers clean up, twice kills them. Safe in a signal handler."""
        # Set here, in the signal handler: a trial that ends before the call below must see it.
        self.interrupted = self.leave_unfinished = True
        self._loop.call_soon(lambda: self._interrupt_trials("interrupted", by_user=True))

    def preempt(self) -> None:
        """SIGTERM: every trial saves and stops. Safe in a signal handler."""
        self.preempted = self.leave_unfinished = True

        def preempt_trials() -> None:
            self.reason = self.reason or "preempted"
            for controller in self._running.controllers():
                controller.preempt()

        self._loop.call_soon(preempt_trials)

    def abandon(self, why: str) -> None:
        """End the experiment because it cannot continue. It can be restored."""
        self.leave_unfinished = True
        self.reason = self.reason or why
        self._loop.call_soon(lambda: self._interrupt_trials(why))

    def fail_fast(self, trial: Trial) -> None:
        """End the experiment because a trial has failed."""
        if self.reason is None:
            self.leave_unfinished = True
            self.failed_trial = trial
            self._notices.stopping("a trial has failed (fail_fast)")
            self._interrupt_trials("a trial has failed")

    def stop_trials(self, why: str) -> None:
        """Stop every trial at its next report, and interrupt those that do not report in time."""
        if self.reason is not None:
            return
        self.reason = why
        self._notices.stopping(why)
        for running in self._running:
            running.stopped = True
        grace = settings.stop_grace_seconds()
        self._loop.call_later(grace, lambda: self._interrupt_trials(why))

    def _interrupt_trials(self, why: str, **options: Any) -> None:
        self.reason = self.reason or why
        for controller in self._running.controllers():
            controller.interrupt(**options)
