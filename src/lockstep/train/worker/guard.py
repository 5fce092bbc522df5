"""The worker's side of ``RunConfig(guard=…)``: looks at what a rank reports, and at its model."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lockstep.config import Guard
from lockstep.errors import GuardError, GuardRollbackError
from lockstep.metrics import look_up

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
        models: returns the models that are the same on every rank.
        meet: waits for all ranks, and returns rank 0's value.
    """

    def __init__(
        self, guard: Guard, rank: int, attempt: int, models: Callable[[], list[Any]], meet: Meet
    ) -> None:
        self._guard = guard
        self._rank = rank
        self._attempt = attempt
        self._models = models
        self._meet = meet
        self._reports = 0
        self._values: deque[float] = deque(maxlen=_WINDOW)

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
        if guard.agree_every is not None and self._reports % guard.agree_every == 0:
            found |= self._look_at_models()
        if not found:
            return None
        if guard.action != "warn":
            kind = GuardRollbackError if guard.action == "rollback" else GuardError
            raise kind(" ".join(found.values()))
        return found

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
        own = [part for model in models for part in _digests(model)]
        theirs = json.loads(self._meet("the guard", json.dumps(own).encode()))
        # Lists, as JSON has them. A rank without a model says nothing about the others.
        other = next((a[0] for a, b in zip(own, theirs, strict=False) if list(a) != b), None)
        if own and theirs and (other is not None or len(own) != len(theirs)):
            found["agree"] = (
                f"{self._when}: the parameters of rank {self._rank} differ from rank 0's, first in "
                f"{other or 'their number'}."
            )
        return found


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
                flags.append(torch.isfinite(tensor).all())
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
