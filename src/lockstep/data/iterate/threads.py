"""How many threads this process may use for reading."""

from __future__ import annotations

from lockstep import settings

__all__ = ["arrow_threads"]


def arrow_threads() -> int:
    """Arrow's threads here: a worker's share of the machine, as its ``OMP_NUM_THREADS`` says."""
    import pyarrow as pa

    share = settings.omp_threads()
    # Arrow may have been loaded before the worker got its share.
    if share is not None and pa.cpu_count() != share:
        pa.set_cpu_count(share)
    return int(pa.cpu_count())
