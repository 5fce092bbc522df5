"""The worker's side of ``RunConfig(guard=…)``: looks at what a rank reports, and at its model."""

from __future__ import annotations

import json
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lockstep.config import Guard
from lockstep.errors import GuardError, GuardRollbackError, GuardSuspicion
from lockstep.metrics import look_up
from lockstep.train.protocol import Broken
from lockstep.train.worker.steps import StepWatch, local_part

__all__ = ["GuardWatch", "is_spike"]

_WINDOW = 50
_LEAST = 20
"""How many values a spike is compared with, and how many there must be."""
_SIGMA = 1.4826
"""Of a normal distribution: the standard deviation, in median absolute deviations."""

Meet = Callable[[str, bytes], bytes]


class GuardWatch:
    """Looks at each report of one rank before it is sent.

    Args:
        guard: what to look for, and what to do.
        rank, attempt: whose reports these are.
        models: returns the models of this rank that are known.
        meet: waits for all ranks, and returns rank 0's value.
        shared: returns those models that are the same on every rank; by default all.
        broken: what the guard has found in the attempt before: this one runs it again.
        rows: returns how many rows of each dataset this rank has read in the current epoch.
    """

    def __init__(
        self,
        guard: Guard,
        rank: int,
        attempt: int,
        models: Callable[[], list[Any]],
        meet: Meet,
        shared: Callable[[], list[Any]] | None = None,
        broken: Broken | None = None,
        rows: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._guard = guard
        self._rank = rank
        self._attempt = attempt
        self._models = models
        self._shared = shared or models
        self._meet = meet
        self._broken = broken
        self._rows = rows
        self._rows_before = rows()
        self._reports = 0
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self._steps: StepWatch | None = None
        self._layers: _LayerWatch | None = None
        self.watch_torch()

    def close(self) -> None:
        """Look at no more steps."""
        for watch in (self._steps, self._layers):
            if watch is not None:
                watch.close()

    def watch_torch(self) -> None:
        """Look at every step from now on, once torch is imported."""
        if not self._guard.nan or "torch.optim.optimizer" not in sys.modules:
            return
        if self._steps is None:
            self._steps = StepWatch(skip=self._guard.action == "skip")
        due = None if self._broken is None else self._broken.report - 1
        if due == self._reports and self._layers is None:
            # The next report is the broken one: in this step every layer is looked at.
            self._layers = _LayerWatch()

    def check(self, metrics: Mapping[str, Any]) -> dict[str, str] | None:
        """What is wrong with this report, a sentence for each kind; None if nothing is.

        Raises:
            GuardError: something is, and ``Guard(action=…)`` is not ``"warn"``.
        """
        guard = self._guard
        self._reports += 1
        found: dict[str, str] = {}
        if guard.nan and (names := list(_not_finite(metrics))):
            found["nan"] = self._nan(names[0], look_up(metrics, names[0]))
        if guard.spike is not None:
            value = look_up(metrics, guard.metric)
            if type(value) in (int, float) and value - value == 0:
                if is_spike(value, self._values, guard.spike):
                    usual = statistics.median(self._values)
                    found["spike"] = (
                        f"{self._when}: {guard.metric} is {value:.5g} on rank {self._rank}, where "
                        f"{usual:.5g} is usual."
                    )
                self._values.append(float(value))
        if self._steps is not None:
            found = {**self._look_at_steps(self._steps), **found}
            if "nan" in found:  # which says it of the loss
                found.pop("gradients", None)
        if guard.agree_every is not None and self._reports % guard.agree_every == 0:
            found |= self._look_at_models()
        if found or self._broken is not None:
            self._judge(found)
        rows = self._rows()
        if rows:
            self._rows_before = rows
        self.watch_torch()
        return found or None

    def _judge(self, found: dict[str, str]) -> None:
        """Add what running a broken step again has shown; raise if the user wants that."""
        action, broken = self._guard.action, self._broken
        again = broken is not None and broken.report == self._reports
        if found:
            text = " ".join(found.values()) + self._where()
            if again and broken is not None:
                text = f"Step {broken.step}, run again: {text} It comes again: look at the data "
                text += "and the code."
            elif action == "stop" and broken is None:
                raise GuardSuspicion(text)
            if action in ("stop", "rollback"):
                raise (GuardRollbackError if action == "rollback" else GuardError)(text)
        elif again and broken is not None:
            if action == "stop" and not broken.new_code:
                raise GuardError(broken.gone())
            if self._rank == min(broken.ranks):
                found["verdict"] = broken.gone()
        if again:
            self._broken = None
            if self._layers is not None:
                self._layers.close()

    def _where(self) -> str:
        """The layer and the rows of this step, as far as they are known."""
        names = {id(part): name for model in self._models() for name, part in _parts(model)}
        text = ""
        if self._layers is not None and (layer := self._layers.first(names)) is not None:
            text += f" The first layer whose output is not finite is {layer}."
        for name, read in self._rows().items():
            begin = self._rows_before.get(name, 0)
            if read > begin:
                text += (
                    f" Since its last report rank {self._rank} has read rows {begin} to "
                    f"{read - 1} of its part of {name!r} in this epoch."
                )
        return text

    def _look_at_steps(self, steps: StepWatch) -> dict[str, str]:
        broken = steps.read()
        skipped, steps.skipped = steps.skipped, []
        if broken is None and not skipped:
            return {}
        named = (pair for model in self._models() for pair in model.named_parameters())
        names = {id(parameter): name for name, parameter in named}
        if skipped:
            times = "a step was" if len(skipped) == 1 else f"{len(skipped)} steps were"
            own = next((one for one in skipped if one is not None), None)
            why = "another rank's part of the gradients is not finite"
            if own is not None:
                first = names.get(own, "a parameter of no known model")
                why = f"the gradient of {first} is not finite"
            return {
                "skipped": f"{self._when}: {times} skipped on rank {self._rank}, because {why}."
            }
        assert broken is not None
        if not broken.parameters:  # a GPU says which step it was, and no more
            which = f"step {broken.step} of the {broken.steps} since the report before it"
            return {
                "gradients": f"{self._when}: NaN or infinity in the gradients of {which}, on rank "
                f"{self._rank}."
            }
        first = next((names[one] for one in broken.parameters if one in names), "no known model")
        return {
            "gradients": f"{self._when}: NaN or infinity in {len(broken.parameters)} gradient(s) "
            f"of a step on rank {self._rank}, first in {first}."
        }

    @property
    def _when(self) -> str:
        return f"Report {self._reports} of attempt {self._attempt}"

    def _nan(self, name: str, value: object) -> str:
        text = f"{self._when}: {name} is {value} on rank {self._rank}"
        where = next(filter(None, map(_first_not_finite, self._models())), None)
        first = "" if where is None else f"; the first bad value in its model is in {where}"
        return f"{text}{first}."

    def _look_at_models(self) -> dict[str, str]:
        found: dict[str, str] = {}
        models = self._models()
        if self._guard.nan:
            where = next(filter(None, map(_first_not_finite, models)), None)
            if where is not None:
                found["model"] = (
                    f"{self._when}: NaN or infinity in the model of rank {self._rank}, first in "
                    f"{where}."
                )
        own = [part for model in self._shared() for part in _digests(model)]
        theirs = json.loads(self._meet("the guard", json.dumps(own).encode()))
        # Lists, as JSON has them. A rank without a model says nothing about the others.
        other = next((a[0] for a, b in zip(own, theirs, strict=False) if list(a) != b), None)
        if own and theirs and (other is not None or len(own) != len(theirs)):
            found["agree"] = (
                f"{self._when}: the parameters of rank {self._rank} differ from rank 0's, first in "
                f"{other or 'their number'}."
            )
        return found


class _LayerWatch:
    """Sees the output of every layer in this process, and keeps the first that is not finite."""

    def __init__(self) -> None:
        from torch.nn.modules.module import register_module_forward_hook

        self._first: Any = None
        self._handle = register_module_forward_hook(self._after_forward)

    def first(self, names: Mapping[int, str]) -> str | None:
        """The name of the first layer, or what it is; None if every output was finite."""
        if self._first is None:
            return None
        return names.get(id(self._first)) or f"a {type(self._first).__name__}"

    def close(self) -> None:
        """See no more layers."""
        self._handle.remove()

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        import torch

        # Waits for the device: this is one step, which has gone wrong before.
        is_first = self._first is None and isinstance(output, torch.Tensor)
        if is_first and output.is_floating_point() and not bool(torch.isfinite(output).all()):
            self._first = module


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    for name, part in model.named_modules():
        yield name or type(part).__name__, part


def is_spike(value: float, before: deque[float], times: float) -> bool:
    """Whether a value is above those before it by ``times`` their spread."""
    if len(before) < _LEAST or value <= max(before):
        return False
    usual = statistics.median(before)
    spread = _SIGMA * statistics.median(abs(other - usual) for other in before)
    # Values that hardly differ have no spread to speak of; a per cent is no spike.
    return value - usual > times * max(spread, 0.01 * abs(usual))


def _not_finite(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in metrics.items():
        if type(value) is float:
            if value - value != 0:  # NaN and both infinities
                yield f"{prefix}{key}"
        elif isinstance(value, Mapping):
            yield from _not_finite(value, f"{prefix}{key}/")


def _first_not_finite(model: Any) -> str | None:
    """The first parameter of a model with a NaN or an infinity, or whose gradient has one."""
    import torch

    names, flags = [], []
    for name, parameter in model.named_parameters():
        for kind, tensor in (("the gradient of ", parameter.grad), ("", parameter.detach())):
            if tensor is not None and tensor.is_floating_point():
                names.append(f"{kind}{name}")
                # Only this rank's part: the other ranks may not look at the same moment.
                flags.append(torch.isfinite(local_part(tensor)).all())
    if not flags:
        return None
    # One transfer from the device for all of them.
    finite = torch.stack(flags).tolist()
    return next((name for name, good in zip(names, finite, strict=True) if not good), None)


def _digests(model: Any) -> list[tuple[str, int]]:
    """Each parameter's name and a sum of its bits, which two equal ones share."""
    import torch

    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    names, sums = [], []
    for name, parameter in model.named_parameters():
        bits = parameter.detach().contiguous().reshape(-1)
        kind = integers.get(bits.element_size())
        if kind is not None and bits.numel():
            names.append(name)
            sums.append(bits.view(kind).sum(dtype=torch.int64))
    return list(zip(names, torch.stack(sums).tolist(), strict=True)) if sums else []
