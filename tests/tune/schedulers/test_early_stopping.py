"""Schedulers and searchers over real trials: of one process, and of two that stop together."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from lockstep import train, tune
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train import DataParallelTrainer
from lockstep.tune.schedulers import ASHAScheduler, MedianStoppingRule
from lockstep.tune.search import Repeater
from lockstep.tune.search.optuna import OptunaSearch
from lockstep.tune.stopper import CombinedStopper, MaximumIterationStopper, TrialPlateauStopper


def forever(config: dict[str, Any]) -> None:
    for step in itertools.count(1):
        tune.report({"height": config["height"] * (1 - 0.5**step)})


def both_ranks(config: dict[str, Any]) -> None:
    rank = train.get_context().get_world_rank()
    for step in itertools.count(1):
        train.report({"height": config["height"] + rank, "step": step})


def tuned(trainable: Any, space: dict[str, Any], tmp_path: Path, **options: Any) -> Any:
    stop = options.pop("stop", None)
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="height", mode="max", **options),
        run_config=RunConfig(storage_path=tmp_path, verbose=0, stop=stop),
    ).fit()


def test_functions_that_never_return(tmp_path: Path) -> None:
    grid = tuned(
        forever,
        {"height": tune.grid_search([8, 1, 2, 9, 3, 4])},
        tmp_path,
        scheduler=ASHAScheduler(max_t=9, reduction_factor=3),
        max_concurrent_trials=1,  # who is compared with whom depends on who comes first
    )
    steps = {r.config["height"]: r.metrics["training_iteration"] for r in grid}
    assert set(steps.values()) <= {1, 3, 9}
    assert steps[9] == 9
    assert sum(steps.values()) < 6 * 9 / 2
    assert grid.num_errors == 0


def test_both_ranks_stop_at_the_same_report(tmp_path: Path) -> None:
    trainer = DataParallelTrainer(both_ranks, scaling_config=ScalingConfig(num_workers=2))
    grid = tuned(
        trainer,
        {"train_loop_config": {"height": tune.grid_search([5, 6, 1, 2])}},
        tmp_path,
        scheduler=MedianStoppingRule(
            time_attr="training_iteration", grace_period=3, min_samples_required=2
        ),
        max_concurrent_trials=1,
        stop={"training_iteration": 6},
    )
    assert grid.num_errors == 0
    steps = [r.metrics["training_iteration"] for r in grid]
    assert max(steps) == 6
    assert min(steps) == 3
    for result in grid:
        first, second = result.metrics_by_rank
        assert first["step"] == second["step"] == result.metrics["training_iteration"]


def test_stoppers_over_trials(tmp_path: Path) -> None:
    stop = CombinedStopper(
        MaximumIterationStopper(20),
        TrialPlateauStopper("height", std=0.05, num_results=3, grace_period=3),
    )
    grid = tuned(forever, {"height": tune.grid_search([1, 1000])}, tmp_path, stop=stop)
    small, large = (r.metrics["training_iteration"] for r in grid)
    assert 3 <= small < large <= 20


def test_each_config_several_times(tmp_path: Path) -> None:
    grid = tuned(
        forever,
        {"height": tune.uniform(0, 1)},
        tmp_path,
        num_samples=6,
        search_alg=Repeater(OptunaSearch(seed=1), repeat=3),
        stop={"training_iteration": 2},
    )
    configs = [r.config for r in grid]
    assert [c["__trial_index__"] for c in configs] == [0, 1, 2] * 2
    assert len({c["height"] for c in configs}) == 2


def test_a_scheduler_and_a_searcher_for_two_experiments(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "num_samples": 6,
        "max_concurrent_trials": 1,
        "search_alg": OptunaSearch(seed=1),
        "scheduler": ASHAScheduler(max_t=4, reduction_factor=2),
    }
    space = {"height": tune.uniform(0, 1)}
    first, second = (
        [
            (r.config, r.metrics["training_iteration"])
            for r in tuned(forever, space, path, **options)
        ]
        for path in (tmp_path / "a", tmp_path / "b")
    )
    assert first == second
