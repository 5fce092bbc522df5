"""Values for thousands of ranks behave like tuples."""

from __future__ import annotations

import random

import pytest

from lockstep.train.driver.by_rank import SMALL, nothing_for, put, set_of


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


@pytest.mark.parametrize("size", [1, SMALL, SMALL + 1, 1000])
def test_like_a_set(size: int) -> None:
    chance = random.Random(size)
    ranks, like = set_of((), size), frozenset[int]()
    for _ in range(200):
        some = {chance.randrange(size) for _ in range(chance.randrange(1, 4))}
        if chance.random() < 0.7:
            ranks, like = ranks | some, like | some
        else:
            ranks, like = ranks - some, like - some
        assert (len(ranks), bool(ranks)) == (len(like), bool(like))
    assert sorted(ranks) == sorted(like)
    assert ranks == like
    assert hash(ranks) == hash(set_of(like, size))
    assert [rank in ranks for rank in range(size)] == [rank in like for rank in range(size)]
    everyone = set(range(size))
    assert everyone - ranks == everyone - like
    assert everyone & ranks == like
    assert like <= ranks
    assert ranks & set_of(everyone, size) == like
    assert set() | ranks == like
    assert sorted(ranks - set_of(like, size)) == []
    assert str(set_of([0], size)) in ("{0}", "frozenset({0})")
