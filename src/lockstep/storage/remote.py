# ruff: noqa: D102  (the methods are documented in Storage)
"""Storage on any Arrow filesystem, and which of its failures are retried."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.run_layout import MANIFEST, TEMPORARY
from lockstep.storage.base import (
    CHUNK,
    Buffer,
    Storage,
    already_published,
    file_chunks,
    join,
    storage_errors,
)
from lockstep.storage.local import save_local
from lockstep.storage.remote_filesystem import RemoteFilesystem

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["RemoteStorage"]

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5)
"""How long to wait before the second and before the third try of a failed operation."""
_PERMANENT = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
# A retry would only delay the message that the user has to act on.
_PERMANENT_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG)
# Object stores report most causes in the message only, as a plain OSError.
_PERMANENT_WORDS = re.compile(
    r"denied|forbidden|unauthori[sz]ed|credential|signature|access.?key|token|no.?such|not.?found"
    r"|invalid|quota",
    re.IGNORECASE,
)


_NO_LOGIN = re.compile(
    r"access.?denied|forbidden|unauthori[sz]ed|no.{0,9}credential|invalid.?access.?key|signature",
    re.IGNORECASE,
)


class RemoteStorage(Storage):
    """A directory on any Arrow filesystem; publishing uploads the manifest, as the last file.

    Object stores have no atomic rename. So the files of a publication are uploaded to their final
    place, and do not count until the manifest is there; ``unpublish`` deletes the manifest first.
    A failed operation is tried three times in all, unless its cause is permanent.
    """

    is_local = False

    def __init__(self, remote: RemoteFilesystem, root: str, uri: str) -> None:
        self._remote = remote
        self.root = root
        self.uri = uri
        self._root_created = False

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        return self._remote.get()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RemoteStorage)
            and self.root.strip("/") == other.root.strip("/")
            and self.same_filesystem(other)
        )

    def __hash__(self) -> int:
        # Without the filesystem: comparing that may need to open it.
        return hash(self.root.strip("/"))

    def same_filesystem(self, other: Storage) -> bool:
        return isinstance(other, RemoteStorage) and self._remote.same(other._remote)

    def child(self, name: str) -> RemoteStorage:
        path = self.path(name)
        if "://" not in self.uri:
            return RemoteStorage(self._remote, path, join(self.uri, name))
        address, mark, query = self.uri.partition("?")
        # These characters would end the path of the URI.
        escaped = name.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        return RemoteStorage(self._remote, path, join(address.rstrip("/"), escaped) + mark + query)

    def make_directory(self, name: str = "") -> None:
        path = self.path(name)
        if path:
            self._try(
                "make the directory",
                name,
                lambda: self.filesystem.create_dir(path, recursive=True),
            )

    @property
    def lists_at_once(self) -> bool:
        """Whether a file is in every listing as soon as it is written: known of object stores."""
        filesystem = self.filesystem
        return _is_object_store(filesystem) and not filesystem.type_name.startswith("py::")

    def modified(self) -> dict[str, float]:
        """The files at the top → when each was last written, by the store's clock."""
        found = self._select("", recursive=False)
        return {entry: info.mtime_ns / 1e9 for entry, info in found if info.mtime_ns is not None}

    def exists(self, name: str = "") -> bool:
        return bool(self._type(name))

    def is_directory(self, name: str = "") -> bool:
        return self._type(name) == "Directory"

    def listdir(self, name: str = "") -> list[str]:
        names = {relative.split("/")[0] for relative, _ in self._select(name, recursive=False)}
        return sorted(entry for entry in names if not entry.startswith(TEMPORARY))

    def walk_files(self, name: str = "") -> dict[str, int]:
        return {
            relative: info.size
            for relative, info in sorted(self._select(name, recursive=True), key=lambda i: i[0])
            if info.is_file and not info.base_name.startswith(TEMPORARY)
        }

    def read_chunks(self, name: str) -> Iterator[bytes]:
        stream: Any = None
        position = 0

        # After a lost connection a retry opens the file again, at the position reached so far.
        def next_chunk() -> bytes:
            nonlocal stream
            if stream is None:
                stream = self._open(name, position)
            try:
                chunk: bytes = stream.read(CHUNK)
            # A stream is useless after an error. The retry below must not read from it again.
            except BaseException:
                broken, stream = stream, None
                with contextlib.suppress(Exception):
                    broken.close()
                raise
            return chunk

        try:
            while chunk := self._try("read", name, next_chunk, reading=True):
                position += len(chunk)
                yield chunk
        finally:
            if stream is not None:
                stream.close()

    def write(self, name: str, data: Buffer) -> None:
        folder, _, base = name.rpartition("/")

        def write() -> None:
            # An object appears only when its upload is complete. On other filesystems a reader
            # would see half a file, so that file gets a temporary name first.
            if _is_object_store(self.filesystem):
                self._upload(self.path(name), (data,))
                return
            temporary = self.path(join(folder, f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"))
            self._upload(temporary, (data,))
            self.filesystem.move(temporary, self.path(name))

        self._try("write", name, write)

    def delete(self, name: str) -> None:
        path = self.path(name)

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(path)

        self._try("delete", name, delete)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        with storage_errors("read", source, reading=True):
            os.stat(source)
        self._try("write", name, lambda: self._upload(self.path(name), file_chunks(source)))
        if move:
            with storage_errors("delete", source):
                os.unlink(source)

    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        path = self.path(name)
        # A list can be sent again from its beginning.
        if isinstance(chunks, (tuple, list)):
            self._try("write", name, lambda: self._upload(path, chunks))
            return
        with storage_errors("write", self._display_uri(name)):
            self._upload(path, chunks)  # no retry: an iterator cannot be read a second time

    def flush(self, name: str = "") -> None:
        """Nothing to do: an uploaded file is safe."""

    def get(self, name: str, destination: str) -> None:
        if self.is_directory(name):
            self._get_tree(name, destination)
            return
        chunks = self.read_chunks(name)
        first = next(chunks, b"")
        with storage_errors(f"copy {self._display_uri(name)!r} to", destination):
            save_local(destination, itertools.chain((first,), chunks))

    def stage(self, name: str, attempt: int = 0) -> str:
        return name  # an object cannot be renamed: it is written where it stays

    def publish(self, name: str, manifest: bytes, attempt: int = 0) -> None:
        if self.is_published(name):
            raise already_published(self._display_uri(name))
        # The commit: readers look for the manifest, and one object appears at once.
        self.write(join(name, MANIFEST), manifest)

    def discard(self, name: str, attempt: int = 0) -> None:
        if not self.is_published(name):
            self._delete(name)

    def unpublish(self, name: str) -> None:
        self._delete(join(name, MANIFEST))  # first: without it the other files do not count
        self._delete(name)

    def sweep(self) -> None:
        """Delete temporary files. Unpublished ones look like any others: ``discard`` them."""
        if not _is_object_store(self.filesystem):
            for name, info in self._select("", recursive=False):
                if info.is_file and name.startswith(TEMPORARY):
                    self.delete(name)

    def _display_uri(self, name: str) -> str:
        return self.child(name).uri if name else self.uri

    def _type(self, name: str) -> str:
        """``"File"``, ``"Directory"``, or ``""`` if there is neither."""
        path = self.path(name)

        def look() -> str:
            try:
                kind: str = self.filesystem.get_file_info(path).type.name
            except NotADirectoryError:  # a parent of the path is a file
                return ""
            return "" if kind == "NotFound" else kind

        return self._try("look at", name, look)

    def _select(self, name: str, *, recursive: bool) -> list[tuple[str, Any]]:
        import pyarrow.fs

        path = self.path(name)
        # Filesystems differ in whether paths begin or end with a slash.
        skip = len(path.strip("/"))
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        found = self._try("list", name, lambda: self.filesystem.get_file_info(selector))
        entries = [(info.path.strip("/")[skip:].strip("/"), info) for info in found]
        return [entry for entry in entries if entry[0]]

    def _try(self, doing: str, name: str, action: Callable[[], T], *, reading: bool = False) -> T:
        with storage_errors(doing, self._display_uri(name), reading=reading):
            for pause in _PAUSES_S:
                try:
                    return action()
                except OSError as error:
                    if _is_refused(error, self.path(name)):
                        raise _login_error(error) from error
                    if not _is_transient(error):
                        raise
                time.sleep(pause)
            return action()  # the last try: its error is the one that the user sees

    def _open(self, name: str, position: int) -> Any:
        if not position:
            return self.filesystem.open_input_stream(self.path(name), compression=None)
        file = self.filesystem.open_input_file(self.path(name))
        file.seek(position)
        return file

    def _upload(self, path: str, chunks: Iterable[Buffer]) -> None:
        self._make_parent(path)
        stream = self.filesystem.open_output_stream(path, compression=None)
        try:
            for chunk in chunks:
                stream.write(chunk)
            stream.close()
        except BaseException:
            # Arrow cannot abort an upload: closing it stores the part that was written.
            with contextlib.suppress(Exception):
                stream.close()
            with contextlib.suppress(Exception):
                self.filesystem.delete_file(path)
            raise

    def _make_parent(self, path: str) -> None:
        if not _is_object_store(self.filesystem):
            parent = path.rpartition("/")[0]
            if parent:
                self.filesystem.create_dir(parent, recursive=True)
        elif not self._root_created:
            # Object stores need no directories, but the bucket must exist.
            if self.root:
                self.filesystem.create_dir(self.root, recursive=True)
            self._root_created = True

    def _delete(self, name: str) -> None:
        path = self.path(name)
        kind = self._type(name)

        def delete() -> None:
            with contextlib.suppress(FileNotFoundError):
                if kind == "Directory":
                    self.filesystem.delete_dir(path)
                elif kind:
                    self.filesystem.delete_file(path)

        self._try("delete", name, delete)


def _is_object_store(filesystem: Any) -> bool:
    """Whether this is an object store, where a file appears only when it is complete."""
    while filesystem.type_name == "subtree":
        filesystem = filesystem.base_fs
    return any(store in filesystem.type_name for store in ("s3", "gcs", "gs", "abfs"))


def _is_refused(error: OSError, path: str) -> bool:
    """Whether the store did not accept the login. The path may have any words in it."""
    if isinstance(error, _PERMANENT):
        return False
    return _NO_LOGIN.search(str(error).replace(path, "")) is not None


def _login_error(error: OSError) -> PermissionError:
    text = str(error).partition("\n")[0].partition(" Detail: ")[0].strip().rstrip(".")
    return PermissionError(
        f"{text}; set the store's keys in the environment, or give them in the URI or as a "
        "filesystem: they are never stored with a run"
    )


def _is_transient(error: OSError) -> bool:
    """Whether a retry may work: after a lost connection, with an overloaded server."""
    if isinstance(error, _PERMANENT) or error.errno in _PERMANENT_CODES:
        return False
    return not _PERMANENT_WORDS.search(str(error))
