"""Messages on a socket: a length, then a pickle. Both ends of the local engine use it."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from lockstep.engine.base import Channel, Posted
from lockstep.engine.loop import EventLoop, SpinThenBlock

__all__ = [
    "Connection",
    "SocketChannel",
    "Terminating",
    "make_frame",
    "receive_with_files",
    "send_with_files",
]

_LENGTH = struct.Struct("!Q")
# Small enough that the allocator does not map and unmap memory for each read.
_CHUNK = 1 << 16
_MAX_FILES = 8

POST_DELAY_S = 0.05
"""How long a posted item may wait for company."""


def make_frame(message: Any) -> bytes:
    """A message as it goes over the wire."""
    body = pickle.dumps(message, 5)
    return _LENGTH.pack(len(body)) + body


def send_with_files(sock: socket.socket, message: Any, files: list[int]) -> None:
    """Send a message and open files along with it, on a blocking socket."""
    frame = make_frame(message)
    # The files arrive with the first byte, wherever the rest is cut.
    sent = socket.send_fds(sock, [frame[: _LENGTH.size]], files) if files else 0
    sock.sendall(memoryview(frame)[sent:])


def receive_with_files(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message with its files from a blocking socket; None at its end."""
    head, files, _, _ = socket.recv_fds(sock, _LENGTH.size, _MAX_FILES)
    if not head:
        return None
    for fd in files:
        os.set_inheritable(fd, False)
    if len(head) < _LENGTH.size:
        head += _receive_exactly(sock, _LENGTH.size - len(head))
    (size,) = _LENGTH.unpack(head)
    return pickle.loads(_receive_exactly(sock, size)), files


def _receive_exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        count = sock.recv_into(view[got:])
        if count == 0:
            raise EOFError("the other side closed the connection")
        got += count
    return data


class Terminating(NamedTuple):
    """A worker got a notice to end soon."""


