"""Every row once, in a defined order, wherever and however often a group of workers is stopped."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lockstep.data
from lockstep.data import Dataset, DataShard, ShardPlan, merge_states

SHUFFLES: list[int | str | None] = [None, "auto", "full", 40]


def numbers(n: int, tmp_path: Path, kind: str) -> Dataset:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    if kind == "memory":
        return lockstep.data.from_numpy({"id": np.arange(n)}).repartition(7)
    for part in range(3):
        low, high = n * part // 3, n * (part + 1) // 3
        table = pa.table({"id": np.arange(low, high)})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=13)
    return lockstep.data.read_parquet(tmp_path)


def ids(batch: dict[str, Any]) -> list[int]:
    return [int(value) for value in batch["id"]]


def shards(plan: ShardPlan, state: dict[str, Any] | None) -> list[DataShard]:
    return [plan.shard(rank, state) for rank in range(plan.cut.world_size)]


def saved(parts: Sequence[DataShard]) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(merge_states([p.state_dict() for p in parts])))
    return state


def interrupted_epoch(
    dataset: Dataset, rng: random.Random, equal: bool, order: str, local: int | None
) -> tuple[list[int], int]:
    """Rows seen in an epoch whose group is stopped and resized at random, and its last size."""
    state = None
    seen: list[int] = []
    while True:
        size = rng.choice([1, 2, 3, 5])
        batch = rng.choice([5, 8, 16])
        prefetch = rng.choice([0, 0, 0, 2])
        plan = dataset.prepare(size, equal=equal, order=order)
        parts = shards(plan, state)
        passes = [
            iter(
                part.iter_batches(
                    batch_size=batch,
                    local_shuffle_buffer_size=local,
                    prefetch_batches=prefetch,
                )
            )
            for part in parts
        ]
        for _ in range(rng.randrange(1, 6)):
            taken = [next(one, None) for one in passes]
            for rows in taken:
                seen += [] if rows is None else ids(rows)
            if all(rows is None for rows in taken):
                return seen, size
            if equal:
                assert len({rows is None for rows in taken}) == 1
        state = saved(parts)


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("order", ["local", "global"])
@pytest.mark.parametrize("equal", [True, False])
def test_no_row_twice_none_skipped(
    equal: bool, order: str, shuffle: int | str | None, tmp_path: Path
) -> None:
    rng = random.Random(f"{equal}{order}{shuffle}")
    for kind in ("memory", "parquet"):
        dataset = numbers(211, tmp_path, kind)
        if shuffle is not None:
            dataset = dataset.random_shuffle(seed=5, window=shuffle)
        for _ in range(4):
            local = rng.choice([None, None, 7, 50])
            seen, size = interrupted_epoch(dataset, rng, equal, order, local)
            assert len(seen) == len(set(seen))
            assert len(seen) > 211 - size if equal else len(seen) == 211


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("order", ["local", "global"])
@pytest.mark.parametrize("local", [None, 30])
def test_a_resumed_group_of_the_same_size_sees_what_an_uninterrupted_one_does(
    local: int | None, order: str, shuffle: int | str | None, tmp_path: Path
) -> None:
    dataset = numbers(150, tmp_path, "parquet")
    if shuffle is not None:
        dataset = dataset.random_shuffle(seed=1, window=shuffle)
    plan = dataset.prepare(2, order=order)

    def batches(part: DataShard) -> Any:
        return part.iter_batches(
            batch_size=8,
            local_shuffle_buffer_size=local,
            local_shuffle_seed=9,
            prefetch_batches=0,
        )

    for rank in range(2):
        whole = plan.shard(rank)
        expected = [[ids(batch) for batch in batches(whole)] for _ in range(3)]
        assert expected[0] != expected[1] or (shuffle is None and local is None)
        for stop in (1, 3, len(expected[1])):
            others = shards(plan, None)
            seen = []
            for part in others:
                for _ in batches(part):
                    pass
                running = iter(batches(part))
                seen.append([ids(next(running)) for _ in range(stop)])
                part.running = running  # type: ignore[attr-defined]
            resumed = plan.shard(rank, saved(others))
            rest = [ids(batch) for batch in batches(resumed)]
            assert seen[rank] + rest == expected[1]
            assert [ids(batch) for batch in batches(resumed)] == expected[2]


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_global_batches_are_the_same_for_any_number_of_workers(
    shuffle: int | str | None, tmp_path: Path
) -> None:
    dataset = numbers(203, tmp_path, "parquet")
    if shuffle is not None:
        dataset = dataset.random_shuffle(seed=1, window=shuffle)

    def epochs(size: int, drop_last: bool) -> list[list[list[int]]]:
        parts = shards(dataset.prepare(size, order="global"), None)
        found = []
        for _ in range(2):
            per_rank = [
                [
                    ids(b)
                    for b in part.iter_batches(
                        batch_size=20, drop_last=drop_last, prefetch_batches=0
                    )
                ]
                for part in parts
            ]
            found.append(
                [[row for part in step for row in part] for step in zip(*per_rank, strict=True)]
            )
        return found

    for drop_last in (False, True):
        one = epochs(1, drop_last)
        assert [len(batch) for batch in one[0]] == [20] * 10 + [3] * (not drop_last)
        assert (one[0] == one[1]) == (shuffle is None)
        assert epochs(2, drop_last) == one
        assert epochs(3, drop_last) == one
        # Three rows cannot be shared by seven workers, so equal batches leave them out.
        assert [epoch[:10] for epoch in one] == epochs(7, drop_last)


def test_global_order_stays_the_same_after_a_resize() -> None:
    dataset = lockstep.data.range(500).random_shuffle(seed=4)
    (alone,) = shards(dataset.prepare(1, order="global"), None)
    expected = [ids(batch) for batch in alone.iter_batches(batch_size=24)]
    state, seen = None, []
    for size, steps in ((2, 3), (5, 4), (1, 2), (3, 99)):
        parts = shards(dataset.prepare(size, order="global"), state)
        passes = [iter(part.iter_batches(batch_size=24)) for part in parts]
        for _ in range(steps):
            taken = [next(one, None) for one in passes]
            if taken[0] is None:
                break
            seen.append([i for rows in taken if rows is not None for i in ids(rows)])
        state = saved(parts)
    assert seen == expected


def test_equal_shards_drop_what_is_left_over() -> None:
    def counts(rows: int, size: int, equal: bool) -> list[int]:
        plan = lockstep.data.range(rows).prepare(size, equal=equal)
        parts = shards(plan, None)
        seen = [sum(len(b["id"]) for b in part.iter_batches(batch_size=16)) for part in parts]
        assert seen == [part.count() for part in parts]
        return seen

    assert counts(1000, 3, True) == [333, 333, 333]
    assert counts(1000, 3, False) == [334, 333, 333]
    assert counts(1, 2, True) == [0, 0]
    assert counts(1, 2, False) == [1, 0]


def test_an_iteration_left_early_is_an_epoch_done() -> None:
    (part,) = shards(lockstep.data.range(100).random_shuffle(seed=0).prepare(1), None)
    for _ in part.iter_batches(batch_size=10):
        break
    assert part.state_dict()["epoch"] == 1
    assert part.state_dict()["consumed"] == 0


def test_the_position_is_what_was_handed_out_not_what_was_read_ahead() -> None:
    (part,) = shards(lockstep.data.range(100).prepare(1), None)
    assert (part.state_dict()["epoch"], part.state_dict()["consumed"]) == (0, 0)
    batches = part.iter_batches(batch_size=10)
    next(batches)
    next(batches)
    assert (part.state_dict()["epoch"], part.state_dict()["consumed"]) == (0, 20)


def test_a_state_that_was_loaded_and_not_used_is_still_the_state() -> None:
    dataset = lockstep.data.range(100).random_shuffle(seed=0)
    parts = shards(dataset.prepare(2), None)
    passes = [iter(part.iter_batches(batch_size=10)) for part in parts]
    seen = [ids(next(one)) for one in passes]
    state = saved(parts)
    again = saved(shards(dataset.prepare(2), saved(shards(dataset.prepare(2), state))))
    assert again == state
    through_three = saved(shards(dataset.prepare(3), state))
    (last,) = shards(dataset.prepare(1), through_three)
    rest = [i for batch in last.iter_batches() for i in ids(batch)]
    assert sorted(rest + seen[0] + seen[1]) == list(range(100))


def test_ranks_that_finished_an_epoch_others_are_in() -> None:
    dataset = lockstep.data.range(60)
    first, second = shards(dataset.prepare(2), None)
    assert len(list(first.iter_batches(batch_size=10))) == 3
    running = iter(second.iter_batches(batch_size=10))
    next(running)
    state = saved([first, second])
    (alone,) = shards(dataset.prepare(1), state)
    assert [i for batch in alone.iter_batches() for i in ids(batch)] == list(range(40, 60))
    assert [i for batch in alone.iter_batches() for i in ids(batch)] == list(range(60))


def test_a_rank_that_is_not_used_follows_the_others() -> None:
    """Rank 0 alone evaluates: after a restore it sees its rows again, and not what others left."""
    dataset = lockstep.data.range(60)
    first, second = shards(dataset.prepare(2), None)
    for _ in range(3):
        list(first.iter_batches())
    state = saved([first, second])
    assert state["epoch"] == 3
    for size in (1, 2, 3):
        again = shards(dataset.prepare(size), state)[0]
        assert [i for batch in again.iter_batches() for i in ids(batch)] == [*range(60 // size)]


def test_ranks_that_go_on_with_another_local_shuffle_agree() -> None:
    dataset = lockstep.data.range(40)
    plan = dataset.prepare(2, equal=False)
    parts = shards(plan, None)
    running = [
        iter(part.iter_batches(batch_size=5, local_shuffle_buffer_size=10)) for part in parts
    ]
    seen = ids(next(running[0]))  # and nothing yet of the other rank
    state = saved(parts)
    for size in (None, 10, 7):
        rest = [
            row
            for part in shards(plan, state)
            for batch in part.iter_batches(batch_size=5, local_shuffle_buffer_size=size)
            for row in ids(batch)
        ]
        assert sorted(rest + seen) == list(range(40))


@pytest.mark.parametrize("progress", [(1, 0), (2, 1), (3, 3)])
def test_each_rank_has_a_seed_of_its_own(progress: tuple[int, ...]) -> None:
    plan = lockstep.data.range(40).prepare(2, equal=False)

    def batches(parts: Sequence[DataShard], seeds: Sequence[int | None]) -> list[Any]:
        return [
            part.iter_batches(batch_size=5, local_shuffle_buffer_size=10, local_shuffle_seed=seed)
            for part, seed in zip(parts, seeds, strict=True)
        ]

    whole = [[ids(b) for b in run] for run in batches(shards(plan, None), (0, 1))]
    parts = shards(plan, None)
    running = [iter(run) for run in batches(parts, (0, 1))]
    seen = [
        [ids(next(run)) for _ in range(steps)] for run, steps in zip(running, progress, strict=True)
    ]
    state = saved(parts)
    rest = [[ids(b) for b in run] for run in batches(shards(plan, state), (0, 1))]
    assert [before + after for before, after in zip(seen, rest, strict=True)] == whole
    # Another seed, or none, is for the epochs after this one.
    again = shards(plan, state)
    runs = batches(again, (7, None))
    rest = [[ids(b) for b in run] for run in runs]
    flat = [i for share in (*seen, *rest) for batch in share for i in batch]
    assert sorted(flat) == list(range(40))
    later = [[ids(b) for b in run] for run in runs]
    assert later[0] != whole[0]
    assert sorted(i for share in later for batch in share for i in batch) == list(range(40))


def test_a_seed_nobody_chose_travels_with_the_state() -> None:
    (part,) = shards(lockstep.data.range(50).random_shuffle().prepare(1), None)
    running = iter(part.iter_batches(batch_size=20))
    seen = ids(next(running))
    (resumed,) = shards(lockstep.data.range(50).random_shuffle().prepare(1), saved([part]))
    seen += [i for batch in resumed.iter_batches() for i in ids(batch)]
    assert sorted(seen) == list(range(50))


def test_a_rank_resumes_from_its_own_state() -> None:
    plan = lockstep.data.range(40).prepare(2)
    part = plan.shard(1)
    running = iter(part.iter_batches(batch_size=5))
    next(running)
    other = plan.shard(1)
    other.load_state_dict(part.state_dict())
    assert ids(next(other.iter_batches(batch_size=5))) == list(range(25, 30))


def test_a_state_of_other_data_is_an_error() -> None:
    (part,) = shards(lockstep.data.range(50).prepare(1), None)
    running = iter(part.iter_batches(batch_size=20))
    next(running)
    with pytest.raises(ValueError, match=r"has 51 rows, but was left in the middle of .* of 50"):
        lockstep.data.range(51).prepare(1).shard(0, saved([part]))
    del running  # the epoch is over, so another number of rows may follow
    lockstep.data.range(51).prepare(1).shard(0, saved([part]))
    with pytest.raises(ValueError, match="is not the state of a dataset"):
        lockstep.data.range(51).prepare(1).shard(0, {"epoch": 1})


def test_states_that_do_not_belong_together_are_an_error() -> None:
    states = [part.state_dict() for part in shards(lockstep.data.range(9).prepare(3), None)]
    with pytest.raises(ValueError, match="states of 2 of 3 ranks"):
        merge_states(states[:2])
    with pytest.raises(ValueError, match="not one each of 3 ranks"):
        merge_states([states[0], states[1], states[1]])
    with pytest.raises(ValueError, match="no states"):
        merge_states([])
    with pytest.raises(ValueError, match="Ranks 0 and 1 do not agree on what was left"):
        merge_states([states[0], {**states[1], "base": merge_states(states)}, states[2]])
    with pytest.raises(ValueError, match="a merged state"):
        merge_states([merge_states(states)])
    with pytest.raises(ValueError, match="state of rank 1 of 3, and here is rank 0 of 3"):
        lockstep.data.range(9).prepare(3).shard(0, states[1])


def test_the_order_is_the_same_on_every_machine_and_in_every_version() -> None:
    from lockstep.data.plan.hashing import hash_range, key_of, permutation

    assert key_of(0) == 16294208416658607535  # as splitmix64's authors give it
    assert hash_range(1, 0, 3).tolist() == [
        6238072747940578789,
        10451216379200822465,
        13757245211066428519,
    ]
    assert permutation(key_of(7), 10).tolist() == [6, 5, 0, 3, 4, 2, 1, 9, 8, 7]
    assert permutation(key_of(7), 100_000)[:8].tolist() == [
        66283,
        39460,
        57045,
        25428,
        48631,
        32473,
        14270,
        43984,
    ]
    shuffled = lockstep.data.range(20).random_shuffle(seed=42)
    (part,) = shards(shuffled.prepare(1), None)
    assert [ids(batch) for _ in range(2) for batch in part.iter_batches()] == [
        [0, 13, 11, 8, 5, 18, 19, 14, 4, 12, 7, 9, 17, 1, 6, 16, 3, 15, 10, 2],
        [5, 4, 9, 19, 14, 10, 16, 1, 17, 3, 2, 0, 7, 6, 15, 18, 11, 12, 8, 13],
    ]


def test_a_permutation_has_every_number_once() -> None:
    from lockstep.data.plan.hashing import permutation

    for size in (0, 1, 2, 3, 64, 65, 1000, 4097, 65_537, 131_072):
        assert sorted(permutation(size * 7 + 1, size).tolist()) == list(range(size))
