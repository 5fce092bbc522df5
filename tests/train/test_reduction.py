"""Every rank's report becomes one row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep.train.protocol import Report
from lockstep.train.reduction import check_reduce, combine, keys_of_nobody


def combined(
    *ranks: dict[str, Any], reduce: str | Mapping[str, str] | None = None
) -> dict[str, Any]:
    return combine(reports(*ranks, reduce=reduce))


def reports(*ranks: dict[str, Any], reduce: str | Mapping[str, str] | None) -> list[Report]:
    return [Report(1, metrics, None, reduce, 0.0, 0.0) for metrics in ranks]


def test_rank_0_counts() -> None:
    assert combined({"a": 1}, {"a": 3, "b": 4}) == {"a": 1}


@pytest.mark.parametrize(
    ("how", "value"), [("mean", 2.0), ("sum", 6), ("min", 1), ("max", 3), ("last", 2)]
)
def test_all_numbers_at_once(how: str, value: float) -> None:
    ranks = [{"a": 1, "s": "x"}, {"a": 3, "s": "y"}, {"a": 2, "s": "z"}]
    assert combined(*ranks, reduce=how)["a"] == value
    assert combined(*ranks, reduce={"a": how}) == {"a": value, "s": "x"}


def test_only_the_named_keys() -> None:
    ranks = [{"a": 1, "b": 1}, {"a": 3, "b": 3}]
    assert combined(*ranks, reduce={"b": "sum"}) == {"a": 1, "b": 4}


def test_ranks_without_the_key_do_not_count() -> None:
    assert combined({"a": 1}, {}, {"a": 3}, reduce="mean") == {"a": 2.0}
    assert combined({}, {"a": 3}, reduce={"a": "mean", "b": "sum"}) == {"a": 3.0}


def test_nested_numbers() -> None:
    ranks: list[dict[str, Any]] = [
        {"val": {"loss": 1, "name": "x"}, "n": 2},
        {"val": {"loss": 3, "name": "y", "extra": 5}, "n": 4, "only": {"here": 7, "text": "z"}},
    ]
    assert combined(*ranks, reduce="mean") == {
        "val": {"loss": 2.0, "name": "x", "extra": 5.0},
        "n": 3.0,
        "only": {"here": 7.0},
    }
    named = {"val/loss": "sum", "only/here": "max", "nowhere/at/all": "sum"}
    assert combined(*ranks, reduce=named) == {
        "val": {"loss": 4, "name": "x"},
        "n": 2,
        "only": {"here": 7},
    }
    assert combined({"a/b": 1}, {"a/b": 3}, reduce={"a/b": "mean"}) == {"a/b": 2.0}
    assert ranks[0]["val"]["loss"] == 1


def test_truth_and_text_are_not_numbers() -> None:
    ranks = [{"flag": True, "text": "a"}, {"flag": False, "text": "b"}]
    assert combined(*ranks, reduce="sum") == {"flag": True, "text": "a"}
    assert combined(*ranks, reduce={"text": "last"})["text"] == "b"


@pytest.mark.parametrize("how", ["mean", "sum", "min", "max"])
def test_not_a_number_spreads_whichever_rank_has_it(how: str) -> None:
    for values in ((1.0, math.nan), (math.nan, 1.0)):
        ranks: list[dict[str, Any]] = [{"a": value} for value in values]
        assert math.isnan(combined(*ranks, reduce=how)["a"])
        assert math.isnan(combined(*ranks, reduce={"a": how})["a"])


def test_a_whole_number_that_no_float_can_hold_is_left_alone() -> None:
    huge = 10**400
    assert combined({"a": huge, "b": 1}, {"a": 1, "b": 3}, reduce="mean") == {"a": huge, "b": 2.0}
    with pytest.raises(TypeError, match="is not a number"):
        check_reduce({"a": "mean"}, {"a": huge})


def test_the_reports_are_left_alone() -> None:
    ranks = [{"a": 1}, {"a": 3}]
    combined(*ranks, reduce="sum")
    assert ranks == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("reduce", ["median", {"a": "median"}, {"a": 3}])
def test_an_unknown_reduction_is_named(reduce: Any) -> None:
    with pytest.raises(ValueError, match=r"is not one of 'mean', 'sum', 'min', 'max', 'last'"):
        check_reduce(reduce, {"a": 1})


def test_a_number_is_needed() -> None:
    with pytest.raises(TypeError, match=r"'a': 'mean'.*'text' is not a number"):
        check_reduce({"a": "mean"}, {"a": "text"})
    check_reduce({"a": "last", "missing": "mean"}, {"a": "text"})
    with pytest.raises(TypeError, match=r"'a/b': 'mean'.*'text' is not a number"):
        check_reduce({"a/b": "mean"}, {"a": {"b": "text"}})
    check_reduce("mean", {"a": "text"})
    check_reduce(None, {})


def test_keys_that_are_not_there_at_all_are_named() -> None:
    with pytest.raises(ValueError, match=r"'los': 'mean'.*none of these.*'loss', 'val/n'"):
        check_reduce({"los": "mean"}, {"loss": 1.0, "val": {"n": 1}})
    check_reduce({"val/n": "mean", "of another rank": "mean"}, {"val": {"n": 1}})
    check_reduce({"of another rank": "mean"}, {})
    check_reduce({}, {"loss": 1.0})


def test_keys_that_no_rank_has() -> None:
    ranks: list[dict[str, Any]] = [{"loss": 1.0}, {"val": {"n": 2}}]
    named = {"loss": "mean", "val/n": "sum", "val/m": "sum", "los": "mean"}
    assert keys_of_nobody(reports(*ranks, reduce=named)) == ["val/m", "los"]
    assert keys_of_nobody(reports(*ranks, reduce="mean")) == []
    assert keys_of_nobody(reports(*ranks, reduce=None)) == []
