"""How the ranks' files become one checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.config import CheckpointUploadMode
from lockstep.errors import CheckpointError
from lockstep.run_layout import checkpoint_name
from lockstep.train.driver.save_plan import agreed_name, differing_files, plan_save
from lockstep.train.protocol import CheckpointReport


def part(*names: str) -> CheckpointReport:
    return CheckpointReport(dict.fromkeys(names, 1), CheckpointUploadMode.SYNC, None, None, None)


def test_names_are_numbered_from_zero() -> None:
    assert [checkpoint_name(number) for number in (0, 12, 1234567)] == [
        "checkpoint_000000",
        "checkpoint_000012",
        "checkpoint_1234567",
    ]


def test_different_names_are_all_written_and_none_compared() -> None:
    plan = plan_save({0: part("a"), 1: part("b", "sub/c")})
    assert plan.write == {0: ("a",), 1: ("b", "sub/c")}
    assert plan.compare == {0: (), 1: ()}


def test_the_lowest_rank_writes_what_several_have() -> None:
    plan = plan_save({2: part("a", "b"), 1: part("a", "c"), 3: part("a", "b")})
    assert plan.write == {1: ("a", "c"), 2: ("b",), 3: ()}
    assert plan.compare == {1: ("a",), 2: ("a", "b"), 3: ("a", "b")}


def test_dicts_are_not_compared() -> None:
    plan = plan_save({0: part("dict_checkpoint.bin"), 1: part("dict_checkpoint.pkl", "a")})
    assert plan.write == {0: ("dict_checkpoint.bin",), 1: ("a",)}
    assert plan.compare == {0: (), 1: ()}


def test_every_name_is_written_exactly_once() -> None:
    parts = {rank: part(*(f"f{i}" for i in range(rank, rank + 4))) for rank in range(5)}
    written = [name for names in plan_save(parts).write.values() for name in names]
    assert sorted(written) == sorted({name for each in parts.values() for name in each.files})


def test_an_empty_part_still_takes_part() -> None:
    assert plan_save({0: part()}).write == {0: ()}


@pytest.mark.parametrize("below", ["model/b", "model/b/c"])
def test_a_file_of_one_rank_cannot_be_a_directory_of_another(below: str) -> None:
    for one, other in ((0, 2), (2, 0)):
        with pytest.raises(CheckpointError) as raised:
            plan_save({one: part("a", "model"), 1: part("a"), other: part(below)})
        for word in (f"rank {one} ", f"rank {other} ", "'model'", repr(below)):
            assert word in str(raised.value)


def test_the_lowest_rank_that_gives_a_name_decides() -> None:
    one, other, unnamed = (part()._replace(dir_name=name) for name in ("one", "other", None))
    assert agreed_name({0: unnamed, 1: unnamed}) is None
    assert agreed_name({0: one, 1: unnamed}) == "one"
    assert agreed_name({2: other, 1: one, 0: unnamed}) == "one"


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("mode", list(CheckpointUploadMode)[:2], "upload modes (rank 0: SYNC, rank 2: ASYNC)"),
        (
            "location",
            ["/one", "/two"],
            "directories and none is uploaded (rank 0: /one, rank 2: /two)",
        ),
    ],
)
def test_what_ranks_have_to_agree_on(field: str, values: list[Any], words: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        agreed_name({rank: part()._replace(**{field: values[rank // 2]}) for rank in (2, 0)})
    assert words in str(raised.value)
    agreed_name({rank: part()._replace(**{field: values[0]}) for rank in (2, 0)})


def test_differing_files() -> None:
    assert differing_files([]) == []
    assert differing_files([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"c": 1}, {"b": 2}]) == ["b"]
