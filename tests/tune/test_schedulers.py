"""Schedulers on simulated learning curves: what they save, and that they do not lose the best."""

from __future__ import annotations

import json
import math
import random
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.testing.simulation import simulate
from lockstep.tune.schedulers import (
    ASHAScheduler,
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    PopulationBasedTrainingReplay,
    TrialScheduler,
    create_scheduler,
)
from lockstep.tune.schedulers.explore import explore, fill
from lockstep.tune.schedulers.scoring import quantile, read_score


def curves(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Configs whose accuracy rises to a height at a pace, with noise."""
    rng = random.Random(seed)
    return [
        {"number": n, "height": rng.uniform(0.2, 0.98), "pace": rng.uniform(0.1, 0.5)}
        for n in range(count)
    ]


def learn(config: dict[str, Any], state: Any) -> tuple[int, dict[str, Any]]:
    count = (state or 0) + 1
    noise = random.Random(f"{config['number']}/{count}").gauss(0, 0.01)
    return count, {"score": config["height"] * (1 - math.exp(-config["pace"] * count)) + noise}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("slots", [2, 8])
def test_asha_finds_the_best_in_a_third_of_the_epochs(seed: int, slots: int) -> None:
    def run(make: Any) -> Any:
        return simulate(make, curves(64, seed), learn, max_steps=27, slots=slots)

    everything = run(FIFOScheduler)
    halved = run(lambda: ASHAScheduler(max_t=27, grace_period=1, reduction_factor=3))
    assert everything.total_steps == 64 * 27
    assert halved.total_steps <= everything.total_steps / 3
    best = everything.best("score", "max").last_result["score"]
    assert halved.best("score", "max").last_result["score"] >= best - 0.05


def test_asha_s_rungs_and_the_share_that_passes() -> None:
    asha = ASHAScheduler(metric="score", mode="max", max_t=16, grace_period=2, reduction_factor=2)
    done = simulate(
        lambda: asha,
        [{"height": n} for n in range(32)],
        lambda config, state: (0, {"score": config["height"]}),
        max_steps=99,
        slots=32,
    )
    stopped_at = {trial.steps for trial in done.trials}
    assert stopped_at <= {2, 4, 8, 16}
    assert done.trials[-1].steps == 16
    assert ASHAScheduler is AsyncHyperBandScheduler
    assert "stopped; 2:" in asha.debug_string()


def test_asha_stops_at_max_t_unless_told_otherwise() -> None:
    for stop_last, steps in ((True, 4), (False, 9)):
        done = simulate(
            lambda stop=stop_last: ASHAScheduler(max_t=4, stop_last_trials=stop),  # type: ignore[misc]
            [{}],
            lambda config, state: (0, {"score": 1.0}),
            max_steps=9,
        )
        assert done.trials[0].steps == steps


def test_asha_with_another_time_and_reports_that_skip_rungs() -> None:
    """A report that is already past several rungs counts for the furthest of them."""
    asha = ASHAScheduler(time_attr="epoch", metric="loss", mode="min", max_t=100, grace_period=1)
    trials = [_Trial(str(n)) for n in range(3)]
    assert asha.set_search_properties(None, None)
    for trial in trials:
        asha.on_trial_add(None, trial)  # type: ignore[arg-type]
    tell = asha.on_trial_result
    assert tell(None, trials[0], {"epoch": 20, "loss": 1.0}) == "CONTINUE"  # type: ignore[arg-type]
    assert tell(None, trials[1], {"epoch": 17, "loss": 2.0}) == "STOP"  # type: ignore[arg-type]
    assert tell(None, trials[2], {"epoch": 5, "loss": 2.0}) == "CONTINUE"  # type: ignore[arg-type]
    assert tell(None, trials[2], {"epoch": 6}) == "CONTINUE"  # type: ignore[arg-type]
    assert tell(None, trials[2], {"loss": 6.0}) == "CONTINUE"  # type: ignore[arg-type]


def test_asha_s_brackets_start_later() -> None:
    done = simulate(
        lambda: ASHAScheduler(max_t=9, reduction_factor=3, brackets=2),
        curves(60),
        learn,
        max_steps=20,
    )
    stopped_at = [trial.steps for trial in done.trials]
    assert set(stopped_at) <= {1, 3, 9}
    assert stopped_at.count(1) < 45  # those of the second bracket are not asked before 3


def test_a_trial_that_is_not_a_number_is_stopped() -> None:
    done = simulate(
        lambda: ASHAScheduler(max_t=9, reduction_factor=3),
        [{"nan": n == 3} for n in range(6)],
        lambda config, state: (0, {"score": math.nan if config["nan"] else 1.0}),
        max_steps=9,
        slots=1,
    )
    assert [trial.steps for trial in done.trials] == [9, 9, 9, 1, 9, 9]


def test_hyperband_finds_the_best_with_fewer_epochs() -> None:
    def run(make: Any) -> Any:
        return simulate(make, curves(40), learn, max_steps=27, slots=4)

    everything = run(FIFOScheduler)
    halved = run(lambda: HyperBandScheduler(max_t=27, reduction_factor=3))
    assert halved.total_steps < everything.total_steps / 2
    best = everything.best("score", "max").last_result["score"]
    assert halved.best("score", "max").last_result["score"] >= best - 0.1


def test_hyperband_halves_a_full_bracket() -> None:
    scheduler = HyperBandScheduler(max_t=9, reduction_factor=3)
    done = simulate(
        lambda: scheduler,
        [{"height": n} for n in range(9)],
        lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
        max_steps=99,
        slots=2,
    )
    assert [trial.steps for trial in done.trials] == [1] * 6 + [3, 3, 9]
    assert "1 bracket(s), 9 stopped" in scheduler.debug_string()


def test_hyperband_goes_on_with_a_bracket_that_is_never_filled() -> None:
    done = simulate(
        lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
        [{"height": n} for n in range(4)],
        lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
        max_steps=99,
        slots=2,
    )
    assert [trial.steps for trial in done.trials] == [1, 1, 1, 9]


def test_hyperband_lets_the_last_ones_run_on() -> None:
    done = simulate(
        lambda: HyperBandScheduler(max_t=4, reduction_factor=2, stop_last_trials=False),
        [{"height": n} for n in range(4)],
        lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
        max_steps=7,
        slots=4,
    )
    assert [trial.steps for trial in done.trials] == [1, 1, 2, 7]


def test_paused_trials_lose_nothing() -> None:
    """A simulated trial's state counts its steps: it goes on from where it was."""
    done = simulate(
        lambda: HyperBandScheduler(max_t=9, reduction_factor=3), curves(9), learn, max_steps=9
    )
    assert all(trial.state == trial.steps for trial in done.trials)
    assert any(decision == "PAUSE" for _, _, decision in done.decisions)


def test_the_median_rule_stops_the_worse_half() -> None:
    done = simulate(
        lambda: MedianStoppingRule(
            time_attr="training_iteration", grace_period=3, min_samples_required=3
        ),
        [{"height": height} for height in (5, 6, 7, 1, 2, 9, 3)],
        lambda config, state: (0, {"score": config["height"]}),
        max_steps=10,
        slots=1,
    )
    assert [trial.steps for trial in done.trials] == [10, 10, 10, 3, 3, 10, 3]


def test_the_median_rule_compares_the_best_with_averages() -> None:
    """A trial that was good once is as good as others were on average."""
    falling = [9.0, 1.0, 1.0, 1.0, 1.0]
    done = simulate(
        lambda: MedianStoppingRule(
            time_attr="training_iteration", grace_period=1, min_samples_required=2
        ),
        [{"scores": [5.0] * 5}] * 2 + [{"scores": falling}, {"scores": falling[::-1]}],
        lambda config, state: ((state or 0) + 1, {"score": config["scores"][state or 0]}),
        max_steps=5,
        slots=1,
    )
    assert [trial.steps for trial in done.trials] == [5, 5, 5, 1]


def test_the_median_rule_needs_enough_others() -> None:
    done = simulate(
        lambda: MedianStoppingRule(
            time_attr="training_iteration", grace_period=1, min_samples_required=9
        ),
        [{"height": n} for n in range(9)],
        lambda config, state: (0, {"score": config["height"]}),
        max_steps=5,
    )
    assert all(trial.steps == 5 for trial in done.trials)


def test_the_median_rule_pauses_where_it_is_told_to() -> None:
    done = simulate(
        lambda: MedianStoppingRule(
            time_attr="training_iteration", grace_period=1, hard_stop=False, min_time_slice=2
        ),
        [{"height": 9 - n} for n in range(9)],
        lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
        max_steps=6,
        slots=2,
    )
    assert any(decision == "PAUSE" for _, _, decision in done.decisions)
    assert all(trial.steps == 6 for trial in done.trials)


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


def test_pbt_writes_nothing_where_it_is_told_not_to(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ASHAScheduler(max_t=0), ValueError, "max_t=0"),
        (lambda: ASHAScheduler(grace_period=200), ValueError, "grace_period=200, max_t=100"),
        (lambda: ASHAScheduler(reduction_factor=1), ValueError, "reduction_factor=1"),
        (lambda: ASHAScheduler(brackets=0), ValueError, "brackets=0"),
        (lambda: ASHAScheduler(mode="best"), ValueError, "mode='best'"),
        (lambda: HyperBandScheduler(max_t=-1), ValueError, "max_t=-1"),
        (lambda: HyperBandScheduler(reduction_factor=0.5), ValueError, "reduction_factor=0.5"),
        (lambda: MedianStoppingRule(grace_period=-1), ValueError, "grace_period=-1"),
        (lambda: MedianStoppingRule(min_samples_required=0), ValueError, "min_samples_required=0"),
        (lambda: PopulationBasedTraining(), ValueError, "would change nothing"),
        (
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": 3}),
            TypeError,
            "{'a': 3}",
        ),
        (
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": {"b": []}}),
            ValueError,
            "nothing to choose",
        ),
        (
            lambda: PopulationBasedTraining(
                hyperparam_mutations={"a": tune.sample_from(lambda spec: 1)}
            ),
            ValueError,
            "sample_from",
        ),
        (
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": [1]}, quantile_fraction=0.6),
            ValueError,
            "quantile_fraction=0.6",
        ),
        (
            lambda: PopulationBasedTraining(
                hyperparam_mutations={"a": [1]}, perturbation_interval=0
            ),
            ValueError,
            "perturbation_interval=0",
        ),
        (
            lambda: PopulationBasedTraining(
                hyperparam_mutations={"a": [1]}, perturbation_factors=(0,)
            ),
            ValueError,
            "perturbation_factors=0",
        ),
        (lambda: PopulationBasedTrainingReplay("/no/such/file"), ValueError, "no such file"),
        (lambda: create_scheduler("best"), ValueError, "'best'"),
    ],
)
def test_what_makes_no_sense_is_rejected_at_once(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_file_that_is_no_policy(tmp_path: Path) -> None:
    for text in ("", "not json\n", "[1, 2]\n"):
        (tmp_path / "policy.txt").write_text(text)
        with pytest.raises(ValueError, match="not a policy file"):
            PopulationBasedTrainingReplay(tmp_path / "policy.txt")


def test_metric_and_mode_come_from_one_place() -> None:
    asha = ASHAScheduler()
    with pytest.raises(ValueError, match="metric=None"):
        asha.set_search_properties(None, "min")
    assert asha.set_search_properties("loss", "min")
    assert (asha.metric, asha.mode) == ("loss", "min")
    assert not ASHAScheduler(metric="loss").set_search_properties("accuracy", "max")
    assert not ASHAScheduler(mode="min").set_search_properties("accuracy", "max")
    assert FIFOScheduler().set_search_properties(None, None)


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


def test_an_own_scheduler_that_cannot_be_copied() -> None:
    class Locked(TrialScheduler):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    done = simulate(Locked, [{"lr": 1.0}], climb, max_steps=2)
    assert done.trials[0].steps == 2


def test_schedulers_by_name() -> None:
    assert isinstance(create_scheduler("async_hyperband", max_t=5), ASHAScheduler)
    assert isinstance(create_scheduler("FIFO"), FIFOScheduler)


def test_reading_scores() -> None:
    assert read_score({"a": {"b": 2}}, "a/b", "max") == 2
    assert read_score({"a": 2}, "a", "min") == -2
    assert read_score({"a": math.nan}, "a", "min") == -math.inf
    assert read_score({"a": True}, "a", "max") is None
    assert quantile([1, 2, 3, 4], 0.5) == 2.5
    assert quantile([-math.inf, -math.inf], 0.5) == -math.inf


class Stuck(TrialScheduler):
    """Runs nothing."""

    def choose_trial_to_run(self, tune_controller: Any) -> None:
        return None


class Wrong(TrialScheduler):
    """Answers with something else."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        return "MAYBE"


@pytest.mark.parametrize(
    ("scheduler", "message"), [(Stuck, "nothing runs any more"), (Wrong, "'MAYBE'")]
)
def test_the_simulation_notices_a_broken_scheduler(
    scheduler: type[TrialScheduler], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        simulate(scheduler, [{"lr": 1.0}], climb, max_steps=2)


class _Trial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
