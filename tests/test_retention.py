"""Which checkpoints are best, and which may go."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lockstep.config import CheckpointConfig
from lockstep.retention import CheckpointRecord, surplus, worst_to_best


def records(*scores: float | None) -> list[CheckpointRecord]:
    return [
        CheckpointRecord(number, f"c{number}", number + 1, score, {}, 0)
        for number, score in enumerate(scores)
    ]


def config(keep: int | None, order: Any = "max", attribute: str | None = "s") -> CheckpointConfig:
    return CheckpointConfig(keep, attribute, order)


def ids(found: list[CheckpointRecord]) -> list[int]:
    return [record.id for record in found]


class TestRanking:
    def test_worst_first_best_last(self) -> None:
        assert ids(worst_to_best(records(2, 4, 1, 3), config(None))) == [2, 0, 3, 1]
        assert ids(worst_to_best(records(2, 4, 1, 3), config(None, "min"))) == [1, 3, 0, 2]

    def test_as_many_as_are_kept(self) -> None:
        assert ids(worst_to_best(records(2, 4, 1, 3), config(2, "min"))) == [0, 2]
        assert ids(worst_to_best(records(2, 4), config(5))) == [0, 1]
        assert worst_to_best(records(2, 4), config(0)) == []

    def test_a_tie_goes_to_the_later(self) -> None:
        assert ids(worst_to_best(records(1, 1, 1), config(2))) == [1, 2]

    def test_without_a_score_the_newest_is_best(self) -> None:
        assert ids(worst_to_best(records(9, 5, 7), config(2, attribute=None))) == [1, 2]

    @pytest.mark.parametrize("order", ["max", "min"])
    @pytest.mark.parametrize("bad", [None, math.nan])
    def test_missing_and_nan_are_worst(self, order: str, bad: float | None) -> None:
        scores = (bad, 3.0, bad, -math.inf, math.inf)
        assert ids(worst_to_best(records(*scores), config(None, order)))[:2] == [0, 2]

    @pytest.mark.parametrize(("order", "best"), [("max", 2), ("min", 1)])
    def test_infinity_is_a_score(self, order: str, best: int) -> None:
        ranked = ids(worst_to_best(records(0.0, -math.inf, math.inf), config(None, order)))
        assert ranked[-1] == best


class TestSurplus:
    def test_all_are_kept_by_default(self) -> None:
        assert surplus(records(1, 2, 3), CheckpointConfig(), ended=True) == []
        assert surplus([], config(1), ended=False) == []

    def test_the_newest_stays_besides_the_best(self) -> None:
        assert ids(surplus(records(9, 8, 1), config(2), ended=False)) == []
        assert ids(surplus(records(9, 8, 1), config(1), ended=False)) == [1]
        assert ids(surplus(records(9, 8, 1), config(1), ended=True)) == [1]

    def test_without_a_score_old_ones_go(self) -> None:
        assert ids(surplus(records(9, 8, 1), config(1, attribute=None), ended=False)) == [0, 1]

    def test_none_to_keep_keeps_the_newest_until_the_end(self) -> None:
        assert ids(surplus(records(1, 2), config(0), ended=False)) == [0]
        assert ids(surplus(records(1, 2), config(0), ended=True)) == [0, 1]

    def test_nothing_goes_while_no_checkpoint_has_the_score(self) -> None:
        assert surplus(records(None, None, None), config(1), ended=False) == []
        assert surplus(records(None, None, None), config(1), ended=True) == []
        assert ids(surplus(records(None, None, 1.0), config(1), ended=False)) == [0, 1]
        assert ids(surplus(records(None, None), config(0), ended=True)) == [0, 1]
