"""What may be copied while the training function continues, and what makes that safe."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lockstep.errors import StorageError
from lockstep.state.tree import Leaf
from lockstep.train import State
from lockstep.train.worker.overlap import StepFence, sum_bits
from lockstep.train.worker.snapshot import Overlapped


def learned(**options: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A model whose last layer is frozen, and its optimizer after a step."""
    layers = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    model = torch.nn.Sequential(*layers)
    model[2].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, **{"lr": 0.1, **options})
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_parameters_and_moments_change_only_at_a_step() -> None:
    model, optimizer = learned()
    stepped = State(model=model, optimizer=optimizer, values=torch.ones(3)).capture().stepped
    parameters = [name for name, is_parameter in stepped.items() if is_parameter]
    # Neither the statistics, which a forward pass changes, nor what the optimizer does not have.
    assert parameters == ["model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"]
    moments = {name for name in stepped if name not in parameters}
    assert "optimizer.state.0.exp_avg" in moments
    assert all(name.startswith("optimizer.state.") for name in moments)


class Foreign(torch.optim.SGD):
    """An optimizer of somebody else, which may do anything at any time."""


@pytest.mark.parametrize("options", [{"lr": 0.0}, {"lr": torch.tensor(0.1)}, {"capturable": True}])
def test_steps_that_may_be_missed(options: dict[str, Any]) -> None:
    model, optimizer = learned()
    optimizer.param_groups[0].update(options)
    assert State(model=model, optimizer=optimizer).capture().stepped == {}


def test_without_an_optimizer_that_is_known_nothing_overlaps() -> None:
    model, _ = learned()
    assert State(model=model).capture().stepped == {}
    foreign = Foreign(model.parameters(), lr=0.1)
    assert State(model=model, optimizer=foreign).capture().stepped == {}


def test_the_next_step_of_any_optimizer_waits_once() -> None:
    _, optimizer = learned()
    waited: list[str] = []
    fence = StepFence()
    fence.raise_(lambda: waited.append("first"))
    assert fence.is_up
    optimizer.step()
    optimizer.step()
    assert waited == ["first"]
    assert not fence.is_up
    fence.raise_(lambda: waited.append("second"))
    fence.close()
    assert waited == ["first", "second"]
    fence.raise_(lambda: waited.append("third"))
    optimizer.step()
    assert waited == ["first", "second"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_sums_see_every_bit(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 5, dtype=dtype)
    before = sum_bits([tensor, tensor.t()])
    assert before.equal(sum_bits([tensor, tensor.t()]))
    tensor.data[1, 1] = -0.0 if not dtype.is_complex else 1e-30
    assert not before.equal(sum_bits([tensor, tensor.t()]))


def test_parameters_that_something_else_has_changed_are_not_used() -> None:
    parameter = torch.nn.Parameter(torch.ones(4))
    whole = Overlapped((), [parameter], None)
    whole.copied([parameter])
    whole.check()
    assert not whole.is_torn
    torn = Overlapped((), [parameter], None)
    parameter.data.clamp_(max=0.5)
    torn.copied([parameter])
    with pytest.raises(StorageError, match="not by a step of an optimizer"):
        torn.check()
    assert torn.is_torn


def test_a_change_before_the_next_step_is_noticed() -> None:
    moment = torch.ones(3)
    for changes, is_torn in ((0, False), (1, True)):
        leaf = Leaf("exp_avg", moment, "F32", (3,), 12, True)
        overlapped = Overlapped([leaf], (), None)
        for _ in range(changes):
            moment.zero_()
        overlapped.close()
        moment.add_(1)  # the step
        assert overlapped.is_torn is is_torn
