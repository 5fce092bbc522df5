"""Connections of a cluster: nothing is read from whoever does not know the secret."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from lockstep.engine import links
from lockstep.engine.links import LinkListener, OpenPorts, link_to, reaches
from lockstep.engine.loop import EventLoop
from lockstep.engine.wire import Connection, make_frame
from lockstep.errors import EngineError

SECRET = secrets.token_bytes(32)


class Accepting:
    """A listener and what it has passed on."""

    def __init__(self, loop: EventLoop) -> None:
        self.loop = loop
        self.linked: dict[int, socket.socket] = {}
        self.listener = LinkListener("127.0.0.1", SECRET, loop, self.linked.__setitem__)

    def wake(self) -> None:
        """Make ``until`` look again, from any thread."""
        self.loop.call_soon(lambda: None)

    def until(self, done: Callable[[], bool]) -> None:
        late: list[bool] = []
        timer = self.loop.call_later(20, lambda: late.append(True))
        self.loop.run_until(lambda: bool(late) or done())
        timer.cancel()
        assert not late


@pytest.fixture
def accepting() -> Iterator[Accepting]:
    with contextlib.closing(EventLoop()) as loop:
        accepting = Accepting(loop)
        try:
            yield accepting
        finally:
            accepting.listener.close()
            for sock in accepting.linked.values():
                sock.close()


class Caller(threading.Thread):
    """Calls from a thread of its own, as an agent does from another machine."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        role: int,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._wake = wake
        self._arguments = address, secret, role
        self.sock: socket.socket | None = None
        self.error: EngineError | None = None
        self.start()

    def run(self) -> None:
        try:
            self.sock = link_to(*self._arguments)
        except EngineError as error:
            self.error = error
            self._wake()


def test_both_ends_get_the_connection_and_its_role(accepting: Accepting) -> None:
    callers = [Caller(accepting.listener.address, SECRET, role) for role in (-1, 0, 7)]
    accepting.until(lambda: len(accepting.linked) == 3)
    for role, caller in zip((-1, 0, 7), callers, strict=True):
        caller.join()
        assert caller.sock is not None
        with caller.sock as mine:
            got: list[object] = []
            theirs = Connection(
                accepting.linked[role], accepting.loop, got.append, lambda: None, got.append
            )
            mine.sendall(make_frame(("from", role)))
            accepting.until(lambda got=got: bool(got))  # type: ignore[misc]
            assert got == [("from", role)]
            theirs.close()


def test_a_caller_with_another_secret_is_dropped(accepting: Accepting) -> None:
    caller = Caller(accepting.listener.address, b"another secret", 0, accepting.wake)
    accepting.until(lambda: caller.error is not None)
    caller.join()
    assert accepting.linked == {}


class Exploit:
    """Unpickling it would be seen."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return pytest.fail, ("a stranger's pickle was loaded",)


def test_nothing_of_a_stranger_is_unpickled(accepting: Accepting) -> None:
    with socket.create_connection(accepting.listener.address) as stranger:
        body = pickle.dumps(Exploit())
        stranger.sendall(make_frame(None)[:8] + body + b"\0" * 200)
        closed: list[bool] = []

        def read_to_the_end() -> None:
            with contextlib.suppress(ConnectionError):
                while stranger.recv(100):
                    pass
            closed.append(True)
            accepting.wake()

        reader = threading.Thread(target=read_to_the_end)
        reader.start()
        accepting.until(lambda: bool(closed))
        reader.join()
    assert accepting.linked == {}


def test_a_silent_caller_is_dropped(accepting: Accepting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "PROOF_S", 0.1)
    with socket.create_connection(accepting.listener.address) as silent:
        silent.settimeout(20)
        closed: list[bool] = []

        def read_to_the_end() -> None:
            while silent.recv(100):
                pass
            closed.append(True)
            accepting.wake()

        reader = threading.Thread(target=read_to_the_end)
        reader.start()
        accepting.until(lambda: bool(closed))
        reader.join()
    assert accepting.linked == {}


def test_a_caller_does_not_trust_a_stranger() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller = Caller(listener.getsockname()[:2], SECRET, 0)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(b"\0" * 64)  # a nonce and a wrong proof
            caller.join()
    assert caller.error is not None
    assert "not this run's driver" in str(caller.error)


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with pytest.raises(EngineError, match=f"cannot reach the driver at 127.0.0.1:{address[1]}"):
        link_to(address, SECRET, 0)


def test_ports_that_are_open_at_once_do_not_close_each_other() -> None:
    ports = OpenPorts()
    first, second = ports.open("127.0.0.1"), ports.open("127.0.0.1")
    ports.close(first[1])
    assert reaches(second) == ""
    assert "refused" in reaches(first)
    ports.close(first[1])  # again
    ports.close(second[1])
    assert "refused" in reaches(second)
