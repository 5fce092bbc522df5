"""train.State without a run: its entries, what it refuses, and restoring from a directory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError
from lockstep.run_layout import state_data, state_index
from lockstep.train import State
from lockstep.train.torch import TorchCheckpoint
from lockstep.train.worker.snapshot import SnapshotMemory, digests


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    made = SnapshotMemory()
    yield made
    made.close()


def net(width: int = 4) -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width))


def trained(model: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return optimizer


def save(state: State, memory: SnapshotMemory, folder: Path, rank: int = 0, size: int = 1) -> None:
    """What a run of ``size`` ranks with the same state writes for this rank."""
    captured = state.capture()
    ranks = tuple(range(size))
    groups = dict.fromkeys(captured.shared, ranks) if size > 1 else {}
    taken = memory.take(captured, "one", rank, ranks, groups)
    taken.wait()
    (folder / "train_state").mkdir(exist_ok=True)
    (folder / state_data(rank)).write_bytes(b"".join(taken.chunks()))
    (folder / state_index(rank)).write_bytes(taken.structure)


def test_messages_about_entries(memory: SnapshotMemory, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"State\(Linear, …\): each entry needs a name, such as"):
        State(torch.nn.Linear(1, 1))
    state = State(epoch=0)
    with pytest.raises(AttributeError, match=r"only epoch\. Did you mean 'epoch'\?"):
        state.epcoh = 1
    with pytest.raises(AttributeError, match=r"only epoch\. An entry is given when"):
        _ = state.optimizer
    save(state, memory, tmp_path)
    with pytest.raises(CheckpointError, match=r"no entry 'step'; it has epoch\. Restore a State"):
        State(epoch=0, step=0).restore(Checkpoint(tmp_path))


def test_models_and_optimizers_come_back(memory: SnapshotMemory, tmp_path: Path) -> None:
    model = net()
    optimizer = trained(model)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    generator = torch.Generator().manual_seed(7)
    entries = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    save(State(**entries, generator=generator, ema=torch.ones(2)), memory, tmp_path)
    expected = torch.rand(3, generator=generator), torch.rand(3), random.random()

    other = net()
    again = torch.optim.AdamW(other.parameters())
    schedule = torch.optim.lr_scheduler.MultiStepLR(again, [1])
    chance, ema = torch.Generator(), torch.zeros(2)
    state = State(model=other, optimizer=again, scheduler=schedule, generator=chance, ema=ema)
    assert state.restore(Checkpoint(tmp_path))
    assert torch.equal(other[0].weight, model[0].weight)
    assert torch.equal(other[1].running_mean, model[1].running_mean)
    for one, two in zip(again.state.values(), optimizer.state.values(), strict=True):
        assert all(torch.equal(one[key], two[key]) for key in two)
    assert schedule.milestones == scheduler.milestones
    assert ema.sum() == 2
    got = torch.rand(3, generator=chance), torch.rand(3), random.random()
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])
    assert got[2] == expected[2]
    found: Any = TorchCheckpoint(tmp_path).get_model(net())
    assert torch.equal(found[0].weight, model[0].weight)


def test_ranks_divide_what_they_share(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = net(64)
    optimizer = trained(model)
    sizes = []
    for rank in range(3):
        memory = SnapshotMemory()
        state = State(model=model, optimizer=optimizer, rank=rank)
        save(state, memory, tmp_path, rank, 3)
        memory.close()
        sizes.append((tmp_path / state_data(rank)).stat().st_size)
    alone = tmp_path / "alone"
    alone.mkdir()
    memory = SnapshotMemory()
    save(State(model=model, optimizer=optimizer, rank=0), memory, alone)
    memory.close()
    whole = (alone / state_data(0)).stat().st_size
    assert max(sizes) < whole
    again = net(64)
    restored = torch.optim.AdamW(again.parameters())
    assert State(model=again, optimizer=restored, rank=5).restore(Checkpoint(tmp_path))
    assert torch.equal(again[0].weight, model[0].weight)
    assert torch.equal(restored.state[again[0].weight]["exp_avg"], _moment(optimizer, model))


def _moment(optimizer: torch.optim.Optimizer, model: Any) -> Any:
    return optimizer.state[model[0].weight]["exp_avg"]


def test_the_memory_is_reused_and_grows(memory: SnapshotMemory, tmp_path: Path) -> None:
    state = State(values=torch.zeros(1000), step=0)
    first = memory.take(state.capture(), "a", 0, (0,), {})
    state.step = 1
    second = memory.take(state.capture(), "b", 0, (0,), {})
    assert first.place == second.place
    state.values = torch.zeros(100_000)
    grown = memory.take(state.capture(), "c", 0, (0,), {})
    assert grown.place != first.place
    assert grown.layout.size > first.layout.size


def test_entries_are_attributes() -> None:
    state = State(epoch=3, history=[1])
    state.epoch += 1
    assert state.epoch == 4
    assert repr(state) == "State(epoch, history)"
    with pytest.raises(AttributeError, match=r"no entry 'epochs', only epoch, history"):
        state.epochs = 5
    with pytest.raises(AttributeError, match="no entry 'model'"):
        _ = state.model
    for state.epoch in range(4, 6):
        pass
    assert state.epoch == 5


@pytest.mark.parametrize(
    ("entries", "kind", "message"),
    [
        ({}, ValueError, "give what is to be kept"),
        ({"restore": 1}, ValueError, "cannot have this name"),
        ({"_x": 1}, ValueError, "underscore"),
        ({"rng": 1}, TypeError, "True or False"),
        ({"f": print}, TypeError, "f is <built-in function print>"),
        ({"model": torch.nn.Linear}, TypeError, "model is <class"),
        ({"a": {"b": [object()]}}, TypeError, r"a\[b\]\[0\]"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_once(
    entries: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        State(**entries)


def test_an_object_that_only_saves_is_refused() -> None:
    class OneWay:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(TypeError, match=r"no load_state_dict\(\)"):
        State(loader=OneWay())


def test_another_model_is_refused_and_nothing_is_loaded(
    memory: SnapshotMemory, tmp_path: Path
) -> None:
    model = net(8)
    save(State(model=model, optimizer=trained(model), epoch=3), memory, tmp_path)
    small = net(4)
    before = small[0].weight.clone()
    state = State(epoch=0, model=small, optimizer=torch.optim.AdamW(small.parameters()))
    message = r"'0.weight' is \(8, 3\) in the checkpoint and \(4, 3\) here"
    with pytest.raises(CheckpointError, match=message):
        state.restore(Checkpoint(tmp_path))
    assert state.epoch == 0
    assert torch.equal(small[0].weight, before)
    other = torch.nn.Linear(3, 8)
    with pytest.raises(CheckpointError, match="it has no 'weight'; it has no 'bias'"):
        State(model=other).restore(Checkpoint(tmp_path))
    fewer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(CheckpointError, match=r"its groups have \[4\] parameters.*\[1\]"):
        State(model=net(8), optimizer=fewer, epoch=0).restore(Checkpoint(tmp_path))


def test_missing_and_unused_entries(memory: SnapshotMemory, tmp_path: Path) -> None:
    save(State(epoch=3, best=0.5), memory, tmp_path)
    with pytest.raises(CheckpointError, match=r"no entry 'loss'; it has epoch, best"):
        State(epoch=0, loss=1.0).restore(Checkpoint(tmp_path))
    state = State(epoch=0)
    with pytest.warns(UserWarning, match="'best', which this State does not have"):
        assert state.restore(Checkpoint(tmp_path))
    assert state.epoch == 3


def test_damaged_files_are_named(memory: SnapshotMemory, tmp_path: Path) -> None:
    save(State(values=np.arange(3.0)), memory, tmp_path)
    data = tmp_path / state_data(0)
    data.write_bytes(data.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match="cut off"):
        State(values=np.zeros(3)).restore(Checkpoint(tmp_path))
    index = json.loads((tmp_path / state_index(0)).read_text())
    (tmp_path / state_index(0)).write_text(json.dumps({**index, "version": 99}))
    with pytest.raises(CheckpointError, match="has the format 99"):
        State(values=np.zeros(3)).restore(Checkpoint(tmp_path))
    (tmp_path / state_index(0)).write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        State(values=np.zeros(3)).restore(Checkpoint(tmp_path))


def test_restore_needs_a_checkpoint_outside_a_run() -> None:
    state = State(epoch=0)
    with pytest.raises(CheckpointError, match=r"state\.restore\(result\.checkpoint\)"):
        state.restore()
    with pytest.raises(TypeError, match="expected a Checkpoint"):
        state.restore("path")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="only in memory"):
        state.restore(Checkpoint.from_dict({"epoch": 1}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
def test_ranks_compare_every_element(dtype: Any) -> None:
    def word(tensor: Any) -> str:
        # As the shared tensors of a model.
        captured = State(values=tensor).capture()
        shared = {"values": frozenset(captured.leaves) - {"rng.torch"}}
        return digests(captured._replace(shared=shared))["values"]

    one = torch.zeros(1001, 3, dtype=dtype)
    other = one.clone()
    other[700, 1] = 1
    assert word(one) == word(one.clone())
    assert word(one) != word(other)
    assert word(other.t()) == word(other.t().contiguous())
    assert word(torch.zeros((), dtype=dtype)) != word(torch.ones((), dtype=dtype))
