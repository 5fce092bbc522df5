"""Readable stacks, from the dumps that faulthandler writes in a worker.

Pure: no file, no clock. faulthandler lists the newest thread first and the main thread last, and
of each thread the innermost frame first. Here the main thread comes first and the most recent call
last. lockstep's own threads, and its frames around the training function, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Frame",
    "StackCollector",
    "ThreadStack",
    "first_dump",
    "has_dump",
    "is_complete",
    "parse_stacks",
    "tidy_stacks",
]

HOLD_S = 1.0
"""How long a dump may take to arrive; after that its lines are shown unchanged."""

# A progress bar may precede the first header on the same line.
_HEADER = re.compile(
    r"(?P<before>.*?)(?P<kind>Current thread|Thread) 0x[0-9a-f]+(?P<name> .*)? "
    r"\(most recent call first\):"
)
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
_MAX_HEADER = 1000
_CUT = "  ..."
_CUT_THREADS = "..."
_PACKAGE = str(Path(__file__).parents[1])
_SERVER_FILE = "/engine/forkserver.py"
_AROUND_WAIT_FILE = "/lockstep/train/torch/collectives.py"
_THREAD_FILES = ("/threading.py", "/concurrent/futures/thread.py")

SourceLine = Callable[[str, int], str]


class Frame(NamedTuple):
    """One call on a stack."""

    file: str
    line: int
    function: str


class ThreadStack(NamedTuple):
    """One thread's calls, the most recent call last."""

    frames: tuple[Frame, ...]
    name: str = ""
    is_main: bool = False
    is_cut: bool = False
    """The outermost calls are missing, because there were too many."""


def parse_stacks(lines: Sequence[str]) -> list[ThreadStack]:
    """Return the threads of one dump, the main thread first; other lines are ignored."""
    stacks: list[ThreadStack] = []
    for line in lines:
        if header := _header(line):
            stacks.append(ThreadStack((), (header["name"] or "").strip(" []")))
        elif stacks and (found := _FRAME.fullmatch(line)):
            frame = Frame(found[1], int(found[2]) if found[2].isdigit() else 0, found[3])
            stacks[-1] = stacks[-1]._replace(frames=(frame, *stacks[-1].frames))
        elif stacks and line == _CUT:
            stacks[-1] = stacks[-1]._replace(is_cut=True)
    if stacks and not (lines and lines[-1] == _CUT_THREADS):
        # The newest thread is first, so the main thread is last.
        stacks = [stacks[-1]._replace(is_main=True), *stacks[:-1]]
    return stacks


def first_dump(lines: Sequence[str]) -> list[str]:
    """Return the lines of the first dump among other output; it may be incomplete."""
    dump: list[str] = []
    for line in lines:
        if (dump and _belongs(line)) or _header(line):
            dump.append(line)
            if is_complete(dump):
                break
    return dump


def has_dump(lines: Sequence[str]) -> bool:
    """Whether there is a complete dump among other output."""
    return is_complete(first_dump(lines))


def is_complete(lines: Sequence[str]) -> bool:
    """Whether a worker's dump is complete: its last frame is the start of the fork server."""
    if not lines:
        return False
    last = _FRAME.fullmatch(lines[-1])
    if last is not None:
        return last[1] == "<string>" and last[3] == "<module>"
    if lines[-1] == _CUT:
        # Only the main thread does not begin in threading.py, but that frame was cut off.
        headers = [header for line in lines if (header := _header(line))]
        return bool(headers) and headers[-1]["kind"] == "Current thread"
    return lines[-1] == _CUT_THREADS


def tidy_stacks(
    stacks: Sequence[ThreadStack], source: SourceLine = lambda file, line: ""
) -> list[str]:
    """Return the lines to show. ``source(file, line)`` returns a line's text, or nothing."""
    package = _package_of(stacks)
    shown: list[str] = []
    for stack in stacks:
        frames = _users_frames(stack, package)
        if not frames:
            continue
        name = f"Thread {stack.name}" if stack.name else "Another thread"
        shown.append(f"{'Stack' if stack.is_main else name} (most recent call last):")
        if stack.is_cut:
            shown.append("  … (earlier calls are left out)")
        shown += _frame_lines(frames, source)
    return shown


