"""What ranks print on its way to their files and to the display."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.console.display import SilentDisplay
from lockstep.run_layout import log_file
from lockstep.train.driver.worker_logs import OutputRouter
from tests.counted import lines_run


class Shown(SilentDisplay):
    """Keeps the lines of workers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def labelled(self, label: str, line: str) -> None:
        self.lines.append(f"{label} {line}")


class Routed:
    """A router on a clock that is set by hand."""

    def __init__(self, directory: Path, world_size: int) -> None:
        self.now = 0.0
        self.shown = Shown()
        self.router = OutputRouter(str(directory), world_size, self.shown, lambda: self.now)

    def write(self, data: bytes, rank: int = 0) -> None:
        self.router.write(rank, data)
        self.router.tick()

    def pass_time(self, seconds: float) -> None:
        """As the engine's thread does: it calls when it was asked to."""
        end = self.now + seconds
        while (wait := self.router.tick()) is not None and self.now + wait <= end:
            self.now += wait
        self.now = end
        self.router.tick()


@contextlib.contextmanager
def routed(directory: Path, world_size: int = 1) -> Iterator[Routed]:
    run = Routed(directory, world_size)
    try:
        yield run
    finally:
        run.router.close()


def test_a_progress_bar_is_shown_now_and_then(tmp_path: Path) -> None:
    with routed(tmp_path) as run:
        for step in range(90):  # one percent in half a second
            run.write(b"\r%d%%" % step)
            run.pass_time(0.5)
        assert run.shown.lines == ["[rank 0] 19%", "[rank 0] 39%", "[rank 0] 59%", "[rank 0] 79%"]
        run.write(b"\r100%\n")
        assert run.shown.lines[4:] == ["[rank 0] 100%"]
        run.pass_time(3600)
        assert len(run.shown.lines) == 5
    assert (tmp_path / log_file(0)).read_bytes().endswith(b"\r89%\r100%\n")


def test_in_a_long_run_once_a_minute(tmp_path: Path) -> None:
    with routed(tmp_path) as run:
        run.pass_time(86_400)
        for second in range(600):
            run.write(b"\r%d s" % second)
            run.pass_time(1)
        assert 9 <= len(run.shown.lines) <= 10


def test_one_that_does_not_change_is_shown_once(tmp_path: Path) -> None:
    with routed(tmp_path) as run:
        run.write(b"loading the model ... ")
        run.pass_time(9)
        assert run.shown.lines == []
        run.pass_time(3600)
        assert run.shown.lines == ["[rank 0] loading the model ... "]
        assert run.router.tick() is None  # nothing to wake up for
        run.write(b"done\n")
        assert run.shown.lines[1:] == ["[rank 0] loading the model ... done"]


def test_it_is_not_shown_again_when_it_ends_unchanged(tmp_path: Path) -> None:
    with routed(tmp_path) as run:
        for _ in range(2):  # in the next epoch it is another line
            run.write(b"downloading ... 100%")
            run.pass_time(11)
            run.write(b"\n\n")
        assert run.shown.lines == ["[rank 0] downloading ... 100%", "[rank 0] "] * 2
        run.write(b"\r 50%")
        run.pass_time(11)
        assert run.shown.lines[4:] == ["[rank 0]  50%"]
    assert len(run.shown.lines) == 5


def test_lines_that_come_in_pieces_are_shown_complete(tmp_path: Path) -> None:
    with routed(tmp_path, 2) as run:
        for number in range(100):
            run.write(b"e %d\nlin" % number if number else b"lin")
            if number == 5:
                run.write(b"a bar", 1)
            run.pass_time(0.7)
        bars = [line for line in run.shown.lines if line == "[rank 1] a bar"]
        assert len(bars) == 1
        others = [line for line in run.shown.lines if line != "[rank 1] a bar"]
        assert others == [f"[rank 0] line {number}" for number in range(1, 100)]


def test_alike_on_several_ranks_it_is_one_line(tmp_path: Path) -> None:
    with routed(tmp_path, 2) as run:
        for rank in (0, 1):
            run.write(b"waiting", rank)
            run.pass_time(0.9)
        run.pass_time(20)
        assert run.shown.lines == ["[all ranks] waiting"]


def test_what_came_before_it_is_shown_before_it(tmp_path: Path) -> None:
    header = "Thread 0x00007f (most recent call first):"  # of a stack that never comes
    with routed(tmp_path) as run:
        run.router.expect_stacks(0)
        run.write(f"{header}\na bar".encode())
        run.now += 20  # and nobody looks
        run.router.tick()
        assert run.shown.lines == [f"[rank 0] {header}", "[rank 0] a bar"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_what_has_no_end_is_shown_at_the_end(tmp_path: Path, end: bytes) -> None:
    with routed(tmp_path) as run:
        run.write(b"a\nb" + end)
    assert run.shown.lines == ["[rank 0] a", "[rank 0] b"]


def test_every_rank_prints(tmp_path: Path) -> None:
    """The work grows with the number of ranks, not with its square. Few files are open."""
    work = []
    before = len(os.listdir("/proc/self/fd"))
    for size in (300, 600):
        with routed(tmp_path / str(size), size) as run:
            files = list((tmp_path / str(size)).rglob("*.log"))
            assert len(files) == 256, "the others are created when their ranks print"

            def one_line(run: Routed = run, size: int = size) -> None:
                for rank in range(size):
                    run.write(b"one line\na bar", rank)

            work.append(lines_run(one_line))
            assert len(os.listdir("/proc/self/fd")) - before <= 256
            run.pass_time(11)
            assert run.shown.lines == ["[all ranks] one line", "[all ranks] a bar"]
    assert work[1] < 3 * work[0]
    assert (tmp_path / "600" / log_file(599)).read_bytes() == b"one line\na bar"
