"""The thread that reads workers' output: shared by the groups of a loop, and it loses nothing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from lockstep.engine.loop import EventLoop
from lockstep.engine.output_pump import OutputPump

PATIENCE_S = 20.0


class Sink:
    """Keeps what it gets; notes when something has come, and when it is closed."""

    def __init__(self, *, fails: bool = False, wait: float | None = None) -> None:
        self.output = [b"", b""]
        self.came = threading.Event()
        self.closed = threading.Event()
        self.ticks = threading.Semaphore(0)
        self._fails = fails
        self._wait = wait

    def write(self, rank: int, data: bytes) -> None:
        if self._fails:
            raise OSError("on purpose")
        self.output[rank] += data
        self.came.set()

    def tick(self) -> float | None:
        self.ticks.release()
        return self._wait

    def close(self) -> None:
        assert not self.closed.is_set()
        self.closed.set()


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    with contextlib.closing(EventLoop()) as loop:
        yield loop


def group(loop: EventLoop, sink: Sink, size: int = 1) -> tuple[OutputPump, list[int]]:
    """A pump, and the ends of its pipes that workers write to."""
    pipes = [os.pipe() for _ in range(size)]
    return OutputPump([read for read, _ in pipes], sink, loop), [write for _, write in pipes]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "lockstep-output"]


def test_groups_share_a_thread_until_the_loop_is_closed() -> None:
    with contextlib.closing(EventLoop()) as loop:
        one, two = Sink(), Sink()
        first, (first_end,) = group(loop, one)
        second, second_ends = group(loop, two, 2)
        assert len(readers()) == 1
        os.write(first_end, b"a")
        os.write(second_ends[1], b"b")
        first.close()
        assert (one.output, one.closed.is_set()) == ([b"a", b""], True)
        os.write(second_ends[0], b"c")
        second.close()
        second.close()
        assert two.output == [b"c", b"b"]
        third, (third_end,) = group(loop, late := Sink())
        assert len(readers()) == 1
        os.write(third_end, b"d")
    assert readers() == []
    assert (late.output[0], late.closed.is_set()) == (b"d", True)
    third.close()
    for end in (first_end, *second_ends, third_end):
        os.close(end)


def test_a_group_whose_pipes_have_ended_is_finished(loop: EventLoop) -> None:
    sink = Sink()
    pump, ends = group(loop, sink, 2)
    os.write(ends[0], b"last words")
    for end in ends:
        os.close(end)
    assert sink.closed.wait(PATIENCE_S)
    assert sink.output[0] == b"last words"
    pump.close()


def test_a_sink_that_raises_disturbs_no_other(
    loop: EventLoop, capfd: pytest.CaptureFixture[str]
) -> None:
    good = Sink()
    broken, (broken_end,) = group(loop, Sink(fails=True))
    pump, (end,) = group(loop, good)
    for _ in range(20):
        os.write(broken_end, b"x" * 60_000)  # more than a pipe holds: it has to be read
    os.write(end, b"seen")
    assert good.came.wait(PATIENCE_S)
    for each in (broken, pump):
        each.close()
    os.close(broken_end)
    os.close(end)
    assert capfd.readouterr().err.count("OSError: on purpose") == 1


def test_a_sink_is_called_when_it_wants_to_be(loop: EventLoop) -> None:
    sink = Sink(wait=0.01)
    quiet = Sink()
    pumps = [group(loop, sink), group(loop, quiet)]
    for _ in range(5):
        assert sink.ticks.acquire(timeout=PATIENCE_S)
    for pump, (end,) in pumps:
        pump.close()
        os.close(end)
    assert quiet.ticks.acquire(timeout=PATIENCE_S)  # at its start
    assert not quiet.ticks.acquire(blocking=False)
