"""HorovodBackend: the rendezvous server and the variables that ``hvd.init()`` reads."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any

from lockstep import settings
from lockstep.train.backend import Backend, Place, Wiring, loopback_interface, machine_gpus

__all__ = ["HorovodBackend", "Layout"]

_BINDINGS = ("horovod.torch", "horovod.tensorflow", "horovod.keras", "horovod.mxnet")
_LOOPBACK = "127.0.0.1"


class HorovodBackend(Backend):
    """Rank 0 serves the rendezvous on a free port, a new one for each attempt."""

    def __init__(
        self, preload: tuple[str, ...], nics: tuple[str, ...], log_level: str, timeout_s: int
    ) -> None:
        self.preload = preload
        self._nics = nics
        self._log_level = log_level
        self._timeout_s = timeout_s
        self._server: Any = None
        self._thread: threading.Thread | None = None

    def announce(self, rank: int, address: str) -> Any:
        """On rank 0, start the server and announce its port."""
        gpus = settings.cuda_visible_devices()
        if rank != 0:
            return Place(address, None, gpus)
        from horovod.runner.http.http_server import RendezvousHTTPServer

        self._server = RendezvousHTTPServer((address, 0), _handler(), 0)
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(0.05,),
            name="lockstep-horovod-rendezvous",
            daemon=True,
        )
        self._thread.start()
        return Place(address, self._server.server_address[1], gpus)

    def setup(self, wiring: Wiring) -> None:
        """Set the variables. The training function calls ``hvd.init()`` itself."""
        places: tuple[Place, ...] = wiring.announcements
        context = wiring.context
        layout = Layout([place.address for place in places])
        if self._server is not None:
            # The number of ranks that must finish a scope before the server deletes it. The other
            # ranks may already run, but none can finish before this rank joins: this is in time.
            self._server.scope_size.update(layout.scope_sizes())
        rank = context.world_rank
        variables: dict[str, Any] = {
            "HOROVOD_HOSTNAME": places[rank].address,
            "HOROVOD_RANK": rank,
            "HOROVOD_SIZE": context.world_size,
            "HOROVOD_LOCAL_RANK": layout.local_rank(rank),
            "HOROVOD_LOCAL_SIZE": layout.local_size(rank),
            "HOROVOD_CROSS_RANK": layout.cross_rank(rank),
            "HOROVOD_CROSS_SIZE": layout.cross_size(layout.local_rank(rank)),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": wiring.master_address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": places[0].port,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": self._timeout_s,
        }
        interface = self._interface(wiring.master_address)
        if interface is not None:
            variables["HOROVOD_GLOO_IFACE"] = interface
        gpus, _ = machine_gpus(places, rank)
        if wiring.use_gpu and gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        os.environ.update({name: str(value) for name, value in variables.items()})
        os.environ.setdefault("HOROVOD_LOG_LEVEL", self._log_level)

    def teardown(self) -> None:
        """Leave Horovod, and stop the server."""
        for name in _BINDINGS:
            binding = sys.modules.get(name)
            if binding is not None and binding.is_initialized():
                binding.shutdown()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = self._thread = None

    def _interface(self, master_address: str) -> str | None:
        if not self._nics:
            return loopback_interface() if master_address == _LOOPBACK else None
        here = [name for _, name in socket.if_nameindex()]
        found = next((name for name in self._nics if name in here), None)
        if found is None:
            raise ValueError(
                f"HorovodConfig(nics={list(self._nics)}): this machine has none of these, only "
                f"{here}; name one of them."
            )
        return found


def _handler() -> type[Any]:
    """Return Horovod's handler with a separate count of finished ranks for each scope.

    Horovod's own handler drops the counts of all scopes when the first scope is finished. If some
    ranks are slower, addresses of the ended group then remain for the next ``hvd.init()``.
    """
    from horovod.runner.http.http_server import OK, RendezvousHandler

    class Handler(RendezvousHandler):  # type: ignore[misc]  # an untyped base
        def do_DELETE(self) -> None:
            _, scope, rank = self.path.split("/")
            server = self.server
            if scope not in server.scope_size:
                super().do_DELETE()
                return
            with server.finished_list_lock:
                done = server.finished_list[scope]
                done.append(rank)
                if len(done) == server.scope_size[scope]:
                    del server.finished_list[scope]
                    with server.cache_lock:
                        server.cache.pop(scope, None)
            self.send_status_code(OK)

    return Handler


class Layout:
    """Which ranks share a machine, in Horovod's terms."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self._machines = list(dict.fromkeys(addresses))

    def local_rank(self, rank: int) -> int:
        """The rank's index among the ranks of its machine."""
        return self._addresses[:rank].count(self._addresses[rank])

    def local_size(self, rank: int) -> int:
        """The number of ranks on its machine."""
        return self._addresses.count(self._addresses[rank])

    def cross_rank(self, rank: int) -> int:
        """The machine's index among the machines that have a worker of this local rank."""
        return self._with(self.local_rank(rank)).index(self._addresses[rank])

    def cross_size(self, local_rank: int) -> int:
        """The number of machines that have a worker of this local rank."""
        return len(self._with(local_rank))

    def scope_sizes(self) -> dict[str, int]:
        """The number of ranks that meet in each scope of the rendezvous server."""
        largest = max(map(self._addresses.count, self._machines))
        return {
            "global": len(self._addresses),
            **{f"local_{name}": self._addresses.count(name) for name in self._machines},
            **{f"cross_{local}": self.cross_size(local) for local in range(largest)},
        }

    def _with(self, local_rank: int) -> list[str]:
        return [name for name in self._machines if self._addresses.count(name) > local_rank]
