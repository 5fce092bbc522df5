"""Which files the dashboard may read: regular files below the roots it was started with.

A run's directory may be somebody else's, with links in it to anywhere. A local file is opened
without following a link in its last part, and the opened file's own path is then compared with the
root, so there is no moment between the check and the reading.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from lockstep.journal.lookup import own_spools
from lockstep.journal.segments import list_segments, segment_name
from lockstep.storage import Storage, open_storage

__all__ = ["Place", "Root", "Version", "open_roots"]

_MAX_READ = 1 << 20
"""How many bytes are read at once: other runs, and the pages, wait for no longer."""


class Version(NamedTuple):
    """Tells whether a file has changed since it was read, and whether it is another file now."""

    identity: int
    size: int
    changed: int


class Root:
    """A directory or URI that the dashboard was started with."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.real = os.path.realpath(storage.root) if storage.is_local else storage.root

    @property
    def place(self) -> Place:
        """The root itself."""
        return Place(self, "")

    def holds(self, path: str) -> bool:
        """Whether a resolved local path is the root or below it."""
        return path == self.real or path.startswith(self.real.rstrip("/") + "/")


def open_roots(paths: list[str], default: str) -> list[Root]:
    """The roots for the command's arguments; without any, the results root and this user's spools.

    Raises:
        FileNotFoundError: a directory does not exist.
    """
    if not paths:
        spools = [Root(storage, storage.uri) for storage in own_spools()]
        return [Root(open_storage(default), default), *spools]
    roots = []
    for path in paths:
        storage = open_storage(path)
        if not storage.is_directory():
            raise FileNotFoundError(f"there is no directory {storage.uri}.")
        roots.append(Root(storage, storage.uri))
    return roots


class Place(NamedTuple):
    """A directory below a root. ``name`` is relative to it; found by listing, never asked for."""

    root: Root
    name: str

    @property
    def storage(self) -> Storage:
        """For what is asked of the directory itself: its lock, its URI."""
        return self.root.storage.child(self.name) if self.name else self.root.storage

    @property
    def parent(self) -> Place | None:
        """The directory above; None at the root."""
        return Place(self.root, self.name.rpartition("/")[0]) if self.name else None

    def child(self, name: str) -> Place:
        """A directory in this one.

        Raises:
            ValueError: the name would lead out of it.
        """
        if name.startswith("/") or {".", ".."} & set(name.split("/")):
            raise ValueError(f"{name!r} is not a name inside a directory")
        return Place(self.root, f"{self.name}/{name}" if self.name else name)

    def entries(self) -> list[tuple[str, bool]]:
        """Names, and whether each is a directory, in this one. A link out of the root is none."""
        if not self.root.storage.is_local:
            return self._remote_entries()
        found = []
        with suppress(OSError), os.scandir(self._path("")) as entries:
            for entry in entries:
                if entry.is_symlink() and not self.root.holds(os.path.realpath(entry.path)):
                    continue
                with suppress(OSError):
                    found.append((entry.name, entry.is_dir()))
        return sorted(found)

    def _remote_entries(self) -> list[tuple[str, bool]]:
        from pyarrow.fs import FileSelector, FileType

        storage = self.storage
        selector = FileSelector(storage.root, allow_not_found=True)
        with suppress(OSError):
            infos = storage.filesystem.get_file_info(selector)
            return sorted((info.base_name, info.type == FileType.Directory) for info in infos)
        return []

    def changed(self) -> int:
        """A number that is another one when an entry was added; -1 where that is not known."""
        if self.root.storage.is_local:
            with suppress(OSError):
                return os.stat(self._path("")).st_mtime_ns
        return -1

    def is_inside(self) -> bool:
        """Whether the directory itself is below the root, and not only a link there is."""
        local = self.root.storage.is_local
        return not local or self.root.holds(os.path.realpath(self._path("")))

    def exists(self, name: str) -> bool:
        """Whether there is a file of this name that may be read."""
        return self.version(name) is not None

    def version(self, name: str) -> Version | None:
        """The file's version; None if there is none."""
        if self.root.storage.is_local:
            with suppress(OSError):
                status = os.lstat(self._path(name))
                if stat.S_ISREG(status.st_mode):
                    return Version(status.st_ino, status.st_size, status.st_mtime_ns)
            return None
        with suppress(OSError):
            storage = self.storage
            info = storage.filesystem.get_file_info(storage.path(name))
            if info.is_file:
                size = max([info.size, *(end for _, end in list_segments(storage, name))])
                return Version(0, size, info.mtime_ns or 0)
        return None

    def read(self, name: str, start: int = 0, limit: int = _MAX_READ) -> bytes:
        """Bytes of a file from ``start``; of a remote journal, its segments, too.

        Raises:
            OSError: it is not there, is no regular file, or leads out of the root.
        """
        if self.root.storage.is_local:
            with self._open(name) as file:
                file.seek(start)
                return file.read(limit) or b""
        return b"".join(self._remote_read(name, start, limit))

    def _open(self, name: str) -> io.FileIO:
        path = self._path(name)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = io.FileIO(os.open(path, flags))
        try:
            linux = sys.platform == "linux"
            real = os.path.realpath(f"/proc/self/fd/{file.fileno()}" if linux else path)
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or not self.root.holds(real):
                raise PermissionError(f"{path} is not a file below {self.root.real}")
        except BaseException:
            file.close()
            raise
        return file

    def _path(self, name: str) -> str:
        return os.path.join(self.root.real, self.name, name).rstrip("/")

    def _remote_read(self, name: str, start: int, limit: int) -> Iterator[bytes]:
        storage = self.storage
        # Listed before the object is read: a segment that is deleted meanwhile is in the object.
        segments = list_segments(storage, name)
        size = storage.filesystem.get_file_info(storage.path(name)).size or 0
        parts = [(0, size, name), *((*part, segment_name(name, *part)) for part in segments)]
        for begin, end, file_name in parts:
            if begin <= start < end and limit > 0:
                with storage.filesystem.open_input_file(storage.path(file_name)) as file:
                    file.seek(start - begin)
                    data = file.read(min(limit, end - start))
                start, limit = start + len(data), limit - len(data)
                yield data
                if start < end:
                    return
