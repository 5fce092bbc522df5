from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import CheckpointConfig, RunConfig
from lockstep.run_layout import run_title
from lockstep.train.driver.best import Best, BestSoFar, planned


def best_of(config: RunConfig, *rows: dict[str, Any]) -> Best | None:
    best = BestSoFar(config)
    for number, row in enumerate(rows, 1):
        best.update(number, row)
    return best.best


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", 0.5),
        ("val_loss", 0.5),
        ("eval/Loss", 0.5),
        ("accuracy", 2.0),
        ("test.acc", 2.0),
        ("lossless", None),
        ("lr", None),
    ],
)
def test_a_name_says_which_value_is_better(name: str, expected: float | None) -> None:
    best = best_of(RunConfig(), *({"epoch": 1, name: value} for value in (1.0, 0.5, 2.0)))
    assert (best and best.value) == expected


def test_the_score_of_checkpoints_comes_first() -> None:
    config = CheckpointConfig(
        checkpoint_score_attribute="eval/gain", checkpoint_score_order="min", num_to_keep=1
    )
    rows = [{"loss": 1.0, "eval": {"gain": value}} for value in (3, float("nan"), 2, True, "x")]
    assert best_of(RunConfig(checkpoint_config=config), *rows, {}) == ("eval/gain", 2, 3)


def test_what_a_stop_condition_allows() -> None:
    assert planned({"training_iteration": 10, "loss": 0.1}) == (10, None)
    assert planned({"time_total_s": 60}) == (None, 60.0)
    assert planned({"training_iteration": float("inf")}) == (None, None)
    assert planned(lambda trial_id, row: False) == planned(None) == (None, None)


def test_the_users_name_is_first() -> None:
    assert run_title("digits", "Torch_3f2a1_00000") == "digits Torch_3f2a1_00000"
    for made in ("Torch_2026-01-31_12-00-00", "Torch_2026-01-31_12-00-00_2"):
        assert run_title(made, "Torch_3f2a1_00000") == "Torch_3f2a1_00000"
