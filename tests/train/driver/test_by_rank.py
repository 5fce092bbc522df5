"""Values for thousands of ranks behave like tuples."""

from __future__ import annotations

import random

import pytest

from lockstep.train.driver.by_rank import SMALL, nothing_for, put


@pytest.mark.parametrize("size", [0, 1, SMALL, SMALL + 1, 1000, 1024])
def test_like_a_tuple(size: int) -> None:
    chance = random.Random(size)
    items, like = nothing_for(size), [None] * size
    before = items
    for number in range(300 if size else 0):
        rank = chance.randrange(size)
        items, like[rank] = put(items, rank, number), number  # type: ignore[call-overload]
    assert tuple(items) == tuple(like)
    assert len(items) == size
    assert [items[rank] for rank in range(size)] == like
    assert items[1:3] == tuple(like[1:3])
    assert items.count(None) == like.count(None)
    assert all(value is None for value in before)  # what was there first has not changed
