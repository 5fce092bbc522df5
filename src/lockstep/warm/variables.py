"""Which environment variables a fork server must be started with.

A variable that a preloaded module reads when it is imported must be there before the import. All
others can be given to a worker after it is forked, so one server serves runs that differ in them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, ItemsView, Iterator, ValuesView

__all__ = ["READ_LATER", "matters_at_import", "recorded_reads"]

READ_LATER = {"CUDA_VISIBLE_DEVICES", "LOCAL_RANK", "RANK"}
"""Variables that libraries read when they use a GPU, which a server never does; and those that
Lightning is made to read again."""

# Read in C when a library is loaded, or when the process starts, where reads cannot be recorded;
# or by a library that looks at all variables for its own ones.
_READ_IN_C = (
    "ARROW_",
    "ATEN_",
    "BLIS_",
    "CUBLAS",
    "CUDA",
    "CUDNN",
    "COVERAGE_",
    "COV_CORE_",
    "DNNL_",
    "GLIBC_",
    "GOMP_",
    "HIP",
    "HOROVOD_",
    "HSA_",
    "JEMALLOC",
    "KINETO",
    "KMP_",
    "LC_",
    "LD_",
    "MALLOC",
    "MIMALLOC",
    "MIOPEN",
    "MKL_",
    "NPY_",
    "NUMEXPR_",
    "NVIDIA_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH",
    "ROCM",
    "ROCR",
    "SETUPTOOLS_",
    "TCMALLOC",
    "TF_",
    "TORCH",
    "TQDM_",
    "TZ",
    "VECLIB_",
    "XLA",
)


def matters_at_import(name: str, reads: Collection[str]) -> bool:
    """Whether a variable may have changed an import, given the names that Python code has read."""
    # LANG is no prefix: LANGCHAIN_API_KEY and the like are secrets, and no server needs them.
    return name in reads or name in ("LANG", "LANGUAGE") or name.startswith(_READ_IN_C)


@contextlib.contextmanager
def recorded_reads() -> Iterator[set[str]]:
    """Within this context, put the name of each variable that Python code reads into the set."""
    reads: set[str] = set()

    class Recorded(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> str:
            reads.add(name)
            value: str = super().__getitem__(name)
            return value

        # To look at all variables is not to read each of them.
        def items(self) -> ItemsView[str, str]:
            return self.copy().items()

        def values(self) -> ValuesView[str]:
            return self.copy().values()

        def copy(self) -> dict[str, str]:
            return {name: super(Recorded, self).__getitem__(name) for name in self}

    plain = type(os.environ)
    os.environ.__class__ = Recorded
    try:
        yield reads
    finally:
        os.environ.__class__ = plain
