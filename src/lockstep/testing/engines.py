"""The conformance suite of engines: the contract in ``lockstep.engine.base``.

A test module subclasses it with an ``engine`` fixture; pytest runs the inherited tests:

    class TestMyEngine(EngineConformance):
        @pytest.fixture
        def engine(self):
            engine = MyEngine()
            yield engine
            engine.close()
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lockstep.engine.base import (
    Engine,
    EngineEvent,
    GroupSpec,
    Posted,
    Sampled,
    WorkerExited,
    WorkerGroup,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop

__all__ = ["EngineConformance"]

ENTRIES = "lockstep.testing.engine_entries"
PATIENCE_S = 30.0
PROMPT_S = 15.0
BIG = 10_000_000


class EngineConformance:
    """Tests that every engine passes. Subclass it and define an ``engine`` fixture."""

    max_size: int | None = None
    """The largest number of workers in a group of this engine; None: any number."""
    own_processes = True
    """Whether workers are separate processes, which can be killed whatever they are doing."""

    def test_payload_and_messages_in_order(self, engine: Engine) -> None:
        """The payload comes first; then messages go both ways, in order, on every rank."""
        with _driven(engine, "echo", self._size(3), b"payload") as run:
            for rank in range(run.size):
                for number in range(200):
                    run.group.send(rank, (rank, number))
                run.group.send(rank, None)
            run.until_ended()
            for rank in range(run.size):
                assert run.messages(rank) == [b"payload", *((rank, n) for n in range(200))]
            assert run.exitcodes() == [0] * run.size

    def test_big_messages(self, engine: Engine) -> None:
        """Ten megabytes as payload and as message, both ways, with small ones around."""
        payload, message = os.urandom(BIG), os.urandom(BIG)
        with _driven(engine, "echo", self._size(2), payload) as run:
            for rank in range(run.size):
                for item in ("before", message, "after", None):
                    run.group.send(rank, item)
            run.until_ended()
            for rank in range(run.size):
                assert run.messages(rank) == [payload, "before", message, "after"]

    def test_posts_keep_their_place(self, engine: Engine) -> None:
        """A posted message arrives before any message sent later, and before the exit."""
        with _driven(engine, "post_and_send", self._size(2), b"1000") as run:
            run.until_ended()
            for rank in range(run.size):
                assert run.flat_messages(rank) == list(range(1000))

    def test_every_thread_may_send(self, engine: Engine) -> None:
        """Messages of several threads arrive complete, and in order for each thread."""
        with _driven(engine, "send_from_threads", 1, pickle.dumps((4, 250))) as run:
            run.until_ended()
            received = run.flat_messages(0)
            for thread in range(4):
                assert [n for t, n in received if t == thread] == list(range(250))
            assert len(received) == 1000

    def test_exit_codes(self, engine: Engine) -> None:
        """The entry function's result is the exit code; one exit for each rank, its last event."""
        with _driven(engine, "exit_with", self._size(3), b"40") as run:
            run.until_ended()
            assert run.exitcodes() == [40 + rank for rank in range(run.size)]

    def test_where_workers_run(self, engine: Engine) -> None:
        """``in_this_process`` is true exactly if workers run in the driver's process."""
        assert engine.in_this_process is not self.own_processes
        with _driven(engine, "who", 1, b"") as run:
            run.until_ended()
            assert (run.messages(0)[0][1] == os.getpid()) is engine.in_this_process

    def test_a_raising_entry(self, engine: Engine) -> None:
        """It ends the worker with code 1 and a traceback; posted messages still arrive."""
        with _driven(engine, "fail", self._size(2), b"") as run:
            run.until_ended()
            run.group.close()
            for rank in range(run.size):
                assert run.flat_messages(rank) == ["last words"]
                assert b"RuntimeError: raised on purpose" in run.sink.text(rank)
            assert run.exitcodes() == [1] * run.size

    def test_an_entry_that_is_not_there(self, engine: Engine) -> None:
        """A missing entry function ends the worker like an exception."""
        with _driven(engine, "no_such_function", 1, b"") as run:
            run.until_ended()
            run.group.close()
            assert run.exitcodes() == [1]
            assert b"no_such_function" in run.sink.text(0)

    def test_a_crash(self, engine: Engine) -> None:
        """The exit code names the signal, and the messages sent before it arrive first."""
        self._needs_processes()
        for number in (signal.SIGKILL, signal.SIGSEGV):
            with _driven(engine, "crash", self._size(2), str(int(number)).encode()) as run:
                run.until_ended()
                assert run.exitcodes() == [-number] * run.size
                for rank in range(run.size):
                    assert run.messages(rank) == ["about to die"]

    def test_interrupt(self, engine: Engine) -> None:
        """An interrupt raises KeyboardInterrupt in the entry function, which may continue."""
        with _driven(engine, "answer_interrupt", self._size(2), b"") as run:
            run.when(lambda: run.received("ready"), run.group.interrupt)
            run.until_ended()
            for rank in range(run.size):
                assert run.messages(rank) == ["ready", "interrupted"]
            assert run.exitcodes() == [7] * run.size

    def test_kill(self, engine: Engine) -> None:
        """Killed workers exit promptly, by SIGKILL, whatever they were doing."""
        entry = "sleep" if self.own_processes else "echo"
        with _driven(engine, entry, self._size(3), b"ready") as run:
            run.when(lambda: run.received("ready") or run.received(b"ready"), run.group.kill)
            started = time.monotonic()
            run.until_ended()
            assert time.monotonic() - started < PROMPT_S
            assert run.exitcodes() == [-signal.SIGKILL] * run.size

    def test_abandon(self, engine: Engine) -> None:
        """Abandoned workers have ended for the driver at once, and end in fact soon."""
        self._needs_processes()
        with _driven(engine, "start_child", self._size(2), b"") as run:
            run.until(lambda: all(map(run.messages, range(run.size))))
            run.group.abandon()
            assert run.exitcodes() == [-signal.SIGKILL] * run.size
            children = [run.messages(rank)[0] for rank in range(run.size)]
            _wait_until(lambda: not any(_is_running(pid) for pid in children))

    def test_kill_takes_children_along(self, engine: Engine) -> None:
        """No process that a worker has started outlives a kill."""
        self._needs_processes()
        with _driven(engine, "start_child", self._size(2), b"") as run:
            run.when(lambda: all(map(run.messages, range(run.size))), run.group.kill)
            run.until_ended()
            children = [run.messages(rank)[0] for rank in range(run.size)]
            _wait_until(lambda: not any(_is_running(pid) for pid in children))

    def test_close_kills(self, engine: Engine) -> None:
        """Closing a running group ends its workers, and no more events are emitted."""
        with _driven(engine, "echo", self._size(2), b"ready") as run:
            run.when(lambda: run.received(b"ready"), run.group.close)
            run.until(lambda: run.sink.closed)
            run.idle()
            assert [type(event) for event in run.events] == [WorkerMessage] * run.size

    def test_close_at_once(self, engine: Engine) -> None:
        """A group may be closed before anything has happened in it."""
        with _driven(engine, "echo", self._size(2), b"") as run:
            run.group.close()
            run.idle()
            assert run.events == []

    def test_close_twice(self, engine: Engine) -> None:
        """Closing again does nothing, not even to files that were opened since."""
        with _driven(engine, "exit_with", 1, b"0") as run:
            run.until_ended()
            run.group.close()
            files = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
            run.group.close()
            for fd in files:
                os.close(fd)  # raises if the second close() has closed it
            assert run.sink.closes == 1

    def test_send_to_a_dead_worker(self, engine: Engine) -> None:
        """Messages to a worker that has exited are dropped, however large they are."""
        size = self._size(2)
        with _driven(engine, "echo", size, b"") as run:
            run.group.send(0, None)
            run.until(lambda: any(type(event) is WorkerExited for event in run.events))
            for _ in range(3):
                run.group.send(0, b"x" * 1_000_000)
            for rank in range(1, size):
                run.group.send(rank, "still here")
                run.group.send(rank, None)
            run.until_ended()
            assert run.messages(0) == [b""]
            assert all(run.messages(rank) == [b"", "still here"] for rank in range(1, size))

    def test_environment(self, engine: Engine) -> None:
        """Variables of the spec override the driver's; the driver's own do not change."""
        extra = {"CONFORMANCE_EXTRA": "ü = 1", "PATH": os.defpath}
        before = dict(os.environ)
        names = b"CONFORMANCE_EXTRA PATH HOME"
        with _driven(engine, "environment", self._size(2), names, extra) as run:
            run.until_ended()
            for rank in range(run.size):
                assert run.messages(rank) == [{**extra, "HOME": before.get("HOME")}]
        assert dict(os.environ) == before

    def test_output(self, engine: Engine) -> None:
        """Everything printed reaches the sink, in order, before the group is closed."""
        with _driven(engine, "print_lines", self._size(2), b"5000") as run:
            run.until_ended()
            run.group.close()
            for rank in range(run.size):
                lines = [f"rank {rank} line {n}\n" for n in range(5000)]
                assert run.sink.text(rank).decode() == "".join(lines) + "the end"
            assert run.sink.ticks

    def test_two_groups_at_a_time(self, engine: Engine) -> None:
        """Two groups share a loop, and each receives only its own messages."""
        loop = EventLoop()
        with contextlib.closing(loop):
            first = _Run(engine, _spec("echo", self._size(2), b"first"), loop)
            second = _Run(engine, _spec("echo", self._size(2), b"second"), loop)

            def talk() -> None:
                for number in (*range(50), None):
                    for run in (first, second):
                        for rank in range(run.size):
                            run.group.send(rank, number)

            second.when(lambda: first.received(b"first") and second.received(b"second"), talk)
            first.when(lambda: first.received(b"first"), second.react)
            for run, payload in ((first, b"first"), (second, b"second")):
                run.until_ended()
                for rank in range(run.size):
                    assert run.messages(rank) == [payload, *range(50)]
                run.close()

    def test_prepared_groups(self, engine: Engine) -> None:
        """Preparing a group starts no worker and changes nothing for it; it may never be used."""
        own = {"OF_ANOTHER_GROUP": "1"}
        engine.prepare(_spec("who", self._size(2), b"", own))
        for _ in range(2):
            engine.prepare(_spec("who", self._size(2), b""))
        with _driven(engine, "who", self._size(2), b"") as run:
            run.until_ended()
            assert run.exitcodes() == [0] * run.size
            assert [len(run.messages(rank)) for rank in range(run.size)] == [1] * run.size

    def test_many_groups_release_everything(self, engine: Engine) -> None:
        """Groups that run one after the other leave no open file, thread or process."""
        with _driven(engine, "who", self._size(2), b"") as run:
            run.until_ended()  # from now on the engine is warm
        files, threads = _open_files(), set(threading.enumerate())
        pids = set()
        for _ in range(15):
            with _driven(engine, "who", self._size(2), b"") as run:
                run.until_ended()
                for rank in range(run.size):
                    ((reported, pid),) = run.messages(rank)
                    assert reported == rank
                    pids.add(pid)
        _wait_until(lambda: _open_files() <= files)
        _wait_until(lambda: threads.issuperset(threading.enumerate()))
        _wait_until(lambda: not any(_is_running(pid) for pid in pids - {os.getpid()}))

    def test_preemption(self, engine: Engine) -> None:
        """Each SIGTERM is reported once, and the worker continues."""
        self._needs_processes()
        with _driven(engine, "terminate", self._size(2), b"") as run:
            for rank in range(run.size):
                run.group.send(rank, "next")
            run.until(lambda: run.preempted() == list(range(run.size)))
            for rank in range(run.size):
                run.group.send(rank, None)
            run.until_ended()
            for rank in range(run.size):
                assert run.messages(rank) == ["terminated", "next"]
            assert run.exitcodes() == [0] * run.size
            assert run.preempted() == list(range(run.size))

    def test_dump_stacks(self, engine: Engine) -> None:
        """One worker writes its stacks, whatever it is doing, and then continues."""
        if not self.own_processes:
            with _driven(engine, "echo", 1, b"ready") as run:
                run.group.dump_stacks(0)
                run.group.send(0, None)
                run.until_ended()
                assert run.exitcodes() == [0]
            return
        with _driven(engine, "sleep", self._size(2), b"") as run:
            asked = run.size - 1
            run.when(lambda: run.received("ready"), lambda: run.group.dump_stacks(asked))
            run.until_written(asked, b"engine_entries.py")
            run.until_written(asked, b"in sleep")
            assert all(not run.sink.text(rank) for rank in range(asked))
            assert not any(type(event) is WorkerExited for event in run.events)
            run.group.kill()
            run.until_ended()

    def test_samples(self, engine: Engine) -> None:
        """What the workers use is emitted, one event for each machine."""
        with _driven(engine, "echo", self._size(3), b"ready") as run:

            def end() -> None:
                for rank in range(run.size):
                    run.group.send(rank, None)

            run.when(lambda: run.received(b"ready"), run.group.sample)
            run.when(lambda: len(run.sampled()) == run.size, end)
            run.until_ended()
            assert sorted(run.sampled()) == list(range(run.size))
            for cpu, memory in run.sampled().values():
                assert cpu >= 0
                assert memory > 1 << 20

    def test_capacity(self, engine: Engine) -> None:
        """The capacity does not depend on the group's size, and larger workers do not raise it."""
        spec = _spec("echo", 1, b"")
        room = engine.capacity(spec)
        assert isinstance(room, int)
        assert room >= 0
        assert engine.capacity(replace(spec, size=7)) == room
        assert engine.capacity(replace(spec, cpus_per_worker=2.0)) <= room

    def test_watching_the_capacity(self, engine: Engine) -> None:
        """A watch may be cancelled more than once; nothing is called after that."""
        called: list[int] = []
        with contextlib.closing(EventLoop()) as loop:
            cancel = engine.watch_capacity(loop, lambda: called.append(threading.get_ident()))
            other = engine.watch_capacity(loop, lambda: None)
            cancel()
            cancel()
            other()
            loop.call_soon(lambda: None)
            loop.run_once()
        assert called == []

    def _size(self, size: int) -> int:
        return size if self.max_size is None else min(size, self.max_size)

    def _needs_processes(self) -> None:
        if not self.own_processes:
            import pytest

            pytest.skip("workers of this engine are not separate processes")


