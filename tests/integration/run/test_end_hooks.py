"""What is ended with the training function (trackers' runs): never in the way of its error."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.train import (
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.worker import session as sessions
from tests.integration.runs import hang_when


def fit(function: Any, workers: int, path: Path, **options: Any) -> train.Result:
    return DataParallelTrainer(
        function,
        train_loop_config={"path": str(path)},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, **options),
    ).fit()


def current() -> sessions.Session:
    session = sessions.current()
    assert session is not None
    return session


def test_one_that_raises_hides_neither_the_error_nor_the_others(tmp_path: Path) -> None:
    def function(config: dict[str, Any]) -> None:
        def broken(outcome: str) -> None:
            raise RuntimeError("hook broke")

        current().at_end(broken)
        current().at_end(lambda outcome: Path(config["path"], outcome).touch())
        raise ValueError("boom")

    with pytest.raises(WorkerGroupError, match="ValueError: boom") as raised:
        fit(function, 1, tmp_path)
    assert isinstance(raised.value.__cause__, ValueError)
    assert (tmp_path / "failed").exists()


def test_a_finished_run_stays_finished(tmp_path: Path) -> None:
    def function() -> None:
        def broken(outcome: str) -> None:
            raise RuntimeError("hook broke")

        current().at_end(broken)
        train.report({"loss": 1})

    assert fit(function, 1, tmp_path).metrics["loss"] == 1


def test_the_error_is_known_while_one_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", "1")
    mark = tmp_path / "stalls"

    def function(config: dict[str, Any]) -> None:
        if train.get_context().get_attempt() == 2:
            return
        stalls = Path(config["path"], "stalls")

        def stall(outcome: str) -> None:
            stalls.touch()
            time.sleep(1000)

        if train.world_rank() == 0:
            current().at_end(stall)
            raise ValueError("boom")
        while not stalls.exists():  # or rank 0 would be the one that hangs
            time.sleep(0.01)
        train.report({})

    options = hang_when(monkeypatch, lambda state: mark.exists() and state.arrived == 1)
    result = fit(function, 2, tmp_path, failure_config=FailureConfig(1), **options)
    assert [type(error).__name__ for error in _errors(result)] == ["ValueError"]


def test_a_rank_that_waits_at_a_report_ends_what_it_has_open_when_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_STOP_GRACE_S", "50")

    def function(config: dict[str, Any]) -> None:
        if train.get_context().get_attempt() == 2:
            return
        if train.world_rank() == 0:
            current().at_end(lambda outcome: Path(config["path"], f"one {outcome}").touch())
            current().at_end(lambda outcome: Path(config["path"], f"two {outcome}").touch())
            train.report({})  # the other rank is missed once this is there
        time.sleep(1000)

    result = fit(function, 2, tmp_path, hang_timeout_s=0.5, failure_config=FailureConfig(1))
    assert [type(error).__name__ for error in _errors(result)] == ["HangError"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one failed", "two failed"]


def _errors(result: train.Result) -> list[BaseException]:
    from lockstep.error_record import unpack_error
    from lockstep.journal import parse_line, read_lines

    records = map(parse_line, read_lines(Path(result.path, "journal.jsonl").read_bytes()))
    failures = [record for record in records if record["event"] == "failure"]
    return [unpack_error(failure["errors"][0]["error"]) for failure in failures]
