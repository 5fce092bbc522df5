"""``num_workers=(min, max)``: a run has as many workers as there is room for, and loses nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import runtime, train
from lockstep.callback import Callback
from lockstep.errors import InsufficientResourcesError
from lockstep.run_layout import JOURNAL_FILE
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
)
from tests.integration.runs import failure, fit


@pytest.fixture(autouse=True)
def _own_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_configured", None)


class At(Callback):
    """Sets the capacity when a row arrives, then opens a gate for the workers."""

    def __init__(self, step: int, num_cpus: int, gate: Path) -> None:
        self.step = step
        self.num_cpus = num_cpus
        self.gate = gate

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **_: Any
    ) -> None:
        if result["step"] == self.step:
            lockstep.init(num_cpus=self.num_cpus)
            self.gate.touch()


def wait_for(gate: str) -> None:
    deadline = time.monotonic() + 120
    while not os.path.exists(gate):
        assert time.monotonic() < deadline
        time.sleep(0.002)


def count(config: dict[str, Any]) -> None:
    """Counts to ``total``; waits for the gate after ``wait_at``; there a rank may be lost."""
    known = train.load_checkpoint()
    context = train.get_context()
    for step in range(known["step"] + 1 if known else 0, config["total"]):
        save = config["save"] == "always" or (
            config["save"] == "asked" and train.checkpoint_requested()
        )
        train.report(
            {"step": step, "size": context.get_world_size(), "saved": save},
            checkpoint=Checkpoint.from_dict({"step": step}) if save else None,
        )
        if step == config.get("wait_at") and context.get_attempt() == 1:
            wait_for(config["gate"])
            if context.get_world_rank() == config.get("lose"):
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


def events(result: Result, kind: str) -> list[dict[str, Any]]:
    lines = Path(result.path, JOURNAL_FILE).read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


class TestStart:
    @pytest.mark.parametrize(("num_cpus", "size"), [(1, 1), (2, 2), (9, 3)])
    def test_with_what_is_there(self, num_cpus: int, size: int) -> None:
        lockstep.init(num_cpus=num_cpus)
        result = fit(count, config={"total": 1, "save": "no"}, workers=(1, 3))
        assert result.metrics["size"] == size
        assert result.resizes == []

    def test_each_worker_may_need_more(self) -> None:
        lockstep.init(num_cpus=5)
        result = DataParallelTrainer(
            count,
            train_loop_config={"total": 1, "save": "no"},
            scaling_config=ScalingConfig(num_workers=(1, 8), resources_per_worker={"CPU": 2}),
            run_config=RunConfig(verbose=0),
        ).fit()
        assert result.metrics["size"] == 2

    def test_too_little_is_an_immediate_error(self, tmp_path: Path) -> None:
        lockstep.init(num_cpus=1)
        with pytest.raises(InsufficientResourcesError, match=r"\(2, 3\).*room for 1 worker"):
            fit(count, config={"total": 1, "save": "no"}, workers=(2, 3), storage_path=tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_fixed_size_does_not_ask(self) -> None:
        lockstep.init(num_cpus=1)
        assert fit(count, config={"total": 1, "save": "no"}, workers=2).metrics["size"] == 2


class TestLoss:
    def lose_one(self, gate: Path, left: int, **options: Any) -> Callable[[], Result]:
        config = {"total": 5, "save": "always", "wait_at": 2, "lose": 1, "gate": str(gate)}
        lockstep.init(num_cpus=3)
        return lambda: fit(
            count, config=config, workers=(2, 3), callbacks=[At(2, left, gate)], **options
        )

    def test_that_cannot_be_replaced(self, gate: Path) -> None:
        result = self.lose_one(gate, left=2, max_failures=1)()
        frame = result.metrics_dataframe
        assert frame["step"].tolist() == [0, 1, 2, 3, 4]
        assert frame["size"].tolist() == [3, 3, 3, 2, 2]
        assert frame["attempt"].tolist() == [1, 1, 1, 2, 2]
        assert result.resizes == [{"attempt": 2, "from": 3, "to": 2}]
        assert [len(attempt["workers"]) for attempt in events(result, "attempt")] == [3, 2]
        assert Result.from_path(result.path).resizes == result.resizes

    def test_that_can_be_replaced(self, gate: Path) -> None:
        result = self.lose_one(gate, left=3, max_failures=1)()
        assert result.metrics_dataframe["size"].tolist() == [3, 3, 3, 3, 3]
        assert result.resizes == []

    def test_that_is_one_too_many(self, gate: Path) -> None:
        with pytest.raises(train.WorkerGroupError) as raised:
            self.lose_one(gate, left=1, max_failures=1)()
        assert isinstance(raised.value.__cause__, InsufficientResourcesError)
        message = str(raised.value)
        assert "1 worker(s) fit now after" in message
        assert "rank 1" in message
        assert "the run needs at least 2; restore it when there is more room" in message
        result = raised.value.result
        assert result is not None
        assert result.metrics_dataframe["step"].tolist() == [0, 1, 2]
        lockstep.init(num_cpus=2)
        again = DataParallelTrainer.restore(result.path).fit()
        assert again.metrics_dataframe["step"].tolist() == [0, 1, 2, 3, 4]
        assert again.metrics_dataframe["size"].tolist() == [3, 3, 3, 2, 2]

    def test_it_counts_as_a_failure(self, gate: Path) -> None:
        with pytest.raises(train.WorkerGroupError, match=r"(?i)rank 1"):
            self.lose_one(gate, left=2)()


class TestGrowth:
    def grow(self, gate: Path, save: str, **options: Any) -> Result:
        config = {"total": 12, "save": save, "wait_at": 1, "gate": str(gate)}
        lockstep.init(num_cpus=1)
        return fit(count, config=config, workers=(1, 3), callbacks=[At(1, 2, gate)], **options)

    def test_asks_for_a_checkpoint_first(self, gate: Path) -> None:
        result = self.grow(gate, "asked")
        frame = result.metrics_dataframe
        assert frame["step"].tolist() == list(range(12))
        assert frame["training_iteration"].tolist() == list(range(1, 13))
        (saved,) = frame["step"][frame["saved"]]
        assert frame["size"].tolist() == [1] * (saved + 1) + [2] * (11 - saved)
        assert frame["attempt"].tolist() == frame["size"].tolist()
        assert result.resizes == [{"attempt": 2, "from": 1, "to": 2}]
        (leave,) = events(result, "attempt_stopped")
        assert (leave["kind"], leave["attempt"], leave["next_size"]) == ("resize", 1, 2)
        assert result.state == "finished"

    def test_not_without_a_checkpoint(self, gate: Path) -> None:
        result = self.grow(gate, "no")
        assert result.metrics_dataframe["size"].tolist() == [1] * 12
        assert result.resizes == []

    def test_is_told_in_one_line(self, gate: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.grow(gate, "always", verbose=1)
        printed = "".join(capfd.readouterr())
        assert "There is room for more workers: starting attempt 2 with 2" in printed

    def test_an_asynchronous_checkpoint_will_do(self, gate: Path) -> None:
        def train_func(config: dict[str, Any]) -> None:
            known = train.load_checkpoint()
            size = train.get_context().get_world_size()
            for step in range(known["step"] + 1 if known else 0, 400):
                asked = train.checkpoint_requested()
                train.report(
                    {"step": step, "size": size},
                    checkpoint=Checkpoint.from_dict({"step": step}) if asked else None,
                    checkpoint_upload_mode=train.CheckpointUploadMode.ASYNC,
                )
                if step == 1:
                    wait_for(config["gate"])
                if size == 2:
                    return

        lockstep.init(num_cpus=1)
        result = fit(
            train_func, config={"gate": str(gate)}, workers=(1, 2), callbacks=[At(1, 2, gate)]
        )
        assert result.resizes == [{"attempt": 2, "from": 1, "to": 2}]
        assert result.checkpoint is not None
        saved = result.checkpoint.to_dict()["step"]
        assert result.metrics["step"] == saved + 1

    def test_a_failed_attempt_after_it_keeps_the_size(self, gate: Path) -> None:
        def train_func(config: dict[str, Any]) -> None:
            context = train.get_context()
            count({**config, "total": 4})
            if context.get_attempt() == 2:
                raise RuntimeError("once")

        lockstep.init(num_cpus=1)
        config = {"save": "always", "wait_at": 1, "gate": str(gate)}
        options: dict[str, Any] = {"workers": (1, 3), "callbacks": [At(1, 2, gate)]}
        result = fit(train_func, config=config, max_failures=1, **options)
        assert [len(attempt["workers"]) for attempt in result.attempts] == [1, 2, 2]
        gate.unlink()
        lockstep.init(num_cpus=1)
        assert "once" in str(failure(train_func, config=config, **options))


def test_torch_at_another_size(gate: Path) -> None:
    torch = pytest.importorskip("torch")
    from lockstep.train.torch import TorchTrainer, prepare_model

    def train_func(config: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        size = train.get_context().get_world_size()
        model = prepare_model(torch.nn.Linear(2, 1))
        plain: Any = getattr(model, "module", model)
        known = train.load_checkpoint()
        if known:
            plain.load_state_dict(known["model"])
        for step in range(known["step"] + 1 if known else 0, 12):
            model(torch.ones(1, 2)).sum().backward()
            with torch.no_grad():
                plain.weight += 1
            present = torch.ones(1)
            if size > 1:
                dist.all_reduce(present)
            data = {"step": step, "model": plain.state_dict()}
            train.report(
                {"step": step, "size": size, "present": present.item()},
                checkpoint=Checkpoint.from_dict(data),
            )
            if step == 1 and size == 1:
                wait_for(config["gate"])

    lockstep.init(num_cpus=1)
    result = TorchTrainer(
        train_func,
        train_loop_config={"gate": str(gate)},
        scaling_config=ScalingConfig(num_workers=(1, 2)),
        run_config=RunConfig(verbose=0, callbacks=[At(1, 2, gate)]),
    ).fit()
    frame = result.metrics_dataframe
    assert frame["step"].tolist() == list(range(12))
    assert frame["size"].is_monotonic_increasing
    assert frame["size"].tolist()[-1] == 2
    assert frame["present"].tolist() == frame["size"].tolist()
    first, last = (result.best_checkpoints[n][0].to_dict()["model"]["weight"] for n in (0, -1))
    assert torch.allclose(last, first + 11)
