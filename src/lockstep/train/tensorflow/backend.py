"""TensorflowBackend: gives TensorFlow's strategies the addresses of the workers."""

from __future__ import annotations

import gc
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from lockstep import settings
from lockstep.train.backend import Backend, Wiring

__all__ = ["TensorflowBackend"]


class TensorflowBackend(Backend):
    """Sets ``TF_CONFIG``, with a reserved port for each worker.

    Each worker imports TensorFlow itself, because its threads do not survive a fork. The fork
    server preloads only TensorFlow's dependencies that are safe to fork.
    """

    def __init__(self, preload: tuple[str, ...], variables: Mapping[str, str]) -> None:
        self.preload = preload
        self._variables = dict(variables)
        self._reserved: socket.socket | None = None

    def environment(self) -> Mapping[str, str]:
        """Return the config's variables, and the one that lets TensorFlow share a reserved port."""
        return {"TF_GRPC_REUSE_PORT": "true", **self._variables}

    def announce(self, rank: int, address: str) -> Any:
        """Import TensorFlow, reserve a port, and announce the address of this worker."""
        # Imported here, because all ranks wait for each other next: a rank that calls rank 0's
        # server before it is up would retry only a second later.
        _import_tensorflow()
        # The strategy opens its server only inside the training function. Until then, and beside
        # it, this socket keeps the port: bound, never listening, and shared with this user's
        # processes that ask for that very port.
        self._reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._reserved.bind(("", 0))
        return f"{address}:{self._reserved.getsockname()[1]}"

    def setup(self, wiring: Wiring) -> None:
        """Set ``TF_CONFIG``, and this worker's share of the CPUs."""
        os.environ["TF_CONFIG"] = json.dumps(
            {
                "cluster": {"worker": list(wiring.announcements)},
                "task": {"type": "worker", "index": wiring.context.world_rank},
            }
        )
        threads = settings.omp_threads()
        if threads is not None:
            os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))

    def teardown(self) -> None:
        """Release the port."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None


def _import_tensorflow() -> None:
    """Import with garbage collection off: collecting takes a quarter of the import."""
    collects = gc.isenabled()
    gc.disable()
    try:
        import tensorflow  # noqa: F401  # for its effect
    finally:
        if collects:
            gc.enable()
