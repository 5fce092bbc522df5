"""train.State on a GPU: copied on a stream of its own, and never torn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from lockstep import train
from lockstep.errors import StorageError
from lockstep.testing import verify_resume
from lockstep.train import RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, get_device, prepare_model
from lockstep.train.worker.snapshot import Snapshot, SnapshotMemory

pytestmark = pytest.mark.gpu


def learn(config: Mapping[str, Any]) -> None:
    torch.manual_seed(0)
    layers = torch.nn.Linear(512, 4096), torch.nn.BatchNorm1d(4096), torch.nn.Linear(4096, 8)
    model = prepare_model(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = train.State(model=model, optimizer=optimizer, step=0, checks=[])
    state.restore()
    for step in range(state.step, 6):
        loss = model(torch.randn(64, 512, device=get_device())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state.step = step + 1
        state.checks.append(float(sum(p.double().sum() for p in model.parameters())))
        # The next step changes the parameters at once, while they may still be copied.
        train.report({"loss": loss.item()}, checkpoint=state)


def trainer() -> TorchTrainer:
    return TorchTrainer(
        learn,
        scaling_config=ScalingConfig(num_workers=1, use_gpu=True),
        run_config=RunConfig(verbose=0),
    )


def test_a_killed_worker_changes_nothing() -> None:
    report = verify_resume(trainer(), tolerance=0.0)
    assert report, str(report)


def test_a_snapshot_has_the_state_of_its_report() -> None:
    result = trainer().fit()
    assert len(result.best_checkpoints) == 6
    for checkpoint, _ in result.best_checkpoints:
        found = checkpoint.to_dict()
        names = [name for name in found["model"] if "running" not in name and "num" not in name]
        total = float(sum(found["model"][name].double().sum() for name in names))
        assert total == pytest.approx(found["checks"][-1], rel=1e-9)


def big() -> tuple[Any, torch.optim.Optimizer]:
    layers = [torch.nn.Linear(8192, 8192) for _ in range(2)]
    model = torch.nn.Sequential(layers[0], torch.nn.BatchNorm1d(8192), layers[1]).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 8192, device="cuda")).square().sum().backward()
    optimizer.step()


def content(taken: Snapshot, name: str) -> torch.Tensor:
    place = taken.layout.places[name]
    flat = torch.frombuffer(
        taken.memory, dtype=torch.float32, count=place.nbytes // 4, offset=place.start
    )
    return flat.reshape(place.shape).clone()


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    made = SnapshotMemory()
    yield made
    made.close()


def take(memory: SnapshotMemory, state: train.State) -> Snapshot:
    if memory._stream is not None:
        sleep: Any = torch.cuda._sleep
        with torch.cuda.stream(memory._stream):
            sleep(1_000_000_000)  # what the test does next is ordered before the copy begins
    return memory.take(state.capture(), "one", 0, (0,), {})


def test_the_next_step_waits_for_the_copy_and_the_forward_pass_does_not(
    memory: SnapshotMemory,
) -> None:
    model, optimizer = big()
    state = train.State(model=model, optimizer=optimizer)
    take(memory, state).wait()  # the memory is created and pinned
    before = {name: value.cpu() for name, value in model.state_dict().items()}
    moment = optimizer.state[model[0].weight]["exp_avg"].cpu()
    taken = take(memory, state)
    assert taken.overlapped is not None
    for _ in range(3):  # each changes everything
        step(model, optimizer)
    taken.wait()
    for name, value in before.items():
        if value.is_floating_point():
            assert content(taken, f"model.{name}").equal(value), name
    assert content(taken, "optimizer.state.0.exp_avg").equal(moment)
    assert not model[0].weight.cpu().equal(before["0.weight"])


def test_a_change_that_is_no_step_is_noticed(memory: SnapshotMemory) -> None:
    model, optimizer = big()
    state = train.State(model=model, optimizer=optimizer)
    take(memory, state).wait()
    # CUDA loads a kernel at its first use, which waits for the whole device, and so for the copy.
    torch.ones(1, device="cuda").clamp_(-1e-3, 1e-3)
    taken = take(memory, state)
    for parameter in model.parameters():
        parameter.data.clamp_(-1e-3, 1e-3)  # at once, and seen by no hook
    with pytest.raises(StorageError, match="not by a step of an optimizer"):
        taken.wait()
    before = model[0].weight.cpu()
    taken = take(memory, state)  # from now on a report waits
    assert taken.overlapped is None
    model[0].weight.data.zero_()
    taken.wait()
    assert content(taken, "model.0.weight").equal(before)


def test_a_change_of_the_optimizer_is_noticed(memory: SnapshotMemory) -> None:
    model, optimizer = big()
    state = train.State(model=model, optimizer=optimizer)
    take(memory, state).wait()
    torch.ones(1, device="cuda").zero_()  # its kernel is loaded
    taken = take(memory, state)
    assert taken.overlapped is not None
    for values in optimizer.state.values():
        values["exp_avg"].zero_()
    with pytest.raises(StorageError, match="or the optimizer's tensors"):
        taken.wait()
