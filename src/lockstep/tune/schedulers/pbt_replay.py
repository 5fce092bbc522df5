"""Repeating population based training for one trial, with the schedule of configs it found."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from lockstep.tune.schedulers.trial_scheduler import Decision, TrialScheduler, TuneController

__all__ = ["PopulationBasedTrainingReplay"]


class PopulationBasedTrainingReplay(TrialScheduler):
    """Trains one trial with the configs that a trial of a population went through.

    Args:
        policy_file: ``pbt_policy_<trial id>.txt``, written by ``PopulationBasedTraining``.
    """

    checkpoint_frequency = 1

    def __init__(self, policy_file: str | os.PathLike[str]) -> None:
        super().__init__()
        self.policy_file = os.path.expanduser(os.fspath(policy_file))
        if not os.path.isfile(self.policy_file):
            raise ValueError(
                f"PopulationBasedTrainingReplay(policy_file={self.policy_file!r}): there is no "
                "such file; give the pbt_policy_<trial id>.txt of an experiment."
            )
        self.config, self._changes = _load(self.policy_file)
        self._applied = 0
        self._trials = 0

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The first config of the schedule."""
        return {**config, **self.config}

    def on_trial_add(self, tune_controller: TuneController, trial: Any) -> None:
        """Raise for a second trial."""
        self._trials += 1
        if self._trials > 1:
            raise ValueError(
                "PopulationBasedTrainingReplay follows one trial; give num_samples=1 and a "
                "param_space without grid_search."
            )

    def on_trial_result(
        self, tune_controller: TuneController, trial: Any, result: Mapping[str, Any]
    ) -> Decision:
        """Change the config when the schedule says so."""
        config = None
        while (
            self._applied < len(self._changes)
            and result["training_iteration"] >= self._changes[self._applied][0]
        ):
            config = self._changes[self._applied][1]
            self._applied += 1
        if config is None:
            return self.CONTINUE
        tune_controller.exploit(trial, {**trial.config, **config}, None)
        return self.PAUSE

    def debug_string(self) -> str:
        """How many changes of the schedule were applied."""
        return f"PopulationBasedTraining replay: {self._applied} of {len(self._changes)} change(s)"


def _load(path: str) -> tuple[dict[str, Any], list[tuple[int, dict[str, Any]]]]:
    """The first config, and (iteration, config) of each change."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file if line.strip()]
    try:
        rows = [tuple(json.loads(line)) for line in lines]
        _, _, _, _, first, _ = rows[0]
        return first, [(int(donor_step), new) for _, _, _, donor_step, _, new in rows]
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"PopulationBasedTrainingReplay(policy_file={path!r}): it is not a policy file "
            f"({type(error).__name__}: {error}); give one that PopulationBasedTraining wrote."
        ) from None
