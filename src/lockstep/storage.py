# ruff: noqa: D102  (what a method does is said once, in Storage)
"""A directory on any filesystem, and how something in it comes to exist in one atomic step.

What a checkpoint is made of, and which ones there are, is not known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import sys
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlsplit

from lockstep.errors import StorageError

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["MANIFEST", "LocalStorage", "RemoteStorage", "Storage", "open_storage"]

Buffer: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

MANIFEST = ".lockstep_checkpoint.json"
"""The file whose presence makes a directory a published one."""

_STAGING = ".staging"
_TRASH = ".trash"
_TEMPORARY = ".lockstep-tmp-"
_CHUNK = 16 << 20
_UPLOADS_AT_ONCE = 8
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
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REMOTE_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")


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
    def child(self, name: str) -> Storage:
        """The directory ``name`` as a storage of its own."""

    def path(self, name: str = "") -> str:
        """``name`` as a path on ``filesystem``."""
        return _join(self.root, name)

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
        return self.exists(_join(name, MANIFEST))

    def manifest(self, name: str = "") -> bytes | None:
        """What ``name`` was published with, None where it is not published."""
        try:
            return self.read(_join(name, MANIFEST))
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
        with _failing("make the directory", destination):
            os.makedirs(destination, exist_ok=True)
        self.each(
            self.walk_files(name),
            lambda file: self.get(_join(name, file), os.path.join(destination, file)),
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.uri!r})"

    def __hash__(self) -> int:
        return hash(self.root)


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

    def child(self, name: str) -> LocalStorage:
        return LocalStorage(self.path(name))

    def make_directory(self, name: str = "") -> None:
        path = self.path(name)
        with _failing("make the directory", path):
            os.makedirs(path, exist_ok=True)

    def exists(self, name: str = "") -> bool:
        return os.path.exists(self.path(name))

    def is_directory(self, name: str = "") -> bool:
        return os.path.isdir(self.path(name))

    def listdir(self, name: str = "") -> list[str]:
        path = self.path(name)
        with _failing("list", path):
            try:
                entries = os.listdir(path)
            except FileNotFoundError:
                return []
        return sorted(entry for entry in entries if not entry.startswith(_TEMPORARY))

    def walk_files(self, name: str = "") -> dict[str, int]:
        path = self.path(name)
        found: dict[str, int] = {}
        with _failing("list", path, reading=True):
            if os.path.isdir(path):
                _walk(path, "", found, (os.path.realpath(path),))
        return dict(sorted(found.items()))

    def read_chunks(self, name: str) -> Iterator[bytes]:
        return _file_chunks(self.path(name))

    def read(self, name: str) -> bytes:
        path = self.path(name)
        with _failing("read", path, reading=True), open(path, "rb") as file:
            return file.read()

    def write(self, name: str, data: Buffer) -> None:
        path = self.path(name)
        folder, base = os.path.split(path)
        temporary = os.path.join(folder, f"{_TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"[:255])
        with _failing("write", path):
            os.makedirs(folder, exist_ok=True)
            with _whole_or_gone(temporary):
                _write_file(temporary, (data,))
                _fsync(temporary)
                _rename(temporary, path)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        path = self.path(name)
        with _failing("read", source, reading=True):
            status = os.lstat(source)
        # Renaming a link would store the link; another name of the same file could change it later.
        alone = not os.path.islink(source) and status.st_nlink == 1
        with _failing(f"copy {source!r} to", path):
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
        with _failing("write", path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with _whole_or_gone(path):
                _write_file(path, chunks)
            if flush:
                _fsync(path)

    def flush(self, name: str = "") -> None:
        path = self.path(name)
        with _failing("flush", path):
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
            with _failing(f"copy {path!r} to", destination, reading=True):
                os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
                _copy_file(path, destination)
            return
        self._get_tree(name, destination)

    def stage(self, name: str) -> str:
        return _join(_STAGING, name)

    def publish(self, name: str, manifest: bytes) -> None:
        if self.is_published(name):
            raise _published_twice(self.path(name))
        staged, final = self.path(self.stage(name)), self.path(name)
        with _failing("publish", final):
            if os.path.isdir(final) and not os.path.isdir(staged):
                self.write(_join(name, MANIFEST), manifest)
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
        with _failing("delete", staged):
            _remove_tree(staged)

    def unpublish(self, name: str) -> None:
        path = self.path(name)
        unique = f"{os.path.basename(path)}-{uuid.uuid4().hex[:12]}"
        trash = self.path(_join(_TRASH, unique))
        with _failing("delete", path):
            if not os.path.lexists(path):
                return
            os.makedirs(os.path.dirname(trash), exist_ok=True)
            _rename(path, trash)
            # Before any file goes: after a power loss the name must not come back half empty.
            _fsync(os.path.dirname(path))
            _remove_tree(trash)

    def sweep(self) -> None:
        with _failing("delete leftovers in", self._root):
            for folder in (_STAGING, _TRASH):
                _remove_tree(self.path(folder))
            if os.path.isdir(self._root):
                for entry in os.listdir(self._root):
                    if entry.startswith(_TEMPORARY):
                        _remove_tree(self.path(entry))


class _Connection:
    """A filesystem, given or made from a URI at first use; shared by a storage and its children."""

    def __init__(self, filesystem: Any = None, uri: str = "") -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._path = ""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Connection, (self._filesystem, self.uri)

    def filesystem(self) -> Any:
        return self.resolve()[0]

    def resolve(self) -> tuple[Any, str]:
        """The filesystem and, where it came from a URI, the path the URI stands for."""
        with self._lock:
            if self._filesystem is None:
                import pyarrow.fs

                with _failing("open", _without_secrets(self.uri)):
                    self._filesystem, self._path = pyarrow.fs.FileSystem.from_uri(
                        quote(self.uri, safe=":/?&=%@[]+,~#!$'()*;")
                    )
        return self._filesystem, self._path

    def same(self, other: _Connection) -> bool:
        if self is other or (self.uri and self.uri == other.uri):
            return True
        try:
            return bool(self.filesystem().equals(other.filesystem()))
        except StorageError:
            return False


class RemoteStorage(Storage):
    """A directory on any Arrow filesystem; publishing is the upload of the manifest, last.

    What is staged for a name lies under the name itself and is no publication without its manifest.
    What fails is tried three times, unless the cause would be the same the next time.
    """

    is_local = False

    def __init__(self, connection: _Connection, root: str, uri: str) -> None:
        self._connection = connection
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
        return self._connection.filesystem()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, RemoteStorage)
            and self._root.strip("/") == other._root.strip("/")
            and self._connection.same(other._connection)
        )

    def __hash__(self) -> int:
        return hash(self._root.strip("/"))

    def child(self, name: str) -> RemoteStorage:
        address, mark, query = self._uri.partition("?")
        return RemoteStorage(
            self._connection, self.path(name), _join(address.rstrip("/"), name) + mark + query
        )

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
        return sorted(entry for entry in names if not entry.startswith(_TEMPORARY))

    def walk_files(self, name: str = "") -> dict[str, int]:
        return {
            relative: info.size
            for relative, info in sorted(self._select(name, recursive=True), key=lambda i: i[0])
            if info.is_file and not info.base_name.startswith(_TEMPORARY)
        }

    def read_chunks(self, name: str) -> Iterator[bytes]:
        stream: Any = None
        position = 0

        def next_chunk() -> bytes:
            nonlocal stream
            if stream is None:
                stream = self._open(name, position)
            try:
                chunk: bytes = stream.read(_CHUNK)
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
            temporary = self.path(_join(folder, f"{_TEMPORARY}{uuid.uuid4().hex[:12]}-{base}"))
            self._upload(temporary, (data,))
            self.filesystem.move(temporary, self.path(name))

        self._try("write", name, write)

    def put(self, name: str, source: str, *, move: bool = False, flush: bool = True) -> None:
        with _failing("read", source, reading=True):
            os.stat(source)
        self._try("write", name, lambda: self._upload(self.path(name), _file_chunks(source)))
        if move:
            with _failing("delete", source):
                os.unlink(source)

    def put_stream(self, name: str, chunks: Iterable[Buffer], *, flush: bool = True) -> None:
        path = self.path(name)
        if isinstance(chunks, (tuple, list)):
            self._try("write", name, lambda: self._upload(path, chunks))
            return
        with _failing("write", self._shown(name)):
            self._upload(path, chunks)  # what an iterator gave once it does not give again

    def flush(self, name: str = "") -> None:
        """Nothing to do: a file is safe once it is uploaded."""

    def get(self, name: str, destination: str) -> None:
        if self.is_directory(name):
            self._get_tree(name, destination)
            return
        chunks = self.read_chunks(name)
        first = next(chunks, b"")
        with _failing(f"copy {self._shown(name)!r} to", destination):
            os.makedirs(os.path.dirname(os.path.abspath(destination)), exist_ok=True)
            _write_file(destination, _chain(first, chunks))

    def stage(self, name: str) -> str:
        return name

    def publish(self, name: str, manifest: bytes) -> None:
        if self.is_published(name):
            raise _published_twice(self._shown(name))
        self.write(_join(name, MANIFEST), manifest)

    def discard(self, name: str) -> None:
        if not self.is_published(name):
            self._delete(name)

    def unpublish(self, name: str) -> None:
        self._delete(_join(name, MANIFEST))
        self._delete(name)

    def sweep(self) -> None:
        """Nothing to do: what is not published can only be told by its name; see ``discard``."""

    def _shown(self, name: str) -> str:
        return self.child(name).uri if name else self._uri

    def _type(self, name: str) -> str:
        """``"File"``, ``"Directory"``, or nothing."""
        info = self._try("look at", name, lambda: self.filesystem.get_file_info(self.path(name)))
        kind: str = info.type.name
        return "" if kind == "NotFound" else kind

    def _select(self, name: str, *, recursive: bool) -> list[tuple[str, Any]]:
        import pyarrow.fs

        path = self.path(name)
        skip = len(path.strip("/"))
        selector = pyarrow.fs.FileSelector(path, allow_not_found=True, recursive=recursive)
        found = self._try("list", name, lambda: self.filesystem.get_file_info(selector))
        entries = [(info.path.strip("/")[skip:].strip("/"), info) for info in found]
        return [entry for entry in entries if entry[0]]

    def _try(self, doing: str, name: str, action: Callable[[], T], *, reading: bool = False) -> T:
        with _failing(doing, self._shown(name), reading=reading):
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


def open_storage(
    path: str | os.PathLike[str], filesystem: pyarrow.fs.FileSystem | None = None
) -> Storage:
    """The storage at a path, a URI, or a path on a given Arrow (or fsspec) filesystem.

    Nothing is looked at or made yet: what is wrong with the place shows at the first use.

    Raises:
        ValueError: the URI's scheme is not one that can be opened.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"The storage path {path!r} is {type(path).__name__}; give a str or Path.")
    match = _SCHEME.match(text)
    if filesystem is not None:
        return _on_filesystem(text[match.end() :] if match else text, filesystem)
    if match is None:
        return LocalStorage(os.path.expanduser(text))
    scheme = match.group(1).lower()
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"{text!r} names the host {parts.netloc!r}; write file:///… with three slashes."
            )
        return LocalStorage(unquote(parts.path))
    if scheme not in _REMOTE_SCHEMES:
        raise ValueError(
            f"{text!r} has the unknown scheme {scheme!r}; use a path or one of file, "
            f"{', '.join(_REMOTE_SCHEMES)}, or give a filesystem besides."
        )
    connection = _Connection(uri=text)
    return RemoteStorage(connection, _path_of(connection), _without_secrets(text))


