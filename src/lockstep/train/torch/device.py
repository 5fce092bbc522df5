"""Which devices this worker trains on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.train import session as sessions

if TYPE_CHECKING:
    import torch

__all__ = ["get_device", "get_devices"]


def get_device() -> torch.device:
    """This worker's device: its own GPU if it has one (the first of several), else the CPU.

    In a training function, the CPU unless the run was asked to ``use_gpu``.
    """
    import torch

    if not _has_gpu():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def get_devices() -> list[torch.device]:
    """All devices of this worker: each GPU it was given, else the CPU."""
    import torch

    count = torch.cuda.device_count() if _has_gpu() else 0
    return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]


def _has_gpu() -> bool:
    import torch

    session = sessions.current()
    if session is not None and not session.context.trial_resources.get("GPU"):
        return False  # the process group is gloo, whatever this machine has
    return torch.cuda.is_available()
