"""What is reported arrives, from every rank, whole, and nobody waits forever."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import MismatchedReportsError
from lockstep.train import Checkpoint, UserCallback
from lockstep.tune import Callback
from lockstep.tune.logger import LoggerCallback
from tests.integration.runs import failure, fit, wait_for_every_rank


def rows_of(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path, "result.json").read_text().splitlines()]


def table_of(path: str) -> list[dict[str, str]]:
    with open(Path(path, "progress.csv"), newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------------------------ the barrier


def test_every_ranks_ith_report_meets(tmp_path: Path) -> None:
    def train_func(config: dict[str, Any]) -> None:
        rank = train.get_context().get_world_rank()
        for step in range(3):
            if rank == step % 2:  # the other one must wait for this file
                open(f"{config['dir']}/{step}", "w").close()
            train.report({"step": step, "rank": rank})
            assert os.path.exists(f"{config['dir']}/{step}")

    result = fit(train_func, config={"dir": str(tmp_path)})
    assert list(result.metrics_dataframe["step"]) == [0, 1, 2]
    assert list(result.metrics_dataframe["rank"]) == [0, 0, 0]


@pytest.mark.parametrize(
    ("counts", "stopped", "waiting"),
    [
        ((3, 2), "rank 1 returned after 2 report(s)", "rank 0 reached report 3"),
        ((2, 3), "rank 0 returned after 2 report(s)", "rank 1 reached report 3"),
        ((0, 1), "rank 0 returned after 0 report(s)", "rank 1 reached report 1"),
        ((1, 0), "rank 1 returned after 0 report(s)", "rank 0 reached report 1"),
        ((1, 2, 2), "rank 0 returned after 1 report(s)", "ranks 1 and 2 reached report 2"),
    ],
)
def test_unequal_report_counts_are_named_at_once(
    counts: tuple[int, ...], stopped: str, waiting: str
) -> None:
    def train_func(config: dict[str, Any]) -> None:
        for step in range(config["counts"][train.get_context().get_world_rank()]):
            train.report({"step": step})

    started = time.monotonic()
    error = failure(train_func, workers=len(counts), config={"counts": counts})
    assert time.monotonic() - started < 100
    assert isinstance(error.__cause__, MismatchedReportsError)
    assert stopped in str(error.__cause__)
    assert waiting in str(error.__cause__)
    assert stopped.replace("rank", "Rank", 1) in str(error)
    assert error.result is not None
    assert len(error.result.metrics_dataframe) == min(counts)


def test_ranks_that_never_report_are_fine() -> None:
    result = fit(lambda: None)
    assert result.metrics == {}
    assert result.reported_metrics == {}
    assert result.metrics_by_rank == []
    assert len(result.metrics_dataframe) == 0
    assert result.checkpoint is None


def test_empty_metrics_make_a_row() -> None:
    def train_func() -> None:
        train.report()
        train.report({})
        train.report({}, checkpoint=Checkpoint.from_dict({"epoch": 1}))

    result = fit(train_func)
    assert result.metrics["training_iteration"] == 3
    assert result.reported_metrics == {}
    assert list(result.metrics_dataframe["checkpoint_dir_name"].isna()) == [True, True, False]


def test_every_spelling_is_the_same_function() -> None:
    from lockstep.air import session

    assert session.report is train.report

    def train_func() -> None:
        session.report({"a": 1})
        train.report(metrics={"a": 2})
        train.report({"a": 3}, Checkpoint.from_dict({"x": 1}))

    result = fit(train_func, workers=1)
    assert list(result.metrics_dataframe["a"]) == [1, 2, 3]
    assert result.checkpoint is not None


def test_keyword_metrics_are_the_old_spelling() -> None:
    def train_func() -> None:
        import warnings

        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train.report(loss=0.5, epoch=1)
        assert [warning.category for warning in told] == [DeprecationWarning]
        with pytest.raises(TypeError, match="checkpont"):
            train.report({"loss": 1}, checkpont=None)

    assert fit(train_func, workers=1).reported_metrics == {"loss": 0.5, "epoch": 1}


@pytest.mark.parametrize("name", ["report", "log", "save_checkpoint"])
def test_outside_a_training_function_is_an_error(name: str) -> None:
    arguments: dict[str, Any] = {} if name == "save_checkpoint" else {"metrics": {"a": 1}}
    with pytest.raises(RuntimeError, match=rf"{name}\(\) works only inside a training function"):
        getattr(train, name)(**arguments)


# ----------------------------------------------------------------------------- combining the ranks


def test_rank_0_is_the_results_and_every_rank_is_kept() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        train.report({"rank": rank, f"only_{rank}": True})

    result = fit(train_func, workers=3)
    assert result.reported_metrics == {"rank": 0, "only_0": True}
    assert result.metrics["rank"] == 0
    assert result.metrics_by_rank == [
        {"rank": 0, "only_0": True},
        {"rank": 1, "only_1": True},
        {"rank": 2, "only_2": True},
    ]


def test_every_report_of_every_rank_can_be_read_later() -> None:
    def train_func() -> None:
        context = train.get_context()
        rank = context.get_world_rank()
        train.report({"loss": {"train": rank + context.get_attempt()}, "rank": "mine"})
        if context.get_attempt() == 1:
            raise RuntimeError("once")

    frame = fit(train_func, max_failures=1).rank_dataframe
    assert frame.to_dict("records") == [
        {
            "rank": rank,
            "attempt": attempt,
            "training_iteration": 1,
            "loss/train": rank + attempt,
            "metrics/rank": "mine",
        }
        for attempt in (1, 2)
        for rank in (0, 1)
    ]
    assert list(fit(lambda: None).rank_dataframe) == ["rank", "attempt", "training_iteration"]


@pytest.mark.parametrize(
    ("how", "expected"), [("mean", 3.0), ("sum", 9), ("min", 1), ("max", 6), ("last", 6)]
)
def test_one_reduction_for_every_number(how: str, expected: float) -> None:
    def train_func(config: dict[str, str]) -> None:
        rank = train.get_context().get_world_rank()
        train.report(
            {"value": [1, 2, 6][rank], "name": f"rank {rank}", "flag": rank == 0},
            reduce=config["how"],
        )

    result = fit(train_func, workers=3, config={"how": how})
    assert result.reported_metrics == {"value": expected, "name": "rank 0", "flag": True}
    assert [metrics["value"] for metrics in result.metrics_by_rank] == [1, 2, 6]
    assert rows_of(result.path)[0]["value"] == expected
    assert list(result.metrics_dataframe["value"]) == [expected]


def test_a_reduction_for_each_key() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        train.report(
            {"loss": float(rank), "seen": 10, "best": rank, "note": f"from {rank}", "plain": rank},
            reduce={"loss": "mean", "seen": "sum", "best": "max", "note": "last"},
        )

    assert fit(train_func).reported_metrics == {
        "loss": 0.5,
        "seen": 20,
        "best": 1,
        "note": "from 1",
        "plain": 0,
    }


def test_keys_that_some_ranks_lack_are_combined_from_those_that_have_them() -> None:
    def train_func(config: dict[str, Any]) -> None:
        rank = train.get_context().get_world_rank()
        metrics = [{"a": 1.0, "b": 4.0}, {"a": 3.0, "c": 8.0}, {"a": 5.0, "b": 6.0}][rank]
        train.report(metrics, reduce=config["reduce"])

    whole = fit(train_func, workers=3, config={"reduce": "mean"})
    assert whole.reported_metrics == {"a": 3.0, "b": 5.0, "c": 8.0}
    named = {"a": "sum", "b": "sum", "c": "sum", "nowhere": "sum"}
    assert fit(train_func, workers=3, config={"reduce": named}).reported_metrics == {
        "a": 9.0,
        "b": 10.0,
        "c": 8.0,
    }


@pytest.mark.parametrize(
    ("reduce", "kind", "words"),
    [
        ("median", ValueError, ["'median'", "'mean'", "'sum'"]),
        ({"loss": "avg"}, ValueError, ["'avg'", "'mean'"]),
        ({"name": "mean"}, TypeError, ["'name'", "'x'", "not a number"]),
        (7, ValueError, ["7", "'mean'"]),
        (["mean"], ValueError, ["['mean']"]),
    ],
)
def test_a_reduction_that_cannot_be_done(
    reduce: Any, kind: type[Exception], words: list[str]
) -> None:
    def train_func(config: dict[str, Any]) -> None:
        train.report({"loss": 1.0, "name": "x"}, reduce=config["reduce"])

    error = failure(train_func, workers=1, config={"reduce": reduce}).__cause__
    assert type(error) is kind
    assert all(word in str(error) for word in words), str(error)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_report_returns_the_reduced_metrics(workers: int) -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        assert train.report({"loss": rank}) is None
        checkpoint = Checkpoint.from_dict({"rank": rank})
        first = train.report({"loss": rank, "who": rank}, checkpoint, reduce={"loss": "sum"})
        second = train.report({"loss": rank * 1.0, "nested": {"n": 1}}, reduce="mean")
        assert second is not None
        second["nested"]["n"] = "changed"  # the caller's own
        assert train.report({"loss": rank}) is None
        train.log({"first": first, "second": train.report({"loss": rank}, reduce="max")})

    result = fit(train_func, workers=workers)
    ranks = range(max(workers, 1))
    first = {"loss": sum(ranks), "who": 0}
    rows = result.log_dataframe
    assert rows["first/loss"].tolist() == [first["loss"]] * len(ranks)
    assert rows["first/who"].tolist() == [0] * len(ranks)
    assert rows["second/loss"].tolist() == [max(ranks)] * len(ranks)
    assert result.metrics_dataframe["nested/n"].dropna().tolist() == [1]


def test_a_misspelt_key_of_reduce_gives_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    def train_func() -> None:
        for _ in range(2):
            train.report({"loss": 1.0, "n": 1}, reduce={"loss": "mean", "nn": "sum"})

    assert fit(train_func).reported_metrics == {"loss": 1.0, "n": 1}
    told = capfd.readouterr().err
    assert told.count("report(reduce=…) names 'nn', which no rank has in report 1") == 1
    assert "(it has 'loss', 'n')" in told


# --------------------------------------------------------------------------------- kinds of values


def test_numpy_values_become_plain_ones() -> None:
    def train_func() -> None:
        import numpy as np

        train.report(
            {
                "f32": np.float32(0.5),
                "f64": np.float64(0.25),
                "i64": np.int64(7),
                "flag": np.bool_(True),
                "zero_d": np.array(3.5),
                "vector": np.array([1, 2]),
                "deep": {"x": np.float16(1.5), "y": [np.int8(1)]},
            }
        )
        train.log({"f32": np.float32(0.5), "zero_d": np.array(2)})

    result = fit(train_func)
    expected = {
        "f32": 0.5,
        "f64": 0.25,
        "i64": 7,
        "flag": True,
        "zero_d": 3.5,
        "vector": [1, 2],
        "deep": {"x": 1.5, "y": [1]},
    }
    assert result.reported_metrics == expected
    assert {key: type(value) for key, value in result.reported_metrics.items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert rows_of(result.path)[0].items() >= expected.items()
    assert table_of(result.path)[0]["zero_d"] == "3.5"
    assert list(result.log_dataframe["f32"]) == [0.5, 0.5]


def test_nan_and_infinity_survive() -> None:
    def train_func() -> None:
        train.report({"loss": math.nan, "top": math.inf, "bottom": -math.inf})
        train.report({"loss": 1.0, "top": 2.0, "bottom": 3.0})
        train.log({"loss": math.nan, "top": math.inf})

    def same(row: Mapping[Any, Any]) -> bool:
        values = [float(row[key]) for key in ("loss", "top", "bottom")]
        return math.isnan(values[0]) and values[1:] == [math.inf, -math.inf]

    result = fit(train_func)
    assert same(result.metrics_dataframe.to_dict("records")[0])
    assert same(rows_of(result.path)[0])
    assert same(table_of(result.path)[0])
    assert result.metrics["loss"] == 1.0
    assert result.log_dataframe["loss"].isna().all()
    assert list(result.log_dataframe["top"]) == [math.inf, math.inf]


def test_nested_metrics_are_columns_with_slashes() -> None:
    def train_func() -> None:
        train.report({"val": {"acc": 0.5, "per_class": {"cat": 1}}, "empty": {}, "list": [1, 2]})

    result = fit(train_func, workers=1)
    frame = result.metrics_dataframe
    assert result.metrics["val"]["per_class"]["cat"] == 1
    assert frame["val/acc"][0] == 0.5
    assert frame["val/per_class/cat"][0] == 1
    assert table_of(result.path)[0]["val/per_class/cat"] == "1"
    assert rows_of(result.path)[0]["val"]["acc"] == 0.5


def test_a_key_that_comes_later_is_a_column() -> None:
    def train_func() -> None:
        train.report({"a": 1})
        train.report({"a": 2, "b": 3})
        train.report({"b": 4})

    result = fit(train_func)
    frame = result.metrics_dataframe
    assert frame["a"].isna().tolist() == [False, False, True]
    assert frame["b"].isna().tolist() == [True, False, False]
    assert [row["b"] for row in table_of(result.path)] == ["", "3", "4"]


def test_a_users_own_key_wins_over_an_automatic_one() -> None:
    def train_func() -> None:
        train.report({"pid": "mine", "done": "perhaps", "timestamp": 1})

    result = fit(train_func, workers=1)
    assert (result.metrics["pid"], result.metrics["done"]) == ("mine", "perhaps")
    assert result.metrics["timestamp"] == 1


@pytest.mark.parametrize("where", ["report", "log"])
@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ({"loss": object()}, TypeError, ["'loss'", "builtins.object"]),
        ({"val": {"best": {1, 2}}}, TypeError, ["'val/best'", "set"]),
        ({"losses": [1.0, object()]}, TypeError, ["'losses[1]'"]),
        ({"loss": 1j}, TypeError, ["'loss'", "complex"]),
        ([("loss", 1)], TypeError, ["must be a dict", "list"]),
    ],
)
def test_a_value_that_cannot_be_kept_is_named(
    where: str, value: Any, kind: type[Exception], words: list[str]
) -> None:
    def train_func(config: dict[str, Any]) -> None:
        getattr(train, config["where"])(config["value"])

    error = failure(train_func, workers=1, config={"where": where, "value": value}).__cause__
    assert type(error) is kind
    assert all(word in str(error) for word in words), str(error)


def test_tensors_are_refused_with_the_key_and_the_cure() -> None:
    def train_func() -> None:
        import torch

        for metrics, key in (
            ({"loss": torch.tensor(1.0)}, "'loss'"),
            ({"val": {"acc": torch.ones(2)}}, "'val/acc'"),
            ({"w": torch.nn.Parameter(torch.ones(1))}, "'w'"),
        ):
            with pytest.raises(ValueError, match=rf"{key}.*\.item\(\)"):
                train.report(metrics)
        train.report({"loss": torch.tensor(1.5).item()})  # the refused ones did not count

    result = fit(train_func, workers=1)
    assert result.reported_metrics == {"loss": 1.5}
    assert result.metrics["training_iteration"] == 1


# --------------------------------------------------------------------------------------- train.log


def test_log_keeps_every_row_of_every_rank_to_the_very_end() -> None:
    def train_func() -> None:
        rank = train.get_context().get_world_rank()
        for step in range(5000):
            train.log({"loss": step / 2, "who": {"rank": rank}}, step=step)
        train.report({"done_logging": 1})
        train.log({"loss": -1.0})

    result = fit(train_func)
    frame = result.log_dataframe
    assert len(frame) == 2 * 5001
    for rank in (0, 1):
        mine = frame[frame["rank"] == rank]
        assert mine["step"].tolist()[:5000] == list(range(5000))
        assert mine["loss"].tolist() == [step / 2 for step in range(5000)] + [-1.0]
        assert set(mine["who/rank"].dropna()) == {rank}
    assert len(result.metrics_dataframe) == 1


def test_metrics_called_like_a_column_of_the_dataframes() -> None:
    def train_func() -> None:
        train.log({"rank": "r", "attempt": "a", "step": "s", "time": "t"}, step=4)
        train.report({"attempt": "mine", "rank": "kept"})

    result = fit(train_func, workers=1)
    (row,) = result.log_dataframe.to_dict("records")
    assert (row["rank"], row["attempt"], row["step"]) == (0, 1, 4)
    assert [row[f"metrics/{name}"] for name in ("rank", "attempt", "step", "time")] == list("rast")
    (row,) = result.metrics_dataframe.to_dict("records")
    assert (row["attempt"], row["metrics/attempt"], row["rank"]) == (1, "mine", "kept")
    assert result.metrics["attempt"] == "mine"


def test_a_step_is_a_number() -> None:
    def train_func() -> None:
        import numpy as np

        train.log({}, step=np.int64(3))  # type: ignore[arg-type]
        train.log({}, step=np.float32(0.5))  # type: ignore[arg-type]
        for step in ("3", True, [3]):
            with pytest.raises(TypeError, match=re.escape(f"log(step={step!r})")):
                train.log({}, step=step)  # type: ignore[arg-type]

    assert fit(train_func, workers=1).log_dataframe["step"].tolist() == [3, 0.5]


@pytest.mark.parametrize("end", ["raise", "exit"])
def test_log_right_before_a_failure_is_kept(end: str) -> None:
    def train_func(config: dict[str, str]) -> None:
        for step in range(100):
            train.log({"x": step}, step=step)
        train.report({"reported": True})
        train.log({"x": 100}, step=100)
        if config["end"] == "raise":
            raise RuntimeError("now")
        sys.exit(4)

    result = failure(train_func, config={"end": end}).result
    assert result is not None
    frame = result.log_dataframe
    for rank in (0, 1):
        assert frame[frame["rank"] == rank]["step"].tolist() == list(range(101))


def test_log_before_the_last_report_survives_sigkill() -> None:
    def train_func() -> None:
        for step in range(100):
            train.log({"x": step}, step=step)
        train.report({"reported": True})
        os.kill(os.getpid(), signal.SIGKILL)

    result = failure(train_func).result
    assert result is not None
    frame = result.log_dataframe
    for rank in (0, 1):
        assert frame[frame["rank"] == rank]["step"].tolist() == list(range(100))


def test_log_waits_for_nobody(tmp_path: Path) -> None:
    def train_func(config: dict[str, str]) -> None:
        if train.get_context().get_world_rank() == 0:
            for step in range(1000):
                train.log({"x": step})
            open(f"{config['dir']}/logged", "w").close()
        else:  # has not reported anything while rank 0 logs
            deadline = time.monotonic() + 120
            while not os.path.exists(f"{config['dir']}/logged"):
                assert time.monotonic() < deadline
                time.sleep(0.001)

    assert len(fit(train_func, config={"dir": str(tmp_path)}).log_dataframe) == 1000


# --------------------------------------------------------------------------------------- callbacks


class Reports(UserCallback):
    def __init__(self) -> None:
        self.seen: list[list[dict[str, Any]]] = []
        self.checkpoints: list[Checkpoint | None] = []
        self.contexts: list[Any] = []
        self.errors: list[dict[int, Exception]] = []

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None
    ) -> None:
        self.contexts.append(run_context)
        self.seen.append(metrics)
        self.checkpoints.append(checkpoint)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        self.contexts.append(run_context)
        self.errors.append(worker_exceptions)


class Hooks(Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.results: list[dict[str, Any]] = []

    def setup(self, *args: Any, **info: Any) -> None:
        self.calls.append("setup")

    def on_trial_start(self, *args: Any, **info: Any) -> None:
        self.calls.append("start")

    def on_trial_result(self, *args: Any, **info: Any) -> None:
        self.calls.append("result")
        self.results.append(info["result"])

    def on_checkpoint(self, *args: Any, **info: Any) -> None:
        self.calls.append("checkpoint")

    def on_trial_complete(self, *args: Any, **info: Any) -> None:
        self.calls.append("complete")

    def on_trial_error(self, *args: Any, **info: Any) -> None:
        self.calls.append("error")

    def on_experiment_end(self, *args: Any, **info: Any) -> None:
        self.calls.append("end")


def report_thrice() -> None:
    rank = train.get_context().get_world_rank()
    for epoch in range(3):
        checkpoint = Checkpoint.from_dict({"epoch": epoch}) if epoch == 1 and rank == 0 else None
        train.report({"epoch": epoch, "rank": rank}, checkpoint=checkpoint)


def test_a_mixed_list_of_callbacks_sees_everything() -> None:
    class Lines(LoggerCallback):
        def __init__(self) -> None:  # without super().__init__()
            self.lines: list[tuple[int, int]] = []
            self.ended: bool | None = None

        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            self.lines.append((iteration, result["epoch"]))

        def log_trial_end(self, trial: Any, failed: bool = False) -> None:
            self.ended = not failed

    reports, hooks, lines = Reports(), Hooks(), Lines()
    config = {"lr": 0.1}
    result = fit(
        lambda config: report_thrice(), config=config, callbacks=[reports, hooks, lines], name="mix"
    )
    assert reports.seen == [
        [{"epoch": epoch, "rank": 0}, {"epoch": epoch, "rank": 1}] for epoch in range(3)
    ]
    assert [checkpoint is not None for checkpoint in reports.checkpoints] == [False, True, False]
    assert reports.checkpoints[1] == result.checkpoint
    assert reports.errors == []
    context = reports.contexts[0]
    assert (context.path, context.experiment_name) == (result.path, "mix")
    assert context.train_loop_config == config
    assert context.trial_id == result.metrics["trial_id"]
    assert hooks.calls[:2] == ["setup", "start"]
    assert hooks.calls[-2:] == ["complete", "end"]
    assert sorted(hooks.calls[2:-2]) == ["checkpoint", "result", "result", "result"]
    assert [row["done"] for row in hooks.results] == [False] * 3
    assert lines.lines == [(1, 0), (2, 1), (3, 2)]
    assert lines.ended is True


def test_after_exception_is_called_for_every_failed_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for_every_rank(monkeypatch)

    def train_func() -> None:
        train.report({"a": 1})
        raise KeyError(train.get_context().get_attempt())

    reports, hooks = Reports(), Hooks()
    failure(train_func, max_failures=1, callbacks=[reports, hooks])
    assert [sorted(errors) for errors in reports.errors] == [[0, 1], [0, 1]]
    assert [errors[0].args for errors in reports.errors] == [(1,), (2,)]
    assert type(reports.errors[0][1]) is KeyError
    assert hooks.calls == ["setup", "start", "result", "result", "error", "end"]


def test_a_callback_that_raises_is_reported_once_and_harms_nobody(
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Broken(Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            raise ZeroDivisionError("tracker is down")

    reports = Reports()
    result = fit(report_thrice, callbacks=[Broken(), reports], verbose=1)
    assert result.metrics["epoch"] == 2
    assert len(reports.seen) == 3
    printed = "".join(capfd.readouterr())
    assert printed.count("tracker is down") == 1
    assert "Broken.on_trial_result" in printed


def test_a_callback_that_stalls_does_not_slow_the_reports() -> None:
    released = threading.Event()

    class Stalled(Callback):
        results = 0

        def on_trial_result(self, *args: Any, **info: Any) -> None:
            assert released.wait(120)
            self.results += 1

    class Releases(UserCallback):
        """Gets all reports while the other one still hangs in its first."""

        seen = 0

        def after_report(self, *args: Any, **info: Any) -> None:
            self.seen += 1
            if self.seen == 300:
                assert stalled.results == 0
                released.set()

    def train_func() -> None:
        for step in range(300):
            train.report({"step": step})

    stalled, releases = Stalled(), Releases()
    try:
        result = fit(train_func, callbacks=[stalled, releases])
    finally:
        released.set()
    assert (stalled.results, releases.seen) == (300, 300)
    assert result.metrics["time_total_s"] < 100  # a report that waited would wait for 120


def test_a_callback_that_never_returns_does_not_hold_the_end_up_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCKSTEP_CALLBACK_FLUSH_S", "0.1")
    released = threading.Event()

    class Stalled(Callback):
        def on_trial_start(self, *args: Any, **info: Any) -> None:
            released.wait(120)

    started = time.monotonic()
    try:
        assert fit(report_thrice, callbacks=[Stalled()]).metrics["epoch"] == 2
        assert time.monotonic() - started < 100
    finally:
        released.set()


def test_what_a_callback_does_to_its_values_stays_with_it() -> None:
    class Vandal(LoggerCallback):
        def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
            result.clear()
            trial.last_result.clear()
            trial.config.clear()

    hooks = Hooks()
    result = fit(report_thrice, callbacks=[Vandal(), hooks])
    assert [row["epoch"] for row in hooks.results] == [0, 1, 2]
    assert [row["epoch"] for row in rows_of(result.path)] == [0, 1, 2]


@pytest.mark.parametrize("callback", [object(), Callback, "wandb"])
def test_something_that_is_no_callback_is_refused(callback: Any) -> None:
    with pytest.raises(TypeError, match=r"RunConfig\(callbacks=\["):
        fit(report_thrice, callbacks=[callback])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("report", lambda train: train.report({"from": "the child"})),
        ("log", lambda train: train.log({"from": "the child"})),
        ("save_checkpoint", lambda train: train.save_checkpoint(weights=1)),
    ],
)
def test_a_child_of_the_worker_cannot_report(
    name: str, call: Callable[[Any], None], tmp_path: Path
) -> None:
    def train_func() -> None:
        child = os.fork()
        if child == 0:
            try:
                call(train)
            except RuntimeError as error:
                (tmp_path / "error").write_text(str(error))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        train.report({"from": "the worker"})

    result = fit(train_func, workers=1)
    assert f"{name}() was called in process" in (tmp_path / "error").read_text()
    assert result.metrics_dataframe["from"].tolist() == ["the worker"]
    assert result.log_dataframe.empty
    assert result.checkpoint is None


def test_a_stop_condition_on_what_is_not_reported_is_named(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def train_func() -> None:
        for step in range(3):
            train.report({"loss": step})

    result = fit(train_func, workers=1, stop={"los": 1})
    assert result.metrics["loss"] == 2
    printed = capfd.readouterr().err
    assert printed.count("RunConfig(stop=…) names 'los', which the first report does not have") == 1
    assert "(it has 'loss')" in printed
    fit(train_func, workers=1, stop={"loss": 1})
    assert "RunConfig(stop=" not in capfd.readouterr().err


class Steps(Callback):
    """Keeps the hooks that Ray calls at each step and at a retry."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        self.calls.append(("begin", iteration))

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        assert [trial.status for trial in trials] == ["RUNNING"]
        self.calls.append(("end", iteration))

    def on_trial_result(self, iteration: int, *args: Any, **info: Any) -> None:
        self.calls.append(("result", iteration))

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.calls.append(("recover", iteration))


def test_step_hooks_and_recovery() -> None:
    def train_func() -> None:
        train.report({"loss": 1.0})
        if train.get_context().get_attempt() == 1:
            raise RuntimeError("once")

    steps = Steps()
    fit(train_func, max_failures=1, callbacks=[steps])
    step = [("begin", 1), ("result", 1), ("end", 1)]
    again = [("begin", 2), ("result", 1), ("end", 2)]
    assert steps.calls == [*step, ("recover", 1), *again]
