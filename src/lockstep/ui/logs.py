"""The ranks' logs: their last lines, what is added to them, and lines that contain a text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from lockstep.console.text import clean, without_controls
from lockstep.run_layout import LOG_DIRECTORY, log_file
from lockstep.ui.places import Place

__all__ = ["LogTail", "log_lines", "log_ranks", "search_log"]

TAIL_BYTES = 1 << 16
_MAX_LINE = 4000
_MAX_FOUND = 500
_MAX_SEARCHED = 256 << 20
_BLOCK = 4 << 20
_MAX_BEHIND = 1 << 20
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_RANK = re.compile(r"rank_(\d{1,9})\.log")


def log_ranks(place: Place) -> list[int]:
    """The ranks that have printed something."""
    names = (_RANK.fullmatch(name) for name, _ in place.child(LOG_DIRECTORY).entries())
    return sorted(int(name[1]) for name in names if name)


class LogTail:
    """One rank's log from its last lines on.

    Attributes:
        rank: whose it is.
        unended: the line that is being written, such as a progress bar.
    """

    def __init__(self, place: Place, rank: int) -> None:
        self.rank = rank
        self.unended = ""
        self._place = place
        self._name = log_file(rank)
        version = place.version(self._name)
        self._begin(version.size if version else 0)

    def _begin(self, size: int) -> None:
        self._read = max(size - TAIL_BYTES, 0)
        self._rest = b""
        self._cut = self._read > 0
        """Where the reading began, a part of a line may be: up to the next one, it is left out."""

    def more(self) -> list[str]:
        """The complete lines since the last call."""
        version = self._place.version(self._name)
        if version is None or version.size == self._read:
            return []
        if version.size < self._read or version.size > self._read + _MAX_BEHIND:
            self._begin(version.size)  # another file; or more than anybody could follow
        try:
            data = self._place.read(self._name, self._read)
        except OSError:
            return []
        self._read += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-TAIL_BYTES:]
        self.unended = _shown(self._rest)
        if self._cut and lines:
            lines, self._cut = lines[1:], False
        return [_shown(line) for line in lines]


def log_lines(place: Place, rank: int, last: int) -> list[str]:
    """The last lines of a log."""
    tail = LogTail(place, rank)
    lines = tail.more()
    return [*lines, *([tail.unended] if tail.unended else [])][-last:]


def search_log(place: Place, rank: int, text: str) -> tuple[list[tuple[int, str]], bool]:
    """Lines that contain a text, whatever its case, with their numbers; whether there are more."""
    wanted = text.casefold()
    found: list[tuple[int, str]] = []
    for number, line in enumerate(_lines(place, log_file(rank)), 1):
        shown = _shown(line)
        if wanted in shown.casefold():
            if len(found) == _MAX_FOUND:
                return found, True
            found.append((number, shown))
    return found, False


def _lines(place: Place, name: str) -> Iterator[bytes]:
    rest, start = b"", 0
    with suppress(OSError):
        while start < _MAX_SEARCHED and (data := place.read(name, start, _BLOCK)):
            start += len(data)
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-_BLOCK:]
            yield from lines
    if rest:
        yield rest


def _shown(line: bytes) -> str:
    # A progress bar writes one line many times: the last writing is what a terminal would show.
    last = line.rstrip(b"\r").rpartition(b"\r")[2][:_MAX_LINE]
    return clean(_COLOUR.sub("", without_controls(last.decode("utf-8", "replace"))))
