"""TorchCheckpoint, and distributed checkpoints that load at another world size."""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lockstep import train
from lockstep.errors import CheckpointError
from lockstep.train import Checkpoint
from lockstep.train.torch import TorchCheckpoint, TorchTrainer, prepare_model
from tests.train.torch.ranks import fit


def same(one: nn.Module, other: nn.Module) -> None:
    torch.testing.assert_close(one.state_dict(), other.state_dict())


def test_a_model() -> None:
    model = nn.Linear(2, 1)
    checkpoint = TorchCheckpoint.from_model(model)
    same(checkpoint.get_model(), model)
    with pytest.warns(UserWarning, match="the given model is not used"):
        same(checkpoint.get_model(nn.Linear(2, 1)), model)


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_state_dict(prefix: str) -> None:
    model = nn.Linear(2, 1)
    state = {prefix + name: value for name, value in model.state_dict().items()}
    checkpoint = TorchCheckpoint.from_state_dict(state)
    assert list(checkpoint.to_dict()["model"]) == ["weight", "bias"]
    other = nn.Linear(2, 1)
    assert checkpoint.get_model(other) is other
    same(other, model)
    with pytest.raises(ValueError, match=r"give the model to load it into: get_model\(model\)"):
        checkpoint.get_model()


def test_a_directory_with_a_file_of_torch(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    same(TorchCheckpoint.from_directory(tmp_path).get_model(nn.Linear(2, 1)), model)


def test_other_things_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.nn\.Module"):
        TorchCheckpoint.from_model({"a": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a state dict"):
        TorchCheckpoint.from_state_dict(nn.Linear(1, 1))  # type: ignore[arg-type]
    for checkpoint in (Checkpoint.from_dict({"a": 1}), Checkpoint(tmp_path)):
        with pytest.raises(CheckpointError, match=r"neither a dict with 'model' nor a file 'mod"):
            TorchCheckpoint.from_checkpoint(checkpoint).get_model()


@pytest.mark.parametrize("make", ["from_model", "from_state_dict", "from_dict"])
def test_reported_from_workers(make: str) -> None:
    def function() -> None:
        model = prepare_model(nn.Linear(2, 1))
        nn.init.ones_(next(model.parameters()))
        checkpoint: Checkpoint
        if make == "from_model":
            checkpoint = TorchCheckpoint.from_model(model)
        elif make == "from_state_dict":
            checkpoint = TorchCheckpoint.from_state_dict(model.state_dict())
        else:
            checkpoint = Checkpoint.from_dict({"model": model})  # with its DDP wrapper
        train.report({}, checkpoint=checkpoint)

    result = fit(function)
    assert result.checkpoint is not None
    checkpoint = TorchCheckpoint.from_checkpoint(result.checkpoint)  # plain with from_dict
    given = nn.Linear(2, 1) if make == "from_state_dict" else None
    model = checkpoint.get_model(given)
    assert type(model) is nn.Linear
    assert model.weight.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("make", ["from_model", "from_state_dict", "from_dict"])
@pytest.mark.parametrize("options", [{}, {"use_orig_params": True}])
def test_a_shard_is_not_taken_for_the_model(make: str, options: dict[str, Any]) -> None:
    def function() -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        model = prepare_model(
            nn.Linear(2, 2), parallel_strategy="fsdp", parallel_strategy_kwargs=options
        )
        refused = ""
        try:
            if make == "from_model":
                TorchCheckpoint.from_model(model)
            elif not options:  # FullyShardedDataParallel's own state dict is complete
                whole_of_one = {"model": model.state_dict()}
                if make == "from_dict":
                    train.Checkpoint.from_dict(whole_of_one)
                TorchCheckpoint.from_state_dict(whole_of_one["model"])
        except ValueError as error:
            refused = str(error)
        complete = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        train.report({"refused": refused}, checkpoint=TorchCheckpoint.from_state_dict(complete))

    result = fit(function)
    if make == "from_model" or not options:
        for part in (f"Checkpoint.{make}: this worker has only a shard", "full_state_dict=True"):
            assert part in result.metrics["refused"]
    assert result.checkpoint is not None
    TorchCheckpoint.from_checkpoint(result.checkpoint).get_model(nn.Linear(2, 2))


def test_a_shard_of_the_older_kind_is_not_taken_for_the_model() -> None:
    def function() -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

        model = prepare_model(
            nn.Linear(2, 2),
            parallel_strategy="fsdp",
            parallel_strategy_kwargs={"use_orig_params": True},
        )
        kind = StateDictType.SHARDED_STATE_DICT
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # deprecated in torch
            with FullyShardedDataParallel.state_dict_type(model, kind):
                part = model.state_dict()
        refused = []
        for make in (TorchCheckpoint.from_state_dict, train.Checkpoint.from_dict):
            try:
                make(part)
            except ValueError as error:
                refused.append(str(error))
        train.report({"refused": refused})

    assert ["only a shard" in text for text in fit(function).metrics["refused"]] == [True, True]


def sharded(config: dict[str, Any]) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    torch.manual_seed(train.world_size())
    layers = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2))
    model = prepare_model(layers, parallel_strategy="fsdp")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = train.get_checkpoint()
    if start is not None:
        state, moments = get_state_dict(model, optimizer)
        with start.as_directory() as directory:
            load({"model": state, "optimizer": moments}, checkpoint_id=directory)
        set_state_dict(model, optimizer, model_state_dict=state, optim_state_dict=moments)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state, moments = get_state_dict(model, optimizer)
    with tempfile.TemporaryDirectory() as directory:
        save({"model": state, "optimizer": moments}, checkpoint_id=directory)
        train.report({"losses": losses}, checkpoint=Checkpoint.from_directory(directory))


def test_shards_of_every_rank_are_one_checkpoint_for_any_number_of_workers() -> None:
    first = fit(sharded, 2)
    assert first.checkpoint is not None
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} <= set(first.checkpoint.files())
    runs = {
        workers: fit(sharded, workers, resume_from_checkpoint=first.checkpoint)
        for workers in (1, 2, 3)
    }
    followed = [run.metrics["losses"] for run in runs.values()]
    assert followed[0] == pytest.approx(followed[1], rel=1e-4)
    assert followed[2] == pytest.approx(followed[1], rel=1e-4)
    assert followed[0][0] < first.metrics["losses"][2]


