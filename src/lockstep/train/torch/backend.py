"""TorchBackend: connects workers with ``torch.distributed``."""

from __future__ import annotations

import importlib
import itertools
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lockstep import settings
from lockstep.train.backend import (
    Backend,
    Place,
    Wiring,
    loopback_interface,
    machine_gpus,
    share_gpus,
)
from lockstep.warm.effects import read_rank_again

__all__ = ["TorchBackend"]


class TorchBackend(Backend):
    """Initialises the default process group with a store that rank 0 serves on a free port."""

    preload = ("torch", "torch.distributed", "torch.distributed.nn", "lockstep.train.torch")
    # The first optimizer or DDP model of a process imports the second, which takes nearly as long
    # as torch.
    preload_later = ("numpy.random", "torch._dynamo")
    needs_all_announcements = False

    def __init__(self, name: str | None, url: str | None, timeout_s: float) -> None:
        self._name = name
        self._url = url
        self._timeout = timedelta(seconds=timeout_s)
        self._store: Any = None
        self._undo: list[Callable[[], None]] = []

    def announce(self, rank: int, address: str) -> Place:
        """On rank 0, open the store and announce its port."""
        if rank == 0 and self._url:
            _remove_rendezvous_file(self._url)
        gpus = settings.cuda_visible_devices()
        if rank != 0 or self._url:
            return Place(address, None, gpus)
        return Place(address, self._open_store(address), gpus, secrets.token_hex(16))

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
        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        from lockstep.train.torch.collectives import count_waits
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
        places: tuple[Any, ...] = wiring.announcements
        port = places[0].port
        if port is not None:
            variables["MASTER_PORT"] = port
        os.environ.update({name: str(value) for name, value in variables.items()})
        read_rank_again(sys.modules)
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
        shared = use_cuda and share_gpus(places)
        if shared and "nccl" in (self._name or ""):
            raise ValueError(
                f"TorchConfig(backend={self._name!r}): workers of this run share a GPU, and NCCL "
                "refuses two ranks on one device. Use backend='gloo', or a GPU for each worker: "
                "ScalingConfig(resources_per_worker={'GPU': 1})."
            )
        if shared and self._name is None and context.world_rank == 0:
            text = "Workers share a GPU, so their process group is gloo: NCCL refuses that."
            print(text, file=sys.stderr, flush=True)
        if use_cuda:
            torch.cuda.set_device(devices.own()[0])
        else:
            # Accelerate, and so Transformers, uses a group of CPU workers only with this variable.
            os.environ.setdefault("ACCELERATE_USE_CPU", "true")
        device = f"cuda:{torch.cuda.current_device()}" if use_cuda else "cpu"
        os.environ.setdefault("ACCELERATE_TORCH_DEVICE", device)
        arguments: dict[str, Any] = {}
        if port is None:
            arguments["init_method"] = self._url
        else:
            if self._store is None:
                self._store = TCPStore(
                    wiring.master_address, port, is_master=False, timeout=self._timeout
                )
            # Every user of the machine can connect to the store. Nobody can guess the keys.
            prefix = f"lockstep-{places[0].secret}"
            arguments["store"] = PrefixStore(prefix, self._store)
            self._undo.append(_serve_later_groups(self._store, prefix))
        dist.init_process_group(
            self._name or ("nccl" if use_cuda and not shared else "gloo"),
            rank=context.world_rank,
            world_size=context.world_size,
            timeout=self._timeout,
            **arguments,
        )
        if context.world_size > 1 and not use_cuda:
            self._undo.append(count_waits())

    def teardown(self) -> None:
        """Leave the group, and restore torch's settings."""
        import torch.distributed as dist

        from lockstep.train.torch import reproducibility
        from lockstep.train.worker import torch_device as devices

        reproducibility.restore()
        devices.see_all([], [])

        while self._undo:
            self._undo.pop()()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None


def _serve_later_groups(store: Any, prefix: str) -> Callable[[], None]:
    """Let the function destroy the group and call ``init_process_group()`` again.

    With ``env://`` torch would open a store on ``MASTER_PORT``, where this one is. So each later
    group gets the same store, with keys of its own. Returns what undoes this.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    # As an attribute of its package, the name is a function.
    handlers = vars(importlib.import_module("torch.distributed.rendezvous")).get(
        "_rendezvous_handlers", {}
    )
    before = handlers.get("env")
    numbers = itertools.count(2)

    def rendezvous(url: str, **arguments: Any) -> Iterator[tuple[Any, int, int]]:
        query = parse_qs(urlsplit(url).query)
        rank, size = (
            int(query[name][0] if name in query else os.environ[name.upper()])
            for name in ("rank", "world_size")
        )
        yield PrefixStore(f"{prefix}/{next(numbers)}", store), rank, size
        raise RuntimeError("the group of an env:// rendezvous cannot be changed")

    handlers["env"] = rendezvous

    def restore() -> None:
        if before is not None:
            handlers["env"] = before

    return restore


def _remove_rendezvous_file(url: str) -> None:
    """Remove the file of a failed attempt, which has that attempt's addresses."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        Path(parts.path).unlink(missing_ok=True)
