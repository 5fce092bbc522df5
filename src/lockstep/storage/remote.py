# ruff: noqa: D102  (what a method does is said once, in Storage)
"""Storage on any Arrow filesystem, and what of its failures is tried again."""

from __future__ import annotations

import contextlib
import errno
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
    failing,
    file_chunks,
    join,
    published_twice,
)
from lockstep.storage.local import save_local
from lockstep.storage.remote_filesystem import RemoteFilesystem

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["RemoteStorage"]

T = TypeVar("T")

_PAUSES_S = (0.1, 0.5)
"""Before the second and the third try of something that failed on a remote filesystem."""
_LASTING = (
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    NotADirectoryError,
    IsADirectoryError,
)
_LASTING_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EINVAL, errno.ENAMETOOLONG)
# Object stores tell these in words only.
_LASTING_WORDS = re.compile(
    r"denied|forbidden|unauthori[sz]ed|credential|signature|access.?key|token|no.?such|not.?found"
    r"|invalid|quota",
    re.IGNORECASE,
)


class RemoteStorage(Storage):
    """A directory on any Arrow filesystem; publishing is the upload of the manifest, last.

    What is staged for a name lies under the name itself and is no publication without its manifest.
    What fails is tried three times, unless the cause would be the same the next time.
    """

    is_local = False

    def __init__(self, remote: RemoteFilesystem, root: str, uri: str) -> None:
        self._remote = remote
        self._root = root
        self._uri = uri
        self._root_made = False

    @property
    def root(self) -> str:
        return self._root

    @property
    def uri(self) -> str:
        return self._uri

    @property
    def filesystem(self) -> pyarrow.fs.FileSystem:
        return self._remote.get()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RemoteStorage)
            and self._root.strip("/") == other._root.strip("/")
            and self.same_filesystem(other)
        )

    def __hash__(self) -> int:
        return hash(self._root.strip("/"))

    def same_filesystem(self, other: Storage) -> bool:
        return isinstance(other, RemoteStorage) and self._remote.same(other._remote)

    def child(self, name: str) -> RemoteStorage:
        path = self.path(name)
        if "://" not in self._uri:
            return RemoteStorage(self._remote, path, join(self._uri, name))
        address, mark, query = self._uri.partition("?")
        # What would end a URI's path is escaped, so that the URI leads there again.
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

        def next_chunk() -> bytes:
            nonlocal stream
            if stream is None:
                stream = self._open(name, position)
            try:
                chunk: bytes = stream.read(CHUNK)
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
            if _uploads_whole(self.filesystem):
                self._upload(self.path(name), (data,))
                return
            temporary = self.path(join(folder, f"{TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"))
            self._upload(temporary, (data,))
            self.filesystem.move(temporary, self.path(name))

        self._try("write", name, write)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        with failing("read", source, reading=True):
            os.stat(source)
        self._try("write", name, lambda: self._upload(self.path(name), file_chunks(source)))
        if move:
            with failing("delete", source):
                os.unlink(source)

    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        path = self.path(name)
        if isinstance(chunks, (tuple, list)):
            self._try("write", name, lambda: self._upload(path, chunks))
            return
        with failing("write", self._shown(name)):
            self._upload(path, chunks)  # what an iterator gave once it does not give again

    def flush(self, name: str = "") -> None:
        """Nothing to do: a file is safe once it is uploaded."""

    def get(self, name: str, destination: str) -> None:
        if self.is_directory(name):
            self._get_tree(name, destination)
            return
        chunks = self.read_chunks(name)
        first = next(chunks, b"")
        with failing(f"copy {self._shown(name)!r} to", destination):
            save_local(destination, _chain(first, chunks))

    def stage(self, name: str) -> str:
        return name

    def publish(self, name: str, manifest: bytes) -> None:
        if self.is_published(name):
            raise published_twice(self._shown(name))
        self.write(join(name, MANIFEST), manifest)

    def discard(self, name: str) -> None:
        if not self.is_published(name):
            self._delete(name)

    def unpublish(self, name: str) -> None:
        self._delete(join(name, MANIFEST))
        self._delete(name)

    def sweep(self) -> None:
        """Nothing to do: unpublished files are known by their name only; see ``discard``."""

    def _shown(self, name: str) -> str:
        return self.child(name).uri if name else self._uri

    def _type(self, name: str) -> str:
        """``"File"``, ``"Directory"``, or nothing."""
        path = self.path(name)

        def look() -> str:
            try:
                kind: str = self.filesystem.get_file_info(path).type.name
            except NotADirectoryError:  # what is above it is a file
                return ""
            return "" if kind == "NotFound" else kind

        return self._try("look at", name, look)

    def _select(self, name: str, *, recursive: bool) -> list[tuple[str, Any]]:
        import pyarrow.fs

        path = self.path(name)
        skip = len(path.strip("/"))
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        found = self._try("list", name, lambda: self.filesystem.get_file_info(selector))
        entries = [(info.path.strip("/")[skip:].strip("/"), info) for info in found]
        return [entry for entry in entries if entry[0]]

    def _try(self, doing: str, name: str, action: Callable[[], T], *, reading: bool = False) -> T:
        with failing(doing, self._shown(name), reading=reading):
            for pause in _PAUSES_S:
                try:
                    return action()
                except OSError as error:
                    if not _may_pass(error):
                        raise
                time.sleep(pause)
            return action()

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
            # Arrow has no way to abandon an upload: closing it stores what came so far.
            with contextlib.suppress(Exception):
                stream.close()
            with contextlib.suppress(Exception):
                self.filesystem.delete_file(path)
            raise

    def _make_parent(self, path: str) -> None:
        if not _uploads_whole(self.filesystem):
            parent = path.rpartition("/")[0]
            if parent:
                self.filesystem.create_dir(parent, recursive=True)
        elif not self._root_made:
            # Object stores need no directories, but the bucket has to be there.
            if self._root:
                self.filesystem.create_dir(self._root, recursive=True)
            self._root_made = True

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


def _uploads_whole(filesystem: Any) -> bool:
    """Whether a file appears only once it is complete, as in object stores."""
    while filesystem.type_name == "subtree":
        filesystem = filesystem.base_fs
    return any(store in filesystem.type_name for store in ("s3", "gcs", "gs", "abfs"))


def _may_pass(error: OSError) -> bool:
    """Whether the same may work a moment later: a lost connection, an overloaded server."""
    if isinstance(error, _LASTING) or error.errno in _LASTING_CODES:
        return False
    return not _LASTING_WORDS.search(str(error))


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
