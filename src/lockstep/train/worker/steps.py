"""Looks at the gradients of every optimizer step, on their device; read at a report."""

from __future__ import annotations

from typing import Any

__all__ = ["StepWatch", "local_part"]

_STEPS = 64
"""How many steps are kept until they are looked at."""
_FLATTENED = "_fsdp_flattened"
"""What ``FullyShardedDataParallel`` sets on parameters of which a rank may have a part."""


class StepWatch:
    """From its creation on, sees each ``step()`` of each optimizer of torch in this process.

    What is seen stays on the device until ``read``: a step waits for nothing.

    Args:
        skip: let a step with a gradient that is not finite change nothing. This waits for the
            device at each step and, where gradients are sharded, for the ranks that share them: a
            step is skipped by all of them, or by none.
    """

    def __init__(self, *, skip: bool) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._skip = skip
        self._kept: dict[Any, list[Any]] = {}
        """By optimizer and device, of each step: a number for each gradient, which is finite if the
        whole gradient is. Of many steps the first that is broken stays."""
        self._names: dict[Any, list[int]] = {}
        self.skipped: list[int | None] = []
        """Of each step that was skipped the first parameter with a gradient that is not finite, by
        its id; None: another rank has it."""
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """See no more steps."""
        self._handle.remove()
        self._kept.clear()

    def read(self) -> list[int]:
        """The parameters, by id, whose gradients were not finite in the first broken step."""
        import torch

        found = []
        for key, steps in self._kept.items():
            finite = torch.isfinite(_first_broken(steps)).tolist()  # one transfer, the only one
            found += [one for one, good in zip(self._names[key], finite, strict=True) if not good]
        self._kept.clear()
        return found

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        import torch

        # A scaler for float16 finds infinities by itself, and its step does nothing then.
        if getattr(optimizer, "found_inf", None) is not None:
            return
        groups: dict[Any, list[tuple[Any, Any]]] = {}
        meshes: dict[Any, None] = {}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = gradient = parameter.grad
                if gradient is None or not gradient.is_floating_point():
                    continue
                if type(gradient) is not torch.Tensor or gradient.is_sparse:
                    part = local_part(gradient)
                    if (mesh := getattr(gradient, "device_mesh", None)) is not None:
                        meshes[mesh] = None
                elif self._skip and hasattr(parameter, _FLATTENED):
                    raise ValueError(
                        'Guard(action="skip") cannot skip a step of FullyShardedDataParallel: the '
                        "ranks would not agree. Use prepare_model(model, parallel_strategy="
                        '"fsdp") without arguments of that class, which is fully_shard, or '
                        'Guard(action="warn").'
                    )
                if part.numel():  # of a small parameter not every rank has a part
                    groups.setdefault(part.device, []).append((parameter, part))
        if self._skip:
            self._look_now(optimizer, groups, list(meshes))
            return
        for device, pairs in groups.items():
            numbers = _numbers([gradient for _, gradient in pairs], device)
            key = id(optimizer), device
            kept = self._kept.get(key)
            if kept is None or len(kept[0]) != len(numbers):
                self._names[key] = [id(parameter) for parameter, _ in pairs]
                self._kept[key] = [numbers]
            else:
                # Looked at later, many at once: each operation costs more than what it computes.
                kept.append(numbers)
                if len(kept) == _STEPS:
                    self._kept[key] = [_first_broken(kept)]

    def _look_now(
        self, optimizer: Any, groups: dict[Any, list[tuple[Any, Any]]], meshes: list[Any]
    ) -> None:
        import torch

        first = None
        for device, pairs in groups.items():
            finite = torch.isfinite(_numbers([part for _, part in pairs], device)).tolist()
            if first is None and not all(finite):
                first = id(pairs[finite.index(False)][0])
        if not _anywhere(first is not None, meshes):
            return
        self.skipped.append(first)
        # Optimizers pass over a parameter without a gradient: neither it nor its moments change.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


def _first_broken(steps: list[Any]) -> Any:
    """The numbers of the first step with one that is not finite, on the device; or of another."""
    import torch

    if len(steps) == 1:
        return steps[0]
    table = torch.stack(steps)
    # argmax() finds the first of the largest; a plain index would wait for the device.
    first = torch.isfinite(table).all(1).logical_not_().to(torch.uint8).argmax()
    return table.index_select(0, first.reshape(1))[0]


def _anywhere(found: bool, meshes: list[Any]) -> bool:
    """Whether a rank has found something, of those that share a mesh; all of them ask."""
    import torch
    import torch.distributed as dist

    for mesh in meshes:
        flag = torch.tensor(float(found), device=mesh.device_type)
        for group in mesh.get_all_groups():
            dist.all_reduce(flag, dist.ReduceOp.MAX, group=group)
        found = bool(flag)
    return found


def local_part(tensor: Any) -> Any:
    """Of a sharded tensor this rank's part: looking at the whole would be a collective."""
    part = tensor.to_local() if hasattr(tensor, "to_local") else tensor
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
