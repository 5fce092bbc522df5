"""The driver's loop: timers, files, calls from threads and signal handlers."""

from __future__ import annotations

import itertools
import os
import select
import signal
import socket
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.engine import loop as module
from lockstep.engine.loop import SHORT_WAITS, EventLoop, SpinThenBlock


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def note(into: list[Any], value: Any) -> Callable[[], None]:
    return lambda: into.append(value)


def test_timers_run_in_order_of_time_then_of_call(loop: EventLoop) -> None:
    seen: list[int] = []
    loop.call_later(0.02, note(seen, 3))
    loop.call_later(0.0, note(seen, 1))
    loop.call_later(0.0, note(seen, 2))
    loop.run_until(lambda: len(seen) == 3)
    assert seen == [1, 2, 3]


def test_a_timer_is_not_early(loop: EventLoop) -> None:
    seen: list[float] = []
    started = time.monotonic()
    loop.call_later(0.03, lambda: seen.append(time.monotonic() - started))
    loop.run_until(lambda: bool(seen))
    assert seen[0] >= 0.03


def test_a_cancelled_timer_never_runs(loop: EventLoop) -> None:
    seen: list[int] = []
    loop.call_later(0.0, note(seen, 1)).cancel()
    late = loop.call_later(0.01, note(seen, 2))
    loop.call_later(0.0, late.cancel)
    loop.call_later(0.02, note(seen, 3))
    loop.run_until(lambda: bool(seen))
    assert seen == [3]


def test_a_timer_may_set_another(loop: EventLoop) -> None:
    seen: list[int] = []

    def set_another() -> None:
        loop.call_later(0, note(seen, 1))

    loop.call_later(0, set_another)
    loop.run_until(lambda: bool(seen))


def test_call_soon_keeps_order(loop: EventLoop) -> None:
    seen: list[int] = []
    for number in range(100_000):  # more than the wake-up pipe holds
        loop.call_soon(note(seen, number))
    loop.run_until(lambda: len(seen) == 100_000)
    assert seen == list(range(100_000))


def test_call_soon_from_threads_wakes_the_loop(loop: EventLoop) -> None:
    seen: list[tuple[int, int]] = []
    on_loop = threading.get_ident()
    wrong: list[int] = []

    def record(item: tuple[int, int]) -> None:
        seen.append(item)
        if threading.get_ident() != on_loop:
            wrong.append(threading.get_ident())

    def work(thread: int) -> None:
        for number in range(500):
            loop.call_soon(lambda n=number: record((thread, n)))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    loop.run_until(lambda: len(seen) == 2000)
    for thread in threads:
        thread.join()
    assert not wrong
    for index in range(4):
        assert [n for t, n in seen if t == index] == list(range(500))


def test_call_soon_from_a_signal_handler_wakes_the_loop(loop: EventLoop) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: loop.call_soon(note(seen, 1)))
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    try:
        loop.run_until(lambda: bool(seen))
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)


def test_calls_that_call_again_leave_room_for_others(loop: EventLoop) -> None:
    seen: list[int] = []

    def again() -> None:
        if not seen:
            loop.call_soon(again)

    again()
    loop.call_later(0.01, note(seen, 1))
    loop.run_until(lambda: bool(seen))


def test_call_soon_after_close_is_dropped() -> None:
    loop = EventLoop()
    loop.close()
    files = [os.open(os.devnull, os.O_RDWR) for _ in range(4)]
    loop.call_soon(lambda: None)
    loop.close()
    for fd in files:
        os.close(fd)


def test_reads_and_writes(loop: EventLoop, pair: tuple[socket.socket, socket.socket]) -> None:
    mine, other = pair
    seen: list[str] = []
    loop.watch(mine.fileno(), note(seen, "read"), note(seen, "write"))
    loop.run_once()
    assert seen == ["write"]
    loop.watch(mine.fileno(), lambda: seen.append(mine.recv(10).decode()))
    other.send(b"text")
    loop.run_once()
    assert seen == ["write", "text"]
    loop.unwatch(mine.fileno())
    loop.unwatch(mine.fileno())
    other.send(b"more")
    loop.call_later(0.01, note(seen, "timer"))
    loop.run_until(lambda: len(seen) == 3)
    assert seen[-1] == "timer"


def test_watching_again_with_the_same_callback_still_calls_it(
    loop: EventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    mine, other = pair
    seen: list[bytes] = []

    def read() -> None:
        seen.append(mine.recv(1))

    for _ in range(3):
        loop.watch(mine.fileno(), read, None)
    other.send(b"x")
    loop.call_later(5, note(seen, b"late"))
    loop.run_until(lambda: bool(seen))
    assert seen == [b"x"]


def test_an_unwatched_file_is_not_called_in_the_same_round(loop: EventLoop) -> None:
    first, second = socket.socketpair(), socket.socketpair()
    seen: list[str] = []

    def called(name: str, other: socket.socket) -> Callable[[], None]:
        def on_read() -> None:
            seen.append(name)
            loop.unwatch(other.fileno())

        return on_read

    loop.watch(first[0].fileno(), called("first", second[0]))
    loop.watch(second[0].fileno(), called("second", first[0]))
    first[1].send(b"x")
    second[1].send(b"x")
    loop.run_once()
    assert len(seen) == 1
    for end in (*first, *second):
        loop.unwatch(end.fileno())
        end.close()


def test_after_a_brisk_exchange_it_sleeps_again(
    loop: EventLoop, pair: tuple[socket.socket, socket.socket]
) -> None:
    here, there = pair
    seen: list[bytes] = []

    def exchange() -> None:
        seen.append(there.recv(1))
        here.send(b"x")

    here.send(b"x")
    loop.watch(there.fileno(), exchange)
    loop.run_until(lambda: len(seen) > 2 * SHORT_WAITS)
    loop.unwatch(there.fileno())
    woken: list[int] = []
    thread = threading.Timer(0.05, lambda: loop.call_soon(note(woken, 1)))
    thread.start()
    cpu = time.thread_time()
    loop.run_until(lambda: bool(woken))
    assert time.thread_time() - cpu < 0.03, "it looked for a moment, then slept"
    thread.join()
    loop.call_later(0.01, note(woken, 2))
    loop.run_until(lambda: len(woken) == 2)


def test_a_brisk_wait_sleeps_in_the_end_and_brings_what_comes_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count(step=1e-5)  # a tick a look: the load of the machine plays no part
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: next(clock)))
    read, write = os.pipe()
    asked: list[Any] = []
    poll = select.poll()
    poll.register(read, select.POLLIN)

    def counted(timeout: float | None) -> list[tuple[int, int]]:
        asked.append(timeout)
        if timeout is None and not poll.poll(0):  # it sleeps: only now something comes
            os.write(write, b"y")
            for _ in range(100):
                next(clock)
        return poll.poll(timeout)

    try:
        wait = SpinThenBlock(counted)
        os.write(write, b"x")
        for _ in range(2 * SHORT_WAITS):
            assert wait() == [(read, select.POLLIN)]
        assert asked[-1] == 0, "it looks before it sleeps"
        os.read(read, 1)
        assert wait() == [(read, select.POLLIN)]
        assert asked[-1] is None, "it does not look for ever"
        asked.clear()
        assert wait() == [(read, select.POLLIN)]
        assert asked == [None], "one long wait, and it is not brisk any more"
    finally:
        os.close(read)
        os.close(write)
