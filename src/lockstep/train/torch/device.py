"""Which devices this worker trains on."""

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
"""The indices of this worker's GPUs among those that it sees; empty if all are."""


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

    if not _has_gpu():
        return [torch.device("cpu")]
    return [torch.device("cuda", index) for index in own()]


def see_all(gpus: Sequence[str], mine: Sequence[int]) -> None:
    """Let this process see the GPUs of its whole machine, of which some are its own.

    Scripts for DDP take the one that their local rank is the index of, and so do libraries.
    """
    import torch

    _own[:] = []
    before = settings.cuda_visible_devices()
    if not gpus or before is None:
        return
    os.environ.update(CUDA_VISIBLE_DEVICES=",".join(gpus))
    if torch.cuda.device_count() == len(gpus):
        _own[:] = mine
    else:  # torch has none, or has looked before, which it does only once
        os.environ.update(CUDA_VISIBLE_DEVICES=before)


def own() -> list[int]:
    """The indices of this worker's GPUs."""
    import torch

    return _own or list(range(torch.cuda.device_count()))


def _has_gpu() -> bool:
    import torch

    session = sessions.current()
    if session is not None and not session.context.trial_resources.get("GPU"):
        return False  # the process group is gloo, whatever this machine has
    return torch.cuda.is_available()
