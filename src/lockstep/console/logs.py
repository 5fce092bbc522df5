"""From workers' output to lines for the display: split bytes into lines, show equal lines once.

Both classes are pure: no file, no thread, and the clock is passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Line", "LineCollapser", "LineSplitter"]

_MAX_CHARS = 10_000
# A character has at most four bytes: this many bytes always hold one character too many.
_MAX_BYTES = 4 * (_MAX_CHARS + 1)
# A pipe's content is read at once, so one rank may be that many lines before the others.
_MAX_WAITING = 8192
_MAX_WAITING_CHARS = 1_000_000
_MAX_REPEATED = 64


class Line(NamedTuple):
    """One line to show, and the ranks (ascending) that wrote it."""

    ranks: tuple[int, ...]
    text: str


class LineSplitter:
    """Splits one rank's output, which arrives in arbitrary chunks, into lines of text.

    Bytes that are not UTF-8 are replaced. As on a terminal, a carriage return starts the line
    over: of a progress bar, only the last text remains. A line longer than 10,000 characters is
    cut and ends with an ellipsis; no more than that is held in memory.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._returned = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes."""
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            self._append(part)
            lines.append(self._take())
        self._append(rest)
        return lines

    def unfinished(self) -> str:
        """Return the text after the last newline, such as a progress bar."""
        return _as_text(self._line)

    def close(self) -> list[str]:
        """Return the text after the last newline as a line, or no line if there is none."""
        return [self._take()] if self._line else []

    def _append(self, part: bytes) -> None:
        # A "\r" at the end may be the first half of "\r\n": it clears nothing yet.
        body = part.rstrip(b"\r")
        if body:
            start = body.rfind(b"\r") + 1
            if start or self._returned:
                self._line.clear()
            room = _MAX_BYTES - len(self._line)
            self._line += body[start : start + room]
            self._returned = False
        if len(body) < len(part):
            self._returned = True

    def _take(self) -> str:
        text = _as_text(self._line)
        self._line.clear()
        self._returned = False
        return text


def _as_text(line: bytearray) -> str:
    text = line.decode("utf-8", "replace")
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


@dataclass(slots=True, eq=False)
class _Waiting:
    """A line that is not shown yet; once it is shown, ``ranks`` is empty."""

    text: str
    deadline: float
    ranks: dict[int, None] = field(default_factory=dict)  # in the order in which they wrote it
    in_progress: bool = False


class LineCollapser:
    """Shows a line that several ranks write at about the same time once, with all their ranks.

    A line waits up to ``window_s`` for other ranks to write it, too, and is shown at once when all
    have. No line is lost. Each rank's lines are shown in the order that the rank wrote them, and a
    line that a rank repeats is shown as often. With one rank no line waits.
    """

    def __init__(self, world_size: int, window_s: float = 0.1) -> None:
        self._world_size = world_size
        self._window_s = window_s
        self._queues: list[deque[_Waiting]] = [deque() for _ in range(world_size)]
        self._oldest: deque[_Waiting] = deque()  # by deadline; lines shown earlier stay for a while
        self._by_text: dict[str, list[_Waiting]] = {}
        self._chars = 0

    def feed(self, rank: int, line: str, now: float) -> list[Line]:
        """Take a line of one rank; return the lines to show now."""
        if self._world_size <= 1:
            return [Line((rank,), line)]
        shown = self.flush(now)
        same = self._by_text.setdefault(line, [])
        waiting = None
        if same and rank not in same[-1].ranks:  # spares a rank that repeats itself the search
            waiting = next(one for one in same if rank not in one.ranks)
        if waiting is None:
            waiting = _Waiting(line, now + self._window_s)
            same.append(waiting)
            self._oldest.append(waiting)
            self._chars += len(line)
        waiting.ranks[rank] = None
        self._queues[rank].append(waiting)
        if len(waiting.ranks) == self._world_size:
            self._show(waiting, shown)
        elif len(same) > _MAX_REPEATED:
            self._show(same[0], shown)
        while len(self._oldest) > _MAX_WAITING or self._chars > _MAX_WAITING_CHARS:
            self._show(self._oldest[0], shown)
        return shown

    def flush(self, now: float) -> list[Line]:
        """Return the lines that have waited long enough; every line with ``now=math.inf``."""
        shown: list[Line] = []
        while self._oldest and self._oldest[0].deadline <= now:
            self._show(self._oldest[0], shown)
        return shown

    def deadline(self) -> float | None:
        """When ``flush`` will next return a line; None while no line waits."""
        return self._oldest[0].deadline if self._oldest else None

    def _show(self, last: _Waiting, shown: list[Line]) -> None:
        """Append ``last`` to ``shown``, after the lines that its ranks wrote before it.

        The order is a topological sort over the ranks' queues. Where two ranks wrote the same
        lines in different orders there is none: then one of them is shown separately.
        """
        stack = [last]
        while stack:
            waiting = stack[-1]
            waiting.in_progress = True
            for rank in waiting.ranks:
                earlier = self._queues[rank][0]
                if earlier is waiting:
                    continue
                if earlier.in_progress:  # a cycle: ``rank`` is shown without the others
                    del earlier.ranks[rank]
                    self._queues[rank].popleft()
                    shown.append(Line((rank,), earlier.text))
                else:
                    stack.append(earlier)
                break
            else:
                stack.pop()
                self._remove(waiting)
                if waiting.ranks:  # else each of its ranks was shown separately
                    shown.append(Line(tuple(sorted(waiting.ranks)), waiting.text))
                    waiting.ranks = {}
        while self._oldest and not self._oldest[0].ranks:
            self._oldest.popleft()

    def _remove(self, waiting: _Waiting) -> None:
        for rank in waiting.ranks:
            self._queues[rank].popleft()
        self._chars -= len(waiting.text)
        same = self._by_text[waiting.text]
        same.remove(waiting)
        if not same:
            del self._by_text[waiting.text]
