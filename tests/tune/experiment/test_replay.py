"""A driver that is killed during a search: the restored search continues with the same results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.config import RunConfig
from lockstep.tune.schedulers import ASHAScheduler, PopulationBasedTraining, TrialScheduler
from lockstep.tune.search import ConcurrencyLimiter
from lockstep.tune.search.optuna import OptunaSearch

SPACE = {
    "x": tune.uniform(-4, 4),
    "kind": tune.choice([{"name": "a", "k": tune.loguniform(1e-3, 1)}, {"name": "b"}]),
}
TRIALS = 12


def train(config: dict[str, Any]) -> None:
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint is not None:
        start = checkpoint.to_dict()["step"]
    for step in range(start + 1, 5):
        loss = (config["x"] - 1) ** 2 + (config["kind"]["name"] == "a") + 1 / step
        kept = tune.Checkpoint.from_dict({"step": step})
        tune.report({"loss": loss}, checkpoint=kept)


class Killer(tune.Callback):
    """Kills the driver that created it when a number of trials are over."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.pid = os.getpid()

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.left -= 1
        if self.left == 0 and self.pid == os.getpid():
            os.kill(os.getpid(), signal.SIGKILL)


def make_scheduler(name: str) -> TrialScheduler | None:
    if name == "asha":
        return ASHAScheduler(max_t=4, reduction_factor=2)
    if name == "pbt":
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"x": tune.uniform(-4, 4)},
            quantile_fraction=0.5,
        )
    return None


def make_tuner(storage: str, name: str, scheduler: str, callbacks: list[Any]) -> tune.Tuner:
    population = scheduler == "pbt"
    return tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=4 if population else TRIALS,
            max_concurrent_trials=2 if population else 1,
            search_alg=None if population else ConcurrencyLimiter(OptunaSearch(seed=4), 2),
            scheduler=make_scheduler(scheduler),
        ),
        run_config=RunConfig(name=name, storage_path=storage, verbose=0, callbacks=callbacks),
    )


def killed(storage: Path, scheduler: str, after: int) -> Path:
    """The directory of an experiment whose driver was killed."""
    script = (
        "from tests.tune.experiment.test_replay import Killer, make_tuner\n"
        f"make_tuner({str(storage)!r}, 'killed', {scheduler!r}, [Killer({after})]).fit()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return storage / "killed"


@pytest.mark.parametrize("scheduler", ["fifo", "asha"])
def test_a_restored_search_is_the_same(scheduler: str, tmp_path: Path) -> None:
    uninterrupted = make_tuner(str(tmp_path), "uninterrupted", scheduler, []).fit()
    directory = killed(tmp_path, scheduler, 5)
    restored = tune.Tuner.restore(str(directory)).fit()
    assert [r.config for r in restored] == [r.config for r in uninterrupted]
    steps = [r.metrics["training_iteration"] for r in uninterrupted]
    assert [r.metrics["training_iteration"] for r in restored] == steps
    assert restored.num_terminated == TRIALS
    if scheduler == "asha":
        assert sum(steps) < 4 * TRIALS


def test_a_population_resumes(tmp_path: Path) -> None:
    directory = killed(tmp_path, "pbt", 1)
    restored = tune.Tuner.restore(str(directory)).fit()
    assert restored.num_terminated == 4
    assert restored.num_errors == 0
    assert (directory / "pbt_global.txt").exists()
    # A trial that exploits another at its very end has nothing left to report.
    assert any(r.metrics["training_iteration"] == 4 for r in restored)
    assert all(r.checkpoint and r.checkpoint.to_dict()["step"] == 4 for r in restored)
