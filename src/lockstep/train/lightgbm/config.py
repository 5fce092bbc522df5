"""LightGBMConfig: gives the workers each other's addresses, for LightGBM's own sockets."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from lockstep.train.backend import Backend, BackendConfig, Place, Wiring

__all__ = ["LightGBMConfig", "get_network_params"]

_network: dict[str, Any] = {}
_reserved: list[socket.socket] = []
"""The bound socket that keeps this worker's port for LightGBM, which opens the port itself."""


def get_network_params() -> dict[str, Any]:
    """The parameters that connect this worker's ``lightgbm.train`` to the others'.

    Empty for one worker, and outside a ``LightGBMTrainer``.
    """
    _release()
    return dict(_network)


@dataclass(frozen=True)
class LightGBMConfig(BackendConfig):
    """How LightGBM's workers are connected: there is nothing to set."""

    def make_backend(self) -> Backend:
        """The backend to send to the workers."""
        return _LightGBMBackend()


class _LightGBMBackend(Backend):
    def announce(self, rank: int, address: str) -> Place:
        keeper = socket.socket()
        keeper.bind((address, 0))
        _reserved.append(keeper)
        return Place(address, keeper.getsockname()[1])

    def setup(self, wiring: Wiring) -> None:
        _network.clear()
        if wiring.context.world_size == 1:
            return
        places = wiring.announcements
        _network.update(
            machines=",".join(f"{place.address}:{place.port}" for place in places),
            local_listen_port=places[wiring.context.world_rank].port,
            num_machines=len(places),
        )

    def teardown(self) -> None:
        _network.clear()
        _release()


def _release() -> None:
    while _reserved:
        _reserved.pop().close()
