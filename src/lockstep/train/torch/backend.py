"""TorchBackend: connects workers with ``torch.distributed``."""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lockstep import settings
from lockstep.train.backend import Backend, Place, Wiring, loopback_interface, machine_gpus

__all__ = ["TorchBackend"]


class TorchBackend(Backend):
    """Initialises the default process group with a store that rank 0 serves on a free port."""

    # The first optimizer or DDP model of a process imports torch._dynamo, which takes seconds.
    preload = ("torch", "torch.distributed", "torch._dynamo", "lockstep.train.torch")

    def __init__(self, name: str | None, url: str | None, timeout_s: float) -> None:
        self._name = name
        self._url = url
        self._timeout = timedelta(seconds=timeout_s)
        self._store: Any = None

    def announce(self, rank: int, address: str) -> Place:
        """On rank 0, open the store and announce its port."""
        if rank == 0 and self._url:
            _remove_rendezvous_file(self._url)
        port = None if rank != 0 or self._url else self._open_store(address)
        return Place(address, port, settings.cuda_visible_devices())

    def _open_store(self, address: str) -> int:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        # Bound here and passed on, so that no other process can take the port in between.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind((address, 0))
        listener.listen()
        port: int = listener.getsockname()[1]
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
        """Set torch's variables and join the group."""
        import torch
        import torch.distributed as dist

        # Imported now: its functions have the default group as default argument. An import after
        # init_process_group would keep this group alive for the life of the process.
        import torch.distributed.nn
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        from lockstep.train.worker import torch_device as devices

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
        places: tuple[Place, ...] = wiring.announcements
        port = places[0].port
        if port is not None:
            variables["MASTER_PORT"] = port
        os.environ.update({name: str(value) for name, value in variables.items()})
        if wiring.master_address == "127.0.0.1":
            # Otherwise Gloo resolves the host's name, which may be slow, wrong or unreachable.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback_interface())
        threads = settings.omp_threads()
        if threads is not None:
            # The fork server imported torch before this worker had its share of the CPUs.
            torch.set_num_threads(threads)
        if wiring.use_gpu:
            devices.see_all(*machine_gpus(places, context.world_rank))
        use_cuda = wiring.use_gpu and torch.cuda.is_available()
        if use_cuda:
            torch.cuda.set_device(devices.own()[0])
        else:
            # Accelerate, and so Transformers, uses a group of CPU workers only with this variable.
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
        arguments: dict[str, Any] = {}
        if port is None:
            arguments["init_method"] = self._url
        else:
            arguments["store"] = self._store or TCPStore(
                wiring.master_address, port, is_master=False, timeout=self._timeout
            )
        dist.init_process_group(
            self._name or ("nccl" if use_cuda else "gloo"),
            rank=context.world_rank,
            world_size=context.world_size,
            timeout=self._timeout,
            **arguments,
        )

    def teardown(self) -> None:
        """Leave the group, and restore torch's settings."""
        import torch.distributed as dist

        from lockstep.train.torch import reproducibility
        from lockstep.train.worker import torch_device as devices

        reproducibility.restore()
        devices.see_all([], [])

        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None


def _remove_rendezvous_file(url: str) -> None:
    """Remove the file of a failed attempt, which has that attempt's addresses."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        Path(parts.path).unlink(missing_ok=True)
