"""Messages between a pool and its processes, on a socket.

A message is its kind (one byte), the length of its body (8 bytes, big-endian), and the body: a
table as an Arrow stream, or a pickle.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.objects import restored, unmarked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FAILED", "READY", "TABLE", "receive", "send_object", "send_table"]

READY, TABLE, FAILED = b"R", b"T", b"F"
_HEAD = struct.Struct("!cQ")


def send_table(sock: socket.socket, table: pa.Table) -> None:
    """Send a table; the socket must block."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = unmarked(table)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        # Of a slice, only its own rows are written.
        writer.write_table(table)
    body = sink.getvalue()
    # Two calls: joining them would copy the table once more.
    sock.sendall(_HEAD.pack(TABLE, body.size))
    sock.sendall(body)


def send_object(sock: socket.socket, kind: bytes, value: Any) -> None:
    """Send a message other than a table."""
    body = pickle.dumps(value, 5)
    sock.sendall(_HEAD.pack(kind, len(body)) + body)


def receive(sock: socket.socket) -> tuple[bytes, Any]:
    """The next message; a table's memory belongs to the receiver.

    Raises:
        EOFError: the other side has closed the socket, or has ended.
    """
    import pyarrow as pa

    kind, size = _HEAD.unpack(_exactly(sock, _HEAD.size))
    body = _exactly(sock, size)
    if kind == TABLE:
        return kind, restored(pa.ipc.open_stream(pa.py_buffer(body)).read_all())
    return kind, pickle.loads(body)


def _exactly(sock: socket.socket, size: int) -> bytearray:
    # Allocated once and filled in place; Arrow then uses the memory without a copy.
    data = bytearray(size)
    view = memoryview(data)
    got = 0
    while got < size:
        count = sock.recv_into(view[got:])
        if count == 0:
            raise EOFError("the other side closed the connection")
        got += count
    return data
