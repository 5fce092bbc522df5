"""The median stopping rule against its definition, and what a report costs it."""

from __future__ import annotations

import random
from statistics import mean, median
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.tune.schedulers import MedianStoppingRule, median_stopping_rule


def rule() -> MedianStoppingRule:
    made = MedianStoppingRule(time_attr="t", grace_period=2, min_samples_required=2)
    assert made.set_search_properties("score", "max")
    return made


def by_definition(
    results: dict[str, list[tuple[float, float]]], trial_id: str, reached: float
) -> str:
    """What the rule says, from everything that was reported."""
    counting = {
        other: [(t, score) for t, score in rows if t >= 2] for other, rows in results.items()
    }
    averages = [
        mean(score for t, score in rows if t <= reached) if rows[0][0] <= reached else rows[0][1]
        for other, rows in counting.items()
        if other != trial_id and rows and rows[-1][0] >= reached
    ]
    if reached < 2 or len(averages) < 2:
        return "CONTINUE"
    best = max(score for _, score in results[trial_id])
    return "CONTINUE" if best >= median(averages) else "STOP"


@pytest.mark.parametrize("seed", range(8))
def test_it_does_what_its_definition_says(seed: int) -> None:
    rng = random.Random(seed)
    scheduler = rule()
    results: dict[str, list[tuple[float, float]]] = {}
    running = {f"{number}": 0 for number in range(12)}
    decisions = set()
    while running:
        trial_id = rng.choice(sorted(running))
        running[trial_id] += rng.choice((1, 1, 3))
        reached = running[trial_id]
        trial: Any = SimpleNamespace(trial_id=trial_id)
        if rng.random() < 0.02:
            scheduler.on_trial_error(None, trial)  # type: ignore[arg-type]
            results.pop(trial_id, None)
            del running[trial_id]
            continue
        score = rng.gauss(int(trial_id), 4)
        results.setdefault(trial_id, []).append((reached, score))
        row = {"t": reached, "score": score}
        decision = scheduler.on_trial_result(None, trial, row)  # type: ignore[arg-type]
        expected = by_definition(results, trial_id, reached)
        assert decision == expected
        decisions.add(decision)
        if decision == "STOP" or reached >= 40:
            del running[trial_id]
    assert decisions == {"CONTINUE", "STOP"}


def test_times_that_nobody_shares_are_compared_nearly() -> None:
    rng = random.Random(1)
    scheduler = rule()
    for number in range(20):
        trial: Any = SimpleNamespace(trial_id=str(number))
        at = 0.0
        for _ in range(30):
            at += rng.uniform(0.5, 1.5)
            row = {"t": at, "score": 10.0}
            assert scheduler.on_trial_result(None, trial, row) == "CONTINUE"  # type: ignore[arg-type]
            if number > 2:
                break
    bad: Any = SimpleNamespace(trial_id="bad")
    row = {"t": 12.3456, "score": 1.0}
    assert scheduler.on_trial_result(None, bad, row) == "STOP"  # type: ignore[arg-type]


def test_a_report_costs_the_same_for_any_number_of_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0
    mean_until = median_stopping_rule._History.mean_until

    def counted(self: Any, time: float) -> float:
        nonlocal calls
        calls += 1
        return mean_until(self, time)

    monkeypatch.setattr(median_stopping_rule._History, "mean_until", counted)
    scheduler = rule()
    rng = random.Random(2)
    costs = []
    for number in range(400):
        trial: Any = SimpleNamespace(trial_id=str(number))
        before, at = calls, 0.0
        for _ in range(20):
            at += rng.uniform(0.8, 1.2)
            scheduler.on_trial_result(None, trial, {"t": at, "score": 1.0})  # type: ignore[arg-type]
        costs.append(calls - before)
    assert max(costs[300:]) < 1000  # of 20 reports; each could compare with 300 others
    assert sum(costs[300:]) <= 1.5 * sum(costs[200:300])
