"""TorchConfig, and the backend that wires ``torch.distributed`` between workers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from lockstep.train.backend import Backend, BackendConfig, Wiring

__all__ = ["TorchBackend", "TorchConfig"]


@dataclass(frozen=True)
class TorchConfig(BackendConfig):
    """How the process group is set up.

    Args:
        backend: ``"gloo"``, ``"nccl"``, …; by default nccl with GPUs, gloo without.
        init_method: ``"env"`` or ``"tcp"`` (rank 0 listens on a free port), or a URL that
            ``torch.distributed`` takes, such as ``"file:///shared/rendezvous"``.
        timeout_s: of the group's operations.
    """

    backend_name: str | None = None
    init_method: str = "env"
    timeout_s: float = 1800

    def __init__(
        self,
        backend: str | None = None,
        init_method: str = "env",
        timeout_s: float = 1800,
    ) -> None:
        if backend is not None and not isinstance(backend, str):
            raise TypeError(f"TorchConfig(backend={backend!r}): expected a name such as 'gloo'.")
        if init_method not in ("env", "tcp") and "://" not in str(init_method):
            raise ValueError(
                f"TorchConfig(init_method={init_method!r}): expected 'env', 'tcp' or a URL."
            )
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or timeout_s <= 0:
            raise ValueError(f"TorchConfig(timeout_s={timeout_s!r}): expected seconds, above 0.")
        object.__setattr__(self, "backend_name", backend)
        object.__setattr__(self, "init_method", init_method)
        object.__setattr__(self, "timeout_s", timeout_s)

    def backend(self) -> Backend:
        """The backend to send to the workers."""
        return TorchBackend(self)


class TorchBackend(Backend):
    """Initialises the default process group, over a store that rank 0 serves on a free port."""

    preload = ("torch", "torch.distributed", "lockstep.train.torch")

    def __init__(self, config: TorchConfig) -> None:
        self._config = config
        self._store: Any = None

    def announce(self, rank: int, address: str) -> Any:
        """Rank 0 opens the store and says on which port."""
        if rank != 0 or self._by_url:
            return None
        import socket

        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        # Bound here and handed over, so that no one else can take the port in between.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((address, 0))
        listener.listen()
        port = listener.getsockname()[1]
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listener.detach(),
        )
        return port

    def setup(self, wiring: Wiring) -> None:
        """Set the usual variables and join the group."""
        import torch
        import torch.distributed as dist
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        context = wiring.context
        variables = {
            "RANK": context.world_rank,
            "WORLD_SIZE": context.world_size,
            "LOCAL_RANK": context.local_rank,
            "LOCAL_WORLD_SIZE": context.local_world_size,
            "NODE_RANK": context.node_rank,
            "GROUP_RANK": context.node_rank,
            "MASTER_ADDR": wiring.master_address,
        }
        port = wiring.announcements[0]
        if port is not None:
            variables["MASTER_PORT"] = port
        os.environ.update({name: str(value) for name, value in variables.items()})
        if wiring.master_address == "127.0.0.1":
            # Gloo looks up the host's name otherwise, which may be slow, wrong or unreachable.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback_name())
        threads = os.environ.get("OMP_NUM_THREADS", "")
        if threads.isdigit() and int(threads) > 0:
            torch.set_num_threads(int(threads))
        use_cuda = wiring.use_gpu and torch.cuda.is_available()
        if use_cuda:
            torch.cuda.set_device(0)
        arguments: dict[str, Any] = {}
        if self._by_url:
            arguments["init_method"] = self._config.init_method
        else:
            arguments["store"] = self._store or TCPStore(
                wiring.master_address, port, is_master=False, timeout=self._timeout
            )
        dist.init_process_group(
            self._config.backend_name or ("nccl" if use_cuda else "gloo"),
            rank=context.world_rank,
            world_size=context.world_size,
            timeout=self._timeout,
            **arguments,
        )

    def teardown(self) -> None:
        """Leave the group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None

    @property
    def _by_url(self) -> bool:
        return "://" in self._config.init_method

    @property
    def _timeout(self) -> Any:
        from datetime import timedelta

        return timedelta(seconds=self._config.timeout_s)


def _loopback_name() -> str:
    import socket

    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), "lo")
