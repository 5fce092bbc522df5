"""progress.csv, result.json and params.json, read back as a user would."""

from __future__ import annotations

import csv
import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lockstep.callback import RunContext, TrialSnapshot
from lockstep.config import RunConfig, ScalingConfig
from lockstep.trackers import CSVLoggerCallback, JsonLoggerCallback
from lockstep.trackers.tracker_callback import TrackerCallback
from lockstep.train.driver.callbacks import CallbackDispatcher

Json = list[dict[str, Any]]


def make_trial(path: Path, **config: Any) -> TrialSnapshot:
    return TrialSnapshot("4913f_00000", "TorchTrainer", str(path), config=config)


def log(callback: TrackerCallback, trial: TrialSnapshot, *results: dict[str, Any]) -> None:
    """One run that reports ``results``."""
    callback.log_trial_start(trial)
    for iteration, result in enumerate(results, 1):
        callback.log_trial_result(iteration, trial, result)
        callback.flush_batch()
    callback.log_trial_end(trial)


def csv_rows(path: Path) -> list[dict[str, str]]:
    with open(path / "progress.csv", newline="") as file:
        return list(csv.DictReader(file))


def json_rows(path: Path) -> Json:
    return [json.loads(line) for line in (path / "result.json").read_text().splitlines()]


class TestCsv:
    def test_a_row_a_report(self, tmp_path: Path) -> None:
        results = [{"loss": 0.1 + i, "epoch": i, "note": 'a "b", c'} for i in range(3)]
        log(CSVLoggerCallback(), make_trial(tmp_path), *results)
        frame = pd.read_csv(tmp_path / "progress.csv")
        assert frame.to_dict("records") == results

    def test_nested_keys_are_joined_and_config_is_left_out(self, tmp_path: Path) -> None:
        result: dict[Any, Any] = {
            "a": {"b": {"c": 1}, "d": 2},
            "empty": {},
            3: 4,
            "config": {"lr": 0.1},
        }
        log(CSVLoggerCallback(), make_trial(tmp_path), result)
        assert csv_rows(tmp_path) == [{"a/b/c": "1", "a/d": "2", "empty": "{}", "3": "4"}]

    def test_values(self, tmp_path: Path) -> None:
        result = {
            "nan": float("nan"),
            "inf": float("inf"),
            "minus": -math.inf,
            "none": None,
            "true": True,
            "exact": 0.1 + 0.2,
            "numpy": np.float32(1.5),
            "array": np.arange(2),
            "object": {1},
        }
        log(CSVLoggerCallback(), make_trial(tmp_path), result)
        (row,) = csv_rows(tmp_path)
        assert row == {
            "nan": "nan",
            "inf": "inf",
            "minus": "-inf",
            "none": "",
            "true": "True",
            "exact": repr(0.1 + 0.2),
            "numpy": "1.5",
            "array": "[0, 1]",
            "object": "{1}",
        }

    def test_a_later_key_adds_a_column(self, tmp_path: Path) -> None:
        tricky = 'two\r\nlines, "quoted"\rand\nmore'
        log(
            CSVLoggerCallback(),
            make_trial(tmp_path),
            {"loss": 1, "note": tricky},
            {"loss": 2, "note": "x", "accuracy": 0.5, "f1": 0.25},
            {"accuracy": 0.75},
        )
        assert csv_rows(tmp_path) == [
            {"loss": "1", "note": tricky, "accuracy": "", "f1": ""},
            {"loss": "2", "note": "x", "accuracy": "0.5", "f1": "0.25"},
            {"loss": "", "note": "", "accuracy": "0.75", "f1": ""},
        ]
        assert os.listdir(tmp_path) == ["progress.csv"]

    def test_a_huge_cell_survives_a_new_column(self, tmp_path: Path) -> None:
        huge = "x" * 300_000
        log(CSVLoggerCallback(), make_trial(tmp_path), {"a": huge}, {"b": 1})
        frame = pd.read_csv(tmp_path / "progress.csv")
        assert list(frame.columns) == ["a", "b"]
        assert frame["a"][0] == huge

    def test_a_restored_run_appends_to_the_same_file(self, tmp_path: Path) -> None:
        trial = make_trial(tmp_path)
        log(CSVLoggerCallback(), trial, {"loss": 1, "note": "a\nb"})
        log(CSVLoggerCallback(), trial, {"note": "c", "loss": 2}, {"loss": 3, "new": 4})
        assert csv_rows(tmp_path) == [
            {"loss": "1", "note": "a\nb", "new": ""},
            {"loss": "2", "note": "c", "new": ""},
            {"loss": "3", "note": "", "new": "4"},
        ]

    @pytest.mark.parametrize("torn", ["3,", "3", '3,"an open\r\nquote\r\n'])
    def test_a_row_torn_by_a_kill_is_dropped(self, tmp_path: Path, torn: str) -> None:
        trial = make_trial(tmp_path)
        log(CSVLoggerCallback(), trial, {"loss": 1, "note": "a"})
        with open(tmp_path / "progress.csv", "a", newline="") as file:
            file.write(torn)
        log(CSVLoggerCallback(), trial, {"loss": 2, "note": "b"})
        assert csv_rows(tmp_path) == [{"loss": "1", "note": "a"}, {"loss": "2", "note": "b"}]

    def test_an_incomplete_header_is_rewritten(self, tmp_path: Path) -> None:
        (tmp_path / "progress.csv").write_text("los")
        log(CSVLoggerCallback(), make_trial(tmp_path), {"loss": 2})
        assert csv_rows(tmp_path) == [{"loss": "2"}]

    def test_a_deleted_file_comes_back_with_its_header(self, tmp_path: Path) -> None:
        trial, callback = make_trial(tmp_path), CSVLoggerCallback()
        callback.log_trial_result(1, trial, {"loss": 1})
        callback.flush_batch()
        os.unlink(tmp_path / "progress.csv")
        callback.log_trial_result(2, trial, {"loss": 2})
        callback.log_trial_end(trial)
        assert csv_rows(tmp_path) == [{"loss": "2"}]


