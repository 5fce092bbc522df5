"""TCP connections between a driver and the nodes of a cluster, each proven by a shared secret.

Both ends prove that they know the secret before either reads anything else. The secret itself never
travels on the connection, and a proof is of no use on another one:

    listener ── nonce (32 bytes) ──────────────────────────────▶ caller
    listener ◀── nonce (32), role (8), HMAC of both and role (32) ── caller
    listener ── HMAC of both nonces (32) ──────────────────────▶ caller

What follows are frames (``wire.py``), which are pickles.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
from collections.abc import Callable

from lockstep.engine.loop import EventLoop, Timer
from lockstep.errors import EngineError

__all__ = ["LinkListener", "OpenPorts", "greets", "link_to", "reaches"]

PROOF_S = 20.0
"""How long the proof of a secret may take."""
REACH_S = 5.0
"""How long a node may take to accept a connection."""

_NONCE = 32
_PROOF = 32
_ROLE = struct.Struct("!q")
_ANSWER = _NONCE + _ROLE.size + _PROOF
_BACKLOG = 1024
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


def link_to(address: tuple[str, int], secret: bytes, role: int) -> socket.socket:
    """Connect to a listener that knows the same secret.

    Args:
        address: where it listens.
        secret: what both know.
        role: what this connection is for; the listener's callback gets it.

    Raises:
        EngineError: nobody answers there, or somebody who does not know the secret.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        sock = socket.create_connection(address, timeout=PROOF_S)
    except OSError as error:
        raise EngineError(
            f"{socket.gethostname()} cannot reach the driver at {where} ({error}); the nodes of "
            "a cluster must be able to connect to each other"
        ) from error
    try:
        _set_options(sock)
        theirs = _receive(sock, _NONCE)
        mine = secrets.token_bytes(_NONCE)
        packed = _ROLE.pack(role)
        sock.sendall(mine + packed + _caller_proof(secret, theirs, mine, packed))
        if not hmac.compare_digest(_receive(sock, _PROOF), _listener_proof(secret, theirs, mine)):
            raise EngineError(f"what listens at {where} is not this run's driver")
        sock.settimeout(None)
        return sock
    except OSError as error:
        sock.close()
        raise EngineError(f"the driver at {where} did not accept a connection: {error}") from error
    except BaseException:
        sock.close()
        raise


def reaches(address: tuple[str, int], seconds: float = REACH_S) -> str:
    """Why nothing accepts a connection at ``address``; empty if something does."""
    try:
        socket.create_connection(address, timeout=seconds).close()
    except OSError as error:
        return str(error)
    return ""


def greets(address: tuple[str, int], seconds: float = REACH_S) -> bool:
    """Whether a service at ``address`` speaks first, as gRPC's do.

    A process that is stopped, or that is about to end, may still accept a connection.
    """
    try:
        with socket.create_connection(address, timeout=seconds) as sock:
            return bool(sock.recv(1))
    except OSError:
        return False


class OpenPorts:
    """Ports that accept connections and answer nothing, for whoever tries to reach this machine.

    Several may be open at once. Any thread may call all of it.
    """

    def __init__(self) -> None:
        self._ports: dict[int, socket.socket] = {}

    def open(self, host: str) -> tuple[str, int]:
        """Open a free port of ``host``, until ``close``."""
        port = socket.create_server((host, 0), backlog=_BACKLOG)
        address: tuple[str, int] = port.getsockname()[:2]
        self._ports[address[1]] = port
        return address

    def close(self, number: int) -> None:
        """Close the port of this number. Idempotent."""
        port = self._ports.pop(number, None)
        if port is not None:
            port.close()


class LinkListener:
    """Listens on a free port, on the loop, and passes on the connections that prove the secret.

    Args:
        host: the address to listen on.
        secret: what callers must know.
        loop: where all of this happens.
        linked: called with the role and the connection of a caller that knows the secret.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        loop: EventLoop,
        linked: Callable[[int, socket.socket], None],
    ) -> None:
        self._secret = secret
        self._loop = loop
        self._linked = linked
        self._proofs: set[_Proof] = set()
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        loop.watch(self._listener.fileno(), self._accept)

    def close(self) -> None:
        """Stop listening, and drop connections without proof. Idempotent."""
        if self._listener.fileno() >= 0:
            self._loop.unwatch(self._listener.fileno())
            self._listener.close()
        for proof in list(self._proofs):
            proof.drop()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # the caller has gone
            return
        proof = _Proof(sock, self._secret, self._loop, self._proven)
        self._proofs.add(proof)
        proof.begin()

    def _proven(self, proof: _Proof, role: int | None) -> None:
        self._proofs.discard(proof)
        if role is not None:
            self._linked(role, proof.sock)


class _Proof:
    """The listener's side of one proof."""

    def __init__(
        self,
        sock: socket.socket,
        secret: bytes,
        loop: EventLoop,
        done: Callable[[_Proof, int | None], None],
    ) -> None:
        self.sock = sock
        self._secret = secret
        self._loop = loop
        self._done = done
        self._nonce = secrets.token_bytes(_NONCE)
        self._answer = b""
        self._timer: Timer | None = None

    def begin(self) -> None:
        self.sock.setblocking(False)
        try:
            _set_options(self.sock)
            self.sock.send(self._nonce)
        except OSError:
            self.drop()
            return
        self._loop.watch(self.sock.fileno(), self._readable)
        self._timer = self._loop.call_later(PROOF_S, self.drop)

    def drop(self) -> None:
        self._end()
        self.sock.close()
        self._done(self, None)

    def _readable(self) -> None:
        try:
            # Never more than the answer: what follows belongs to whoever gets the connection.
            data = self.sock.recv(_ANSWER - len(self._answer))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._answer += data
        if not data:
            self.drop()
        elif len(self._answer) == _ANSWER:
            self._check()

    def _check(self) -> None:
        theirs, packed = self._answer[:_NONCE], self._answer[_NONCE:-_PROOF]
        expected = _caller_proof(self._secret, self._nonce, theirs, packed)
        if not hmac.compare_digest(self._answer[-_PROOF:], expected):
            self.drop()
            return
        try:
            self.sock.send(_listener_proof(self._secret, self._nonce, theirs))
        except OSError:
            self.drop()
            return
        self._end()
        self._done(self, _ROLE.unpack(packed)[0])

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with contextlib.suppress(OSError):
            self._loop.unwatch(self.sock.fileno())


def _caller_proof(secret: bytes, listener: bytes, caller: bytes, role: bytes) -> bytes:
    return hmac.digest(secret, b"caller" + listener + caller + role, "sha256")


def _listener_proof(secret: bytes, listener: bytes, caller: bytes) -> bytes:
    return hmac.digest(secret, b"listener" + listener + caller, "sha256")


def _set_options(sock: socket.socket) -> None:
    """A report must not wait for more to send; a machine that lost its power must be noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data
