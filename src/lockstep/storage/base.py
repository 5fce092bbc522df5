"""The contract of every storage, and what all storages share: names, chunks, error messages."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.errors import StorageError
from lockstep.run_layout import MANIFEST

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = [
    "CHUNK",
    "Buffer",
    "Storage",
    "already_published",
    "file_chunks",
    "join",
    "open_regular",
    "storage_errors",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

CHUNK = 16 << 20
"""How many bytes of a file are held in memory at most."""

_MAX_PARALLEL = 8
"""How many requests an object store gets at once: it takes longer to answer than to send."""


class Storage(ABC):
    """A directory. Names are relative to it, with ``/``; the name ``""`` is the directory itself.

    A storage can be pickled. Many threads and processes may use it at once, as long as no two of
    them write the same name. Every failure is a StorageError that names the path and the cause;
    only reading a file that does not exist is a FileNotFoundError.

    A publication is a directory that appears complete or not at all::

        put(stage("c1") + "/a"), put(stage("c1") + "/b"), …    invisible to readers
        publish("c1", manifest)                                one atomic step: "c1" exists
        unpublish("c1")                                        one atomic step, then files go

    Empty directories below a name are not kept.
    """

    is_local: bool
    root: str
    """An absolute local path, or the path on ``filesystem``."""
    uri: str
    """``root`` for display: the URI, without secrets, if the storage was opened from a URI."""

    @property
    @abstractmethod
    def filesystem(self) -> pyarrow.fs.FileSystem:
        """The Arrow filesystem ``root`` is a path on."""

    @abstractmethod
    def same_filesystem(self, other: Storage) -> bool:
        """Whether a path means the same file on both."""

    @abstractmethod
    def child(self, name: str) -> Storage:
        """The directory ``name`` as a storage of its own."""

    def path(self, name: str = "") -> str:
        """``name`` as a path on ``filesystem``."""
        return join(self.root, name)

    @abstractmethod
    def make_directory(self, name: str = "") -> None:
        """Create the directory and its parents, unless they exist."""

    @abstractmethod
    def exists(self, name: str = "") -> bool:
        """Whether the file or directory exists."""

    @abstractmethod
    def is_directory(self, name: str = "") -> bool:
        """Whether the name exists and is a directory."""

    @abstractmethod
    def listdir(self, name: str = "") -> list[str]:
        """The sorted entries of a directory; empty if the directory does not exist."""

    @abstractmethod
    def walk_files(self, name: str = "") -> dict[str, int]:
        """Every file below a directory, named relative to it → its size in bytes; sorted."""

    @abstractmethod
    def read_chunks(self, name: str) -> Iterator[bytes]:
        """A file's content in chunks of at most ``CHUNK`` bytes."""

    def read(self, name: str) -> bytes:
        """A file's content."""
        return b"".join(self.read_chunks(name))

    @abstractmethod
    def write(self, name: str, data: Buffer) -> None:
        """Create or replace a file atomically: readers see the old or the new content, complete."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file that is no part of a publication. Idempotent."""

    @abstractmethod
    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        """Store the local file ``source``.

        Not atomic: meant for staged files. ``move`` removes ``source``, and copies nothing if
        both are on one device. ``flush`` waits until the file would survive a power loss.
        """

    @abstractmethod
    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        """``put`` for content that arrives in chunks."""

    def put_bytes(self, name: str, data: Buffer, *, flush: bool = True) -> None:
        """``put`` for content in memory."""
        self.put_stream(name, (data,), flush=flush)

    @abstractmethod
    def flush(self, name: str = "") -> None:
        """Wait until a file, or every file of a directory, would survive a power loss."""

    @abstractmethod
    def get(self, name: str, destination: str) -> None:
        """Copy a file or a directory with everything in it to a local path."""

    @abstractmethod
    def stage(self, name: str, attempt: int = 0) -> str:
        """The directory for the files of ``name`` until ``name`` is published.

        On a filesystem that can rename, each ``attempt`` has one of its own: a process of an
        earlier attempt that was frozen and comes back writes into its own only.
        """

    @abstractmethod
    def publish(self, name: str, manifest: bytes, attempt: int = 0) -> None:
        """Make the files that an attempt has staged appear as ``name``, in one atomic step.

        Publishing a name twice is a StorageError, and so is, on a local disk, a directory at
        ``name`` that has files already.
        """

    def is_published(self, name: str) -> bool:
        """Whether ``name`` is published, and so complete."""
        return self.exists(join(name, MANIFEST))

    def published(self, names: Iterable[str]) -> set[str]:
        """The published ones of the names."""
        found: set[str] = set()

        def look(name: str) -> None:
            if self.is_published(name):
                found.add(name)

        self.each(names, look)
        return found

    def manifest(self, name: str = "") -> bytes | None:
        """The manifest ``name`` was published with; None if ``name`` is not published."""
        try:
            return self.read(join(name, MANIFEST))
        except FileNotFoundError:
            return None

    @abstractmethod
    def discard(self, name: str, attempt: int = 0) -> None:
        """Delete the unpublished files of ``name`` that an attempt has staged. Idempotent."""

    @abstractmethod
    def unpublish(self, name: str) -> None:
        """Hide ``name`` in one atomic step, then delete its files. Idempotent."""

    @abstractmethod
    def sweep(self) -> None:
        """Delete the leftovers of killed processes. No other process may write here then."""

    def each(self, names: Iterable[str], action: Callable[[str], None]) -> None:
        """Call ``action`` on each name; on remote storage, several names in parallel."""
        todo = list(names)
        # A local disk gains nothing from threads, and starting them costs.
        if self.is_local or len(todo) < 2:
            for name in todo:
                action(name)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_MAX_PARALLEL, len(todo)), "lockstep-storage") as pool:
            for _ in pool.map(action, todo):  # the first failure cancels the waiting ones
                pass

    def _get_tree(self, name: str, destination: str) -> None:
        with storage_errors("make the directory", destination):
            os.makedirs(destination, exist_ok=True)
        self.each(
            self.walk_files(name),
            lambda file: self.get(join(name, file), os.path.join(destination, file)),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def __hash__(self) -> int:
        return hash(self.root)


def join(root: str, name: str) -> str:
    """``name`` below ``root``.

    Raises:
        ValueError: the name would lead out of ``root``.
    """
    if not name:
        return root
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a name inside a storage; give a relative path.")
    return f"{root}{'' if not root or root.endswith('/') else '/'}{name}"


def already_published(path: str) -> StorageError:
    """The error for publishing a name twice."""
    return StorageError(f"{path!r} is published already; unpublish it first or use another name.")


@contextlib.contextmanager
def storage_errors(doing: str, where: str, *, reading: bool = False) -> Iterator[None]:
    """Turn failures inside into a StorageError that names the action, the path and the cause.

    While ``reading``, a FileNotFoundError stays what it is.
    """
    try:
        yield
    except Exception as error:
        # Not imported here: if pyarrow is not loaded yet, it has raised nothing.
        arrow: Any = sys.modules.get("pyarrow")
        # UnicodeError: a file name with bytes that are not text. Object stores cannot store it.
        known = (OSError, UnicodeError, *(() if arrow is None else (arrow.ArrowException,)))
        if not isinstance(error, known) or (reading and isinstance(error, FileNotFoundError)):
            raise
        raise StorageError(f"Could not {doing} {where!r}: {_cause(error)}.") from error


def _cause(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text.partition(" Detail: ")[0].strip().rstrip(".") or type(error).__name__


def open_regular(path: str) -> io.FileIO:
    """Open a local file to read it. A pipe could wait for ever, and a device never end.

    Raises:
        OSError: it is not there, or is not a regular file.
    """
    _check_regular(os.stat(path), path)
    # Opened without waiting, and looked at again: it may be another file by now.
    file = io.FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    try:
        _check_regular(os.fstat(file.fileno()), path)
    except BaseException:
        file.close()
        raise
    return file


def _check_regular(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)


def file_chunks(path: str) -> Iterator[bytes]:
    """A local file's content in chunks."""
    with storage_errors("read", path, reading=True), open_regular(path) as file:
        while chunk := file.read(CHUNK):
            yield chunk
