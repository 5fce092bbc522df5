"""Deep comparison: which values are equal within the tolerance, and where two values differ."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lockstep.testing.compare import ABSENT, Comparison
from lockstep.train import Checkpoint


class Plain:
    """Has no ``__eq__``: Python considers it equal to itself only."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def partings(
    expected: Any, got: Any, tolerance: float = 1e-6, ignore: Collection[str] = ()
) -> list[tuple[str, Any, Any]]:
    return [tuple(part) for part in Comparison(tolerance, ignore).values(expected, got, "x")]


@dataclass
class Settings:
    rate: float
    output_dir: str


def without_address(value: Any) -> str:
    """Return the name of a test: the value's repr, the same in every process."""
    return re.sub(r" at 0x\w+", "", repr(value))


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {"a": 1}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, 1.0 + 1e-9),
        (1e9, 1e9 + 1),
        (1, 1.0),
        (math.nan, math.nan),
        (math.inf, math.inf),
        ((1, 2), [1, 2]),
        ({"a": {"b": [1.0, None, "c"]}}, {"a": {"b": [1.0 + 1e-9, None, "c"]}}),
        (np.array([1.0, math.nan, math.inf]), np.array([1.0 + 1e-9, math.nan, math.inf])),
        (np.float32(0.5), np.float32(0.5)),
        (np.float32(0.5), 0.5),
        (np.zeros((0, 3)), np.zeros((0, 3))),
        (np.array(["a", "b"]), np.array(["a", "b"])),
        (Plain([1.0, Plain("x")]), Plain([1.0 + 1e-9, Plain("x")])),
        (Slotted(1.0), Slotted(1.0 + 1e-9)),
        (random.Random(1), random.Random(1)),
        (pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [1, 2]})),
        (cycle(), cycle()),
        ({"step_time": 1.0}, {"step_time": 2.0}),
        ({"eval_runtime": 1.0}, {"eval_runtime": 2.0}),
        ({"best": "/runs/a/checkpoint-8"}, {"best": "/runs/b/checkpoint-8"}),
        (Path("/runs/a/best"), Path("/runs/b/best")),
        (Settings(1.0, "/runs/a"), Settings(1.0, "/runs/b")),
    ],
    ids=without_address,
)
def test_equal(expected: Any, got: Any) -> None:
    assert partings(expected, got) == []


@pytest.mark.parametrize(
    ("expected", "got", "part"),
    [
        (1.0, 1.1, ("x", 1.0, 1.1)),
        (10_000_000, 10_000_001, ("x", 10_000_000, 10_000_001)),
        (True, 1, ("x", True, 1)),
        (0.0, math.nan, None),
        (math.inf, -math.inf, ("x", math.inf, -math.inf)),
        ("a", 1, ("x", "a", 1)),
        ({"a": 1}, {}, ("x/a", 1, ABSENT)),
        ({}, {"a": 1}, ("x/a", ABSENT, 1)),
        ([1, [2, 3]], [1, [2, 4]], ("x[1][1]", 3, 4)),
        ([1], [1, 2], ("the length of x", 1, 2)),
        (np.eye(2), np.array([[1.0, 0.0], [0.1, 1.5]]), ("x[1, 1]", 1.0, 1.5)),
        (np.array([1, 2]), np.array([1, 3]), ("x[1]", 2, 3)),
        (np.array([1.0, 2.0]), np.array([1.5, math.nan]), None),
        (np.zeros(2), np.zeros(3), ("the shape of x", (2,), (3,))),
        (np.zeros(2, "f4"), np.zeros(2, "f8"), ("the dtype of x", "float32", "float64")),
        (Plain({"a": 1}), Plain({"a": 2}), ("x/value/a", 1, 2)),
        (Slotted(1), Slotted(2), ("x[1]/value", 1, 2)),
        (random.Random(1), random.Random(2), None),
        (pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [1, 3]}), None),
        ({"time_step": 1.0}, {"time_step": 2.0}, ("x/time_step", 1.0, 2.0)),
        ({"best": "/a/checkpoint-8"}, {"best": "/a/checkpoint-9"}, None),
        ({"best": "a/best"}, {"best": "b/best"}, ("x/best", "a/best", "b/best")),
        (Settings(1.0, ""), Settings(2.0, ""), ("x/rate", 1.0, 2.0)),
        ({"times": [1.0]}, {"times": [2.0]}, ("x/times[0]", 1.0, 2.0)),
    ],
    ids=without_address,
)
def test_different(expected: Any, got: Any, part: tuple[str, Any, Any] | None) -> None:
    found = partings(expected, got)
    assert found
    if part is not None:
        assert found[0] == part


