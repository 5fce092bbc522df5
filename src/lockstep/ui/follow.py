"""A file of lines, read from where the last reading ended."""

from __future__ import annotations

from lockstep.ui.places import Place, Version

__all__ = ["Follower"]


class Follower:
    """Follows one file. Each complete line is returned once, however the file grows."""

    def __init__(self, place: Place, name: str) -> None:
        self.place = place
        self.name = name
        self.read = 0
        """How many bytes were read: up to the end of a line."""
        self.size = 0
        self._seen: Version | None = None
        self._half = 0
        """How many bytes there were without the end of a line, at the last reading."""

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
            data = self.place.read(self.name, self.read)
        except OSError:
            return []
        end = data.rfind(b"\n") + 1
        # A driver that resumes the run cuts off half a line: that was not counted as read.
        self._half = len(data) - end
        self.read += end
        return data[:end].split(b"\n")[:-1] if end else []
