"""Metric dictionaries: what may be in one, and the keys that come on top."""

from __future__ import annotations

import enum
import json
import math
from typing import Any

import numpy as np
import pytest

from lockstep.metrics import (
    AUTOMATIC_KEYS,
    CHARTED_KEYS,
    describable,
    first_result,
    flatten,
    full_row,
    look_up,
    normalise,
)


class Colour(enum.IntEnum):
    RED = 1


class Mode(str, enum.Enum):
    FAST = "fast"


class TestNormalise:
    @pytest.mark.parametrize(
        ("value", "plain"),
        [
            (1, 1),
            (0.5, 0.5),
            (True, True),
            (None, None),
            ("text", "text"),
            (np.float32(0.5), 0.5),
            (np.float64(0.5), 0.5),
            (np.int64(3), 3),
            (np.bool_(True), True),
            (np.str_("x"), "x"),
            (np.array(2.0), 2.0),
            (np.arange(3), [0, 1, 2]),
            (np.longdouble(0.5), 0.5),
            (np.array([0.5], np.longdouble), [0.5]),
            (Colour.RED, 1),
            (Mode.FAST, "fast"),
            ({Mode.FAST: 1}, {"fast": 1}),
            ((1, np.int8(2)), [1, 2]),
            ({"a": np.float32(1)}, {"a": 1.0}),
            ({1: {2: ()}}, {"1": {"2": []}}),
        ],
    )
    def test_becomes_plain(self, value: Any, plain: Any) -> None:
        found = normalise({"key": value})["key"]
        assert found == plain
        assert type(found) is type(plain)

    def test_is_a_copy(self) -> None:
        given = {"a": {"b": [1]}}
        found = normalise(given)
        given["a"]["b"].append(2)
        assert found == {"a": {"b": [1]}}

    def test_not_a_number_stays(self) -> None:
        found = normalise({"a": math.nan, "b": np.float32("inf")})
        assert math.isnan(found["a"])
        assert found["b"] == math.inf

    def test_keys_become_text(self) -> None:
        assert normalise({1: 2, Mode.FAST: 3}) == {"1": 2, "fast": 3}  # type: ignore[dict-item]

    @pytest.mark.parametrize("metrics", [[1], 3, "loss", None])
    def test_only_dicts(self, metrics: Any) -> None:
        with pytest.raises(TypeError, match=f"not {type(metrics).__name__}"):
            normalise(metrics)

    @pytest.mark.parametrize(
        ("metrics", "key"),
        [
            ({"a": object()}, "'a'"),
            ({"a": {"b": {1}}}, "'a/b'"),
            ({"a": [1, 1j]}, r"'a\[1\]'"),
            ({"a": np.clongdouble(1)}, "'a'"),
        ],
    )
    def test_what_cannot_be_kept_is_named(self, metrics: dict[str, Any], key: str) -> None:
        with pytest.raises(TypeError, match=f"metric {key} is a .*cannot be kept as JSON"):
            normalise(metrics)

    @pytest.mark.parametrize(("root", "cure"), [("torch", "item"), ("tensorflow", "numpy")])
    def test_a_tensor_is_named_with_the_cure(self, root: str, cure: str) -> None:
        kind = type("Tensor", (), {"shape": (2, 3), "__module__": f"{root}.python"})
        words = rf"'loss' is a {root} tensor of shape \(2, 3\).* such as loss\.{cure}\(\)"
        with pytest.raises(ValueError, match=words):
            normalise({"loss": kind()})


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


ITSELF: list[Any] = []
ITSELF.append(ITSELF)

UNREADABLE = [
    ({"steps": 10**5000}, "metric 'steps' is an integer of more than 600 digits"),
    ({"x": {"steps": -(10**600)}}, "metric 'x/steps' is an integer of more than 600 digits"),
    ({"deep": _nested(1000)}, "metric 'deep' is nested more than 100 levels deep"),
    ({"itself": ITSELF}, "metric 'itself' is nested more than 100 levels deep"),
    ({"name": "a\ud800b"}, "metric 'name' has half of a surrogate pair"),
    ({"list": ["a", "\udfff"]}, r"metric 'list\[1\]' has half of a surrogate pair"),
    ({"\ud800": 1}, r"the metric's name '\\ud800' has half of a surrogate pair"),
    ({"x": {"\ud800": 1}}, r"the metric's name '\\ud800' has half of a surrogate pair"),
]