def _on_filesystem(path: str, filesystem: Any) -> Storage:
    import pyarrow.fs

    if not isinstance(filesystem, pyarrow.fs.FileSystem):
        fsspec: Any = sys.modules.get("fsspec")
        if fsspec is None or not isinstance(filesystem, fsspec.AbstractFileSystem):
            raise TypeError(f"{filesystem!r} is not a filesystem; give a pyarrow.fs.FileSystem.")
        filesystem = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(filesystem))
    if isinstance(filesystem, pyarrow.fs.LocalFileSystem):
        return LocalStorage(os.path.expanduser(path))
    root = path.rstrip("/") or path[:1]
    return RemoteStorage(_Connection(filesystem), root, root)


def _path_of(connection: _Connection) -> str:
    """What a URI's filesystem calls its path, without connecting where that can be told."""
    parts = urlsplit(connection.uri)
    path = unquote(parts.path).rstrip("/")
    if parts.scheme.lower() in ("s3", "gs", "gcs"):
        return parts.netloc.rpartition("@")[2] + path
    if parts.scheme.lower() in ("hdfs", "viewfs"):
        return path or "/"
    return connection.resolve()[1].rstrip("/")


def _without_secrets(uri: str) -> str:
    return re.sub(r"://[^/@]*:[^/@]*@", "://", uri)


