"""The number of threads this process may use for reading."""

from __future__ import annotations

from lockstep import settings

__all__ = ["arrow_threads"]


def arrow_threads() -> int:
    """The number of Arrow's threads, set to ``OMP_NUM_THREADS``: a worker's share of the CPUs."""
    import pyarrow as pa

    share = settings.omp_threads()
    # Arrow may have been imported before the worker got its share.
    if share is not None and pa.cpu_count() != share:
        pa.set_cpu_count(share)
    return int(pa.cpu_count())
