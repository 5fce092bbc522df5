"""Workers' output on its way to the display: bytes to lines, equal lines of ranks to one.

Both classes are pure: no file, no thread, and the clock is passed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Line", "LineCollapser", "LineSplitter"]

_MAX_CHARS = 10_000
# A character takes at most four bytes, so this many bytes always hold one character too many.
_MAX_BYTES = 4 * (_MAX_CHARS + 1)
_MAX_WAITING = 256


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
        text = self._line.decode("utf-8", "replace")
        self._line.clear()
        self._returned = False
        return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 1] + "…"


@dataclass(slots=True, eq=False)
class _Waiting:
    text: str
    deadline: float
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

    def feed(self, rank: int, line: str, now: float) -> list[Line]:
        """Takes one line of one rank; the lines to show now, earlier ones first."""
        if self._world_size <= 1:
            return [Line((rank,), line)]
        out = self.flush(now)
        for entry in self._by_text.get(line, ()):
            if rank not in entry.ranks and self._put_after_own_lines(rank, entry):
                break
        else:
            entry = _Waiting(line, now + self._window_s)
            self._waiting.append(entry)
            self._by_text.setdefault(line, []).append(entry)
        entry.ranks.add(rank)
        if len(entry.ranks) == self._world_size:
            # Every rank is past this line, so nothing before it can be said by another rank.
            out += self._release(self._waiting.index(entry) + 1)
        elif len(self._waiting) > _MAX_WAITING:
            out += self._release(1)
        return out

    def flush(self, now: float) -> list[Line]:
        """The lines that have waited long enough; all of them with ``now=math.inf``."""
        for index in range(len(self._waiting) - 1, -1, -1):
            if self._waiting[index].deadline <= now:
                return self._release(index + 1)
        return []

    def deadline(self) -> float | None:
        """When ``flush`` will next have something to give, None while nothing waits."""
        return min((entry.deadline for entry in self._waiting), default=None)

    def _put_after_own_lines(self, rank: int, entry: _Waiting) -> bool:
        """Moves what ``rank`` said ahead of ``entry``; False where another rank's order forbids it.

        Without this, ranks that each begin with a line of their own would never agree again.
        """
        start = self._waiting.index(entry)
        moved: list[_Waiting] = []
        stay: list[_Waiting] = []
        passed: set[int] = set()
        for other in self._waiting[start:]:
            if rank in other.ranks:
                if other.ranks & passed:
                    return False
                moved.append(other)
            else:
                stay.append(other)
                passed |= other.ranks
        if moved:
            self._waiting[start:] = moved + stay
        return True

    def _release(self, count: int) -> list[Line]:
        released = self._waiting[:count]
        del self._waiting[:count]
        for entry in released:
            same = self._by_text[entry.text]
            same.remove(entry)
            if not same:
                del self._by_text[entry.text]
        return [Line(tuple(sorted(entry.ranks)), entry.text) for entry in released]
