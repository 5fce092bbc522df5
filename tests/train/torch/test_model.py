"""prepare_model: devices, strategies, and the arguments of both versions of the API."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lockstep import train
from lockstep.train.torch import get_device, get_devices, prepare_model
from tests.train.torch.ranks import as_rank, fit


def test_one_worker_gets_the_model_itself() -> None:
    model = nn.Linear(2, 1)
    for strategy in ("ddp", "fsdp", None):
        with as_rank():
            assert prepare_model(model, parallel_strategy=strategy) is model


def test_without_a_gpu_the_device_is_the_cpu() -> None:
    with as_rank():
        assert (get_device(), get_devices()) == (torch.device("cpu"), [torch.device("cpu")])


def test_moved_to_the_given_device() -> None:
    with as_rank():
        assert prepare_model(nn.Linear(2, 1), torch.device("meta")).weight.is_meta
        untouched = prepare_model(nn.Linear(2, 1, device="meta"), move_to_device=False)
        assert untouched.weight.is_meta


def test_what_is_no_model_is_named() -> None:
    with as_rank(), pytest.raises(TypeError, match=r"prepare_model\('net'\): expected a torch\.nn"):
        prepare_model("net")  # type: ignore[arg-type]


def test_several_workers_train_one_model() -> None:
    def function() -> None:
        torch.manual_seed(train.world_rank())  # DDP starts from rank 0's weights
        model = prepare_model(nn.Linear(2, 1, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.full((4, 2), float(train.world_rank()))).sum().backward()
        optimizer.step()
        [weight] = model.module.parameters()  # type: ignore[union-attr]
        train.report({"kind": type(model).__name__, "weight": weight.detach().tolist()})

    ranks = fit(function).metrics_by_rank
    assert {rank["kind"] for rank in ranks} == {"DistributedDataParallel"}
    torch.manual_seed(0)
    expected = nn.Linear(2, 1, bias=False).weight - 0.1 * 2.0
    for rank in ranks:
        torch.testing.assert_close(torch.tensor(rank["weight"]), expected.detach())


def test_both_versions_of_the_arguments() -> None:
    def function() -> None:
        def kind(*args: Any, **options: Any) -> str:
            return type(prepare_model(nn.Linear(2, 1), *args, **options)).__name__

        flags = {"find_unused_parameters": True}
        old = prepare_model(nn.Linear(2, 1), True, True, flags)
        new = prepare_model(nn.Linear(2, 1), True, "ddp", flags)
        named = prepare_model(nn.Linear(2, 1), parallel_strategy_kwargs=flags)
        train.report(
            {
                "flags": [m.find_unused_parameters for m in (old, new, named)],
                "plain": [kind(wrap_ddp=False), kind(parallel_strategy=None), kind(True, None)],
                "sharded": [
                    kind(parallel_strategy="fsdp"),
                    kind(wrap_ddp=False, parallel_strategy="fsdp"),
                    kind(True, "fsdp"),
                ],
                "sharded as before": [kind(True, "fsdp", {"sync_module_states": False})],
            }
        )

    assert fit(function).reported_metrics == {
        "flags": [True] * 3,
        "plain": ["Linear"] * 3,
        "sharded": ["FSDPLinear"] * 3,
        "sharded as before": ["FullyShardedDataParallel"],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parallel_strategy": "horovod"}, "'horovod'.*expected 'ddp', 'fsdp' or None"),
        ({"wrap_ddp": True, "parallel_strategy": "fsdp"}, "leave wrap_ddp out"),
        ({"wrap_ddp": True, "parallel_strategy": None}, "leave wrap_ddp out"),
        ({"ddp_kwargs": {"a": 1}, "parallel_strategy_kwargs": {"b": 1}}, "two names of one"),
        ({"ddp_kwargs": {"a": 1}, "parallel_strategy": "fsdp"}, "give parallel_strategy_kwargs"),
    ],
)
def test_contradictions_are_errors_with_one_worker_too(
    options: dict[str, Any], message: str
) -> None:
    with as_rank(), pytest.raises(ValueError, match=message):
        prepare_model(nn.Linear(2, 1), **options)


def _trained(prepare: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, float]:
    """A small model after three steps, and its loss."""
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item()


def _trained_unsharded() -> tuple[int, float]:
    """The number of weights of the unsharded model, and its loss after the same steps."""
    model, loss = _trained(lambda model: model)
    return sum(p.numel() for p in model.parameters()), loss


def test_shards_train_like_the_unsharded_model() -> None:
    def function() -> None:
        model, loss = _trained(partial(prepare_model, parallel_strategy="fsdp"))
        local = sum(p.to_local().numel() for p in model.parameters())  # type: ignore[attr-defined]
        train.report({"loss": loss, "local": local})

    ranks = fit(function).metrics_by_rank
    size, loss = _trained_unsharded()
    assert [rank["loss"] for rank in ranks] == pytest.approx([loss] * 2)
    assert sum(rank["local"] for rank in ranks) == size


def test_an_older_torch_shards_with_the_class_it_has() -> None:
    def function() -> None:
        import torch.distributed.fsdp as fsdp

        del fsdp.fully_shard  # as before torch 2.6
        model, loss = _trained(partial(prepare_model, parallel_strategy="fsdp"))
        local = sum(p.numel() for p in model.parameters())
        train.report({"kind": type(model).__name__, "loss": loss, "local": local})

    ranks = fit(function).metrics_by_rank
    assert {rank["kind"] for rank in ranks} == {"FullyShardedDataParallel"}
    size, loss = _trained_unsharded()
    assert [rank["loss"] for rank in ranks] == pytest.approx([loss] * 2)
    assert sum(rank["local"] for rank in ranks) >= size
