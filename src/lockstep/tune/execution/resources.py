"""What trials share: CPUs and GPUs, counted once for trials and their workers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Allocation", "ResourcePool", "ResourceRequest"]

_ROUNDING = 1e-9


@dataclass(frozen=True)
class ResourceRequest:
    """What one trial takes: all of its workers at once."""

    workers: int = 1
    cpus: float = 1.0
    """For each worker."""
    gpus: float = 0.0
    """For each worker; a part of one GPU is shared with other trials."""

    @property
    def total_cpus(self) -> float:
        """For all workers."""
        return self.workers * self.cpus

    def __str__(self) -> str:
        parts = [f"{self.total_cpus:g} CPU(s)"]
        if self.gpus:
            parts.append(f"{self.workers * self.gpus:g} GPU(s)")
        return f"{' and '.join(parts)} for {self.workers} worker(s)"


@dataclass(frozen=True)
class Allocation:
    """What a running trial holds."""

    need: ResourceRequest
    gpus: tuple[str, ...]
    """The devices, worker by worker."""


@dataclass
class ResourcePool:
    """Hands out shares. A trial gets all it needs or nothing, so none waits half started.

    What needs more than there is runs alone, if it has the GPUs.
    """

    cpus: float
    gpus: Sequence[str] = ()
    _used_cpus: float = 0.0
    _used_gpus: dict[str, float] = field(default_factory=dict)
    _shares: int = 0

    def too_large(self, need: ResourceRequest) -> bool:
        """Whether it is more than the whole machine."""
        return need.total_cpus > self.cpus + _ROUNDING or self._devices(need, empty=True) is None

    def take(self, need: ResourceRequest) -> Allocation | None:
        """A share, None if it does not fit now."""
        devices = self._devices(need)
        alone = self._shares == 0
        if not alone and (
            self._used_cpus + need.total_cpus > self.cpus + _ROUNDING or devices is None
        ):
            return None
        share = Allocation(need, tuple(devices or ()))
        self._shares += 1
        self._used_cpus += need.total_cpus
        for device in share.gpus:
            self._used_gpus[device] = self._used_gpus.get(device, 0.0) + min(need.gpus, 1.0)
        return share

    def give_back(self, share: Allocation) -> None:
        """It is free again."""
        self._shares -= 1
        self._used_cpus -= share.need.total_cpus
        for device in share.gpus:
            self._used_gpus[device] -= min(share.need.gpus, 1.0)

    def __str__(self) -> str:
        text = f"{self._used_cpus:g}/{self.cpus:g} CPUs"
        if self.gpus:
            text += f", {sum(self._used_gpus.values()):g}/{len(self.gpus)} GPUs"
        return text

    def _devices(self, need: ResourceRequest, *, empty: bool = False) -> list[str] | None:
        """A device for each whole GPU of each worker, None if there are too few."""
        used = {} if empty else dict(self._used_gpus)
        each = min(need.gpus, 1.0)
        count = need.workers * (int(need.gpus) if need.gpus >= 1 else bool(need.gpus))
        chosen: list[str] = []
        for device in self.gpus:
            while len(chosen) < count and used.get(device, 0.0) + each <= 1 + _ROUNDING:
                used[device] = used.get(device, 0.0) + each
                chosen.append(device)
        return chosen if len(chosen) == count else None
