"""Population based training on simulated trials: who takes over whom, with which config."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.testing.simulation import simulate
from lockstep.tune.schedulers import (
    FIFOScheduler,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
)
from lockstep.tune.schedulers.explore import explore, fill


def population(count: int) -> list[dict[str, Any]]:
    return [{"lr": 0.02 * (n + 1), "layers": 2} for n in range(count)]


def climb(config: dict[str, Any], state: Any) -> tuple[float, dict[str, Any]]:
    """The best rate is 1.0; what was reached stays with the checkpoint."""
    reached = (state or 0.0) + 1 - abs(1 - config["lr"])
    return reached, {"score": reached}


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("slots", [2, 8])
def test_pbt_ends_higher_than_any_fixed_config(synch: bool, slots: int, tmp_path: Path) -> None:
    def pbt() -> TrialScheduler:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=4,
            hyperparam_mutations={"lr": tune.uniform(0.01, 1.0)},
            synch=synch,
            seed=1,
        )

    fixed = simulate(FIFOScheduler, population(8), climb, max_steps=40, slots=slots)
    bred = simulate(pbt, population(8), climb, max_steps=40, slots=slots, path=str(tmp_path))
    assert all(trial.steps == 40 for trial in bred.trials)
    best_fixed = fixed.best("score", "max").last_result["score"]
    assert bred.best("score", "max").last_result["score"] > 2 * best_fixed
    if slots == 8:  # else they are compared while some are ahead of others
        assert min(trial.last_result["score"] for trial in bred.trials) > best_fixed


def test_pbt_writes_who_took_over_whom(tmp_path: Path) -> None:
    def pbt() -> TrialScheduler:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"lr": [0.02, 0.2, 1.0]},
            quantile_fraction=0.5,
            seed=1,
        )

    done = simulate(pbt, population(4), climb, max_steps=12, path=str(tmp_path))
    rows = [json.loads(line) for line in (tmp_path / "pbt_global.txt").read_text().splitlines()]
    assert rows
    names = {trial.trial_id for trial in done.trials}
    for own, donor, step, donor_step, old, new in rows:
        assert {own, donor} <= names
        assert own != donor
        assert step % 2 == 0
        assert donor_step >= 2
        assert set(old) == set(new) == {"lr", "layers"}
        assert new["lr"] in (0.02, 0.2, 1.0)
    last = rows[-1]
    ancestry = (tmp_path / f"pbt_policy_{last[0]}.txt").read_text().splitlines()
    assert json.loads(ancestry[-1]) == last
    for earlier, later in pairwise(ancestry):
        assert json.loads(earlier)[0] == json.loads(later)[1]


@pytest.mark.parametrize("best", [0, 3])
def test_synchronous_pbt_takes_what_the_best_has_just_reached(best: int, tmp_path: Path) -> None:
    """Also when the best trial is the last to report."""
    configs = [{"gain": 10.0 if number == best else 1.0 + number / 10} for number in range(4)]
    resumed: list[float] = []

    def step(config: dict[str, Any], state: Any) -> tuple[float, dict[str, Any]]:
        if config["gain"] == 20.0:
            resumed.append(state)
        reached = (state or 0.0) + config["gain"]
        return reached, {"score": reached}

    def pbt() -> TrialScheduler:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=3,
            custom_explore_fn=lambda config: {"gain": 20.0},
            synch=True,
            seed=1,
        )

    simulate(pbt, configs, step, max_steps=4, path=str(tmp_path))
    (row,) = [json.loads(line) for line in (tmp_path / "pbt_global.txt").read_text().splitlines()]
    assert row[1:4] == [f"{best:05d}", 3, 3]
    assert resumed == [30.0]  # three steps of ten


def test_pbt_writes_no_secrets(tmp_path: Path) -> None:
    def pbt() -> TrialScheduler:
        return PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"lr": [0.02, 0.2, 1.0]},
        )

    configs = [{**config, "data": "s3://key:hidden@bucket/a"} for config in population(4)]
    simulate(pbt, configs, climb, max_steps=8, path=str(tmp_path))
    written = "".join(path.read_text() for path in tmp_path.iterdir())
    assert "s3://bucket/a" in written
    assert "hidden" not in written


def test_pbt_writes_nothing_without_log_config(tmp_path: Path) -> None:
    simulate(
        lambda: PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"lr": [0.02, 0.2]},
            log_config=False,
        ),
        population(4),
        climb,
        max_steps=8,
        path=str(tmp_path),
    )
    assert list(tmp_path.iterdir()) == []


def test_pbt_replayed(tmp_path: Path) -> None:
    policy = tmp_path / "pbt_policy_a.txt"
    policy.write_text(
        json.dumps(["b", "c", 4, 5, {"lr": 0.1, "x": 1}, {"lr": 0.2, "x": 1}])
        + "\n"
        + json.dumps(["a", "b", 9, 8, {"lr": 0.2, "x": 1}, {"lr": 0.4, "x": 1}])
        + "\n"
    )
    seen: list[tuple[int, float]] = []

    def step(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
        count = (state or 0) + 1
        seen.append((count, config["lr"]))
        return count, {"score": 1.0}

    replay = PopulationBasedTrainingReplay(policy)
    done = simulate(lambda: replay, [{"kept": 3}], step, max_steps=10)
    assert [lr for _, lr in seen] == [0.1] * 5 + [0.2] * 3 + [0.4] * 2
    assert [count for count, _ in seen] == list(range(1, 11))
    assert done.trials[0].config["kept"] == 3
    assert "2 of 2" in replay.debug_string()
    with pytest.raises(ValueError, match="num_samples=1"):
        simulate(lambda: PopulationBasedTrainingReplay(policy), [{}, {}], step, max_steps=2)


def test_pbt_draws_what_a_config_lacks() -> None:
    mutations = {"lr": tune.uniform(0.1, 0.2), "inner": {"n": [4, 8]}, "f": lambda: 3}
    filled = fill({"inner": {"kept": 1}, "f": 9}, mutations, random.Random(0))
    assert 0.1 <= filled["lr"] <= 0.2
    assert filled["inner"]["n"] in (4, 8)
    assert filled["inner"]["kept"] == 1
    assert filled["f"] == 9


def test_how_a_config_is_changed() -> None:
    mutations = {
        "number": tune.uniform(0, 100),
        "whole": tune.randint(1, 1000),
        "listed": [1, 2, 4, 8],
        "named": tune.choice(["a", "b", "c"]),
        "inner": {"deep": tune.loguniform(1e-4, 1)},
        "flag": lambda: True,
    }
    config = {
        "number": 10.0,
        "whole": 100,
        "listed": 4,
        "named": "b",
        "inner": {"deep": 0.1, "kept": 1},
        "flag": False,
        "untouched": "x",
    }
    before = json.dumps(config)
    for seed in range(20):
        moved = explore(config, mutations, 0.0, (1.2, 0.8), None, random.Random(seed))
        assert moved["number"] in (12.0, 8.0)
        assert moved["whole"] in (120, 80)
        assert type(moved["whole"]) is int
        assert moved["listed"] in (2, 8)
        assert moved["named"] in ("a", "c")
        assert moved["inner"]["deep"] in (pytest.approx(0.12), pytest.approx(0.08))
        assert moved["inner"]["kept"] == 1
        assert moved["flag"] is True
        assert moved["untouched"] == "x"
    assert json.dumps(config) == before
    drawn = explore(config, mutations, 1.0, (1.2,), None, random.Random(0))
    assert drawn["number"] not in (12.0, 8.0)
    capped = explore({"lr": 95.0}, {"lr": tune.uniform(0, 100)}, 0, (1.2,), None, random.Random(0))
    assert capped["lr"] == 100
    custom = explore(config, {}, 0, (1.2,), lambda c: {**c, "untouched": "y"}, random.Random(0))
    assert custom["untouched"] == "y"
    with pytest.raises(TypeError, match="returned None"):
        explore(config, {}, 0, (1.2,), lambda c: None, random.Random(0))  # type: ignore[arg-type, return-value]


def test_pbt_s_resampled_functions_use_their_own_randomness() -> None:
    rng = random.Random(5)
    found = {explore({"x": 1}, {"x": rng.random}, 1.0, (1.2,), None, rng)["x"] for _ in range(5)}
    assert len(found) == 5


def test_pbt_insists_on_its_metric() -> None:
    def step(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
        return 0, {"other": 1}

    options: dict[str, Any] = {
        "time_attr": "training_iteration",
        "hyperparam_mutations": {"lr": [1, 2]},
    }
    with pytest.raises(RuntimeError, match="reported no 'score'"):
        simulate(lambda: PopulationBasedTraining(**options), [{}], step, max_steps=2)
    simulate(
        lambda: PopulationBasedTraining(**options, require_attrs=False), [{}], step, max_steps=2
    )


def test_a_file_that_is_no_policy(tmp_path: Path) -> None:
    for text in ("", "not json\n", "[1, 2]\n"):
        (tmp_path / "policy.txt").write_text(text)
        with pytest.raises(ValueError, match="not a policy file"):
            PopulationBasedTrainingReplay(tmp_path / "policy.txt")
