"""Journals, manifests and metrics with anything in them: a sentence or a result, never a crash."""

from __future__ import annotations

import inspect
import json
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep import cli
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.error_record import unpack_error
from lockstep.errors import LockstepError
from lockstep.journal import Journal, parse_line
from lockstep.journal.records import RunRecords, existing_checkpoints
from lockstep.metrics import describable, normalise
from lockstep.result import Result
from lockstep.run_layout import JOURNAL_FILE, MANIFEST
from lockstep.storage import LocalStorage
from lockstep.train import DataConfig
from lockstep.tune import TuneConfig
from lockstep.tune.analysis import ExperimentAnalysis
from lockstep.tune.experiment.records import ExperimentRecords

FEW = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ANY: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["..", "/etc", "a/../b", "\ud800", 10**400, -1, 2**70, "checkpoint_000000"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)

WORKER = {"rank": 0, "pid": 1, "hostname": socket.gethostname(), "node_ip": "i", "started": 0}
ERROR = {"type": "ValueError", "module": "builtins", "message": "x", "values": None, "text": ""}
RUN: list[dict[str, Any]] = [
    {
        "event": "run",
        "version": 1,
        "trial_id": "abcde_00000",
        "experiment_id": "e",
        "experiment_tag": "0",
        "experiment_name": "x",
        "trainer": "T",
        "config": {"train_loop_config": {"lr": 1}},
        "checkpoint_config": {"num_to_keep": 2},
        "time": 1.0,
        "directory": "/nowhere",
    },
    {
        "event": "attempt",
        "attempt": 1,
        "workers": [WORKER],
        "warmup_time": 0.1,
        "time_before": 0.0,
        "time": 2.0,
    },
    {
        "event": "report",
        "index": 1,
        "attempt": 1,
        "attempt_index": 1,
        "iteration": 1,
        "time": 3.0,
        "time_this_iter": 0.1,
        "time_since_start": 0.1,
        "worker_time": 3,
        "worker_time_this_iter": 0.1,
        "checkpoint": None,
        "ranks": [{"loss": 1.0}],
    },
    {
        "event": "log",
        "rank": 0,
        "attempt": 1,
        "rows": [{"step": 1, "time": 1.0, "metrics": {"a": 1}}],
    },
    {
        "event": "checkpoint",
        "id": 0,
        "name": "checkpoint_000000",
        "index": 1,
        "score": 1.0,
        "metrics": {"loss": 1.0},
        "timestamp": 3,
        "uploaded": True,
    },
    {
        "event": "failure",
        "attempt": 1,
        "message": "Rank 0 failed.",
        "errors": [{"rank": 0, "error": ERROR}],
        "retry": False,
        "time": 4.0,
    },
    {"event": "end", "state": "failed", "time": 5.0},
]
EXPERIMENT: list[dict[str, Any]] = [
    {
        "event": "experiment",
        "version": 1,
        "trial_id_prefix": "abcde",
        "experiment_id": "e",
        "name": "x",
        "metric": "loss",
        "mode": "min",
        "num_trials": 1,
        "seed": 1,
        "time": 1.0,
    },
    {
        "event": "trial",
        "trial_id": "abcde_00000",
        "index": 0,
        "config": {"lr": 1},
        "experiment_tag": "0",
        "directory": "run",
        "time": 1.0,
    },
    {"event": "status", "trial_id": "abcde_00000", "status": "ERROR", "time": 2.0, "error": "x"},
    {"event": "end", "state": "finished", "time": 3.0},
]


@st.composite
def damaged(draw: st.DrawFn, good: list[dict[str, Any]]) -> bytes:
    """A journal with one or two values changed or left out, or lines that are anything."""
    records = [dict(record) for record in good[: draw(st.sampled_from([len(good), -1]))]]
    for _ in range(draw(st.integers(1, 2))):
        record = draw(st.sampled_from(records))
        key = draw(st.sampled_from(sorted(record)))
        if draw(st.booleans()):
            record.pop(key)
        elif key == "workers":
            record[key] = [{**WORKER, draw(st.sampled_from(sorted(WORKER))): draw(ANY)}]
        else:
            record[key] = draw(ANY)
        if not record:
            records.remove(record)
    lines = [json.dumps(record, separators=(",", ":")).encode() for record in records]
    extra = st.binary(max_size=20) | ANY.map(lambda value: json.dumps(value).encode())
    for line in draw(st.lists(extra, max_size=1)):
        lines.insert(draw(st.integers(0, len(lines))), line)
    return b"\n".join(lines) + b"\n"