def _uploads_whole(filesystem: Any) -> bool:
    """Whether a file appears only once it is complete, as in object stores."""
    while filesystem.type_name == "subtree":
        filesystem = filesystem.base_fs
    return any(store in filesystem.type_name for store in ("s3", "gcs", "gs", "abfs"))


def _join(root: str, name: str) -> str:
    if not name:
        return root
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is not a name inside a storage; give a relative path.")
    return f"{root}{'' if not root or root.endswith('/') else '/'}{name}"


def _published_twice(path: str) -> StorageError:
    return StorageError(f"{path!r} is published already; unpublish it first or use another name.")


@contextlib.contextmanager
def _failing(doing: str, where: str, *, reading: bool = False) -> Iterator[None]:
    """Raise what fails inside as a StorageError that says what could not be done, where and why."""
    try:
        yield
    except FileNotFoundError as error:
        if reading:
            raise
        raise StorageError(f"Could not {doing} {where!r}: {_cause(error)}.") from error
    except Exception as error:
        arrow: Any = sys.modules.get("pyarrow")
        if not isinstance(error, OSError if arrow is None else (OSError, arrow.ArrowException)):
            raise
        raise StorageError(f"Could not {doing} {where!r}: {_cause(error)}.") from error


@contextlib.contextmanager
def _whole_or_gone(path: str) -> Iterator[None]:
    """Remove the file at ``path`` if what writes it inside fails."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _may_pass(error: OSError) -> bool:
    """Whether the same may work a moment later: a lost connection, an overloaded server."""
    if isinstance(error, _LASTING) or error.errno in _LASTING_CODES:
        return False
    return not _LASTING_WORDS.search(str(error))


def _cause(error: BaseException) -> str:
    text = getattr(error, "strerror", None) or str(error).partition("\n")[0]
    return text.partition(" Detail: ")[0].strip().rstrip(".") or type(error).__name__


def _walk(folder: str, prefix: str, found: dict[str, int], above: tuple[str, ...]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_TEMPORARY):
                continue
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                # A link to a directory above would be walked for ever.
                if real not in above:
                    _walk(entry.path, f"{prefix}{entry.name}/", found, (*above, real))
            elif entry.is_file() or entry.is_symlink():
                found[prefix + entry.name] = os.stat(entry.path).st_size


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _file_chunks(path: str) -> Iterator[bytes]:
    with _failing("read", path, reading=True), open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


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
        while chunk := reader.read(_CHUNK):
            view = memoryview(chunk)
            while view:
                view = view[writer.write(view) :]
