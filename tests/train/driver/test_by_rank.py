"""Values for thousands of ranks behave like tuples."""

from __future__ import annotations

import random

import pytest

from lockstep.train.driver.by_rank import SMALL, added, nothing_for, put, set_of


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


def test_a_value_more_leaves_earlier_ones_as_they_are() -> None:
    values = [added((), 0)]
    for number in range(1, 2 * SMALL):
        values.append(added(values[-1], number))
    other = added(values[SMALL], "other")
    assert tuple(other) == (*range(SMALL + 1), "other")
    for number, value in enumerate(values):
        assert tuple(value) == tuple(range(number + 1))
        assert len(value) == number + 1
        assert (value[0], value[-1], value[-2:]) == (0, number, tuple(range(number + 1))[-2:])
    assert list(reversed(values[-1])) == list(range(2 * SMALL))[::-1]
    with pytest.raises(IndexError):
        values[SMALL][SMALL + 1]  # what was added since is not its own
    # The last values share one list: none of them was copied.
    assert values[-1]._items is values[SMALL]._items  # type: ignore[attr-defined]  # of long ones


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