@pytest.mark.parametrize(("metrics", "said"), UNREADABLE)
def test_what_no_reader_takes_is_refused_with_its_key(metrics: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        normalise(metrics)


def test_a_config_with_what_no_reader_takes_is_described() -> None:
    config = {
        "n": 10**5000,
        "deep": _nested(1000),
        "text": "a\ud800",
        "\ud800": 1,
        "itself": ITSELF,
    }
    text = json.dumps(describable(config))
    assert json.loads(text)["text"] == "a?"
    assert json.loads(text)["n"] == "<int>"
    text.encode()


def test_a_config_is_described() -> None:
    assert describable({"mode": Mode.FAST, 3: {"type": int}, "few": np.arange(3)}) == {
        "mode": "fast",
        "3": {"type": "<class 'int'>"},
        "few": [0, 1, 2],
    }
    below = describable({"a": {"many": np.zeros(5000)}, "b": [np.zeros(5000), 1, {1, 2}]})
    assert len(str(below)) < 500
    assert below["b"][1:] == [1, "{1, 2}"]
    many = describable({"many": np.zeros(100_000)})["many"]
    assert many.startswith("array([0., 0.")
    assert len(many) < 1000
    itself: dict[str, Any] = {"lr": 1}
    itself["itself"] = itself
    assert describable(itself) == {"lr": 1, "itself": "{'lr': 1, 'itself': {...}}"}


def test_flatten() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a/b/c": 1, "a/d": {}, "e": [1]}


@pytest.mark.parametrize(
    ("metrics", "key", "value"),
    [
        ({"a": 1}, "a", 1),
        ({"a": {"b": 2}}, "a/b", 2),
        ({"a": {"b/c": 3}}, "a/b/c", 3),
        ({"a/b": 4, "a": {"b": 5}}, "a/b", 4),
        ({"a": 1}, "a/b", None),
        ({}, "a", None),
    ],
)
def test_look_up(metrics: dict[str, Any], key: str, value: Any) -> None:
    assert look_up(metrics, key) == value


RUN = {"trial_id": "abcde_00000", "experiment_id": "e", "config": {"x": 1}, "experiment_tag": "0"}
ATTEMPT = {
    "workers": [{"pid": 1, "hostname": "h", "node_ip": "127.0.0.1"}],
    "time_before": 10.0,
    "warmup_time": 0.1,
    "time": 1000.0,
}
REPORT = {
    "time": 1000.7,
    "time_since_start": 2.5,
    "time_this_iter": 0.5,
    "worker_time": 1000.5,
    "worker_time_this_iter": 0.4,
    "attempt_index": 3,
    "iteration": 8,
    "checkpoint": "checkpoint_000002",
}


class TestFullRow:
    def test_every_row_gets_these(self) -> None:
        row = full_row({"loss": 1}, RUN, ATTEMPT, REPORT)
        assert next(iter(row)) == "loss"
        assert row["training_iteration"] == 8
        assert row["iterations_since_restore"] == row["_training_iteration"] == 3
        assert (row["time_total_s"], row["time_since_restore"]) == (12.5, 2.5)
        assert (row["_timestamp"], row["timestamp"]) == (1000, 1000)
        assert row["checkpoint_dir_name"] == "checkpoint_000002"
        assert row["config"] == {"x": 1}
        assert row["done"] is False

    def test_the_users_value_wins(self) -> None:
        row = full_row({"time_total_s": "mine", "done": 1}, RUN, ATTEMPT, REPORT)
        assert (row["time_total_s"], row["done"]) == ("mine", 1)

    def test_before_the_first(self) -> None:
        row = first_result(RUN, ATTEMPT)
        assert row["trial_id"] == "abcde_00000"
        assert "training_iteration" not in row
        assert set(row) < set(full_row({}, RUN, ATTEMPT, REPORT))

    def test_the_list_of_automatic_keys_is_the_row_s(self) -> None:
        row = full_row({}, RUN, ATTEMPT, {**REPORT, "data_wait": [0.1, 0.2]})
        assert set(row) == AUTOMATIC_KEYS
        assert CHARTED_KEYS < AUTOMATIC_KEYS
