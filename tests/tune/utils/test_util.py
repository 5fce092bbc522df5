"""Helpers of tune.utils and tune.logger."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.tune.logger import pretty_print
from lockstep.tune.utils import diagnose_serialization, flatten_dict

EVENT = threading.Event()


def test_what_keeps_a_function_from_being_pickled(capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()

    def bad() -> None:
        print(EVENT, lock)

    def good() -> None:
        print(threading.Event())

    assert diagnose_serialization(good) is True
    assert diagnose_serialization(bad) == {"EVENT", "lock"}
    assert "Create these inside the function" in capsys.readouterr().out


def test_lists_are_flattened_if_that_is_wanted() -> None:
    nested = {"a": [1, {"b": 2}], "c": 3}
    assert flatten_dict(nested) == nested
    assert flatten_dict(nested, flatten_list=True) == {"a/0": 1, "a/1/b": 2, "c": 3}


def test_a_result_as_text() -> None:
    result = {"loss": 0.5, "config": {"x": 1}, "eval": {"acc": 1, "none": None}, "time": 3}
    assert pretty_print(result, exclude={"time"}) == "eval:\n  acc: 1\nloss: 0.5\n"
    arrays: dict[Any, Any] = {"b": np.float32(1), 2: np.arange(2), "a": Path("x"), "c": np.int64(3)}
    assert pretty_print(arrays) == '2: [0, 1]\na: "x"\nb: 1.0\nc: 3\n'
