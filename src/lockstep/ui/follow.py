"""A file of lines, read from where the last reading ended."""

from __future__ import annotations

from lockstep.ui.places import Place, Version

__all__ = ["MAX_LINE", "Follower"]

_BLOCK = 1 << 20
"""How many bytes are read at once: other runs, and the pages, wait for no longer."""
MAX_LINE = 16 << 20
"""How long a line may be. A report of ten thousand ranks has a few million bytes."""


class Follower:
    """Follows one file. Each complete line is returned once, however the file grows.

    Attributes:
        read: how many bytes were read: up to the end of a line.
        size: how many bytes the file has.
        problem: why the file cannot be read now.
        damage: that a line was passed over.
    """

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.read = 0
        self.size = 0
        self.problem: str | None = None
        self.damage: str | None = None
        self._seen: Version | None = None
        self._half = 0
        """How many bytes there were without the end of a line, at the last reading."""
        self._passing = False
        """The beginning of a line that is too long was passed over, and its end was not read."""

    @property
    def behind(self) -> bool:
        """Whether there is more to read."""
        return self.read + self._half < self.size

    def more(self) -> list[bytes] | None:
        """The complete lines since the last call, a part of them if there are many.

        None if the file is another one now, or was replaced by a shorter one: start again with a
        new follower.
        """
        version = self.place.version(self.name)
        if version is None:
            return None if self.read else []
        before, self._seen = self._seen, version
        self.size = version.size
        if before is not None and before.identity != version.identity:
            return None
        if version.size < self.read:
            return None
        if version == before and not self.behind:
            return []
        try:
            data = self._block()
        except OSError as error:
            # Tried again at the next look, and not at once.
            self.problem, self._seen, self._half = str(error), None, self.size - self.read
            return []
        self.problem = None
        return self._lines(data)

    def _block(self) -> bytes:
        """What is next in the file, with the end of a line if it is not too far away."""
        limit = _BLOCK
        while True:
            data = self.place.read(self.name, self.read, limit)
            if len(data) < limit or limit >= MAX_LINE or b"\n" in data:
                return data
            limit *= 2

    def _lines(self, data: bytes) -> list[bytes]:
        end = data.rfind(b"\n") + 1
        if end == 0 and (len(data) >= MAX_LINE or self._passing):
            self.damage = f"a line of {self.name} is longer than {MAX_LINE >> 20} MiB"
            self._passing = True
            self._half = 0
            self.read += len(data)
            return []
        # A driver that resumes the run cuts off half a line: that was not counted as read.
        self._half = len(data) - end
        self.read += end
        lines = data[:end].split(b"\n")[:-1]
        if self._passing and lines:
            self._passing = False
            del lines[0]
        return lines