class TestJson:
    def test_a_line_a_report(self, tmp_path: Path) -> None:
        results = [{"loss": 0.5, "nested": {"epoch": i}} for i in range(3)]
        log(JsonLoggerCallback(), make_trial(tmp_path), *results)
        assert json_rows(tmp_path) == results

    def test_the_config_is_where_it_changes(self, tmp_path: Path) -> None:
        first, second = {"lr": 1}, {"lr": 2}
        results = [{"a": i, "config": first if i < 2 else second} for i in range(4)]
        log(JsonLoggerCallback(), make_trial(tmp_path), *results)
        expected = [{"a": 0, "config": first}, {"a": 1}, {"a": 2, "config": second}, {"a": 3}]
        assert json_rows(tmp_path) == expected

    def test_numbers_json_does_not_have(self, tmp_path: Path) -> None:
        log(JsonLoggerCallback(), make_trial(tmp_path), {"a": math.nan, "b": -math.inf})
        assert (tmp_path / "result.json").read_text() == '{"a": NaN, "b": -Infinity}\n'

    def test_values_json_does_not_have(self, tmp_path: Path) -> None:
        loop: dict[Any, Any] = {(1, 2): "tuple key"}
        loop["self"] = [loop]
        result = {
            "scalar": np.int64(3),
            "array": np.eye(2),
            "object": {1},
            "loop": loop,
            "surrogate": "\ud800",
        }
        log(JsonLoggerCallback(), make_trial(tmp_path), result)
        (row,) = json_rows(tmp_path)
        assert row["scalar"] == 3
        assert row["array"] == [[1, 0], [0, 1]]
        assert row["object"] == "{1}"
        assert row["loop"]["(1, 2)"] == "tuple key"
        assert row["loop"]["self"][0].startswith("{(1, 2)")
        assert row["surrogate"] == "\ud800"

    def test_params(self, tmp_path: Path) -> None:
        trial = make_trial(tmp_path, lr=0.1, layers=[1, 2], fn=print, eps=np.float32(0.5))
        log(JsonLoggerCallback(), trial)
        assert json.loads((tmp_path / "params.json").read_text()) == {
            "lr": 0.1,
            "layers": [1, 2],
            "fn": repr(print),
            "eps": 0.5,
        }

    def test_a_large_array_among_the_params_stays_short(self, tmp_path: Path) -> None:
        log(JsonLoggerCallback(), make_trial(tmp_path, table=np.zeros(1_000_000)))
        assert (tmp_path / "params.json").stat().st_size < 1000

    def test_a_restored_run_appends_and_drops_an_incomplete_line(self, tmp_path: Path) -> None:
        trial = make_trial(tmp_path)
        log(JsonLoggerCallback(), trial, {"loss": 1})
        with open(tmp_path / "result.json", "a") as file:
            file.write('{"loss": 2, "no')
        log(JsonLoggerCallback(), trial, {"loss": 3})
        assert json_rows(tmp_path) == [{"loss": 1}, {"loss": 3}]


