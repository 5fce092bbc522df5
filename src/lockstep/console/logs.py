"""Workers' output on its way to the display: bytes to lines, equal lines of ranks to one.

Both classes are pure: no file, no thread, and the clock is passed in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Line", "LineCollapser", "LineSplitter"]

_MAX_CHARS = 10_000
# A character takes at most four bytes, so this many bytes always hold one character too many.
_MAX_BYTES = 4 * (_MAX_CHARS + 1)
# What ranks write may be apart by what a pipe holds, which is how much is read at once.
_MAX_WAITING = 8192
_MAX_WAITING_CHARS = 1_000_000
_MAX_ALIKE = 64
_MAX_MOVE = 256


class Line(NamedTuple):
    """One line to show, and the ranks (ascending) that said it."""

    ranks: tuple[int, ...]
    text: str


class LineSplitter:
    """Turns one rank's output, in chunks cut anywhere, into complete lines of text.

    Bytes that are not UTF-8 are replaced. As on a terminal, a carriage return starts the line
    over, so a progress bar counts as what it last showed. A line longer than 10,000 characters is
    cut, with an ellipsis; no more than that is ever held in memory.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._returned = False

    def feed(self, data: bytes) -> list[str]:
        """The lines that ``data`` completes."""
        *ended, rest = data.split(b"\n")
        lines = []
        for part in ended:
            self._append(part)
            lines.append(self._take())
        self._append(rest)
        return lines

    def unfinished(self) -> str:
        """What came after the last newline, so far: a progress bar, as it stands."""
        return _as_text(self._line)

    def close(self) -> list[str]:
        """What came after the last newline, as a line of its own; nothing if nothing did."""
        return [self._take()] if self._line else []

    def _append(self, part: bytes) -> None:
        # Returns at the end may belong to a "\r\n" still to come: they clear nothing yet.
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
    text: str
    deadline: float
    place: int
    """One more than the place of the line before it."""
    ranks: set[int] = field(default_factory=set)


class LineCollapser:
    """Shows a line that several ranks say at about the same time once, with all their ranks.

    A line waits up to ``window_s`` for other ranks to say it too, and comes out at once when all
    have. No line is lost, and each rank's lines come out in the order the rank wrote them; a rank
    that repeats itself is shown as often. With one rank nothing waits.
    """

    def __init__(self, world_size: int, window_s: float = 0.1) -> None:
        self._world_size = world_size
        self._window_s = window_s
        self._waiting: list[_Waiting] = []
        self._by_text: dict[str, list[_Waiting]] = {}
        self._newest: dict[int, _Waiting] = {}  # rank → the last line of its own that waits
        self._chars = 0
        self._not_due_before = math.inf

    def feed(self, rank: int, line: str, now: float) -> list[Line]:
        """Takes one line of one rank; the lines to show now, earlier ones first."""
        if self._world_size <= 1:
            return [Line((rank,), line)]
        out = self.flush(now)
        entry = self._same_line(rank, line) or self._append(line, now + self._window_s)
        entry.ranks.add(rank)
        self._newest[rank] = entry
        same = self._by_text[line]
        if len(entry.ranks) == self._world_size:
            # Every rank is past this line, so nothing before it can be said by another rank.
            out += self._release(self._index(entry) + 1)
        elif len(same) > _MAX_ALIKE:
            out += self._release(self._index(same[0]) + 1)
        while len(self._waiting) > _MAX_WAITING or self._chars > _MAX_WAITING_CHARS:
            out += self._release(1)
        return out

    def flush(self, now: float) -> list[Line]:
        """The lines that have waited long enough; all of them with ``now=math.inf``."""
        if now < self._not_due_before:
            return []
        for index in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[index].deadline <= now:
                return self._release(index + 1)
        self._not_due_before = min((entry.deadline for entry in self._waiting), default=math.inf)
        return []

    def deadline(self) -> float | None:
        """When ``flush`` will next have something to give, None while nothing waits."""
        return min((entry.deadline for entry in self._waiting), default=None)

    def _append(self, line: str, deadline: float) -> _Waiting:
        place = self._waiting[-1].place + 1 if self._waiting else 0
        entry = _Waiting(line, deadline, place)
        self._waiting.append(entry)
        self._by_text.setdefault(line, []).append(entry)
        self._chars += len(line)
        self._not_due_before = min(self._not_due_before, deadline)
        return entry

    def _same_line(self, rank: int, line: str) -> _Waiting | None:
        """The line that others have said and this rank says now."""
        same = self._by_text.get(line)
        if not same or rank in same[-1].ranks:
            return None
        for entry in same:
            if rank not in entry.ranks and self._put_after_own_lines(rank, entry):
                return entry
        return None

    def _put_after_own_lines(self, rank: int, entry: _Waiting) -> bool:
        """Moves what ``rank`` said ahead of ``entry``; False where another rank's order forbids it.

        Without this, ranks that each begin with a line of their own would never agree again.
        """
        newest = self._newest.get(rank)
        if newest is None or newest.place < entry.place:
            return True
        if newest.place - entry.place > _MAX_MOVE:
            return False
        start, end = self._index(entry), self._index(newest) + 1
        moved: list[_Waiting] = []
        stay: list[_Waiting] = []
        passed: set[int] = set()
        for other in self._waiting[start:end]:
            if rank in other.ranks:
                if other.ranks & passed:
                    return False
                moved.append(other)
            else:
                stay.append(other)
                passed |= other.ranks
        self._waiting[start:end] = moved + stay
        for place, other in enumerate(self._waiting[start:end], entry.place):
            other.place = place
        return True

    def _index(self, entry: _Waiting) -> int:
        return entry.place - self._waiting[0].place

    def _release(self, count: int) -> list[Line]:
        released = self._waiting[:count]
        del self._waiting[:count]
        for entry in released:
            self._chars -= len(entry.text)
            same = self._by_text[entry.text]
            same.remove(entry)
            if not same:
                del self._by_text[entry.text]
            for rank in entry.ranks:
                if self._newest[rank] is entry:
                    del self._newest[rank]
        return [Line(tuple(sorted(entry.ranks)), entry.text) for entry in released]
