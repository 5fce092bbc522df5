"""prepare_model: devices, strategies, and the arguments of both versions of the API."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from lockstep import train
from lockstep.train import TrainingFailedError
from lockstep.train.torch import get_device, get_devices, prepare_model, unwrap_model
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

    def function() -> None:
        model, loss = _trained(lambda model: model)
        train.report({"size": sum(p.numel() for p in model.parameters()), "loss": loss})

    metrics = fit(function, 1).metrics
    return metrics["size"], metrics["loss"]


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


class Wrapped(nn.Module):
    """All its names start as those of a wrapper's do."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 1)


def nets() -> dict[str, nn.Module]:
    return {"plain": nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), "nested": Wrapped()}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_prepared_model_loads_both_forms_at_every_number_of_workers(workers: int) -> None:
    def function() -> None:
        for name, net in nets().items():
            for strategy in ("ddp", None):
                nn.init.constant_(next(net.parameters()), 7.0)
                plain = net.state_dict()
                wrapped = nn.ModuleDict({"module": net}).state_dict()
                assert next(iter(wrapped)).startswith("module.")
                for state in (plain, wrapped, dict(plain), dict(wrapped)):
                    other = prepare_model(nets()[name], parallel_strategy=strategy)
                    assert next(other.parameters()).mean() != 7.0
                    before = list(state)
                    other.load_state_dict(state)
                    assert list(state) == before
                    assert next(other.parameters()).mean() == 7.0
                    assert list(unwrap_model(other).state_dict()) == list(plain)
        train.report({})

    fit(function, workers)


def test_a_run_resumes_with_another_number_of_workers() -> None:
    def function() -> None:
        model = prepare_model(nn.Linear(2, 1))
        checkpoint = train.get_checkpoint()
        if checkpoint is not None:
            model.load_state_dict(checkpoint.to_dict())
        value = next(model.parameters()).mean().item()
        nn.init.constant_(next(model.parameters()), train.world_size())
        train.report({"value": value}, checkpoint=train.Checkpoint.from_dict(model.state_dict()))

    result = fit(function, 2)
    for workers, value in ((1, 2.0), (2, 1.0)):
        result = fit(function, workers, resume_from_checkpoint=result.checkpoint)
        assert result.metrics["value"] == value


def test_what_does_not_fit_is_an_error_that_names_the_keys() -> None:
    def function() -> None:
        state = {f"module.{key}": value for key, value in nn.Linear(3, 1).state_dict().items()}
        prepare_model(nn.Linear(2, 1, bias=False)).load_state_dict(state)

    with pytest.raises(TrainingFailedError) as caught:
        fit(function, 1)
    assert 'Unexpected key(s) in state_dict: "bias". size mismatch for weight' in str(caught.value)


def test_a_part_of_a_model_is_loaded_as_it_is() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.head = nn.Linear(2, 1), nn.Linear(1, 1)

    with as_rank():
        model = prepare_model(Parts())
    missing = model.load_state_dict(
        {"module.weight": torch.ones(1, 2), "module.bias": torch.ones(1)}, strict=False
    )
    assert missing.missing_keys == ["head.weight", "head.bias"]
    assert missing.unexpected_keys == []


def test_a_part_of_another_module_loads_both_forms() -> None:
    with as_rank():
        whole = nn.ModuleDict({"net": prepare_model(nn.Linear(2, 1)), "head": nn.Linear(1, 1)})
    state = {key.replace("net.", "net.module."): value for key, value in whole.state_dict().items()}
    whole.load_state_dict(state)


def test_a_prepared_model_is_pickled_without_lockstep() -> None:
    with as_rank():
        model = prepare_model(nn.Linear(2, 1))
    saved = pickle.dumps(model)
    assert b"lockstep" not in saved
    plain, copied = pickle.loads(saved), copy.deepcopy(model)
    plain.load_state_dict(model.state_dict())
    copied.load_state_dict({f"module.{name}": value for name, value in plain.state_dict().items()})


def test_a_compiled_model_has_the_plain_names() -> None:
    def function() -> None:
        model = prepare_model(torch.compile(nn.Linear(2, 1)))  # type: ignore[arg-type]
        state = unwrap_model(model).state_dict()
        assert list(state) == ["weight", "bias"]
        model.load_state_dict(state)
        model.load_state_dict({f"module.{name}": value for name, value in state.items()})
        train.report({})

    fit(function)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*(deprecated|not supported)")
def test_a_scripted_model_is_prepared_too() -> None:
    with as_rank():
        model = prepare_model(torch.jit.script(nn.Linear(2, 1)))
    assert unwrap_model(model) is model
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("options", [{}, {"use_orig_params": True}])
def test_shards_load_both_forms_of_the_complete_model(options: dict[str, Any]) -> None:
    def function() -> None:
        from torch.distributed.checkpoint.state_dict import (
            StateDictOptions,
            get_model_state_dict,
            set_model_state_dict,
        )

        complete = StateDictOptions(full_state_dict=True)
        net = nn.Linear(2, 2)
        nn.init.constant_(net.weight, 7.0)
        for prefix in ("", "module."):
            model = prepare_model(
                nn.Linear(2, 2), parallel_strategy="fsdp", parallel_strategy_kwargs=options
            )
            if options:  # FullyShardedDataParallel takes the complete state dict itself
                model.load_state_dict(
                    {prefix + name: value for name, value in net.state_dict().items()}
                )
            else:
                sharded = get_model_state_dict(model)
                model.load_state_dict({prefix + name: value for name, value in sharded.items()})
                set_model_state_dict(model, net.state_dict(), options=complete)
            state: dict[str, Any] = get_model_state_dict(model, options=complete)
            assert list(state) == ["weight", "bias"]
            if train.world_rank() == 0:
                assert state["weight"].mean() == 7.0
        train.report({})

    fit(function)


def test_distributed_checkpoints_of_ddp_name_the_plain_keys() -> None:
    def function() -> None:
        from torch.distributed.checkpoint.state_dict import (
            get_model_state_dict,
            set_model_state_dict,
        )

        model = prepare_model(nn.Linear(2, 1))
        state = get_model_state_dict(model)
        assert list(state) == ["weight", "bias"]
        set_model_state_dict(model, state)
        train.report({})

    for workers in (1, 2):
        fit(function, workers)
