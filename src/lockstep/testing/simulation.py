"""Simulated trials, without processes: the decisions of a scheduler on known learning curves.

    step(config, state) -> (state, metrics)     one step of a trial; state is None at the first

A simulated trial keeps its state as its checkpoint at every step, so it can be paused and copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.tune.schedulers.trial_scheduler import TrialScheduler

__all__ = ["SimulatedTrial", "Simulation", "simulate"]

Step = Callable[[dict[str, Any], Any], tuple[Any, dict[str, Any]]]


@dataclass(eq=False)
class SimulatedTrial:
    """A trial with the attributes that schedulers use."""

    trial_id: str
    config: dict[str, Any]
    path: str = ""
    status: str = "PENDING"
    last_result: dict[str, Any] = field(default_factory=dict)
    checkpoint: Any = None
    steps: int = 0
    """The number of steps that the trial has taken, over all its pauses and restarts."""
    state: Any = None


@dataclass
class Simulation:
    """The trials of a simulation at its end, and the scheduler's decisions."""

    trials: list[SimulatedTrial]
    decisions: list[tuple[str, int, str]]
    """(trial id, step, decision) of every report."""

    @property
    def total_steps(self) -> int:
        """The steps of all trials together."""
        return sum(trial.steps for trial in self.trials)

    def best(self, metric: str, mode: str) -> SimulatedTrial:
        """The trial with the best last result."""
        pick = max if mode == "max" else min
        reported = [trial for trial in self.trials if metric in trial.last_result]
        return pick(reported, key=lambda trial: trial.last_result[metric])


def simulate(
    make_scheduler: Callable[[], TrialScheduler],
    configs: Sequence[Mapping[str, Any]],
    step: Step,
    *,
    max_steps: int,
    metric: str | None = "score",
    mode: str | None = "max",
    slots: int = 4,
    fails: Callable[[str, int], bool] = lambda trial_id, steps: False,
    restore_after: int | None = None,
    path: str = "",
    upfront: bool = False,
) -> Simulation:
    """Run the trials in turn, one step each, and obey the scheduler.

    Args:
        make_scheduler: creates the scheduler, and creates it again when it is restored.
        configs: the config of each trial.
        step: runs one step of a trial.
        max_steps: a trial finishes after this many steps.
        metric, mode: as in ``TuneConfig``.
        slots: how many trials run at the same time.
        fails: whether a trial fails at this step.
        restore_after: after this many events, replace the scheduler by a new one and replay the
            events to it, as ``Tuner.restore`` does.
        path: the experiment directory.
        upfront: add all trials at the start, instead of each trial when a slot is free.

    Raises:
        AssertionError: the scheduler broke its contract, or no trial can run.
    """
    run = _Run(
        make_scheduler,
        configs,
        step,
        max_steps,
        (metric, mode),
        slots,
        fails,
        restore_after,
        path,
        upfront,
    )
    run.drive()
    return Simulation(run.trials, run.decisions)


