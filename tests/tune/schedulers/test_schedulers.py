"""Schedulers on simulated learning curves: what they save, and that they do not lose the best."""

from __future__ import annotations

import math
import random
import threading
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


def test_asha_stops_at_max_t_unless_stop_last_trials_is_false() -> None:
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
    decide = asha.on_trial_result
    assert decide(None, trials[0], {"epoch": 20, "loss": 1.0}) == "CONTINUE"  # type: ignore[arg-type]
    assert decide(None, trials[1], {"epoch": 17, "loss": 2.0}) == "STOP"  # type: ignore[arg-type]
    assert decide(None, trials[2], {"epoch": 5, "loss": 2.0}) == "CONTINUE"  # type: ignore[arg-type]
    assert decide(None, trials[2], {"epoch": 6}) == "CONTINUE"  # type: ignore[arg-type]
    assert decide(None, trials[2], {"loss": 6.0}) == "CONTINUE"  # type: ignore[arg-type]


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


def test_hyperband_continues_a_bracket_that_is_never_filled() -> None:
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
    """A simulated trial's state counts its steps: a resumed trial continues the count."""
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


def test_the_median_rule_pauses_without_hard_stop() -> None:
    done = simulate(
        lambda: MedianStoppingRule(time_attr="training_iteration", grace_period=2, hard_stop=False),
        [{"height": height} for height in (5, 6, 7, 1, 9)],
        lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
        max_steps=6,
        slots=1,
    )
    paused = [(trial, step) for trial, step, decision in done.decisions if decision == "PAUSE"]
    assert paused == [("00003", 2)]
    assert [trial for trial, _, _ in done.decisions][-4:] == ["00003"] * 4  # when all is done
    assert all(trial.state == trial.steps == 6 for trial in done.trials)


def test_the_median_rule_makes_room_for_others_to_compare_with() -> None:
    def decisions(min_time_slice: float) -> list[tuple[str, int, str]]:
        return simulate(
            lambda: MedianStoppingRule(
                time_attr="training_iteration", grace_period=1, min_time_slice=min_time_slice
            ),
            [{"height": n} for n in range(6)],
            lambda config, state: ((state or 0) + 1, {"score": config["height"]}),
            max_steps=6,
            slots=2,
            upfront=True,
        ).decisions

    assert ("00000", 2, "PAUSE") in decisions(2)
    assert all(decision != "PAUSE" for _, _, decision in decisions(0))


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
            lambda: PopulationBasedTraining(hyperparam_mutations={"a": lambda spec: 3}),
            TypeError,
            "a function without arguments",
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


def test_metric_and_mode_come_from_one_place() -> None:
    asha = ASHAScheduler()
    with pytest.raises(ValueError, match="metric=None"):
        asha.set_search_properties(None, "min")
    assert asha.set_search_properties("loss", "min")
    assert (asha.metric, asha.mode) == ("loss", "min")
    assert not ASHAScheduler(metric="loss").set_search_properties("accuracy", "max")
    assert not ASHAScheduler(mode="min").set_search_properties("accuracy", "max")
    assert FIFOScheduler().set_search_properties(None, None)


def test_an_own_scheduler_that_cannot_be_copied() -> None:
    class Locked(TrialScheduler):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    done = simulate(Locked, curves(1), learn, max_steps=2)
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
    ("scheduler", "message"), [(Stuck, "no trial is running"), (Wrong, "'MAYBE'")]
)
def test_the_simulation_notices_a_broken_scheduler(
    scheduler: type[TrialScheduler], message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        simulate(scheduler, curves(1), learn, max_steps=2)


class _Trial:
    def __init__(self, trial_id: str) -> None:
        self.trial_id = trial_id
