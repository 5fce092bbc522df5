"""The guard: NaN, spikes, and ranks whose parameters do not agree."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lockstep import data, train
from lockstep.errors import GuardError, GuardRollbackError, TrainingInterrupted
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    Guard,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)
from lockstep.train.protocol import Broken
from lockstep.train.torch import TorchTrainer, prepare_model
from lockstep.train.worker import steps
from lockstep.train.worker.guard import GuardWatch, is_spike
from lockstep.train.worker.steps import BrokenStep, StepWatch
from tests.integration.runs import failure, fit

NAN = float("nan")


def watch(guard: Guard, *models: nn.Module, rank0: bytes | None = None) -> GuardWatch:
    """A guard of rank 1, whose rank 0 has sent what is given, or the same."""
    return GuardWatch(
        guard, 1, 1, lambda: list(models), lambda call, own: own if rank0 is None else rank0
    )


@pytest.mark.parametrize("value", [NAN, float("inf"), -float("inf")])
def test_what_is_not_finite(value: float) -> None:
    found = watch(Guard()).check({"accuracy": 0.5, "val": {"loss": value}})
    assert found == {"nan": f"Report 1 of attempt 1: val/loss is {value} on rank 1."}


def test_what_is_no_number_is_fine() -> None:
    metrics: dict[str, Any] = {
        "a": None,
        "b": "nan",
        "c": [NAN],
        "d": 1,
        "e": True,
        "loss": 1.5,
        "f": {},
    }
    assert watch(Guard(agree_every=None)).check(metrics) is None
    assert watch(Guard(nan=False, agree_every=None)).check({"loss": NAN}) is None


def test_the_first_layer_is_named() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    layers = dict(model.named_parameters())
    layers["1.weight"].grad = torch.full((2, 2), NAN)
    found = watch(Guard(), model).check({"loss": NAN})
    assert found is not None
    assert found["nan"].endswith("the first bad value in its model is in the gradient of 1.weight.")
    with torch.no_grad():
        layers["0.bias"][1] = NAN
    found = watch(Guard(agree_every=1), model).check({"loss": 1.0})
    assert found is not None
    assert found["model"].endswith("in the model of rank 1, first in 0.bias.")


def test_a_spike() -> None:
    steady = deque(1.0 + 0.01 * (step % 5) for step in range(30))
    assert not is_spike(1.1, steady, 6)
    assert is_spike(1.5, steady, 6)
    assert not is_spike(0.1, steady, 6)
    assert not is_spike(1.5, deque(list(steady)[:19]), 6)
    assert not is_spike(1.02, deque([1.0] * 30), 6)
    assert is_spike(1.1, deque([1.0] * 30), 6)


def test_a_spike_of_the_metric_only() -> None:
    guard = watch(Guard(metric="val/loss", agree_every=None))
    for step in range(30):
        assert guard.check({"loss": 2.0**step, "val": {"loss": 1.0}}) is None
    found = guard.check({"loss": 0.0, "val": {"loss": 9}})
    assert found == {"spike": "Report 31 of attempt 1: val/loss is 9 on rank 1, where 1 is usual."}


def test_parameters_that_differ() -> None:
    model, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.load_state_dict(model.state_dict())
    sent: list[bytes] = []
    zero = GuardWatch(
        Guard(agree_every=2),
        0,
        1,
        lambda: [other],
        lambda _, own: sent.append(own) or own,  # type: ignore[func-returns-value]
    )
    assert zero.check({}) is None
    assert zero.check({}) is None
    assert len(json.loads(sent[0])) == 2
    one = watch(Guard(agree_every=2), model, rank0=sent[0])
    assert one.check({}) is None
    assert one.check({}) is None
    with torch.no_grad():  # one bit
        model.bias[2] = torch.nextafter(model.bias[2], torch.tensor(9.0))
    assert one.check({}) is None
    found = one.check({})
    assert found is not None
    assert found["agree"] == (
        "Report 4 of attempt 1: the parameters of rank 1 differ from rank 0's, first in bias."
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nan": 1}, TypeError, "Guard(nan=1): expected True or False."),
        ({"spike": 0}, ValueError, "Guard(spike=0): expected a number above 0"),
        ({"spike": True}, ValueError, "Guard(spike=True)"),
        ({"agree_every": 0}, ValueError, "agree_every=0"),
        ({"metric": ""}, TypeError, "Guard(metric='')"),
        ({"action": "pray"}, ValueError, "Guard(action='pray')"),
        ({"action": "rollback", "on_rollback": 3}, TypeError, "Guard(on_rollback=3): expected a"),
        ({"on_rollback": print}, ValueError, "action='warn' never rolls back."),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        Guard(**arguments)
    assert message in str(raised.value)
    with pytest.raises(TypeError, match="expected a Guard"):
        RunConfig(guard=arguments)  # type: ignore[arg-type]


def diverge() -> None:
    """The loss of rank 1 is NaN at step 3 of the first attempt, with a checkpoint."""
    context, checkpoint = train.get_context(), train.get_checkpoint()
    start = checkpoint.to_dict()["step"] + 1 if checkpoint else 1
    for step in range(start, 5):
        breaks = (context.get_world_rank(), context.get_attempt(), step) == (1, 1, 3)
        train.report(
            {"loss": NAN if breaks else 1.0, "step": step},
            checkpoint=Checkpoint.from_dict({"step": step}),
        )


def test_a_warning_and_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit(diverge, guard=Guard(), storage_path=str(tmp_path))
    text = "Report 3 of attempt 1: loss is nan on rank 1."
    assert capsys.readouterr().err.count(f"Guard: {text} Not every rank has it.") == 1
    found = [{"report": 3, "rank": 1, "kind": "nan", "text": text}]
    assert result.guard == found == Result.from_path(result.path).guard
    assert len(result.metrics_dataframe) == 4


def always() -> None:
    """The loss is NaN at step 3, whenever that is run."""
    checkpoint = train.get_checkpoint()
    for step in range(checkpoint.to_dict()["step"] + 1 if checkpoint else 1, 5):
        loss = NAN if step == 3 else 1.0
        train.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_a_stop_runs_the_step_once_again(tmp_path: Path) -> None:
    error = failure(diverge, guard=Guard(action="stop"), max_failures=3, storage_path=str(tmp_path))
    assert isinstance(error.__cause__, GuardError)
    assert (
        "Step 3: Report 3 of attempt 1: loss is nan on rank 1. It was on rank 1 only, and is gone "
        "when run again. Suspect the hardware of rank 1"
    ) in str(error)
    assert error.result is not None
    assert len(error.result.attempts) == 2
    # What was broken is not the newest checkpoint.
    assert error.result.checkpoint is not None
    assert error.result.checkpoint.to_dict()["step"] == 2


def test_a_stop_at_what_comes_again(tmp_path: Path) -> None:
    error = failure(always, workers=1, guard=Guard(action="stop"), storage_path=str(tmp_path))
    assert isinstance(error.__cause__, GuardError)
    expected = (
        "Step 3, run again: Report 1 of attempt 2: loss is nan on rank 0. It comes again: look"
    )
    assert expected in str(error)
    assert error.result is not None
    assert list(error.result.metrics_dataframe["loss"]) == [1.0, 1.0]


def test_a_stop_without_a_checkpoint_is_at_once(tmp_path: Path) -> None:
    def function() -> None:
        train.report({"loss": NAN})

    error = failure(function, workers=1, guard=Guard(action="stop"), storage_path=str(tmp_path))
    assert isinstance(error.__cause__, GuardError)
    assert error.result is not None
    assert len(error.result.attempts) == 1


def test_the_verdict_outlives_the_driver(tmp_path: Path) -> None:
    def function() -> None:
        if train.get_context().get_attempt() == 2:
            raise KeyboardInterrupt  # before the step is run again
        diverge()

    with pytest.raises(TrainingInterrupted) as interrupted:
        fit(function, guard=Guard(action="stop"), storage_path=str(tmp_path))
    assert interrupted.value.result is not None
    path = interrupted.value.result.path
    with pytest.raises(WorkerGroupError, match=r"is gone when run again\. Suspect the hardware"):
        DataParallelTrainer.restore(path).fit()
    # The verdict is there now: what follows is a run like any other.
    assert DataParallelTrainer.restore(path).fit().metrics["step"] == 4


def test_a_verdict_of_new_code_stops_nothing() -> None:
    broken = Broken(7, 1, (1,), 2, "loss is nan on rank 1.", new_code=True)
    guard = GuardWatch(Guard(action="stop"), 1, 2, list, lambda call, own: own, broken=broken)
    text = "Step 7: loss is nan on rank 1. It is gone with the code that was saved since."
    assert guard.check({"loss": 1.0}) == {"verdict": text}
    assert guard.check({"loss": 1.0}) is None


def test_a_rollback_says_whether_it_comes_again(tmp_path: Path) -> None:
    guard = Guard(action="rollback")
    result = fit(diverge, guard=guard, max_failures=1, storage_path=str(tmp_path))
    (found,) = result.guard
    assert (found["report"], found["rank"], found["kind"]) == (3, 1, "verdict")
    assert "is gone when run again. Suspect the hardware of rank 1." in found["text"]
    error = failure(always, workers=1, guard=guard, max_failures=1, storage_path=str(tmp_path))
    assert "It comes again: look at the data" in str(error)


def test_a_hook_changes_the_config_at_each_rollback(tmp_path: Path) -> None:
    def function(config: dict[str, Any]) -> None:
        for step in range(2):
            loss = 1.0 if step == 0 or config["lr"] < 0.02 else NAN
            train.report({"loss": loss, "lr": config["lr"]})

    result = fit(
        function,
        config={"lr": 1.0},
        workers=1,
        max_failures=3,
        guard=Guard(
            action="rollback", on_rollback=lambda config: {**config, "lr": config["lr"] / 10}
        ),
        storage_path=str(tmp_path),
    )
    assert list(result.metrics_dataframe["lr"]) == [1.0, 0.1, 0.01, 0.01]


def test_a_broken_row_and_its_layer_are_named(tmp_path: Path) -> None:
    def function() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        state = train.State(model=model, optimizer=optimizer)
        state.restore()
        for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=2):
            optimizer.zero_grad()
            model(batch["x"].float()[:, None]).square().mean().backward()
            optimizer.step()
            train.report({"step": 1}, checkpoint=state)

    values = [0.1 * value for value in range(12)]
    values[7] = NAN
    trainer = DataParallelTrainer(
        function,
        datasets={"train": data.from_items([{"x": value} for value in values])},
        run_config=RunConfig(
            verbose=0, storage_path=str(tmp_path), guard=Guard(action="stop", agree_every=None)
        ),
    )
    with pytest.raises(WorkerGroupError) as raised:
        trainer.fit()
    text = str(raised.value)
    assert "NaN or infinity in 4 gradient(s) of a step on rank 0, first in 0.weight." in text
    assert "The first layer whose output is not finite is 0." in text
    assert "has read rows 6 to 7 of its part of 'train' in this epoch." in text
    assert "Step 4, run again: " in text
    assert "It comes again: look at the data" in text
    assert raised.value.result is not None
    assert len(raised.value.result.metrics_dataframe) == 3


def steps_of(model: nn.Module, watch: StepWatch, *scales: float) -> torch.optim.Optimizer:
    optimizer = torch.optim.Adam(model.parameters())
    for scale in scales:
        optimizer.zero_grad()
        (scale * model(torch.ones(1, 2))).sum().backward()
        optimizer.step()
    return optimizer


def test_gradients_of_every_step_are_seen() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).bfloat16().float()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    watch = StepWatch(skip=False)
    try:
        steps_of(model, watch, 1.0, 2.0)
        assert watch.read() is None
        with torch.no_grad():
            list(model.parameters())[2][0, 0] = 1e38
        steps_of(model, watch, 1e30)
        steps_of(model, watch, 1.0)
        found = watch.read()
        assert found is not None
        assert (found.step, found.steps) == (1, 2)
        assert names[found.parameters[0]] == "0.weight"
        assert watch.read() is None
    finally:
        watch.close()
    steps_of(model, watch, NAN)
    assert watch.read() is None


def test_the_first_broken_step_of_many_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "_STEPS", 4)
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1))
    watch = StepWatch(skip=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    try:
        for broken in (None, None, None, None, model[1].bias, model[0].weight, None, None, None):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) * (NAN if parameter is broken else 1)
            optimizer.step()
        assert watch.read() == BrokenStep(5, 9, [id(model[1].bias)])
        assert watch.read() is None
    finally:
        watch.close()


def test_a_broken_step_before_one_of_other_parameters_is_seen() -> None:
    model = nn.Linear(2, 1)
    watch = StepWatch(skip=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    try:
        model.weight.grad, model.bias.grad = torch.tensor([[NAN, 1.0]]), torch.ones(1)
        optimizer.step()
        model.weight.grad = None
        optimizer.step()
        assert watch.read() == BrokenStep(1, 2, [id(model.weight)])
    finally:
        watch.close()


def test_a_gpu_says_which_step_was_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its way runs on a CPU, too."""
    monkeypatch.setattr(steps, "_STEPS", 2)
    monkeypatch.setattr(steps, "_Sums", steps._Flags)
    model = nn.Linear(2, 1)
    watch = StepWatch(skip=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def step(weight: float, bias: float) -> None:
        model.weight.grad = torch.tensor([[1 / 3, weight]])
        model.bias.grad = torch.tensor([bias])
        optimizer.step()

    try:
        step(1.0, 1.0)
        assert watch.read() is None
        for bias in (1.0, 1.0, float("inf"), NAN, 2.0):
            step(2 / 3, bias)
        assert model.weight.grad is not None
        assert torch.equal(model.weight.grad, torch.tensor([[1 / 3, 2 / 3]])), "looked at only"
        assert watch.read() == BrokenStep(3, 5, [])
        step(1.0, 1.0)
        step(1.0, NAN)
        assert watch.read() == BrokenStep(2, 2, [id(model.bias)])
        step(1.0, NAN)
        optimizer.zero_grad()
        assert watch.read() == BrokenStep(1, 1, [])
    finally:
        watch.close()


def test_a_skipped_step_changes_nothing() -> None:
    model = nn.Linear(2, 1)
    watch = StepWatch(skip=True)
    try:
        steps_of(model, watch, 1.0)
        before = [parameter.clone() for parameter in model.parameters()]
        optimizer = steps_of(model, watch, NAN)
        assert all(map(torch.equal, before, model.parameters()))
        assert not optimizer.state
        assert watch.skipped == [id(model.weight)]
    finally:
        watch.close()


def test_steps_that_are_skipped_are_told(tmp_path: Path) -> None:
    def function() -> None:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        state = train.State(model=model)
        for step in range(3):
            optimizer.zero_grad()
            (model(torch.ones(1, 1)) * (NAN if step == 1 else 1.0)).sum().backward()
            optimizer.step()
            train.report({"weight": state.model.weight.item()})

    result = fit(
        function, workers=1, guard=Guard(action="skip", spike=None), storage_path=str(tmp_path)
    )
    first, second, third = result.metrics_dataframe["weight"]
    assert first == second != third
    (found,) = result.guard
    assert found["text"] == (
        "Report 2 of attempt 1: a step was skipped on rank 0, because the gradient of weight is "
        "not finite."
    )


def sharded() -> None:
    """Rank 0's part of a gradient is broken at step 2, and rank 1's loss at step 4."""
    rank = train.get_context().get_world_rank()
    torch.manual_seed(0)
    model: Any = prepare_model(nn.Linear(3, 1), parallel_strategy="fsdp")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 5):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        if step == 2 and rank == 0:
            model.weight.grad.to_local().fill_(NAN)
        optimizer.step()
        weights = model.state_dict()["weight"].full_tensor()
        train.report({"sum": weights.sum().item(), "loss": NAN if step == 4 == 3 + rank else 1.0})


