"""The contract of every storage, and what they share: names, pieces, and what a failure says."""

from __future__ import annotations

import contextlib
import os
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
    "failing",
    "file_chunks",
    "join",
    "published_twice",
]

Buffer: TypeAlias = bytes | bytearray | memoryview

CHUNK = 16 << 20
"""The most bytes of a file that are held in memory at once."""

_UPLOADS_AT_ONCE = 8


class Storage(ABC):
    """A directory somewhere; what is in it is named relative to it, with ``/`` (``""`` is itself).

    Picklable, and safe to use from many threads and processes at once, as long as no two of them
    write the same name. Every failure is a StorageError that names the path and the cause; only a
    file that is not there, on read, is a FileNotFoundError.

    A publication is a directory that appears whole or not at all::

        put(stage("c1") + "/a"), put(stage("c1") + "/b"), …    invisible until
        publish("c1", manifest)                                the one step that makes it exist
        unpublish("c1")                                        the one that ends it, then deletes

    A directory is what its files make it: empty directories below a name are not kept.
    """

    is_local: bool

    @property
    @abstractmethod
    def root(self) -> str:
        """Where this is: an absolute local path, or the path on ``filesystem``."""

    @property
    @abstractmethod
    def uri(self) -> str:
        """``root`` for people: the URI (without secrets) where it was opened from one."""

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
        """Make the directory and those above it, where they are missing."""

    @abstractmethod
    def exists(self, name: str = "") -> bool:
        """Whether there is such a file or directory."""

    @abstractmethod
    def is_directory(self, name: str = "") -> bool:
        """Whether there is such a directory."""

    @abstractmethod
    def listdir(self, name: str = "") -> list[str]:
        """The entries of a directory, sorted; none where it is missing."""

    @abstractmethod
    def walk_files(self, name: str = "") -> dict[str, int]:
        """Every file below a directory, named relative to it → its size in bytes; sorted."""

    @abstractmethod
    def read_chunks(self, name: str) -> Iterator[bytes]:
        """A file's content, a piece at a time."""

    def read(self, name: str) -> bytes:
        """A file's content."""
        return b"".join(self.read_chunks(name))

    @abstractmethod
    def write(self, name: str, data: Buffer) -> None:
        """Create or replace a file atomically: a reader sees the old or the new, whole."""

    @abstractmethod
    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        """Store the local file ``source``.

        Not atomic: meant for staged files. ``move`` takes the file over: it is gone afterwards,
        and on the same device nothing is copied. ``flush`` waits until it would survive a power
        loss.
        """

    @abstractmethod
    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        """``put`` for content that comes in pieces."""

    def put_bytes(self, name: str, data: Buffer, *, flush: bool = True) -> None:
        """``put`` for content in memory."""
        self.put_stream(name, (data,), flush=flush)

    @abstractmethod
    def flush(self, name: str = "") -> None:
        """Wait until a file, or every file of a directory, would survive a power loss."""

    @abstractmethod
    def get(self, name: str, destination: str) -> None:
        """Copy a file or a whole directory to a local path."""

    @abstractmethod
    def stage(self, name: str) -> str:
        """The directory that takes the files of publication ``name`` before it is published."""

    @abstractmethod
    def publish(self, name: str, manifest: bytes) -> None:
        """Make what is staged exist as ``name``, in one atomic step.

        With nothing staged, a directory that lies at ``name`` already is published as it is.
        Publishing a name twice is a StorageError.
        """

    def is_published(self, name: str) -> bool:
        """Whether ``name`` is there, whole."""
        return self.exists(join(name, MANIFEST))

    def published(self, names: Iterable[str]) -> set[str]:
        """Those of the names that are there, whole."""
        found: set[str] = set()

        def look(name: str) -> None:
            if self.is_published(name):
                found.add(name)

        self.each(names, look)
        return found

    def manifest(self, name: str = "") -> bytes | None:
        """What ``name`` was published with, None where it is not published."""
        try:
            return self.read(join(name, MANIFEST))
        except FileNotFoundError:
            return None

    @abstractmethod
    def discard(self, name: str) -> None:
        """Delete what is staged for ``name`` and not published. Does nothing when called again."""

    @abstractmethod
    def unpublish(self, name: str) -> None:
        """Make ``name`` not exist, in one atomic step, then delete its files. Idempotent."""

    @abstractmethod
    def sweep(self) -> None:
        """Delete what a killed process left behind. Only while nobody else writes here."""

    def each(self, names: Iterable[str], action: Callable[[str], None]) -> None:
        """Call ``action`` on each name, several at once where that is faster here."""
        todo = list(names)
        if self.is_local or len(todo) < 2:
            for name in todo:
                action(name)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_UPLOADS_AT_ONCE, len(todo)), "lockstep-storage") as pool:
            futures = [pool.submit(action, name) for name in todo]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                for future in futures:
                    future.cancel()
                raise

    def _get_tree(self, name: str, destination: str) -> None:
        with failing("make the directory", destination):
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
    """``name`` below ``root``; a ValueError where it would lead out of it."""
    if not name:
        return root
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a name inside a storage; give a relative path.")
    return f"{root}{'' if not root or root.endswith('/') else '/'}{name}"


def published_twice(path: str) -> StorageError:
    """The error of publishing a name that is published."""
    return StorageError(f"{path!r} is published already; unpublish it first or use another name.")


@contextlib.contextmanager
def failing(doing: str, where: str, *, reading: bool = False) -> Iterator[None]:
    """Raise what fails inside as a StorageError that says what could not be done, where and why."""
    try:
        yield
    except FileNotFoundError as error:
        if reading:
            raise
        raise StorageError(f"Could not {doing} {where!r}: {_cause(error)}.") from error
    except Exception as error:
        arrow: Any = sys.modules.get("pyarrow")
        # UnicodeError: a name that is no text, which object stores cannot have.
        known = (OSError, UnicodeError, *(() if arrow is None else (arrow.ArrowException,)))
        if not isinstance(error, known):
            raise
        raise StorageError(f"Could not {doing} {where!r}: {_cause(error)}.") from error


def _cause(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text.partition(" Detail: ")[0].strip().rstrip(".") or type(error).__name__


def file_chunks(path: str) -> Iterator[bytes]:
    """A local file's content, a piece at a time."""
    with failing("read", path, reading=True), open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            yield chunk