@pytest.fixture
def small_disk() -> Iterator[int]:
    """No file can grow beyond this many bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    yield 2000
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("kind", [CSVLoggerCallback, JsonLoggerCallback])
class TestBoth:
    def rows(self, path: Path) -> list[int]:
        found: Json = json_rows(path) if (path / "result.json").exists() else [*csv_rows(path)]
        return [int(row["epoch"]) for row in found]

    def test_rows_are_in_the_file_after_each_flush(
        self, tmp_path: Path, kind: type[TrackerCallback]
    ) -> None:
        trial, callback = make_trial(tmp_path), kind()
        callback.log_trial_start(trial)
        for epoch in range(3):
            callback.log_trial_result(epoch + 1, trial, {"epoch": epoch})
            callback.flush_batch()
            assert self.rows(tmp_path) == list(range(epoch + 1))
        callback.log_trial_end(trial)

    def test_one_object_follows_several_runs(
        self, tmp_path: Path, kind: type[TrackerCallback]
    ) -> None:
        callback = kind()
        trials = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            trials.append(TrialSnapshot(name, "train", str(tmp_path / name)))
        for epoch in range(2):
            for trial in trials:
                callback.log_trial_result(epoch, trial, {"epoch": epoch})
        callback.flush_batch()
        for trial in trials:
            callback.log_trial_end(trial)
        assert self.rows(tmp_path / "a") == self.rows(tmp_path / "b") == [0, 1]

    def test_a_subclass_that_leaves_out_super_init(
        self, tmp_path: Path, kind: type[TrackerCallback]
    ) -> None:
        def no_init(self: TrackerCallback) -> None:
            self.mine = 1  # type: ignore[attr-defined]

        subclass = type("Mine", (kind,), {"__init__": no_init})
        log(subclass(), make_trial(tmp_path), {"epoch": 0})
        assert self.rows(tmp_path) == [0]

    def test_a_removed_directory_raises(self, tmp_path: Path, kind: type[TrackerCallback]) -> None:
        run = tmp_path / "run"
        run.mkdir()
        trial, callback = make_trial(run), kind()
        callback.log_trial_start(trial)
        callback.log_trial_result(1, trial, {"epoch": 0})
        shutil.rmtree(run)
        with pytest.raises(FileNotFoundError, match="run"):
            callback.flush_batch()
        run.mkdir()
        callback.log_trial_result(2, trial, {"epoch": 1})
        callback.log_trial_end(trial)
        assert self.rows(run) == [0, 1]

    def test_a_full_disk_tears_no_row_and_loses_none_once_there_is_room(
        self, tmp_path: Path, kind: type[TrackerCallback], request: pytest.FixtureRequest
    ) -> None:
        trial, callback = make_trial(tmp_path), kind()
        callback.log_trial_result(1, trial, {"epoch": 0, "text": ""})
        callback.flush_batch()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        limit: int = request.getfixturevalue("small_disk")
        for epoch in range(1, 4):
            callback.log_trial_result(epoch, trial, {"epoch": epoch, "text": "x" * (limit - 100)})
        with pytest.raises(OSError, match="too large"):
            callback.flush_batch()
        assert self.rows(tmp_path) == [0]
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        callback.log_trial_end(trial)
        assert self.rows(tmp_path) == [0, 1, 2, 3]

    def through_dispatcher(
        self, callback: TrackerCallback, trial: TrialSnapshot, results: Json
    ) -> list[str]:
        """One run that reports ``results``; returns the messages to the user."""
        context = RunContext(RunConfig(), trial.trial_id, trial.path, "x", None, ScalingConfig())
        problems: list[str] = []
        dispatcher = CallbackDispatcher([callback], problems.append, 30.0)
        dispatcher.start(trial, context)
        for iteration, result in enumerate(results, 1):
            dispatcher.report(iteration, trial, result, [result], None)
        dispatcher.end(len(results), trial, failed=False)
        dispatcher.close()
        return problems

    def test_five_thousand_reports_through_the_dispatcher(
        self, tmp_path: Path, kind: type[TrackerCallback]
    ) -> None:
        results: Json = [{"epoch": epoch} for epoch in range(5000)]
        assert self.through_dispatcher(kind(), make_trial(tmp_path), results) == []
        assert self.rows(tmp_path) == list(range(5000))

    @pytest.mark.parametrize("hook", ["log_trial_result", "on_trial_result"])
    def test_a_subclass_sees_the_results_and_may_change_what_is_written(
        self, tmp_path: Path, kind: type[TrackerCallback], hook: str
    ) -> None:
        def later(self: TrackerCallback, iteration: int, *args: Any, **info: Any) -> None:
            result = info.pop("result", None) or args[-1]
            changed = {"epoch": result["epoch"] + 10}
            kind.log_trial_result(self, iteration, make_trial(tmp_path), changed)

        subclass = type("Mine", (kind,), {hook: later})
        results: Json = [{"epoch": epoch} for epoch in range(3)]
        assert self.through_dispatcher(subclass(), make_trial(tmp_path), results) == []
        assert self.rows(tmp_path) == [10, 11, 12]

    def test_a_row_that_cannot_be_written_costs_no_other(
        self, tmp_path: Path, kind: type[TrackerCallback]
    ) -> None:
        class Nameless:
            def __repr__(self) -> str:
                raise RuntimeError("no words")

        results: Json = [{"epoch": epoch, "odd": 1} for epoch in range(4)]
        results[1]["odd"] = results[2]["odd"] = Nameless()
        (problem,) = self.through_dispatcher(kind(), make_trial(tmp_path), results)
        assert f"{kind.__name__}.on_trial_result raised RuntimeError: no words" in problem
        assert self.rows(tmp_path) == [0, 3]