def _package_of(stacks: Sequence[ThreadStack]) -> str:
    """Where lockstep is installed in the worker, which may be another path than here."""
    for stack in stacks:
        for frame in stack.frames:
            if frame.file.endswith("/lockstep" + _SERVER_FILE):
                return frame.file.removesuffix(_SERVER_FILE)
    return _PACKAGE


def _users_frames(stack: ThreadStack, package: str) -> list[Frame]:
    def is_ours(frame: Frame) -> bool:
        return frame.file.startswith(package + "/")

    frames = list(stack.frames)
    # A rank in a collective is in torch, and not in what measures how long it waits there.
    if len(frames) > 1 and frames[-1].file.endswith(_AROUND_WAIT_FILE):
        del frames[-1]
    if stack.is_main:
        start = 0
        while start < len(frames) and (is_ours(frames[start]) or frames[start].file == "<string>"):
            start += 1
        # Outside the training function the worker is in lockstep: keep the innermost frame.
        frames = frames[start:] or frames[-1:]
    else:
        while frames and frames[0].file.endswith(_THREAD_FILES):
            del frames[0]
        if not frames or is_ours(frames[0]):
            return []
    # Keep the first of lockstep's inner frames: it names what the user's code has called.
    while len(frames) > 1 and is_ours(frames[-1]) and is_ours(frames[-2]):
        del frames[-1]
    return frames


def _frame_lines(frames: list[Frame], source: SourceLine) -> list[str]:
    lines: list[str] = []
    repeated = 0
    for index, frame in enumerate(frames):
        # As in a Python traceback, a repeated call is shown three times, then counted.
        repeated = repeated + 1 if index and frames[index - 1] == frame else 0
        if repeated < 3:
            lines.append(f'  File "{frame.file}", line {frame.line or "?"}, in {frame.function}')
            if text := source(frame.file, frame.line).strip():
                lines.append(f"    {text}")
        elif index + 1 == len(frames) or frames[index + 1] != frame:
            times = "time" if repeated == 3 else "times"
            lines.append(f"  [Previous line repeated {repeated - 2} more {times}]")
    return lines


class StackCollector:
    """Takes a rank's output line by line and returns the expected dumps tidied and in one piece.

    Every other line is left unchanged, however much it looks like a dump: of a crash, of the
    user's own faulthandler, or printed by somebody who wants a file to be read.
    """

    def __init__(self, source: SourceLine = lambda file, line: "") -> None:
        self._source = source
        self._held: list[str] = []
        self._deadline: float | None = None
        self._expected = 0
        self._is_foreign = False  # lockstep has not requested the current dump

    def expect(self) -> None:
        """A dump was requested. May be called in any thread."""
        self._expected += 1

    def feed(self, line: str, now: float) -> list[str]:
        """Return the lines to show now: ``line``, a complete dump, or none while a dump arrives."""
        if self._held:
            if not _belongs(line):
                return [*self.flush(), *self.feed(line, now)]
            self._held.append(line)
            if not is_complete(self._held):
                return []
            dump = tidy_stacks(parse_stacks(self._held), self._source)
            self._clear()
            self._expected -= 1
            return dump
        if not self._expected:
            return [line]
        if line.startswith(("Fatal Python error", "Timeout (")):
            self._is_foreign = True
        elif not _belongs(line):
            self._is_foreign = False
        elif not self._is_foreign and (header := _header(line)):
            before = header["before"]
            self._held, self._deadline = [line[len(before) :]], now + HOLD_S
            return [before] if before else []
        return [line]

    def deadline(self) -> float | None:
        """When to call ``flush``; None while no line is held."""
        return self._deadline

    def flush(self) -> list[str]:
        """Return the held lines unchanged."""
        held = self._held
        self._clear()
        return held

    def _clear(self) -> None:
        self._held, self._deadline = [], None


def _header(line: str) -> re.Match[str] | None:
    # Two cheap tests first. Without the limit, a long line could take quadratic time.
    if len(line) > _MAX_HEADER or not line.endswith("(most recent call first):"):
        return None
    return _HEADER.fullmatch(line)


def _belongs(line: str) -> bool:
    return (
        not line
        or line in (_CUT, _CUT_THREADS, "  <no Python frame>", "  Garbage-collecting")
        or _header(line) is not None
        or _FRAME.fullmatch(line) is not None
    )
