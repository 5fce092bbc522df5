"""PB2 on simulated trials: what the process chooses, and what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.testing.simulation import simulate
from lockstep.tune.schedulers import PB2, FIFOScheduler, TrialScheduler, create_scheduler


def population(count: int) -> list[dict[str, Any]]:
    return [{"lr": 0.02 * (n + 1), "inner": {"layers": 2}} for n in range(count)]


def climb(config: dict[str, Any], state: Any) -> tuple[float, dict[str, Any]]:
    """The best rate is 0.7, the best number of layers 6."""
    gain = 1 - abs(0.7 - config["lr"]) - abs(6 - config["inner"]["layers"]) / 8
    reached = (state or 0.0) + gain
    return reached, {"score": reached}


def pb2(**options: Any) -> TrialScheduler:
    return PB2(
        time_attr="training_iteration",
        perturbation_interval=3,
        hyperparam_bounds={"lr": [0.01, 1.0], "inner": {"layers": [1, 8]}},
        seed=1,
        **options,
    )


@pytest.mark.parametrize("synch", [False, True])
def test_pb2_ends_higher_than_any_fixed_config(synch: bool, tmp_path: Path) -> None:
    fixed = simulate(FIFOScheduler, population(4), climb, max_steps=30, slots=4)
    bred = simulate(
        lambda: pb2(synch=synch), population(4), climb, max_steps=30, slots=4, path=str(tmp_path)
    )
    best_fixed = fixed.best("score", "max").last_result["score"]
    assert bred.best("score", "max").last_result["score"] > 1.5 * best_fixed
    for trial in bred.trials:
        assert 0.01 <= trial.config["lr"] <= 1.0
        assert isinstance(trial.config["inner"]["layers"], int)
        assert 1 <= trial.config["inner"]["layers"] <= 8
    assert (tmp_path / "pbt_global.txt").exists()


def test_values_that_a_config_lacks_are_drawn_within_the_bounds() -> None:
    scheduler = pb2()
    config = scheduler.complete_config({})
    assert 0.01 <= config["lr"] <= 1.0
    assert config["inner"]["layers"] in range(1, 9)


def test_a_function_has_the_last_word(tmp_path: Path) -> None:
    def halve(config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "lr": 0.5}

    bred = simulate(
        lambda: pb2(custom_explore_fn=halve, log_config=False),
        population(4),
        climb,
        max_steps=12,
        slots=4,
    )
    assert 0.5 in {trial.config["lr"] for trial in bred.trials}


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="would change nothing"):
        PB2()
    wrong: list[Any] = [[1], [2, 1], "ab", [0, float("inf")]]
    for bounds in wrong:
        with pytest.raises(ValueError, match="smallest and the largest"):
            PB2(hyperparam_bounds={"lr": bounds})
    assert isinstance(create_scheduler("pb2", hyperparam_bounds={"lr": [0, 1]}), PB2)
