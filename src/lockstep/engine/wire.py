"""Messages on a socket, used by both ends of the local engine.

A message on the wire is a frame: a mark and the length of the body (8 bytes, big-endian), then the
body, a pickle. A socket is a stream: one read may return part of a frame, or several frames. Data
that is no frame (a process that a worker forked has written to the wrong file) ends the connection.
"""

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
from lockstep.engine.wakeup import Wakeup
from lockstep.errors import EngineError

__all__ = [
    "Connection",
    "SocketChannel",
    "Terminating",
    "make_frame",
    "receive_with_files",
    "send_with_files",
]

_LENGTH = struct.Struct("!Q")
_MARK = 0x4C53 << 48
"""In the first two bytes of every frame; the length has the other six."""
# A terabyte. A larger length is text that was taken for one, and must not be allocated.
_LONGEST = 1 << 40
_REASON = 500
"""How many characters of an error are passed on: it may quote what it could not read."""
# Small enough that the allocator does not map and unmap memory for each read.
_CHUNK = 1 << 16
_MAX_FILES = 8

_CLOSED = getattr(select, "POLLRDHUP", 0)
_GONE = select.POLLHUP | select.POLLERR | _CLOSED

POST_DELAY_S = 0.05
"""How long a posted item may wait, so that the items after it travel in the same message."""


def make_frame(message: Any) -> bytes:
    """A message as a frame."""
    body = pickle.dumps(message, 5)
    return _LENGTH.pack(_MARK | len(body)) + body


def _read_message(body: memoryview | bytearray) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        text = f"a message that cannot be read ({type(error).__name__}: {error})"
        raise EngineError(text[:_REASON]) from error


def _body_size(word: int) -> int:
    size = word ^ _MARK
    if size > _LONGEST:
        raise EngineError("data that is no message")
    return size


def send_with_files(sock: socket.socket, message: Any, files: list[int]) -> None:
    """Send a message, and open files along with it, on a blocking socket."""
    frame = make_frame(message)
    # The kernel delivers the files with the first byte, even if the frame arrives in parts.
    sent = socket.send_fds(sock, [frame[: _LENGTH.size]], files) if files else 0
    sock.sendall(memoryview(frame)[sent:])


