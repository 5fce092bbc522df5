"""A copy of tensors that continues while the training function computes, and what makes it safe.

Between two steps of an optimizer nothing changes the parameters and the optimizer's own tensors, so
their copy may overlap with the next forward and backward pass. Two things make sure of that: the
next step waits for the copy, on the device (``StepFence``); and the parameters are summed before
the function continues, and again after the copy (``sum_bits``). Where the sums differ, something
else has changed them meanwhile, and the copy is not used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lockstep.state.tree import Leaf

__all__ = ["StepFence", "changed_by_steps", "sum_bits"]


def changed_by_steps(
    optimizers: Mapping[str, Any], models: Iterable[str], leaves: Mapping[str, Leaf]
) -> dict[str, bool]:
    """The tensors that only a step of these optimizers changes → whether it is a parameter.

    Args:
        optimizers: by the name of the entry.
        models: the names of the entries that are models.
        leaves: the tensors of the state, by name.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return {}
    own, parameters = tuple[str, ...](), set[int]()
    for name, optimizer in optimizers.items():
        if _steps_are_seen(optimizer, torch):
            own += (f"{name}.state.",)
            for group in optimizer.param_groups:
                parameters.update(_address(parameter) for parameter in group["params"])
    if not own:
        return {}
    found = {name: False for name in leaves if name.startswith(own)}
    prefixes = tuple(f"{model}." for model in models)
    for name, leaf in leaves.items():
        of_model = name.startswith(prefixes) and leaf.is_torch and leaf.nbytes
        if of_model and leaf.source.data_ptr() in parameters:
            found[name] = True
    return found


def _steps_are_seen(optimizer: Any, torch: Any) -> bool:
    """Whether nothing but ``step()`` changes what is this optimizer's, and a hook sees each step.

    Others' optimizers may swap parameters at other times. A step inside a CUDA graph
    (``capturable``) calls no hook. A step with a rate of 0 changes no parameter, so that the sums
    would not show a step that no hook has seen; a rate that is a tensor may be 0.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        return False
    if not type(optimizer).__module__.startswith("torch.optim"):
        return False
    return getattr(type(optimizer).step, "hooked", False) and not any(
        group.get("capturable") or not isinstance(group.get("lr"), (int, float)) or not group["lr"]
        for group in optimizer.param_groups
    )


def _address(parameter: Any) -> int:
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return int(local.data_ptr())


def sum_bits(tensors: Iterable[Any]) -> Any:
    """The sum of the bits of each tensor, as one tensor on their device."""
    torch: Any = sys.modules["torch"]
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    found = []
    for tensor in tensors:
        real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        found.append(real.detach().view(whole[real.element_size()]).sum(dtype=torch.int64))
    return torch.stack(found)


class StepFence:
    """Calls ``wait`` before the next step of any optimizer of torch in this process."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._wait: Callable[[], None] | None = None
        # Not removed at the step: torch is iterating over its hooks then.
        self._handle = register_optimizer_step_pre_hook(lambda *_: self.settle())

    @property
    def is_up(self) -> bool:
        """Whether a step would wait."""
        return self._wait is not None

    def raise_(self, wait: Callable[[], None]) -> None:
        """Call ``wait`` once, before the next step or at ``settle``."""
        self._wait = wait

    def settle(self) -> None:
        """Wait now, if that is still to be done."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait()

    def close(self) -> None:
        """See no more steps."""
        self.settle()
        self._handle.remove()
