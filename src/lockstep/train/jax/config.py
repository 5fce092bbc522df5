"""JaxConfig: connects the workers by ``jax.distributed``."""

from __future__ import annotations

import importlib
import importlib.util
import socket
import warnings
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import Any

from lockstep.train.backend import Backend, BackendConfig, Place, Wiring

__all__ = ["JaxConfig", "check_installed"]


@dataclass(frozen=True)
class JaxConfig(BackendConfig):
    """How JAX's processes are connected.

    Args:
        use_gpu: accepted for scripts that have it; ``ScalingConfig(use_gpu=…)`` decides.
        use_tpu: accepted and without effect, with a warning: there are no TPUs.
        timeout_s: how long the workers wait for each other.
    """

    use_tpu: InitVar[bool] = False
    use_gpu: InitVar[bool] = False
    timeout_s: int = 300

    def __post_init__(self, use_tpu: bool, use_gpu: bool) -> None:
        if use_tpu:
            text = "JaxConfig(use_tpu=True) does nothing: lockstep trains on CPUs and GPUs."
            warnings.warn(text, UserWarning, stacklevel=3)

    def make_backend(self) -> Backend:
        """The backend to send to the workers."""
        check_installed("JaxTrainer")
        return _JaxBackend(self.timeout_s)


def check_installed(needed_by: str) -> None:
    """Raise ImportError if JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        raise ImportError(f"{needed_by} needs JAX; install it: pip install 'lockstep-train[jax]'.")


class _JaxBackend(Backend):
    """Rank 0 serves JAX's coordinator; one rank needs none. JAX is not safe to fork: no preload."""

    needs_all_announcements = False

    def __init__(self, timeout_s: int) -> None:
        self._timeout_s = timeout_s
        self._reserved: socket.socket | None = None
        self._connected = False

    def environment(self) -> Mapping[str, str]:
        # Workers on one GPU, and other processes on it, would fight for three quarters each.
        return {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def announce(self, rank: int, address: str) -> Place:
        if rank != 0:
            return Place(address)
        # JAX opens the port in setup. Until then, and beside it, this socket keeps the port: bound,
        # never listening, and shared with this user's processes that ask for that very port.
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("", 0))
        return Place(address, self._reserved.getsockname()[1])

    def setup(self, wiring: Wiring) -> None:
        jax: Any = importlib.import_module("jax")
        if not wiring.use_gpu:
            jax.config.update("jax_platforms", "cpu")
        if wiring.context.world_size == 1:
            return
        jax.distributed.initialize(
            coordinator_address=f"{wiring.master_address}:{wiring.announcements[0].port}",
            num_processes=wiring.context.world_size,
            process_id=wiring.context.world_rank,
            initialization_timeout=self._timeout_s,
        )
        self._connected = True

    def teardown(self) -> None:
        if self._connected:
            importlib.import_module("jax").distributed.shutdown()
            self._connected = False
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
