# ruff: noqa: D102  (what a method does is said once, in Storage)
"""Storage on a mounted filesystem, and every way in which a local file is changed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lockstep.run_layout import MANIFEST, STAGING_DIRECTORY, TEMPORARY, TRASH_DIRECTORY
from lockstep.storage.base import (
    CHUNK,
    Buffer,
    Storage,
    failing,
    file_chunks,
    join,
    published_twice,
)

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["LocalStorage", "save_local"]


class LocalStorage(Storage):
    """A directory on a mounted filesystem; publishing is a rename."""

    is_local = True

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)

    @property
    def root(self) -> str:
        return self._root

    @property
    def uri(self) -> str:
        return self._root

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        import pyarrow.fs

        return pyarrow.fs.LocalFileSystem()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStorage) and self._root == other._root

    __hash__ = Storage.__hash__

    def same_filesystem(self, other: Storage) -> bool:
        return other.is_local

    def child(self, name: str) -> LocalStorage:
        return LocalStorage(self.path(name))

    def make_directory(self, name: str = "") -> None:
        path = self.path(name)
        with failing("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def exists(self, name: str = "") -> bool:
        return os.path.exists(self.path(name))

    def is_directory(self, name: str = "") -> bool:
        return os.path.isdir(self.path(name))

    def listdir(self, name: str = "") -> list[str]:
        path = self.path(name)
        with failing("list", path):
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
        with failing("read", path, reading=True), open(path, "rb") as file:
            return file.read()

    def write(self, name: str, data: Buffer) -> None:
        path = self.path(name)
        folder, base = os.path.split(path)
        temporary = os.path.join(folder, f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"[:255])
        with failing("write", path):
            os.makedirs(folder, exist_ok=True)
            with _whole_or_gone(temporary):
                _write_file(temporary, (data,))
                _fsync(temporary)
                _rename(temporary, path)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        path = self.path(name)
        with failing("read", source, reading=True):
            status = os.lstat(source)
        # Renaming a link would store the link; another name of the same file could change it later.
        alone = not os.path.islink(source) and status.st_nlink == 1
        with failing(f"copy {source!r} to", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.exists(path) and os.path.samefile(source, path):
                return
            if not (move and alone and _renamed(source, path)):
                with _whole_or_gone(path):
                    _copy_file(source, path)
                if move:
                    os.unlink(source)
            if flush:
                _fsync(path)

    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        path = self.path(name)
        with failing("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with _whole_or_gone(path):
                _write_file(path, chunks)
            if flush:
                _fsync(path)

    def flush(self, name: str = "") -> None:
        path = self.path(name)
        with failing("flush", path):
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
            with failing(f"copy {path!r} to", destination, reading=True):
                os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
                _copy_file(path, destination)
            return
        self._get_tree(name, destination)

    def stage(self, name: str) -> str:
        return join(STAGING_DIRECTORY, name)

    def publish(self, name: str, manifest: bytes) -> None:
        if self.is_published(name):
            raise published_twice(self.path(name))
        staged, final = self.path(self.stage(name)), self.path(name)
        with failing("publish", final):
            if os.path.isdir(final) and not os.path.isdir(staged):
                self.write(join(name, MANIFEST), manifest)
                _fsync(final)
                return
            os.makedirs(staged, exist_ok=True)
            _write_file(os.path.join(staged, MANIFEST), (manifest,))
            _fsync(os.path.join(staged, MANIFEST))
            for folder, _, _ in os.walk(staged):
                _fsync(folder)
            os.makedirs(os.path.dirname(final), exist_ok=True)
            _rename(staged, final)
            _fsync(os.path.dirname(final))

    def discard(self, name: str) -> None:
        staged = self.path(self.stage(name))
        with failing("delete", staged):
            _remove_tree(staged)

    def unpublish(self, name: str) -> None:
        path = self.path(name)
        unique = f"{os.path.basename(path)}-{uuid.uuid4().hex[:12]}"
        trash = self.path(join(TRASH_DIRECTORY, unique))
        with failing("delete", path):
            if not os.path.lexists(path):
                return
            os.makedirs(os.path.dirname(trash), exist_ok=True)
            _rename(path, trash)
            # Before any file goes: after a power loss the name must not come back half empty.
            _fsync(os.path.dirname(path))
            _remove_tree(trash)

    def sweep(self) -> None:
        with failing("delete leftovers in", self._root):
            for folder in (STAGING_DIRECTORY, TRASH_DIRECTORY):
                _remove_tree(self.path(folder))
            if os.path.isdir(self._root):
                for entry in os.listdir(self._root):
                    if entry.startswith(TEMPORARY):
                        _remove_tree(self.path(entry))


def save_local(path: str, chunks: Iterable[Buffer]) -> None:
    """Write a local file, and make the directory it goes to."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    _write_file(path, chunks)


@contextlib.contextmanager
def _whole_or_gone(path: str) -> Iterator[None]:
    """Remove the file at ``path`` if what writes it inside fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _walk(folder: str, prefix: str, found: dict[str, int], above: tuple[str, ...]) -> None:
    with failing("list", folder, reading=True), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY):
                continue
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                # A link to a directory above would be walked for ever.
                if real not in above:
                    _walk(entry.path, f"{prefix}{entry.name}/", found, (*above, real))
            elif entry.is_file():
                found[prefix + entry.name] = entry.stat().st_size
            elif entry.is_symlink() and not os.path.exists(entry.path):
                raise FileNotFoundError(
                    f"{entry.path!r} is a link to {os.readlink(entry.path)!r}, which does not "
                    "exist; write that first, or remove the link."
                )


# Every change of a local file is one of these, looked up when called: a test that kills the
# process before or after the n-th change replaces them.


def _rename(source: str, destination: str) -> None:
    os.replace(source, destination)


def _renamed(source: str, destination: str) -> bool:
    """Rename where both are on one device."""
    try:
        _rename(source, destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def _write_file(path: str, chunks: Iterable[Buffer]) -> None:
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


def _fsync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and FUSE mounts cannot flush a directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP) or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _remove_tree(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _copy_file(source: str, destination: str) -> None:
    with open(source, "rb", buffering=0) as reader, open(destination, "wb", buffering=0) as writer:
        copy = getattr(os, "copy_file_range", None)
        if copy is not None:
            # What the kernel cannot copy by itself, the loop below does.
            with contextlib.suppress(OSError):
                while copy(reader.fileno(), writer.fileno(), 1 << 30):
                    pass
        while chunk := reader.read(CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[writer.write(view) :]
