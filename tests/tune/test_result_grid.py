"""ResultGrid: what it says of trials, and which is best."""

from __future__ import annotations

import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.train import RunConfig
from lockstep.tune import ResultGrid, TuneConfig, Tuner

SERIES = {"a": [5.0, 1.0, 4.0], "b": [3.0, 3.0, 3.0], "c": [math.nan, 2.0, math.inf]}


def series(config: dict[str, Any]) -> None:
    for value in SERIES.get(config["name"], []):
        tune.report({"value": value, "nested": {"twice": 2 * value}})
    if config["name"] == "d":
        raise ValueError("nothing to report")


@pytest.fixture(scope="module")
def grid(session_environment: None) -> ResultGrid:
    return Tuner(
        series,
        param_space={"name": tune.grid_search(["a", "b", "c", "d"]), "deep": {"k": 1}},
        tune_config=TuneConfig(metric="value", mode="min"),
        run_config=RunConfig(verbose=0),
    ).fit()


def test_numbers_that_functions_return_need_no_metric() -> None:
    space = {"x": tune.grid_search([1, 5, 3])}
    grid = Tuner(lambda config: config["x"], param_space=space, run_config=RunConfig(verbose=0))
    assert grid.fit().get_best_result(mode="max").config == {"x": 5}


def test_a_single_trial_is_the_best_with_a_metric_but_no_mode() -> None:
    single = Tuner(lambda config: {"value": 3}, run_config=RunConfig(verbose=0)).fit()
    assert single.get_best_result().metrics["value"] == 3
    assert single.get_best_result(metric="value").metrics["value"] == 3
    assert single.get_best_result(mode="max").metrics["value"] == 3


@pytest.mark.parametrize(
    ("mode", "scope", "best"),
    [
        ("min", "last", "b"),
        ("max", "last", "a"),
        ("min", "all", "a"),
        ("max", "all", "a"),
        ("min", "avg", "c"),
        ("max", "last-5-avg", "a"),
        ("min", "last-10-avg", "c"),
    ],
)
def test_scopes(grid: ResultGrid, mode: str, scope: str, best: str) -> None:
    assert grid.get_best_result(mode=mode, scope=scope).config["name"] == best


def test_the_tune_configs_metric_is_the_default(grid: ResultGrid) -> None:
    assert grid.get_best_result().config["name"] == "b"
    assert grid.get_best_result("nested/twice", "max").config["name"] == "a"


def test_infinite_values_count_when_they_are_wanted(grid: ResultGrid) -> None:
    best = grid.get_best_result(mode="max", filter_nan_and_inf=False)
    assert best.config["name"] == "c"


def test_dataframes(grid: ResultGrid) -> None:
    last = grid.get_dataframe()
    assert list(last["config/name"]) == ["a", "b", "c", "d"]
    assert list(last["config/deep/k"]) == [1, 1, 1, 1]
    assert last["value"][0] == 4.0
    assert last["nested/twice"][0] == 8.0
    assert Path(last["logdir"][0]).is_dir()
    best = grid.get_dataframe("value", "min")
    assert list(best["value"])[:3] == [1.0, 3.0, 2.0]


def test_as_a_sequence(grid: ResultGrid) -> None:
    assert len(grid) == 4
    assert [result.config["name"] for result in grid[1:3]] == ["b", "c"]
    assert grid[-1].config["name"] == "d"
    assert isinstance(grid[3].error, ValueError)
    assert (grid.num_errors, grid.num_terminated) == (1, 3)
    assert "nothing to report" in str(grid.errors[0])
    assert "4 trials, 3 terminated, 1 failed" in repr(grid)
    assert grid[3].metrics == {}
    with pytest.raises(IndexError):
        grid[4]


def test_read_from_its_directory(grid: ResultGrid, tmp_path: Path) -> None:
    read = ResultGrid.from_path(grid.experiment_path)
    assert [result.path for result in read] == [result.path for result in grid]
    assert (read.num_errors, read.num_terminated) == (1, 3)
    assert read.get_best_result().config["name"] == "b"  # by the experiment's metric and mode
    with pytest.raises(FileNotFoundError, match="not the directory of an experiment"):
        ResultGrid.from_path(tmp_path)


def test_reading_a_directory_executes_nothing(grid: ResultGrid, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "exploded"),)

    copied = tmp_path / "copied"
    shutil.copytree(grid.experiment_path, copied)
    for path in (*copied.glob("*.pkl"), *copied.glob("*/*.pkl")):
        path.write_bytes(pickle.dumps(Bomb()))
    (copied / "tuner.pkl").write_bytes(pickle.dumps(Bomb()))
    read = ResultGrid.from_path(copied)
    assert "nothing to report" in str(read.errors[0])
    assert len(read.get_dataframe()) == 4
    assert not (tmp_path / "exploded").exists()


def test_a_directory_of_an_experiment_that_has_not_ended(grid: ResultGrid, tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    shutil.copytree(grid.experiment_path, copied)
    journal = copied / "experiment.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if "TERMINATED" not in line)[:-20])
    read = ResultGrid.from_path(copied)
    assert (len(read), read.num_terminated) == (4, 3)  # a run's own word counts


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda grid: grid.get_best_result("other"), "none of 4 trial"),
        (lambda grid: grid.get_best_result(scope="first"), "expected one of last, avg"),
        (lambda grid: grid.get_best_result(mode="most"), "expected 'min' or 'max'"),
        (lambda grid: grid.get_dataframe(filter_mode="min"), "give filter_metric"),
    ],
)
def test_errors(grid: ResultGrid, call: Callable[[ResultGrid], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(grid)


def test_without_a_metric_it_has_to_be_given() -> None:
    grid = Tuner(
        lambda config: {"x": 1},
        tune_config=TuneConfig(num_samples=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    with pytest.raises(ValueError, match="give metric="):
        grid.get_best_result()
    assert grid.get_best_result("x", "max").metrics["x"] == 1