def test_ranks_with_shards_skip_a_step_together(tmp_path: Path) -> None:
    result = TorchTrainer(
        sharded,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(guard=Guard(action="skip"), storage_path=str(tmp_path), verbose=0),
    ).fit()
    sums = list(result.metrics_dataframe["sum"])
    assert sums[0] == sums[1] > sums[2] > sums[3]
    texts = {found["rank"]: found["text"] for found in result.guard if found["report"] == 2}
    assert "because the gradient of weight is not finite." in texts[0]
    assert "because another rank's part of the gradients is not finite." in texts[1]
    (last,) = (found for found in result.guard if found["report"] == 4)
    assert last["text"].startswith("Report 4 of attempt 1: loss is nan on rank 1")


def test_a_step_that_ranks_cannot_skip_together_is_refused() -> None:
    model = nn.Linear(2, 1)
    vars(model.weight)["_fsdp_flattened"] = True
    watch = StepWatch(skip=True)
    try:
        with pytest.raises(ValueError, match="cannot skip a step of FullyShardedDataParallel"):
            steps_of(model, watch, 1.0)
    finally:
        watch.close()


def test_a_rollback_is_another_attempt(tmp_path: Path) -> None:
    guard = Guard(action="rollback")
    result = fit(diverge, guard=guard, max_failures=1, storage_path=str(tmp_path))
    assert list(result.metrics_dataframe["step"]) == [1, 2, 3, 4]
    assert len(result.attempts) == 2
    error = failure(diverge, guard=guard, storage_path=str(tmp_path))
    assert isinstance(error.__cause__, GuardRollbackError)


def test_ranks_of_a_model_that_drift_apart(tmp_path: Path) -> None:
    def function() -> None:
        model = prepare_model(nn.Linear(2, 2))
        for step in range(4):
            if step == 2 and train.get_context().get_world_rank() == 1:
                with torch.no_grad():
                    next(model.parameters())[0, 0] += 1
            model(torch.ones(1, 2)).sum().backward()
            train.report({"step": step})

    trainer = TorchTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            verbose=0, storage_path=str(tmp_path), guard=Guard(agree_every=2, action="stop")
        ),
    )
    with pytest.raises(WorkerGroupError) as raised:
        trainer.fit()
    assert "Report 4 of attempt 1: the parameters of rank 1 differ from rank 0's" in str(
        raised.value
    )
    assert "first in module.weight" in str(raised.value)
    assert raised.value.result is not None
    assert list(raised.value.result.metrics_dataframe["step"]) == [0, 1, 2]