def test_no_tolerance() -> None:
    assert partings(1.0, 1.0, tolerance=0) == []
    assert partings(1.0, math.nextafter(1.0, 2), tolerance=0)


def test_names_are_ignored_by_name_or_by_place() -> None:
    one = {"a": {"b": 1, "c": 1}, "b": 1}
    other = {"a": {"b": 2, "c": 2}, "b": 2}
    compare = Comparison(0, ["b"])
    assert [part.path for part in compare.values(one, other)] == ["a/c"]
    compare = Comparison(0, ["a/b"])
    assert [part.path for part in compare.values(one, other)] == ["a/c", "b"]


def test_tensors() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool):
        one, other = torch.zeros(3, dtype=dtype), torch.zeros(3, dtype=dtype)
        assert partings(one, other) == []
        other[2] = 1
        assert [path for path, _, _ in partings(one, other)] == ["x[2]"]
    weight = torch.nn.Parameter(torch.ones(2, 2))
    assert partings(weight, torch.nn.Parameter(torch.ones(2, 2))) == []
    assert partings(torch.eye(3).to_sparse(), torch.eye(3).to_sparse()) == []
    assert partings(torch.tensor(1 + 2j), torch.tensor(1 + 2j)) == []
    assert partings(torch.tensor(1 + 2j), torch.tensor(1 + 3j))[0][0] == "x"


def test_modules_by_their_state() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    one, other = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    assert "x/weight" in partings(one, other)[0][0]
    other.load_state_dict(one.state_dict())
    assert partings(one, other) == []


def test_complete_modules_in_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    for name, seed in (("a", 0), ("b", 1), ("c", 0)):
        torch.manual_seed(seed)
        (tmp_path / name).mkdir()
        torch.save(torch.nn.Linear(2, 1), tmp_path / name / "model.pt")
        (tmp_path / name / "noise.bin").write_bytes(b"PK not a torch file " + name.encode())
    compare = Comparison(1e-6, ["noise.bin"])
    one, other, same = (Checkpoint(tmp_path / name) for name in "abc")
    assert list(compare.checkpoints(one, same)) == []
    assert next(compare.checkpoints(one, other)).path.startswith("model.pt/weight[0, ")
    (part,) = Comparison(1e-6, ["model.pt"]).checkpoints(one, same)
    assert part.path == "noise.bin at byte 20"


def test_files_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    folders = tmp_path / "one", tmp_path / "other"
    for number, folder in enumerate(folders):
        folder.mkdir()
        log = {"loss": 1.0, "eval_runtime": number}
        keys = ("log_history", "best") if number else ("best", "log_history")
        state = {"log_history": [log], "best": f"{folder}/checkpoint-8"}
        (folder / "trainer_state.json").write_text(json.dumps({key: state[key] for key in keys}))
        (folder / "broken.json").write_text("{" * (number + 1))
        save({"w": torch.full((2,), 1.0 + number * 1e-9).double()}, folder / "model.safetensors")
    found = Comparison(1e-6, ()).checkpoints(*map(Checkpoint, folders))
    assert [part.path for part in found] == ["broken.json at byte 1"]
    save({"w": torch.full((2,), 3.0).double()}, folders[1] / "model.safetensors")
    found = Comparison(1e-6, ["broken.json"]).checkpoints(*map(Checkpoint, folders))
    assert [part.path for part in found] == ["model.safetensors/w[0]"]
