"""The CPUs and GPUs that trials share, counted once for trials and their workers together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Allocation", "ResourcePool", "ResourceRequest"]

# Sums of fractions are not exact: 0.1 + 0.2 is a little more than 0.3.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class ResourceRequest:
    """What one trial needs for all of its workers."""

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

    request: ResourceRequest
    gpus: tuple[str, ...]
    """The devices, worker by worker."""


@dataclass
class ResourcePool:
    """Allocates to a trial all that it requests, or nothing: no trial waits half started.

    A request for more than the pool has is allocated when no other trial runs.
    """

    cpus: float
    gpus: Sequence[str] = ()
    _used_cpus: float = 0.0
    _used_gpus: dict[str, float] = field(default_factory=dict)
    _allocations: int = 0

    def too_large(self, request: ResourceRequest) -> bool:
        """Whether the request is for more than the complete pool."""
        too_many_cpus = request.total_cpus > self.cpus + _ROUNDING
        return too_many_cpus or self._devices(request, {}) is None

    def fits(self, request: ResourceRequest) -> bool:
        """Whether ``take`` would return an allocation now."""
        # Else a request for more than the machine has would wait for ever.
        if self._allocations == 0:
            return True
        if self._used_cpus + request.total_cpus > self.cpus + _ROUNDING:
            return False
        return self._devices(request, self._used_gpus) is not None

    def take(self, request: ResourceRequest) -> Allocation | None:
        """Allocate; None if the request does not fit now."""
        if not self.fits(request):
            return None
        allocation = Allocation(request, tuple(self._devices(request, self._used_gpus) or ()))
        self._allocations += 1
        self._used_cpus += request.total_cpus
        for device in allocation.gpus:
            self._used_gpus[device] = self._used_gpus.get(device, 0.0) + min(request.gpus, 1.0)
        return allocation

    def give_back(self, allocation: Allocation) -> None:
        """Free an allocation."""
        self._allocations -= 1
        self._used_cpus -= allocation.request.total_cpus
        for device in allocation.gpus:
            self._used_gpus[device] -= min(allocation.request.gpus, 1.0)

    def __str__(self) -> str:
        text = f"{self._used_cpus:g}/{self.cpus:g} CPUs"
        if self.gpus:
            text += f", {sum(self._used_gpus.values()):g}/{len(self.gpus)} GPUs"
        return text

    def _devices(self, request: ResourceRequest, used: dict[str, float]) -> list[str] | None:
        """A device for each GPU, or part of one, of each worker; None if too few are free."""
        # A copy: this only looks whether the request fits.
        used = dict(used)
        each = min(request.gpus, 1.0)
        count = request.workers * (int(request.gpus) if request.gpus >= 1 else bool(request.gpus))
        chosen: list[str] = []
        for device in self.gpus:
            while len(chosen) < count and used.get(device, 0.0) + each <= 1 + _ROUNDING:
                used[device] = used.get(device, 0.0) + each
                chosen.append(device)
        return chosen if len(chosen) == count else None
