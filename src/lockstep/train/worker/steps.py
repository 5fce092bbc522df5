"""Looks at the gradients of every optimizer step, on their device; read at a report."""

from __future__ import annotations

from typing import Any

__all__ = ["StepWatch"]


class StepWatch:
    """From its creation on, sees each ``step()`` of each optimizer of torch in this process.

    What is seen stays on the device until ``read``: a step waits for nothing.

    Args:
        skip: let a step with a gradient that is not finite change nothing. This waits for the
            device at each step.
    """

    def __init__(self, *, skip: bool) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._skip = skip
        self._kept: dict[Any, Any] = {}
        """By optimizer and device: a number for each gradient, of the first step that is broken,
        or of the last step. A number is finite if its whole gradient is."""
        self._names: dict[Any, list[int]] = {}
        self.skipped: list[int] = []
        """The first parameter of each step that was skipped, by its id."""
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """See no more steps."""
        self._handle.remove()
        self._kept.clear()

    def read(self) -> list[int]:
        """The parameters, by id, whose gradients were not finite in the first broken step."""
        import torch

        found = []
        for key, numbers in self._kept.items():
            finite = torch.isfinite(numbers).tolist()  # one transfer, and the only one
            found += [one for one, good in zip(self._names[key], finite, strict=True) if not good]
        self._kept.clear()
        return found

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # A scaler for float16 finds infinities by itself, and its step does nothing then.
        if getattr(optimizer, "found_inf", None) is not None:
            return
        groups: dict[Any, list[tuple[Any, Any]]] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and gradient.is_floating_point():
                    groups.setdefault(gradient.device, []).append((parameter, _local(gradient)))
        for device, pairs in groups.items():
            numbers = _numbers([gradient for _, gradient in pairs], device)
            if self._skip:
                self._look_now(optimizer, pairs, numbers)
                continue
            key = id(optimizer), device
            kept = self._kept.get(key)
            if kept is None or len(kept) != len(numbers):
                self._names[key] = [id(parameter) for parameter, _ in pairs]
                self._kept[key] = numbers
            else:
                self._kept[key] = torch.where(torch.isfinite(kept).all(), numbers, kept)

    def _look_now(self, optimizer: Any, pairs: list[tuple[Any, Any]], numbers: Any) -> None:
        import torch

        finite = torch.isfinite(numbers).tolist()
        if all(finite):
            return
        self.skipped.append(id(pairs[finite.index(False)][0]))
        # Optimizers pass over a parameter without a gradient: neither it nor its moments change.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _local(gradient: Any) -> Any:
    """Of a sharded gradient this rank's part: looking at the whole would be a collective."""
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part.coalesce().values() if part.is_sparse else part


def _kinds(tensors: list[Any]) -> list[Any]:
    return [tensor.dtype for tensor in tensors]


def _numbers(gradients: list[Any], device: Any) -> Any:
    import torch

    if device.type == "cpu":
        # NaN and infinity stay in a sum, and a sum is the fastest there. As wide as a float at
        # least, so that a sum of finite numbers stays finite.
        sums = [
            gradient.sum(dtype=torch.float32 if gradient.element_size() < 4 else None)
            for gradient in gradients
        ]
        return torch.stack([one.double() for one in sums] if len(set(_kinds(sums))) > 1 else sums)
    # One kernel for all of them. The largest value cannot overflow.
    return torch.stack([one.float() for one in torch._foreach_norm(gradients, float("inf"))])
