"""How many threads this process may use for reading."""

from __future__ import annotations

import os

from lockstep import settings

__all__ = ["arrow_threads"]


def arrow_threads() -> int:
    """The process's share of the machine: a worker's, as its ``OMP_NUM_THREADS`` says."""
    import pyarrow as pa

    share = settings.omp_threads() or os.cpu_count() or 1
    if pa.cpu_count() != share:
        pa.set_cpu_count(share)
    return share