class Connection:
    """The driver's end: never blocks, lives on the loop. ``on_close`` is called once, at EOF."""

    def __init__(
        self,
        sock: socket.socket,
        loop: EventLoop,
        on_message: Callable[[Any], None],
        on_close: Callable[[], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop
        self._on_message = on_message
        self._on_close = on_close
        self._incoming = bytearray()
        self._outgoing: list[memoryview] = []
        self.closed = False
        loop.watch(sock.fileno(), self._readable)

    def send(self, message: Any) -> None:
        """Send now what fits, the rest when the other side reads. Dropped after close."""
        self.send_frame(make_frame(message))

    def send_frame(self, data: bytes) -> None:
        """The same with a message that ``make_frame`` has packed, for several connections."""
        if self.closed:
            return
        frame = memoryview(data)
        if not self._outgoing:
            try:
                sent = self._sock.send(data)
                if sent == len(data):
                    return
                frame = frame[sent:]
            except BlockingIOError:
                pass
            except OSError:
                return  # the peer is gone; its exit is reported by other means
        if frame:
            self._outgoing.append(frame)
            self._loop.watch(self._sock.fileno(), self._readable, self._writable)

    def close(self) -> None:
        """Close without calling ``on_close``; nothing is delivered any more. Idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def hang_up(self) -> None:
        """Close, and let the peer see it even if a forked process holds this socket too."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self.close()

    def drain(self) -> None:
        """Deliver what has arrived but not been read yet (the peer may be dead already)."""
        while not self.closed and self._read():
            pass

    def _writable(self) -> None:
        try:
            while self._outgoing:
                sent = self._sock.send(self._outgoing[0])
                self._outgoing[0] = self._outgoing[0][sent:]
                if not self._outgoing[0]:
                    self._outgoing.pop(0)
        except BlockingIOError:
            return
        except OSError:
            self._outgoing.clear()
        if not self.closed:
            self._loop.watch(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        self._read()

    def _read(self) -> bool:
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            self._on_close()
            return False
        incoming = self._incoming
        if not incoming and len(data) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data)
            if len(data) == _LENGTH.size + size:  # one whole message, as usual
                self._on_message(pickle.loads(memoryview(data)[_LENGTH.size :]))
                return True
        incoming += data
        start, have = 0, len(incoming)
        while have - start >= _LENGTH.size and not self.closed:
            (size,) = _LENGTH.unpack_from(incoming, start)
            end = start + _LENGTH.size + size
            if end > have:
                break
            message = pickle.loads(memoryview(incoming)[start + _LENGTH.size : end])
            start = end
            self._on_message(message)
        if start:
            del incoming[:start]
        return True


class SocketChannel(Channel):
    """A worker's end: blocking, plus the I/O thread that posts and watches for the driver's end."""

    def __init__(self, rank: int, sock: socket.socket, on_driver_gone: Callable[[], None]) -> None:
        sock.setblocking(True)
        self.rank = rank
        self._sock = sock
        self._on_driver_gone = on_driver_gone
        self._sending = threading.Lock()
        self._posted: deque[Any] = deque()
        self._post_pending = False
        self._terminating = False
        self._lost_interrupt = False
        self._unread: deque[Any] = deque()
        self._busy = False
        self._interrupted = False
        incoming = select.poll()
        incoming.register(sock.fileno(), select.POLLIN)
        self._wait = SpinThenBlock(incoming.poll)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._io_thread, name="lockstep-io", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """See :class:`Channel`."""
        frame = make_frame(message)
        self._undisturbed(lambda: self._send(frame))

    def post(self, item: Any) -> None:
        """See :class:`Channel`."""
        self._posted.append(item)
        if not self._post_pending:
            self._post_pending = True
            self._wake()

    def announce_termination(self) -> None:
        """Notify the driver, from the I/O thread: a signal handler must take no lock."""
        self._terminating = True
        self._wake()

    def interrupt_again(self) -> None:
        """Raise SIGINT in a moment, from the I/O thread: where it came, Python dropped it."""
        self._lost_interrupt = True
        self._wake()

    def receive(self) -> Any:
        """See :class:`Channel`."""
        if not self._unread:
            self._wait()
            self._undisturbed(self._read)
        return self._unread.popleft()

    @contextlib.contextmanager
    def interrupts_end_it(self) -> Iterator[None]:
        """See :class:`Channel`. Code that is not Python's gets no KeyboardInterrupt."""
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def interrupt(self) -> None:
        """What SIGINT does in a worker: KeyboardInterrupt, but never in the middle of a message."""
        if self._busy:
            self._interrupted = True
        else:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Send what is posted, end the I/O thread and close the socket."""
        self._undisturbed(self._close)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # woken often enough already, or closed
            self._wake_write.send(b"\0")

    def _close(self) -> None:
        with self._sending:
            self._flush()
        self._closing.set()
        self._wake_write.send(b"\0")
        self._thread.join()
        for sock in (self._wake_read, self._wake_write, self._sock):
            sock.close()

    def _undisturbed(self, call: Callable[[], None]) -> None:
        if threading.current_thread() is not threading.main_thread():
            call()  # signal handlers run in the main thread only
            return
        self._busy = True
        try:
            call()
        finally:
            self._busy = False
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    def _send(self, frame: bytes) -> None:
        with self._sending:
            self._flush()
            self._sendall(frame)

    def _read(self) -> None:
        """One message at least; usually one read brings one whole frame."""
        head = _LENGTH.size
        try:
            data = self._sock.recv(_CHUNK)
            while True:
                if len(data) < head:
                    data += _receive_exactly(self._sock, head - len(data))
                end = head + _LENGTH.unpack_from(data)[0]
                if len(data) < end:
                    data += _receive_exactly(self._sock, end - len(data))
                self._unread.append(pickle.loads(memoryview(data)[head:end]))
                data = data[end:]
                if not data:
                    return
        except (EOFError, ConnectionError):
            self._on_driver_gone()
            raise

    def _flush(self) -> None:
        posted = self._posted
        # Cleared before the queue is looked at: an item that comes later wakes the thread again.
        self._post_pending = False
        if posted:
            items = [posted.popleft() for _ in range(len(posted))]
            self._sendall(make_frame(Posted(items)))

    def _sendall(self, frame: bytes) -> None:
        try:
            self._sock.sendall(frame)
        except ConnectionError:
            self._on_driver_gone()
            raise

    def _io_thread(self) -> None:
        poller = select.poll()
        # No events asked for: POLLHUP, the driver's end closing, is always reported.
        poller.register(self._sock.fileno(), 0)
        poller.register(self._wake_read.fileno(), select.POLLIN)
        while not self._closing.is_set():
            for fd, event in poller.poll():
                if fd == self._sock.fileno() and event & (select.POLLHUP | select.POLLERR):
                    self._on_driver_gone()
                    return
            if self._closing.wait(POST_DELAY_S):
                return
            self._wake_read.recv(4096)
            if self._lost_interrupt:
                self._lost_interrupt = False
                os.kill(os.getpid(), signal.SIGINT)
            with self._sending:
                if self._terminating:
                    self._terminating = False
                    self._sendall(make_frame(Terminating()))
                self._flush()
