"""Collectives of all ranks that need no framework: a barrier, and a broadcast of small values."""

from __future__ import annotations

import pickle
from typing import TypeVar, cast

from lockstep.train.api import session_for
from lockstep.train.function.serialize import dump

__all__ = ["barrier", "broadcast_from_rank_zero"]

T = TypeVar("T")


def barrier() -> None:
    """Wait until every rank has called this.

    Raises:
        RuntimeError: called outside a training function.
        StopTraining: the run was told to stop at an earlier report.
    """
    session_for("barrier()").meet("barrier()", b"")


def broadcast_from_rank_zero(data: T) -> T:
    """Return the ``data`` of rank 0, on every rank. A barrier: every rank must call it.

    For small values, such as a path or an id: the driver passes them on. Send tensors with the
    framework's own collectives.

    Raises:
        TypeError: the data of rank 0 cannot be pickled.
        RuntimeError: called outside a training function.
        StopTraining: the run was told to stop at an earlier report.
    """
    call = "broadcast_from_rank_zero()"
    session = session_for(call)
    sends = session.context.world_rank == 0
    shared = session.meet(call, dump(data, "data") if sends else b"")
    return data if sends else cast(T, pickle.loads(shared))