class Mine(TorchCheckpoint):
    """A user's class, which no file of a run may name."""


@pytest.mark.parametrize(("cls", "mode"), [(TorchCheckpoint, "SYNC"), (Mine, "NO_UPLOAD")])
def test_what_is_reported_comes_back_as_its_class(
    cls: type[TorchCheckpoint], mode: str, tmp_path: Path
) -> None:
    def function() -> None:
        start = train.get_checkpoint()
        if start is None:
            made = cls(cls.from_model(nn.Linear(2, 1)).to_directory(tmp_path / "kept"))
            train.report({}, made, checkpoint_upload_mode=train.CheckpointUploadMode[mode])
            start = train.get_checkpoint()
            assert type(train.get_all_reported_checkpoints()[-1].checkpoint) is TorchCheckpoint
            check(start)
            raise RuntimeError("before the restore")
        check(start)

    def check(checkpoint: Checkpoint | None) -> None:
        assert type(checkpoint) is TorchCheckpoint
        assert repr(checkpoint).startswith("TorchCheckpoint(")
        assert type(checkpoint.get_model()) is nn.Linear

    with pytest.raises(train.TrainingFailedError, match="before the restore") as caught:
        fit(function, 1)
    failed = caught.value.result
    assert failed is not None
    check(TorchTrainer.restore(failed.path).fit().checkpoint)
    check(train.Result.from_path(failed.path).checkpoint)


def test_a_class_that_lockstep_does_not_have_is_never_imported() -> None:
    plain = Checkpoint.from_dict({"a": 1})
    for kind in ("antigravity.Checkpoint", "os", "Checkpoint", "", None, ["x"], 3):
        assert plain.as_kind(kind) is plain
    assert "antigravity" not in sys.modules
    assert Mine.from_model(nn.Linear(1, 1)).kind == "TorchCheckpoint"
    assert plain.kind is None
