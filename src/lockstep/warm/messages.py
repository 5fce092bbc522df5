"""Messages between a client and the warm server: plain values, with open files beside them.

    client                                server
    run, workers ───────────────────────▶ checks: user, environment, the libraries' files
                  ◀────────────────────── refused; or it forks, and the rest is with its child
                  ◀────────────────────── ready
    go, with files ─────────────────────▶ until here the client may start cold instead
                  ◀────────────────────── started, with a handle of the process
                  ◀────────────────────── stopped, ended                 (of a script)

    learn, with a file ─────────────────▶ a script has imported more; the file has its variables

Marshalled, not pickled: the client must not import pickle. Both are the same interpreter.
"""

from __future__ import annotations

import array
import marshal
import os
import socket
import struct

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MAX_FILES", "receive", "send"]

MAX_FILES = 200
"""How many open files one message may carry; the kernel takes 253."""

_LENGTH = struct.Struct("!I")


def send(sock: socket.socket, kind: str, files: list[int] | None = None, **values: Any) -> None:
    """Send one message on a blocking socket.

    Raises:
        OSError: the other side is gone, or did not read in time.
    """
    body = marshal.dumps((kind, values))
    data = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(sock, [data], files) if files else 0
    if sent < len(data):  # the other side may have read it all, and have closed the connection
        sock.sendall(memoryview(data)[sent:])


def receive(sock: socket.socket) -> tuple[str, dict[str, Any], list[int]] | None:
    """The next message: its kind, its values, its files; None when the other side is gone.

    Raises:
        OSError: nothing came in time, or something that is no message.
    """
    room = socket.CMSG_LEN(MAX_FILES * array.array("i").itemsize)
    try:
        head, extra, _, _ = sock.recvmsg(_LENGTH.size, room)
    except ConnectionError:
        return None
    files = array.array("i")
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
    for fd in files:
        os.set_inheritable(fd, False)
    body = _exactly(sock, _LENGTH.size - len(head), head)
    if body is None:
        return None
    body = _exactly(sock, _LENGTH.unpack(body)[0])
    if body is None:
        return None
    try:
        name, values = marshal.loads(body)
    except (ValueError, EOFError, TypeError) as error:
        raise ConnectionError(f"a message that cannot be read: {error}") from error
    return name, values, list(files)


def _exactly(sock: socket.socket, count: int, data: bytes = b"") -> bytes | None:
    while count > 0:
        try:
            part = sock.recv(count)
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
        count -= len(part)
    return data
