"""accelerate, prepare_optimizer and backward, on a CPU."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from lockstep import train
from lockstep.train.torch import (
    accelerate,
    amp,
    backward,
    get_grad_scaler,
    prepare_data_loader,
    prepare_model,
    prepare_optimizer,
    unscale,
)
from tests.train.torch.ranks import as_rank, fit, in_a_worker


class Outputs(NamedTuple):
    loss: torch.Tensor
    extra: dict[str, Any]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> Outputs:
        y = self.layer(x)
        return Outputs(y, {"inside": str(y.dtype), "list": [y]})


def test_the_model_computes_in_bfloat16_and_answers_in_float32() -> None:
    with as_rank():
        accelerate(amp=True)
        model = prepare_model(Net())
        for output in (model(torch.ones(3, 4)), model.forward(torch.ones(3, 4))):
            assert isinstance(output, Outputs)
            assert output.extra["inside"] == "torch.bfloat16"
            assert output.loss.dtype == output.extra["list"][0].dtype == torch.float32
        assert model.layer.weight.dtype == torch.float32  # type: ignore[union-attr]


def test_without_amp_nothing_changes() -> None:
    with as_rank():
        accelerate()
        model = prepare_model(Net())
        assert type(model) is Net
        assert model(torch.ones(3, 4)).extra["inside"] == "torch.float32"


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", torch.bfloat16])
def test_the_type_can_be_named(dtype: Any) -> None:
    with as_rank():
        accelerate(amp=True, amp_dtype=dtype)
        assert amp.acceleration().dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amp": True, "amp_dtype": "fp16"}, "a CPU trains in torch.bfloat16 only"),
        ({"amp": True, "amp_dtype": torch.float64}, "expected torch.float16 or torch.bfloat16"),
        ({"amp": True, "amp_dtype": "int8"}, "expected torch.float16 or torch.bfloat16"),
        ({"amp_dtype": "bf16"}, "needs amp=True"),
    ],
)
def test_a_type_that_does_not_work_is_an_error(options: dict[str, Any], message: str) -> None:
    with as_rank(), pytest.raises(ValueError, match=message):
        accelerate(**options)


def test_called_twice_is_an_error() -> None:
    with as_rank():
        accelerate(amp=True)
        with pytest.raises(RuntimeError, match="a second time"):
            accelerate(amp=True)


def test_called_late_is_an_error_that_names_what_came_first() -> None:
    uses: dict[str, Any] = {
        "prepare_model": lambda: prepare_model(nn.Linear(2, 1)),
        "prepare_data_loader": lambda: prepare_data_loader(torch.utils.data.DataLoader([1])),  # type: ignore[arg-type]
        "prepare_optimizer": lambda: prepare_optimizer(torch.optim.SGD([torch.zeros(1)])),
    }
    for name, use in uses.items():
        with as_rank():
            use()
            with pytest.raises(RuntimeError, match=rf"after {name}\(\).*call it first"):
                accelerate(amp=True)


def test_what_cannot_be_used_is_named() -> None:
    with as_rank():
        with pytest.raises(TypeError, match=r"prepare_optimizer\(0\.1\): expected a torch\.optim"):
            prepare_optimizer(0.1)  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"backward\(0\.5\): expected the loss as a tensor"):
            backward(0.5)  # type: ignore[arg-type]


def test_outside_a_training_function_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="outside a training function"):
        accelerate(amp=True)


@pytest.mark.parametrize("workers", [0, 1])
def test_each_run_chooses_again(workers: int) -> None:
    def function() -> None:
        accelerate(amp=True)
        train.report({"inside": prepare_model(Net())(torch.ones(1, 4)).extra["inside"]})

    for _ in range(2):
        assert fit(function, workers).metrics["inside"] == "torch.bfloat16"


def test_what_is_saved_is_the_plain_model() -> None:
    with as_rank():
        accelerate(amp=True)
        model = prepare_model(Net())
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    for loaded in (pickle.loads(pickle.dumps(model)), _through_file(model)):
        assert type(loaded) is Net
        assert loaded(torch.ones(1, 4)).extra["inside"] == "torch.float32"


def _through_file(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_a_copy_computes_as_the_original_does() -> None:
    with as_rank():
        accelerate(amp=True)
        model = prepare_model(Net())
    copied = copy.deepcopy(model)
    assert copied(torch.ones(1, 4)).extra["inside"] == "torch.bfloat16"
    assert copied.layer is not model.layer
    with torch.no_grad():
        copied.layer.weight.zero_()  # type: ignore[union-attr,operator]
    assert model.layer.weight.any()  # type: ignore[union-attr,operator]


def test_a_forward_that_is_an_attribute_is_wrapped_too() -> None:
    model = Net()
    model.forward = model.forward  # type: ignore[method-assign]
    with as_rank():
        accelerate(amp=True)
        assert prepare_model(model)(torch.ones(1, 4)).extra["inside"] == "torch.bfloat16"


def test_a_compiled_model() -> None:
    def function() -> None:
        accelerate(amp=True)
        seen = []

        class Layer(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = super().forward(x)
                seen.append(str(y.dtype))
                return y

        model = prepare_model(torch.compile(Layer(4, 1), backend="eager"))  # type: ignore[arg-type]
        train.report({"output": str(model(torch.ones(2, 4)).dtype), "inside": seen})

    metrics = fit(function, 1).metrics
    assert metrics["output"] == "torch.float32"
    assert set(metrics["inside"]) == {"torch.bfloat16"}


def test_compiled_after_it_was_prepared_into_one_graph() -> None:
    def function() -> None:
        accelerate(amp=True)

        class Nested(nn.Linear):
            def forward(self, x: torch.Tensor) -> Any:
                y = super().forward(x)
                return {"dict": y, "list": [y]}

        prepared = prepare_model(Nested(4, 1))
        model = torch.compile(prepared, backend="eager", fullgraph=True)
        x = torch.rand(8, 4)
        found, expected = model(x), prepared(x)
        torch.testing.assert_close(found, expected)
        exact = nn.functional.linear(x, *prepared.parameters())
        train.report(
            {
                "types": [str(found["dict"].dtype), str(found["list"][0].dtype)],
                "rounded": not torch.equal(found["dict"], exact),
            }
        )

    assert fit(function, 1).reported_metrics == {"types": ["torch.float32"] * 2, "rounded": True}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_with_mixed_precision(workers: int) -> None:
    def function() -> None:
        accelerate(amp=True)
        torch.manual_seed(0)
        model = prepare_model(nn.Linear(4, 1))
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        losses = []
        for _ in range(3):
            output = model(torch.ones(2, 4))
            loss = (output - 1).square().mean()
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        train.report({"losses": losses, "lr": optimizer.param_groups[0]["lr"]})

    metrics = fit(function, workers).metrics
    assert metrics["losses"][2] < metrics["losses"][0]
    assert metrics["lr"] == pytest.approx(0.0125)


class FakeScaler(torch.amp.GradScaler):
    """A scaler that works on a CPU and counts, since the real use is float16 on a GPU."""

    def __init__(self) -> None:
        super().__init__("cpu", init_scale=8.0)
        self.updates = 0

    def update(self, new_scale: Any = None) -> None:
        self.updates += 1
        super().update(new_scale)


@in_a_worker
def test_a_scaled_step_is_the_step_without_scaling() -> None:
    scaler = FakeScaler()
    weights = [torch.ones(2, requires_grad=True) for _ in range(2)]
    with as_rank():
        amp.acceleration().scaler = scaler
        raw = [torch.optim.SGD([weight], lr=0.5) for weight in weights]
        optimizers = [prepare_optimizer(optimizer) for optimizer in raw]
        assert [prepare_optimizer(optimizer) for optimizer in optimizers] == raw
        scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], 1, gamma=0.1)
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.zero_grad()
            backward(weights[0].sum() + weights[1].sum())
            assert weights[0].grad is not None
            assert weights[0].grad.tolist() == [8.0, 8.0]
            for optimizer in optimizers:
                optimizer.step()
            scheduler.step()
    assert weights[0].tolist() == pytest.approx([0.45, 0.45])
    assert weights[1].tolist() == [0.0, 0.0]
    assert scaler.updates == 1, "once for all optimizers, before the next backward"
    state = optimizers[0].state_dict()
    assert list(state) == ["state", "param_groups"]
    optimizers[0].load_state_dict(state)
    optimizers[0].add_param_group({"params": [torch.ones(1, requires_grad=True)]})
    assert len(pickle.loads(pickle.dumps(optimizers[0])).param_groups) == 2


@in_a_worker
def test_a_scheduler_made_before_still_works() -> None:
    weight = torch.ones(1, requires_grad=True)
    with as_rank():
        amp.acceleration().scaler = FakeScaler()
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
        prepare_optimizer(optimizer)
        backward(weight.sum())
        optimizer.step()
        scheduler.step()
    assert (weight.item(), optimizer.param_groups[0]["lr"]) == (0.5, pytest.approx(0.05))


@pytest.mark.parametrize("fused", [False, True])
@in_a_worker
def test_a_step_that_overflowed_is_skipped(fused: bool) -> None:
    weight = torch.ones(1, requires_grad=True)
    with as_rank():
        amp.acceleration().scaler = scaler = FakeScaler()
        optimizer = prepare_optimizer(torch.optim.SGD([weight], lr=0.5, fused=fused))
        backward(weight.sum() * float("inf"))
        optimizer.step()
        assert weight.item() == 1.0
        optimizer.zero_grad()
        backward(weight.sum())
        assert scaler.get_scale() == 4.0
        optimizer.step()
        assert weight.item() == 0.5


@pytest.mark.parametrize("options", [{}, {"use_orig_params": True}])
def test_ranks_with_shards_skip_a_step_together(options: dict[str, Any]) -> None:
    def function() -> None:
        amp.acceleration().scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        torch.manual_seed(0)
        model = prepare_model(
            nn.Linear(4, 4, bias=False),
            parallel_strategy="fsdp",
            parallel_strategy_kwargs=options,
        )
        optimizer = prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))
        [weight] = model.parameters()
        before = shard(weight).clone()
        rows = torch.tensor([float("inf"), 1.0, 1.0, 1.0])  # the first is in rank 0's shard
        backward((model(torch.ones(1, 4)) * rows).sum())
        finite = bool(shard(weight.grad).isfinite().all())
        optimizer.step()
        scaler = get_grad_scaler()
        assert scaler is not None
        moved = not torch.equal(shard(weight), before)
        train.report({"finite": finite, "moved": moved, "scale": scaler.get_scale()})

    def shard(tensor: Any) -> torch.Tensor:
        local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return local.detach()

    ranks = fit(function).metrics_by_rank
    assert [rank["finite"] for rank in ranks] == [False, True]
    assert [(rank["moved"], rank["scale"]) for rank in ranks] == [(False, 4.0)] * 2


def test_two_sharded_models_and_an_earlier_optimizer_share_one_scale() -> None:
    def function() -> None:
        amp.acceleration().scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        plain = torch.ones(1, requires_grad=True)
        early = prepare_optimizer(torch.optim.SGD([plain], lr=0.5))
        pairs = []
        for _ in range(2):
            model = prepare_model(
                nn.Linear(4, 4, bias=False),
                parallel_strategy="fsdp",
                parallel_strategy_kwargs={"use_orig_params": True},
            )
            pairs.append((model, prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.5))))
        for model, optimizer in pairs:
            backward(model(torch.ones(1, 4)).sum())
            optimizer.step()
        backward(plain.sum())
        early.step()
        scaler = get_grad_scaler()
        assert scaler is not None
        train.report({"plain": plain.item(), "scale": scaler.get_scale()})

    assert fit(function).reported_metrics == {"plain": 0.5, "scale": 8.0}


@in_a_worker
def test_gradients_can_be_clipped_between_backward_and_step() -> None:
    weight = torch.ones(2, requires_grad=True)
    with as_rank():
        amp.acceleration().scaler = FakeScaler()
        optimizer = prepare_optimizer(torch.optim.SGD([weight], lr=1.0))
        backward(weight.sum() * 3.0)
        unscale(optimizer)
        assert weight.grad is not None
        assert weight.grad.tolist() == [3.0, 3.0]
        torch.nn.utils.clip_grad_value_(weight, 0.25)
        optimizer.step()
    assert weight.tolist() == [0.75, 0.75], "unscaled once, not twice"


@in_a_worker
def test_unscale_without_scaling_does_nothing() -> None:
    weight = torch.ones(1, requires_grad=True)
    with as_rank():
        optimizer = prepare_optimizer(torch.optim.SGD([weight], lr=1.0))
        backward(weight.sum())
        unscale(optimizer)
        assert get_grad_scaler() is None
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0]


def test_unscale_names_an_optimizer_that_was_not_prepared() -> None:
    with as_rank():
        amp.acceleration().scaler = FakeScaler()
        with pytest.raises(ValueError, match=r"unscale\(SGD\).*prepare_optimizer\(\) first"):
            unscale(torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0))


@in_a_worker
def test_the_scale_continues_after_a_resume() -> None:
    weight = torch.ones(1, requires_grad=True)
    with as_rank():
        amp.acceleration().scaler = FakeScaler()
        optimizer = prepare_optimizer(torch.optim.SGD([weight], lr=0.5))
        backward(weight.sum() * float("inf"))
        optimizer.step()
        scaler = get_grad_scaler()
        assert scaler is not None
        saved = scaler.state_dict()
    with as_rank():
        amp.acceleration().scaler = FakeScaler()
        resumed = get_grad_scaler()
        assert resumed is not None
        resumed.load_state_dict(saved)
        assert resumed.get_scale() == 4.0, "lowered by the overflow before it was saved"
