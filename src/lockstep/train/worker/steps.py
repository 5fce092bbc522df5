"""Looks at the gradients of every optimizer step, on their device; read at a report."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

__all__ = ["BrokenStep", "StepWatch", "local_part"]

Pairs = list[tuple[Any, Any]]
"""Parameters, with this rank's part of their gradients."""

_STEPS = 64
"""How many steps are looked at together."""
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
        self._seen: dict[Any, _Sums | _Flags] = {}
        """What was seen since the last ``read``, by optimizer and device."""
        self.skipped: list[int | None] = []
        """Of each step that was skipped the first parameter with a gradient that is not finite, by
        its id; None: another rank has it."""
        self._handle = register_optimizer_step_pre_hook(self._before_step)

    def close(self) -> None:
        """See no more steps."""
        self._handle.remove()
        self._seen.clear()

    def read(self) -> BrokenStep | None:
        """The first step since the last call with a gradient that is not finite."""
        seen = list(self._seen.values())
        self._seen.clear()
        return next((found for one in seen if (found := one.read()) is not None), None)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        # A scaler for float16 finds infinities by itself, and its step does nothing then.
        if getattr(optimizer, "found_inf", None) is not None:
            return
        groups, meshes = self._gradients(optimizer)
        if self._skip:
            self._look_now(optimizer, groups, meshes)
            return
        for device, pairs in groups.items():
            key = id(optimizer), device
            seen = self._seen.get(key)
            if seen is None:
                kind = _Sums if device.type == "cpu" else _Flags
                seen = self._seen[key] = kind(pairs)
            seen.add(pairs)

    def _gradients(self, optimizer: Any) -> tuple[dict[Any, Pairs], list[Any]]:
        """By device, the parameters with this rank's part of their gradients; and the meshes."""
        import torch

        groups: dict[Any, Pairs] = {}
        meshes: dict[Any, None] = {}
        device, own = None, []  # of the parameter before: seldom another one's
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                part = gradient = parameter.grad
                if gradient is None:
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
                # Of a small parameter not every rank has a part.
                if part.is_floating_point() and part.numel():
                    if part.device != device:
                        device = part.device
                        own = groups.setdefault(device, [])
                    own.append((parameter, part))
        return groups, list(meshes)

    def _look_now(self, optimizer: Any, groups: dict[Any, Pairs], meshes: list[Any]) -> None:
        first = None
        for device, pairs in groups.items():
            kind = _Sums if device.type == "cpu" else _Flags
            (seen := kind(pairs)).add(pairs)
            if first is None and (found := seen.read()) is not None:
                first = found.parameters[0]
        if not _anywhere(first is not None, meshes):
            return
        self.skipped.append(first)
        # Optimizers pass over a parameter without a gradient: neither it nor its moments change.
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class BrokenStep(NamedTuple):
    """A step with gradients that are not finite.

    Attributes:
        step, steps: which one since the report before, from 1, and of how many.
        parameters: whose gradients these are, by id; empty if nobody can tell any more.
    """

    step: int
    steps: int
    parameters: list[int]


class _Sums:
    """Steps on a CPU: a sum of each gradient, which is finite if the whole gradient is."""

    def __init__(self, pairs: Pairs) -> None:
        self._names: list[int] = []
        self._sums: list[Any] = []
        """Of the newest steps: looked at together, each operation costs more than it computes."""
        self._looked_at = 0
        self._broken: tuple[int, list[int]] | None = None

    def add(self, pairs: Pairs) -> None:
        import torch

        names = [id(parameter) for parameter, _ in pairs]
        if names != self._names:
            self._look()
            self._names = names
        # As wide as a float at least, so that a sum of finite numbers stays finite.
        sums = [
            part.sum(dtype=torch.float32 if part.element_size() < 4 else None) for _, part in pairs
        ]
        if len({one.dtype for one in sums}) > 1:
            sums = [one.double() for one in sums]
        self._sums.append(torch.stack(sums))
        if len(self._sums) == _STEPS:
            self._look()

    def read(self) -> BrokenStep | None:
        self._look()
        if self._broken is None:
            return None
        step, parameters = self._broken
        return BrokenStep(step, self._looked_at, parameters)

    def _look(self) -> None:
        import torch

        if self._sums and self._broken is None and not _is_finite(sums := torch.stack(self._sums)):
            finite = torch.isfinite(sums)
            bad = finite.all(1).logical_not_().nonzero()
            if len(bad):
                row = int(bad[0])
                names = zip(self._names, finite[row].tolist(), strict=True)
                self._broken = self._looked_at + row + 1, [one for one, good in names if not good]
        self._looked_at += len(self._sums)
        self._sums.clear()


class _Flags:
    """Steps on a GPU: a flag for each, set by one kernel that looks at all gradients.

    A number for each gradient takes the CPU ten times as long: 0.7 ms for 148 parameters.
    """

    def __init__(self, pairs: Pairs) -> None:
        import torch

        self._device = pairs[0][1].device
        self._one = torch.ones((), device=self._device)
        self._flags: list[Any] = []
        """Of ``_STEPS`` steps each."""
        self._steps = 0
        self._parameters: list[Any] = []

    def add(self, pairs: Pairs) -> None:
        import torch

        if self._steps % _STEPS == 0:
            self._flags.append(torch.zeros(_STEPS, device=self._device))
        flag = self._flags[-1][self._steps % _STEPS]
        self._steps += 1
        self._parameters = [parameter for parameter, _ in pairs]
        with torch.no_grad():
            # Multiplies by one as well, which changes nothing.
            torch._amp_foreach_non_finite_check_and_unscale_(
                [part for _, part in pairs], flag, self._one
            )

    def read(self) -> BrokenStep | None:
        import torch

        flags = torch.cat(self._flags).tolist()  # one transfer, the only one
        if not any(flags):
            return None
        step = flags.index(1.0) + 1
        parameters = []
        if step == self._steps:  # its gradients may still be there
            for parameter in self._parameters:
                gradient = parameter.grad
                if gradient is not None and not torch.isfinite(local_part(gradient)).all():
                    parameters.append(id(parameter))
        return BrokenStep(step, self._steps, parameters)


def _is_finite(sums: Any) -> bool:
    """True: every one is. False: at least one is not, or they are too large to be added."""
    return math.isfinite(sums.sum().item())


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
