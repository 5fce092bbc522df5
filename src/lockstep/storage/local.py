# ruff: noqa: D102  (the methods are documented in Storage)
"""Storage on a mounted filesystem. Every change of a local file is made here."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from lockstep.errors import StorageError
from lockstep.run_layout import MANIFEST, STAGING_DIRECTORY, TEMPORARY, TRASH_DIRECTORY
from lockstep.storage.base import (
    CHUNK,
    Buffer,
    Storage,
    already_published,
    file_chunks,
    join,
    open_regular,
    storage_errors,
)
from lockstep.storage.writeback import Writeback

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["LocalStorage", "open_private", "save_local"]


class LocalStorage(Storage):
    """A directory on a mounted filesystem; publishing is a rename.

    A rename is atomic, but a power loss can undo it, or keep the rename and lose the content.
    So the order is: flush the files, flush their directories, rename, flush the parent.
    """

    is_local = True

    def __init__(self, root: str) -> None:
        self.root = self.uri = os.path.abspath(root)

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and self.root == other.root

    __hash__ = Storage.__hash__

    def same_filesystem(self, other: Storage) -> bool:
        return other.is_local

    def child(self, name: str) -> LocalStorage:
        return LocalStorage(self.path(name))

    def make_directory(self, name: str = "") -> None:
        path = self.path(name)
        with storage_errors("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def exists(self, name: str = "") -> bool:
        return os.path.exists(self.path(name))

    def is_directory(self, name: str = "") -> bool:
        return os.path.isdir(self.path(name))

    def listdir(self, name: str = "") -> list[str]:
        path = self.path(name)
        with storage_errors("list", path):
            try:
                entries = os.listdir(path)
            except FileNotFoundError:
                return []
        return sorted(entry for entry in entries if not entry.startswith(TEMPORARY))

    def walk_files(self, name: str = "") -> dict[str, int]:
        path = self.path(name)
        found: dict[str, int] = {}
        if os.path.isdir(path):
            _walk(path, "", found, (os.path.realpath(path),))
        return dict(sorted(found.items()))

    def read_chunks(self, name: str) -> Iterator[bytes]:
        return file_chunks(self.path(name))

    def read(self, name: str) -> bytes:
        path = self.path(name)
        with storage_errors("read", path, reading=True), open_regular(path) as file:
            return file.readall()

    def write(self, name: str, data: Buffer) -> None:
        path = self.path(name)
        folder, base = os.path.split(path)
        # In the same directory, because a rename across filesystems is not atomic.
        temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"[:255])
        with storage_errors("write", path):
            os.makedirs(folder, exist_ok=True)
            with _removed_on_failure(temporary):
                _write_file(temporary, (data,), open_private)
                _fsync(temporary)  # a rename may reach the disk before the data does
                _rename(temporary, path)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with storage_errors("delete", path):
            _remove_tree(path)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        path = self.path(name)
        with storage_errors("read", source, reading=True):
            status = os.lstat(source)
        # A renamed symbolic link would be stored as a link. A file with a second hard link could
        # be changed later through that link. Both are copied.
        renamable = not os.path.islink(source) and status.st_nlink == 1
        with storage_errors(f"copy {source!r} to", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Copying a file onto itself would empty it first.
            if os.path.exists(path) and os.path.samefile(source, path):
                return
            if not (move and renamable and _renamed(source, path)):
                with _removed_on_failure(path):
                    _copy_file(source, path, flush)
                if move:
                    os.unlink(source)
            if flush:
                _fsync(path)

    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        path = self.path(name)
        with storage_errors("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with _removed_on_failure(path):
                _write_file(path, chunks, None, flush)
            if flush:
                _fsync(path)

    def flush(self, name: str = "") -> None:
        path = self.path(name)
        with storage_errors("flush", path):
            if not os.path.isdir(path):
                _fsync(path)
                return
            for folder, _, files in os.walk(path):
                for file in files:
                    _fsync(os.path.join(folder, file))
                _fsync(folder)

    def get(self, name: str, destination: str) -> None:
        path = self.path(name)
        if not os.path.isdir(path):
            with storage_errors(f"copy {path!r} to", destination, reading=True):
                os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
                _copy_file(path, destination)
            return
        self._get_tree(name, destination)

    def stage(self, name: str, attempt: int = 0) -> str:
        return join(STAGING_DIRECTORY, f"{name}.attempt_{attempt}" if attempt else name)

    def publish(self, name: str, manifest: bytes, attempt: int = 0) -> None:
        if self.is_published(name):
            raise already_published(self.path(name))
        staged, final = self.path(self.stage(name, attempt)), self.path(name)
        with storage_errors("publish", final):
            if os.path.isdir(final) and os.listdir(final):
                raise StorageError(
                    f"{final!r} has files of somebody else, so nothing was published there; use "
                    "another name (in report(): checkpoint_dir_name)."
                )
            # The rename is the commit. Everything it makes visible is flushed before it: the
            # manifest and all directories here, the other files when they were staged.
            os.makedirs(staged, exist_ok=True)
            _write_file(os.path.join(staged, MANIFEST), (manifest,), open_private)
            _fsync(os.path.join(staged, MANIFEST))
            for folder, _, _ in os.walk(staged):
                _fsync(folder)
            os.makedirs(os.path.dirname(final), exist_ok=True)
            _rename(staged, final)
            _fsync(os.path.dirname(final))  # a power loss must not undo the rename

    def discard(self, name: str, attempt: int = 0) -> None:
        staged = self.path(self.stage(name, attempt))
        with storage_errors("delete", staged):
            _remove_tree(staged)

    def unpublish(self, name: str) -> None:
        path = self.path(name)
        # A name may be published, deleted and published again while the first is being deleted.
        unique = f"{os.path.basename(path)}-{uuid.uuid4().hex[:12]}"
        trash = self.path(join(TRASH_DIRECTORY, unique))
        with storage_errors("delete", path):
            if not os.path.lexists(path):
                return
            os.makedirs(os.path.dirname(trash), exist_ok=True)
            _rename(path, trash)
            # Flushed before any file is deleted: otherwise a power loss could bring the name back
            # with some of its files missing.
            _fsync(os.path.dirname(path))
            _remove_tree(trash)

    def sweep(self) -> None:
        with storage_errors("delete leftovers in", self.root):
            for folder in (STAGING_DIRECTORY, TRASH_DIRECTORY):
                _remove_tree(self.path(folder))
            if os.path.isdir(self.root):
                for entry in os.listdir(self.root):
                    if entry.startswith(TEMPORARY):
                        _remove_tree(self.path(entry))


def open_private(path: str, flags: int) -> int:
    """An ``opener`` for files with code or config: a new one is for its owner only.

    Unless its directory is shared on purpose, which the directory's setgid bit says: then the group
    has the rights that it has in the directory. Directories below inherit the bit.
    """
    mode = os.stat(os.path.dirname(path) or ".").st_mode
    return os.open(path, flags, 0o600 | (mode & 0o060 if mode & stat.S_ISGID else 0))


def save_local(path: str, chunks: Iterable[Buffer]) -> None:
    """Write a local file and create its directory."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    _write_file(path, chunks)