class _Sink:
    def __init__(self) -> None:
        self._written: dict[int, bytearray] = {}
        self._inside = threading.Lock()
        self.ticks = 0
        self.closes = 0

    @property
    def closed(self) -> bool:
        return self.closes > 0

    def text(self, rank: int) -> bytes:
        return bytes(self._written.get(rank, b""))

    def write(self, rank: int, data: bytes) -> None:
        with self._exclusive():
            assert not self.closed
            self._written.setdefault(rank, bytearray()).extend(data)

    def tick(self) -> float | None:
        with self._exclusive():
            self.ticks += 1
        return None

    def close(self) -> None:
        with self._exclusive():
            self.closes += 1

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        assert self._inside.acquire(blocking=False), "a sink is never called concurrently"
        try:
            yield
        finally:
            self._inside.release()


class _Run:
    """A group with its events; every wait fails after ``PATIENCE_S`` seconds."""

    def __init__(self, engine: Engine, spec: GroupSpec, loop: EventLoop) -> None:
        self.size = spec.size
        self.loop = loop
        self.events: list[EngineEvent] = []
        self.sink = _Sink()
        self._thread = threading.get_ident()
        self._broken: list[str] = []
        self._reactions: list[tuple[Callable[[], bool], Callable[[], None]]] = []
        assert isinstance(engine.check(spec), list)
        self.group: WorkerGroup = engine.start(spec, loop, self._emit, self.sink)

    def when(self, condition: Callable[[], bool], action: Callable[[], None]) -> None:
        """Call the action, on the loop, as soon as an event makes the condition true.

        A test cannot wait by itself: if the worker is this process, only the loop runs meanwhile.
        """
        self._reactions.append((condition, action))
        self.react()

    def react(self) -> None:
        due = [reaction for reaction in self._reactions if reaction[0]()]
        for reaction in due:
            self._reactions.remove(reaction)
            self.loop.call_soon(reaction[1])

    def idle(self, seconds: float = 0.05) -> None:
        """Let the loop run for a moment."""
        passed: list[bool] = []
        self.loop.call_later(seconds, lambda: passed.append(True))
        self.loop.run_until(lambda: bool(passed))

    def until(self, done: Callable[[], bool]) -> None:
        late: list[bool] = []
        timer = self.loop.call_later(PATIENCE_S, lambda: late.append(True))
        self.loop.run_until(lambda: bool(late) or done())
        timer.cancel()
        assert done(), f"timed out after {PATIENCE_S} s; the last events: {self.events[-5:]}"

    def until_written(self, rank: int, text: bytes) -> None:
        """Wait for output. A thread of the engine writes it, so the sink has to be polled."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.sink.text(rank):
            assert time.monotonic() < deadline, self.sink.text(rank)
            self.idle(0.005)

    def until_ended(self) -> None:
        self.until(lambda: self._exited() >= self.size)

    def messages(self, rank: int) -> list[Any]:
        return [e.message for e in self.events if type(e) is WorkerMessage and e.rank == rank]

    def flat_messages(self, rank: int) -> list[Any]:
        flat: list[Any] = []
        for message in self.messages(rank):
            flat += message.items if isinstance(message, Posted) else [message]
        return flat

    def received(self, message: Any) -> bool:
        return all(message in self.messages(rank) for rank in range(self.size))

    def preempted(self) -> list[int]:
        return sorted(event.rank for event in self.events if type(event) is WorkerPreempted)

    def sampled(self) -> dict[int, tuple[float, int]]:
        """Rank → seconds of CPU, bytes in memory."""
        found: dict[int, tuple[float, int]] = {}
        for event in self.events:
            if type(event) is Sampled:
                assert event.hostname
                used = zip(event.cpu, event.memory, strict=True)
                found.update(zip(event.ranks, used, strict=True))
        return found

    def exitcodes(self) -> list[int | None]:
        codes = {event.rank: event.exitcode for event in self.events if type(event) is WorkerExited}
        return [codes[rank] for rank in range(self.size)]

    def close(self) -> None:
        self.group.close()
        assert not self._broken, self._broken
        assert self._exited() <= self.size

    def _exited(self) -> int:
        return sum(type(event) is WorkerExited for event in self.events)

    def _emit(self, event: EngineEvent) -> None:
        if threading.get_ident() != self._thread:
            self._broken.append(f"{event} was not emitted on the loop's thread")
        rank = getattr(event, "rank", None)  # a notice has none
        if any(type(e) is WorkerExited and e.rank == rank for e in self.events):
            self._broken.append(f"{event} came after the exit of its rank")
        self.events.append(event)
        self.react()


@contextlib.contextmanager
def _driven(
    engine: Engine,
    entry: str,
    size: int,
    payload: bytes,
    environment: Mapping[str, str] | None = None,
) -> Iterator[_Run]:
    with contextlib.closing(EventLoop()) as loop:
        run = _Run(engine, _spec(entry, size, payload, environment), loop)
        try:
            yield run
        except BaseException:
            run.group.close()
            raise
        run.close()


def _spec(
    entry: str, size: int, payload: bytes, environment: Mapping[str, str] | None = None
) -> GroupSpec:
    return GroupSpec(
        size=size,
        entry=f"{ENTRIES}:{entry}",
        payload=payload,
        preload=(ENTRIES,),
        environment=environment or {},
    )


def _open_files() -> int:
    return len(os.listdir("/dev/fd"))


def _is_running(pid: int) -> bool:
    try:
        if sys.platform == "linux":
            with open(f"/proc/{pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] != b"Z"
        os.kill(pid, 0)
    except (OSError, IndexError):
        return False
    return True


def _wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROMPT_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.005)