def receive_with_files(sock: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message and its files from a blocking socket; None at the end of the stream."""
    head, files, _, _ = socket.recv_fds(sock, _LENGTH.size, _MAX_FILES)
    if not head:
        return None
    for fd in files:
        # Received files are inheritable, and a child of this process would keep them open.
        os.set_inheritable(fd, False)
    if len(head) < _LENGTH.size:
        head += _receive_exactly(sock, _LENGTH.size - len(head))
    size = _body_size(*_LENGTH.unpack(head))
    return _read_message(_receive_exactly(sock, size)), files


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
    """A worker was notified, by a SIGTERM, that it must end soon."""


class Connection:
    """The driver's end. It never blocks, and belongs to the loop's thread.

    ``on_close`` is called once, when the peer has closed its end. ``on_garbage`` is called once
    if the peer has sent what is no message, with what that was; the connection is closed then.
    """

    def __init__(
        self,
        sock: socket.socket,
        loop: EventLoop,
        on_message: Callable[[Any], None],
        on_close: Callable[[], None],
        on_garbage: Callable[[str], None],
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._loop = loop
        self._on_message = on_message
        self._on_close = on_close
        self._on_garbage = on_garbage
        self._incoming = bytearray()
        self._outgoing: list[memoryview] = []
        self.closed = False
        loop.watch(sock.fileno(), self._readable)

    def send(self, message: Any) -> None:
        """Send a message without waiting; what the socket cannot take now is sent later.

        Dropped after ``close``.
        """
        self.send_frame(make_frame(message))

    def send_frame(self, data: bytes) -> None:
        """``send`` for a frame of ``make_frame``, which may go to several connections."""
        if self.closed:
            return
        frame = memoryview(data)
        # Try at once: nearly every message fits. Behind a waiting frame it has to queue.
        if not self._outgoing:
            try:
                sent = self._sock.send(data)
                if sent == len(data):
                    return
                frame = frame[sent:]
            except BlockingIOError:
                pass
            except OSError:
                return  # the peer is gone; the fork server reports its exit
        if frame:
            self._outgoing.append(frame)
            self._loop.watch(self._sock.fileno(), self._readable, self._writable)

    def close(self) -> None:
        """Close without calling ``on_close``; no message is delivered afterwards. Idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def hang_up(self) -> None:
        """Close so that the peer sees it, even if a forked process holds this socket too."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self.close()

    def drain(self) -> None:
        """Deliver the messages that have arrived but were not read yet; the peer may be dead."""
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
            (word,) = _LENGTH.unpack_from(data)
            # One complete message, the usual case, needs no copy. Garbage never has this length.
            if len(data) == _LENGTH.size + (word ^ _MARK):
                try:
                    message = _read_message(memoryview(data)[_LENGTH.size :])
                except EngineError as error:
                    return self._spoiled(error)
                self._on_message(message)
                return True
        incoming += data
        start, have = 0, len(incoming)
        while have - start >= _LENGTH.size and not self.closed:
            try:
                end = start + _LENGTH.size + _body_size(*_LENGTH.unpack_from(incoming, start))
                if end > have:
                    break
                # Released before the `del` below, which cannot shrink a buffer that is in use.
                with memoryview(incoming) as view:
                    message = _read_message(view[start + _LENGTH.size : end])
            except EngineError as error:
                return self._spoiled(error)
            start = end
            self._on_message(message)
        if start:
            del incoming[:start]
        return True

    def _spoiled(self, error: EngineError) -> bool:
        self.hang_up()  # a worker that sees this ends by itself
        self._on_garbage(str(error))
        return False


class SocketChannel(Channel):
    """A worker's end. ``send`` and ``receive`` block, on the caller's thread.

    The I/O thread sends posted items, and ends the worker when the driver is gone.

    A KeyboardInterrupt inside ``send`` or ``receive`` would cut a frame in two, and the driver
    could not read the stream any more. So it is raised after the frame.
    """

    def __init__(self, rank: int, sock: socket.socket, on_driver_gone: Callable[[], None]) -> None:
        sock.setblocking(True)
        self.rank = rank
        self._sock = sock
        self._on_driver_gone = on_driver_gone
        # Frames of the user's thread and of the I/O thread must not mix.
        self._sending = threading.Lock()
        # append and popleft of a deque are atomic, so post() needs no lock and never waits.
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
        self._wakeup = Wakeup()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._io_thread, name="lockstep-io", daemon=True)
        self._thread.start()

    def send(self, message: Any) -> None:
        """See :class:`Channel`."""
        frame = make_frame(message)
        self._defer_interrupts(lambda: self._send(frame))

    def post(self, item: Any) -> None:
        """See :class:`Channel`."""
        self._posted.append(item)
        if not self._post_pending:
            self._post_pending = True
            self._wakeup.wake()

    def announce_termination(self) -> None:
        """Notify the driver, from the I/O thread, because a signal handler must take no lock."""
        self._terminating = True
        self._wakeup.wake()

    def interrupt_again(self) -> None:
        """Send SIGINT to this process again, from the I/O thread: Python dropped the exception."""
        self._lost_interrupt = True
        self._wakeup.wake()

    def receive(self) -> Any:
        """See :class:`Channel`."""
        if not self._unread:
            # Ctrl-C may end the wait, but not the read of a frame that has begun to arrive.
            self._wait()
            self._defer_interrupts(self._read)
        return self._unread.popleft()

    @contextlib.contextmanager
    def interrupts_end_it(self) -> Iterator[None]:
        """See :class:`Channel`. Code in C, such as an import, would not see KeyboardInterrupt."""
        before = signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt, as SIGINT does; inside a message, after that message."""
        if self._busy:
            self._interrupted = True
        else:
            raise KeyboardInterrupt

    def close(self) -> None:
        """Send the posted items, end the I/O thread and close the socket."""
        self._defer_interrupts(self._close)

    def _close(self) -> None:
        with self._sending:
            self._flush()
        self._closing.set()
        self._wakeup.wake()
        self._thread.join()
        self._wakeup.close()
        self._sock.close()

    def _defer_interrupts(self, call: Callable[[], None]) -> None:
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
            # What was posted before comes first: a row of train.log() belongs before its report.
            self._flush()
            self._sendall(frame)

    def _read(self) -> None:
        """Read at least one message; usually one read returns exactly one frame."""
        head = _LENGTH.size
        try:
            data = self._sock.recv(_CHUNK)
            while True:
                if len(data) < head:
                    data += _receive_exactly(self._sock, head - len(data))
                end = head + _body_size(*_LENGTH.unpack_from(data))
                if len(data) < end:
                    data += _receive_exactly(self._sock, end - len(data))
                self._unread.append(_read_message(memoryview(data)[head:end]))
                data = data[end:]
                if not data:
                    return
        except (EOFError, ConnectionError):
            self._on_driver_gone()
            raise
        except EngineError as error:
            raise EngineError(f"the driver sent {error}.") from error

    def _flush(self) -> None:
        posted = self._posted
        # Cleared before the queue is read, so that an item posted meanwhile wakes the thread again.
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
        # POLLHUP (the driver closed its end) is always reported; on TCP there is POLLRDHUP for it.
        poller.register(self._sock.fileno(), _CLOSED)
        poller.register(self._wakeup.fileno(), select.POLLIN)
        while not self._closing.is_set():
            for fd, event in poller.poll():
                if fd == self._sock.fileno() and event & _GONE:
                    self._on_driver_gone()
                    return
            # Collect for a moment: a thousand log() calls become a few messages.
            if self._closing.wait(POST_DELAY_S):
                return
            # Before the flags are read: a wake-up in between is then seen in the next round.
            self._wakeup.drain()
            if self._lost_interrupt:
                self._lost_interrupt = False
                os.kill(os.getpid(), signal.SIGINT)
            with self._sending:
                if self._terminating:
                    self._terminating = False
                    self._sendall(make_frame(Terminating()))
                self._flush()
