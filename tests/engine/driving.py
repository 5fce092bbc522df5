"""Drive a group of an engine to some point, and look at processes from outside."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lockstep.engine import Engine, GroupSpec
from lockstep.engine.base import (
    EngineEvent,
    EngineNotice,
    Posted,
    WorkerExited,
    WorkerMessage,
    WorkerPreempted,
)
from lockstep.engine.loop import EventLoop

PATIENCE_S = 60.0


class Driven:
    """A group and what came of it. It is its own output sink."""

    def __init__(self, engine: Engine, loop: EventLoop, spec: GroupSpec) -> None:
        self.loop = loop
        self.size = spec.size
        self.messages: list[list[Any]] = [[] for _ in range(spec.size)]
        self.exits: dict[int, WorkerExited] = {}
        self.output = [b""] * spec.size
        self.notices: list[str] = []
        self.preempted: list[WorkerPreempted] = []
        self.group = engine.start(spec, loop, self._event, self)

    def until(self, done: Callable[[], bool]) -> None:
        late: list[bool] = []
        timer = self.loop.call_later(PATIENCE_S, lambda: late.append(True))
        self.loop.run_until(lambda: bool(late) or done())
        timer.cancel()
        assert done(), f"not in {PATIENCE_S} s: {self.messages} {self.exits} {self.output}"

    def until_told(self) -> None:
        self.until(lambda: all(self.messages))

    def until_ended(self) -> list[int | None]:
        self.until(lambda: len(self.exits) == self.size)
        return [self.exits[rank].exitcode for rank in range(self.size)]

    def text(self, rank: int = 0) -> str:
        """What a worker printed; ends the group."""
        self.group.close()
        return self.output[rank].decode()

    def write(self, rank: int, data: bytes) -> None:
        self.output[rank] += data

    def tick(self) -> float | None:
        return None

    def close(self) -> None:
        pass

    def _event(self, event: EngineEvent) -> None:
        if isinstance(event, WorkerExited):
            assert event.rank not in self.exits
            self.exits[event.rank] = event
        elif isinstance(event, EngineNotice):
            self.notices.append(event.text)
        elif isinstance(event, WorkerPreempted):
            self.preempted.append(event)
        elif isinstance(event, WorkerMessage):
            assert event.rank not in self.exits
            message = event.message
            self.messages[event.rank] += message.items if type(message) is Posted else [message]


@contextlib.contextmanager
def driven(
    engine: Engine, entry: str, size: int = 1, payload: bytes = b"", **spec: Any
) -> Iterator[Driven]:
    if ":" not in entry:
        entry = f"tests.engine.workers:{entry}"
    with contextlib.closing(EventLoop()) as loop:
        run = Driven(engine, loop, GroupSpec(size=size, entry=entry, payload=payload, **spec))
        try:
            yield run
        finally:
            run.group.close()


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] not in (b"Z", b"X")


def members(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[3]) == session and fields[0] not in (b"Z", b"X"):
                    found.append(int(entry.name))
    return found


def wait_until(done: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
