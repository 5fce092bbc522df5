"""TorchConfig: how the process group between workers is set up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lockstep.checks import is_number
from lockstep.train.backend import Backend, BackendConfig
from lockstep.train.torch.backend import TorchBackend

__all__ = ["TorchConfig"]


@dataclass(frozen=True)
class TorchConfig(BackendConfig):
    """How the process group is set up.

    Args:
        backend: ``"gloo"``, ``"nccl"``, …; by default nccl with GPUs, gloo without.
        init_method: ``"env"`` or ``"tcp"`` (rank 0 listens on a free port), or a URL that
            ``torch.distributed`` takes, such as ``"file:///shared/rendezvous"``.
        timeout_s: after how many seconds an operation of the group fails.
    """

    backend: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    def __post_init__(self) -> None:
        if self.backend is not None and not isinstance(self.backend, str):
            raise TypeError(
                f"TorchConfig(backend={self.backend!r}): expected a name such as 'gloo'."
            )
        if self.init_method not in ("env", "tcp") and "://" not in str(self.init_method):
            raise ValueError(
                f"TorchConfig(init_method={self.init_method!r}): expected 'env', 'tcp' or a URL."
            )
        if not (is_number(self.timeout_s) and 0 < self.timeout_s < math.inf):
            raise ValueError(
                f"TorchConfig(timeout_s={self.timeout_s!r}): expected seconds, finite and above 0."
            )

    def make_backend(self) -> Backend:
        """Return the backend to send to the workers."""
        url = self.init_method if "://" in self.init_method else None
        return TorchBackend(self.backend, url, self.timeout_s)
