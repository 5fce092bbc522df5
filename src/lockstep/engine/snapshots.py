"""Snapshots of workers' states that a node keeps when the workers are gone, for other nodes too.

The agent of each node has a store. What a store holds, others read over the network:

    a worker's memory ── keep ──▶ the store of its node ── fetch ──▶ a store of another node
                                         │                           (a copy on a peer)
                                         └── read ──▶ a worker that restores; the driver, to write

A connection is proven as every other between nodes (``links.py``); its role is the snapshot's key.
What follows are the bytes, nothing else. Whoever has read them compares the checksum.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future

from lockstep.engine.base import Holder, MemoryPlace, Node
from lockstep.engine.links import LinkListener, link_to
from lockstep.engine.loop import EventLoop
from lockstep.errors import EngineError
from lockstep.state.memory import CHUNK, checksum, create_memory, open_memory

__all__ = ["SnapshotStore", "fetch_snapshot", "read_snapshot"]

LISTEN_S = 60.0
"""How long an agent's loop may take to open the port."""
SILENT_S = 60.0
"""How long the other end may send nothing, or accept nothing."""


def read_snapshot(holder: Holder) -> Iterator[memoryview]:
    """The bytes of a snapshot, in parts of ``CHUNK``; each is valid until the next.

    Raises:
        EngineError: the node does not answer, or does not have it any more.
    """
    size, buffer = holder.place.size, bytearray(min(CHUNK, holder.place.size))
    with _connected(holder) as sock, memoryview(buffer) as view:
        for start in range(0, size, CHUNK):
            part = view[: min(CHUNK, size - start)]
            _fill(sock, part, holder)
            yield part


def fetch_snapshot(holder: Holder) -> tuple[int, str]:
    """Copy a snapshot into memory of this process; returns its descriptor and its name.

    Raises:
        EngineError: the node does not answer, or does not have it any more.
        OSError: there is not enough memory.
    """
    descriptor, name = create_memory(holder.place.size)
    try:
        with (
            _connected(holder) as sock,
            mmap.mmap(descriptor, holder.place.size) as target,
            memoryview(target) as view,
        ):
            _fill(sock, view, holder)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, name


def _connected(holder: Holder) -> socket.socket:
    sock = link_to(holder.address, holder.secret, holder.key)
    sock.settimeout(SILENT_S)
    return sock


def _fill(sock: socket.socket, view: memoryview, holder: Holder) -> None:
    done = 0
    try:
        while done < len(view):
            count = sock.recv_into(view[done:])
            if not count:
                raise ConnectionError("it ended early")
            done += count
    except OSError as error:
        raise EngineError(
            f"a snapshot could not be read from node {holder.address[0]}: {error}"
        ) from error


class SnapshotStore:
    """The snapshots that one node keeps. Any thread may call the methods.

    Args:
        loop: accepts connections; runs in a thread of its own.
    """

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._kept: dict[int, MemoryPlace] = {}
        self._listener: LinkListener | None = None

    def keep(self, key: int, place: MemoryPlace, node: Node, secret: bytes) -> Holder:
        """Keep the memory that a worker of this node has open.

        Raises:
            EngineError: the worker is gone, or the port cannot be opened.
        """
        try:
            descriptor = open_memory(place.pid, place.descriptor, place.name, place.size)
        except OSError as error:
            raise EngineError(f"the memory of process {place.pid} is gone: {error}") from error
        return self._hold(key, place.name, descriptor, place.size, node, secret)

    def fetch(
        self, key: int, holder: Holder, sums: tuple[int, ...], node: Node, secret: bytes
    ) -> Holder:
        """Copy a snapshot of another node; it is kept only if it is complete.

        Raises:
            EngineError: it is not complete, or there is not enough memory here.
        """
        try:
            descriptor, name = fetch_snapshot(holder)
        except OSError as error:
            why = error.strerror or error
            raise EngineError(f"node {node.address} has no room for a copy: {why}") from error
        size = holder.place.size
        with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as copied:
            found = checksum(copied, size)
        if found != sums:
            os.close(descriptor)
            raise EngineError("the snapshot has changed while it was copied")
        return self._hold(key, name, descriptor, size, node, secret)

    def drop(self, keys: Iterable[int]) -> None:
        """Release snapshots; those that are not here are ignored."""
        with self._lock:
            dropped = [self._kept.pop(key) for key in keys if key in self._kept]
        for place in dropped:
            os.close(place.descriptor)

    def close(self) -> None:
        """Release everything."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.call_soon(listener.close)
        self.drop(list(self._kept))

    def _hold(
        self, key: int, name: str, descriptor: int, size: int, node: Node, secret: bytes
    ) -> Holder:
        place = MemoryPlace(os.getpid(), descriptor, name, size)
        with self._lock:
            self._kept[key] = place
        return Holder(key, node.id, self._listen(node.address, secret), secret, place)

    def _listen(self, host: str, secret: bytes) -> tuple[str, int]:
        with self._lock:
            if self._listener is None:
                opened: Future[LinkListener] = Future()

                def listen() -> None:
                    try:
                        opened.set_result(LinkListener(host, secret, self._loop, self._linked))
                    except OSError as error:
                        opened.set_exception(EngineError(f"no port of {host} is free: {error}"))

                self._loop.call_soon(listen)
                self._listener = opened.result(LISTEN_S)
            return self._listener.address

    def _linked(self, key: int, sock: socket.socket) -> None:
        threading.Thread(
            target=self._send, args=(key, sock), name="lockstep-snapshot", daemon=True
        ).start()

    def _send(self, key: int, sock: socket.socket) -> None:
        with contextlib.ExitStack() as undo:
            undo.enter_context(sock)
            with self._lock:
                place = self._kept.get(key)
                if place is None:
                    return  # the reader sees the end, and knows
                # Of its own: this one may be dropped meanwhile.
                descriptor = os.dup(place.descriptor)
            undo.callback(os.close, descriptor)
            sock.settimeout(SILENT_S)
            file = undo.enter_context(open(descriptor, "rb", closefd=False))
            with contextlib.suppress(OSError):  # the reader is gone
                sock.sendfile(file, 0, place.size)
