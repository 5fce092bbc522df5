"""Messages on a socket: whatever arrives, the driver gets a message or a sentence, never a hang."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.base import Engine
from lockstep.engine.local import LocalEngine
from lockstep.engine.loop import EventLoop
from lockstep.engine.wire import Connection, make_frame, receive_with_files
from lockstep.errors import EngineError
from tests.engine.driving import driven, lives, wait_until

messages = st.recursive(
    st.none() | st.integers() | st.text(max_size=20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
# Not the opcodes that make a big memo: the unpickler would ask for the memory.
harmless = st.binary(max_size=60).map(lambda data: bytes(b for b in data if b not in b"pqrj"))


def received(*parts: bytes) -> tuple[list[Any], list[str], bool]:
    """What a connection makes of these bytes, then of the end of the stream."""
    got: list[Any] = []
    garbage: list[str] = []
    closed: list[bool] = []
    with contextlib.closing(EventLoop()) as loop:
        mine, theirs = socket.socketpair()
        connection = Connection(mine, loop, got.append, lambda: closed.append(True), garbage.append)
        with theirs:
            for part in parts:
                with contextlib.suppress(BrokenPipeError):  # it has hung up
                    theirs.sendall(part)
                connection.drain()
        connection.drain()
        assert connection.closed
        connection.close()
    return got, garbage, bool(closed)


@given(st.lists(messages, max_size=4), st.integers(1, 40))
def test_messages_arrive_however_they_are_cut(sent: list[Any], size: int) -> None:
    data = b"".join(map(make_frame, sent))
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    assert received(*parts) == (sent, [], True)


@given(st.lists(messages, max_size=3), messages, st.data())
def test_a_message_that_is_cut_off(sent: list[Any], last: Any, data: st.DataObject) -> None:
    whole = make_frame(last)
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert received(b"".join(map(make_frame, sent)) + part) == (sent, [], True)


@given(st.lists(messages, max_size=3), harmless)
def test_what_is_no_message(sent: list[Any], noise: bytes) -> None:
    frames = b"".join(map(make_frame, sent))
    got, garbage, closed = received(frames + b"#" + noise.ljust(8, b"-") + frames)
    assert (got, garbage, closed) == (sent, ["data that is no message"], False)


@given(harmless)
def test_a_body_that_is_no_pickle(noise: bytes) -> None:
    head = make_frame(None)[:2]
    got, garbage, _ = received(head + struct.pack("!Q", len(noise))[2:] + noise)
    assert len(got) + len(garbage) == 1
    for reason in garbage:
        assert reason.startswith("a message that cannot be read (")


@pytest.mark.parametrize("length", [1 << 41, (1 << 48) - 1])
def test_a_huge_length(length: int) -> None:
    head = make_frame(None)[:2] + struct.pack("!Q", length)[2:]
    assert received(head) == ([], ["data that is no message"], False)
    mine, theirs = socket.socketpair()
    with mine, theirs:
        theirs.sendall(head)
        with pytest.raises(EngineError, match="no message"):
            receive_with_files(mine)


def test_an_error_of_the_receiver_is_not_taken_for_garbage() -> None:
    def fail(message: Any) -> None:
        raise ZeroDivisionError

    with contextlib.closing(EventLoop()) as loop:
        mine, theirs = socket.socketpair()
        connection = Connection(mine, loop, fail, lambda: None, lambda reason: None)
        with theirs, contextlib.closing(connection):
            theirs.sendall(make_frame(pickle.dumps(1)))
            with pytest.raises(ZeroDivisionError):
                connection.drain()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    local = LocalEngine()
    yield local
    local.close()


@pytest.mark.parametrize("how", ["noise", "pickle"])
def test_garbage_ends_its_worker_with_a_sentence(engine: Engine, how: str) -> None:
    with driven(engine, "write_garbage", size=2, payload=how.encode()) as run:
        run.until(lambda: 0 in run.exits)
        assert run.exits[0].exitcode is None
        text = {"noise": "data that is no message", "pickle": "a message that cannot be read (Mod"}
        assert run.exits[0].detail.startswith(f"its connection to the driver carried {text[how]}")
        pid = run.messages[0][0]
        wait_until(lambda: not lives(pid))
        assert 1 not in run.exits
        run.group.send(1, "continue")
        assert run.until_ended() == [None, 0]