@contextlib.contextmanager
def _removed_on_failure(path: str) -> Iterator[None]:
    """Remove the file at ``path`` if writing it, inside, fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _walk(folder: str, prefix: str, found: dict[str, int], above: tuple[str, ...]) -> None:
    with storage_errors("list", folder, reading=True), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY):
                continue
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                # A link to a parent directory would make the walk endless.
                if real not in above:
                    _walk(entry.path, f"{prefix}{entry.name}/", found, (*above, real))
            elif entry.is_file():
                found[prefix + entry.name] = entry.stat().st_size
            elif entry.is_symlink() and not os.path.exists(entry.path):
                raise FileNotFoundError(
                    f"{entry.path!r} is a link to {os.readlink(entry.path)!r}, which does not "
                    "exist; write that first, or remove the link."
                )


# Every change of a local file goes through these functions, looked up at the call: tests replace
# them, to kill the process before or after the n-th change.


def _rename(source: str, destination: str) -> None:
    os.replace(source, destination)


def _renamed(source: str, destination: str) -> bool:
    """Rename; False if the two paths are on different devices."""
    try:
        _rename(source, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _write_file(
    path: str,
    chunks: Iterable[Buffer],
    opener: Callable[[str, int], int] | None = None,
    flushing: bool = False,
) -> None:
    """``flushing``: the file is flushed next, so the disk may start already."""
    with open(path, "wb", opener=opener) as file:
        writeback, size = Writeback(file.fileno()) if flushing else None, 0
        for chunk in chunks:
            size += file.write(chunk)
            if writeback is not None:
                writeback.wrote(size)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE filesystems cannot flush a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _remove_tree(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        # Of a link only the link is removed, never what the link points to.
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _succeeds(copy: Callable[[int, int, int], int], source: int, target: int, size: int) -> bool:
    try:
        return copy(source, target, size) > 0
    except OSError:
        return False


def _copy_file(source: str, destination: str, flushing: bool = False) -> None:
    """``flushing``: the copy is flushed next, so the disk may start already."""
    with open_regular(source) as reader, open(destination, "wb", buffering=0) as writer:
        writeback = Writeback(writer.fileno()) if flushing else None
        copy = getattr(os, "copy_file_range", None)
        if copy is not None:
            piece = CHUNK if flushing else 1 << 30
            # Not every filesystem supports this; the loop below copies the rest.
            while _succeeds(copy, reader.fileno(), writer.fileno(), piece):
                if writeback is not None:
                    writeback.wrote(writer.tell())
        while chunk := reader.read(CHUNK):
            view = memoryview(chunk)
            while view:
                # An unbuffered write may take less than it is given.
                view = view[writer.write(view) :]
            if writeback is not None:
                writeback.wrote(writer.tell())
