"""The devices that this worker trains on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep import settings
from lockstep.train.worker import session as sessions

if TYPE_CHECKING:
    import torch

__all__ = ["get_device", "get_devices", "own", "see_all"]

_own: list[int] = []
"""The indices of this worker's GPUs among the visible GPUs; empty if all are its own."""


def get_device() -> torch.device:
    """Return this worker's device: its (first) GPU if it has one, otherwise the CPU.

    In a training function it is the CPU unless the run has ``use_gpu=True``.
    """
    import torch

    if not _has_gpu():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def get_devices() -> list[torch.device]:
    """Return all devices of this worker: each of its GPUs, or the CPU."""
    import torch

    if not _has_gpu():
        return [torch.device("cpu")]
    return [torch.device("cuda", index) for index in own()]


def see_all(gpus: Sequence[str], mine: Sequence[int]) -> None:
    """Make the GPUs of all ranks on this machine visible; ``mine`` are this worker's.

    Scripts for DDP, and libraries, use the local rank as the index of their GPU.
    """
    import torch

    _own[:] = []
    before = settings.cuda_visible_devices()
    if not gpus or before is None:
        return
    os.environ.update(CUDA_VISIBLE_DEVICES=",".join(gpus))
    if torch.cuda.device_count() == len(gpus):
        _own[:] = mine
    else:  # torch has no CUDA, or has counted the GPUs before, which it does only once
        os.environ.update(CUDA_VISIBLE_DEVICES=before)


def own() -> list[int]:
    """Return the indices of this worker's GPUs."""
    import torch

    return _own or list(range(torch.cuda.device_count()))


def _has_gpu() -> bool:
    import torch

    session = sessions.current()
    if session is not None and not session.context.trial_resources.get("GPU"):
        return False  # then the process group is gloo, even if this machine has GPUs
    return torch.cuda.is_available()
