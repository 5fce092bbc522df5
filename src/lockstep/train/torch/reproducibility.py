"""``enable_reproducibility``: seeds, and deterministic algorithms where PyTorch has them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from numbers import Integral

__all__ = ["enable_reproducibility", "restore", "seed"]

_TOO_LARGE = 2**62
"""torch takes 64 bits, and ranks and epochs are added to the seed."""

_seed: int | None = None
_undo: list[Callable[[], object]] = []


def enable_reproducibility(seed: int = 0) -> None:
    """Make runs repeatable. Call it at the top of the training function.

    Seeds torch, numpy and ``random`` equally on every worker, and the data loaders that are
    prepared afterwards with their worker processes. Makes torch use only deterministic algorithms:
    that may be slower, and an operation without one raises. PyTorch does not promise equal results
    across its versions, across platforms, or between CPU and GPU.

    Raises:
        ValueError: the seed is not an integer, or too large for torch.
    """
    global _seed
    import numpy
    import torch

    if isinstance(seed, bool) or not isinstance(seed, Integral) or abs(seed) >= _TOO_LARGE:
        raise ValueError(f"enable_reproducibility(seed={seed!r}): expected an integer below 2**62.")
    seed = int(seed)
    _keep_for_restore()
    torch.manual_seed(seed)
    numpy.random.seed(seed % 2**32)
    random.seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # cuBLAS reads this when a CUDA context first uses it; without it, its operations raise.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _seed = seed


def seed() -> int | None:
    """Return the seed; None without ``enable_reproducibility``."""
    return _seed


def restore() -> None:
    """Restore torch's settings: an in-process run must not change its process."""
    global _seed
    while _undo:
        _undo.pop()()
    _seed = None


def _keep_for_restore() -> None:
    import torch

    if _undo:
        return
    cudnn = torch.backends.cudnn
    deterministic, benchmark = cudnn.deterministic, cudnn.benchmark
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    _undo.append(lambda: torch.use_deterministic_algorithms(enabled, warn_only=warn_only))
    _undo.append(lambda: setattr(cudnn, "deterministic", deterministic))
    _undo.append(lambda: setattr(cudnn, "benchmark", benchmark))