@contextmanager
def a_sentence() -> Iterator[None]:
    """Either nothing is wrong, or one sentence says what is."""
    try:
        yield
    except (LockstepError, FileNotFoundError) as error:
        text = str(error)
        assert text
        assert len(text) < 5000


def look(result: Result) -> None:
    for attribute in (
        "metrics_dataframe",
        "rank_dataframe",
        "log_dataframe",
        "checkpoint",
        "best_checkpoints",
        "error",
        "resizes",
    ):
        with a_sentence():
            getattr(result, attribute)
    with a_sentence():
        repr(result)
        result.get_best_checkpoint("loss", "min")


@FEW
@given(damaged(RUN))
def test_a_damaged_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(content)
    with a_sentence():
        records = RunRecords(LocalStorage(str(tmp_path)))
        for report in records.reports():
            with a_sentence():
                records.row(report)
    with a_sentence():
        look(Result.from_path(tmp_path))
    place = str(tmp_path)
    for command in (["ls"], ["show"], ["stack"], ["logs"], ["env"], ["compare", place]):
        assert cli.main([*command, place]) in (0, 1)
    assert cli.main(["plot", place, "loss"]) in (0, 1)


@FEW
@given(damaged(EXPERIMENT), damaged(RUN) | st.just(b""))
def test_a_damaged_experiment(tmp_path: Path, content: bytes, run: bytes) -> None:
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / JOURNAL_FILE).write_bytes(run)
    (tmp_path / "experiment.jsonl").write_bytes(content)
    with a_sentence():
        ExperimentRecords(LocalStorage(str(tmp_path)))
    with a_sentence():
        analysis = ExperimentAnalysis(tmp_path, "loss", "min")
        for trial in analysis.trials:
            look(trial.result)
        analysis.grid.get_dataframe()
    for command in ("ls", "show"):
        assert cli.main([command, str(tmp_path)]) in (0, 1)


@FEW
@given(st.binary(max_size=30) | ANY.map(lambda value: json.dumps(value).encode()))
def test_a_damaged_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / JOURNAL_FILE).write_bytes(
        b"".join(json.dumps(record).encode() + b"\n" for record in RUN)
    )
    (tmp_path / "checkpoint_000001").mkdir(exist_ok=True)
    (tmp_path / "checkpoint_000001" / MANIFEST).write_bytes(content)
    with a_sentence():
        existing_checkpoints(LocalStorage(str(tmp_path)), {})
    with a_sentence():
        look(Result.from_path(tmp_path))


@FEW
@given(ANY)
def test_any_error_record(record: Any) -> None:
    assert isinstance(unpack_error(record), BaseException)
    assert isinstance(unpack_error({**ERROR, "cause": record}), ValueError | LockstepError)


@FEW
@given(st.dictionaries(st.text(max_size=8), ANY, max_size=4))
def test_any_metrics_are_refused_or_come_back(tmp_path: Path, metrics: dict[str, Any]) -> None:
    path = tmp_path / JOURNAL_FILE
    path.unlink(missing_ok=True)
    journal = Journal(str(path))
    try:
        plain = normalise(metrics)
    except ValueError as error:
        if "metric" not in str(error):
            raise
    else:
        journal.append("report", ranks=[plain])
        back = parse_line(path.read_bytes())["ranks"][0]
        assert json.dumps(back) == json.dumps(plain)
    finally:
        journal.append("run", config=describable(metrics))
        journal.close()


@pytest.mark.parametrize("depth", [50, 5000, 500_000])
def test_deep_nesting_is_a_sentence(tmp_path: Path, depth: int) -> None:
    deep = b"[" * depth + b"]" * depth
    for text in (deep, b'{"event":"report","ranks":[' + deep + b"]}"):
        (tmp_path / JOURNAL_FILE).write_bytes(text + b"\n")
        with pytest.raises((LockstepError, FileNotFoundError), match=r"journal\.jsonl"):
            Result.from_path(tmp_path)


CONFIGS = [RunConfig, ScalingConfig, FailureConfig, CheckpointConfig, DataConfig, TuneConfig]


@FEW
@given(st.sampled_from(CONFIGS), st.data())
def test_any_config_is_taken_or_refused_by_name(kind: Any, data: st.DataObject) -> None:
    names = sorted(set(inspect.signature(kind).parameters) - {"args", "kwargs"})
    values = data.draw(st.dictionaries(st.sampled_from(names), ANY, max_size=3))
    refused = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # arguments that have no effect are one warning each
        try:
            repr(kind(**values))
        except (TypeError, ValueError) as error:
            refused = str(error)
    assert refused is None or any(name in refused for name in values)