@dataclass(eq=False)
class _Run:
    """The trials of a simulation. The ``tune_controller`` of its scheduler."""

    make_scheduler: Callable[[], TrialScheduler]
    configs: Sequence[Mapping[str, Any]]
    step: Step
    max_steps: int
    objective: tuple[str | None, str | None]
    slots: int
    fails: Callable[[str, int], bool]
    restore_after: int | None
    path: str
    upfront: bool

    def __post_init__(self) -> None:
        self.trials: list[SimulatedTrial] = []
        self.decisions: list[tuple[str, int, str]] = []
        self._past: list[tuple[str, SimulatedTrial, Any]] = []
        self._replaying = False
        self._exploits: dict[str, Any] = {}
        self._scheduler = self._new_scheduler()

    def get_trials(self) -> Sequence[SimulatedTrial]:
        """All trials."""
        return self.trials

    def get_live_trials(self) -> Sequence[SimulatedTrial]:
        """The trials that have not ended."""
        return [trial for trial in self.trials if trial.status not in ("TERMINATED", "ERROR")]

    def stop_trial(self, trial: SimulatedTrial) -> None:
        """End a trial that is not running."""
        if self._replaying:
            return
        assert trial.status in ("PENDING", "PAUSED"), (
            f"stop_trial of a trial that is {trial.status}"
        )
        trial.status = "TERMINATED"
        self._notify("on_trial_remove", trial)

    def exploit(self, trial: SimulatedTrial, config: Mapping[str, Any], checkpoint: Any) -> bool:
        """Record the exploit: it takes effect when the trial resumes."""
        if self._replaying:
            return False
        trial.config = dict(config)
        if checkpoint is not None:
            self._exploits[trial.trial_id] = checkpoint
        return True

    def drive(self) -> None:
        """Run until every trial has ended."""
        while len(self.trials) < len(self.configs) or self.get_live_trials():
            self._fill()
            running = [trial for trial in self.trials if trial.status == "RUNNING"]
            assert running, "no trial is running, but these have not ended: " + ", ".join(
                f"{trial.trial_id} {trial.status}" for trial in self.get_live_trials()
            )
            for trial in running:
                if trial.status == "RUNNING":
                    self._advance(trial)

    def _new_scheduler(self) -> TrialScheduler:
        scheduler = self.make_scheduler()
        assert scheduler.set_search_properties(*self.objective, num_trials=len(self.configs))
        return scheduler

    def _fill(self) -> None:
        while sum(trial.status == "RUNNING" for trial in self.trials) < self.slots:
            while len(self.trials) < len(self.configs) and (
                self.upfront or all(trial.status != "PENDING" for trial in self.trials)
            ):
                self._add()
            chosen = self._scheduler.choose_trial_to_run(self)
            if chosen is None:
                return
            assert chosen.status in ("PENDING", "PAUSED"), f"chose a trial that is {chosen.status}"
            chosen.status = "RUNNING"
            chosen.state = self._exploits.pop(chosen.trial_id, chosen.checkpoint)

    def _add(self) -> None:
        number = len(self.trials)
        config = self._scheduler.complete_config(dict(self.configs[number]))
        name = f"{number:05d}"
        trial = SimulatedTrial(name, config, f"{self.path}/{name}")
        self.trials.append(trial)
        self._notify("on_trial_add", trial)

    def _advance(self, trial: SimulatedTrial) -> None:
        trial.steps += 1
        if self.fails(trial.trial_id, trial.steps):
            trial.status = "ERROR"
            self._notify("on_trial_error", trial)
            return
        trial.state, metrics = self.step(trial.config, trial.state)
        result = {"training_iteration": trial.steps, **metrics}
        trial.last_result = result
        decision = self._notify("on_trial_result", trial, result)
        # As in a real run, a checkpoint is committed after the decision on its report.
        trial.checkpoint = trial.state
        assert decision in ("CONTINUE", "PAUSE", "STOP"), f"on_trial_result returned {decision!r}"
        self.decisions.append((trial.trial_id, trial.steps, decision))
        if decision == "STOP" or trial.steps >= self.max_steps:
            trial.status = "TERMINATED"
            self._notify("on_trial_complete", trial, result)
        elif decision == "PAUSE":
            trial.status = "PAUSED"

    def _notify(self, hook: str, trial: SimulatedTrial, *result: Any) -> Any:
        due = self.restore_after is not None and len(self._past) >= self.restore_after
        if due and hook != "on_trial_remove":  # the scheduler itself is the caller of that one
            self._restore()
        self._past.append((hook, trial, (trial.status, *result)))
        return getattr(self._scheduler, hook)(self, trial, *result)

    def _restore(self) -> None:
        self.restore_after = None
        self._scheduler = self._new_scheduler()
        everyone, self.trials = self.trials, []
        now = [trial.status for trial in everyone]
        self._replaying = True
        for hook, trial, (status, *result) in self._past:
            if hook == "on_trial_add":
                self.trials.append(trial)
            trial.status = status
            getattr(self._scheduler, hook)(self, trial, *result)
        self._replaying = False
        self.trials = everyone
        for trial, status in zip(everyone, now, strict=True):
            trial.status = status
