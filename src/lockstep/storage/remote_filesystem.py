"""Turning a URI into an Arrow filesystem and a path on it."""

from __future__ import annotations

import threading
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from lockstep.errors import StorageError
from lockstep.redact import without_secrets

__all__ = ["RemoteFilesystem", "path_of"]


class RemoteFilesystem:
    """An Arrow filesystem, either given or opened from a URI at the first use.

    A storage and its children share one. Pickled as its URI if it has one.
    """

    def __init__(self, filesystem: Any = None, uri: str = "") -> None:
        self.uri = uri
        self._filesystem = filesystem
        self._path = ""
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFilesystem, (self._filesystem, self.uri)

    def get(self) -> Any:
        """The Arrow filesystem, opened if it was not yet."""
        return self.resolve()[0]

    def resolve(self) -> tuple[Any, str]:
        """The Arrow filesystem, and the path in its URI (empty without a URI)."""
        # Many threads may ask at once, and opening can take a second and a login.
        with self._lock:
            if self._filesystem is None:
                import pyarrow.fs

                quoted = quote(self.uri, safe=":/?&=%@[]+,~#!$'()*;")
                cause = ""
                try:
                    self._filesystem, self._path = pyarrow.fs.FileSystem.from_uri(quoted)
                except (OSError, pyarrow.ArrowException) as error:
                    # Arrow repeats the URI, with its secrets.
                    cause = str(error).partition("\n")[0].rstrip(".")
                if cause:  # raised here: the error's own text must not be shown below this one
                    shown = without_secrets(self.uri)
                    for secret in (self.uri, quoted):
                        cause = cause.replace(secret, shown)
                    raise StorageError(f"Could not open {shown!r}: {cause}.")
        return self._filesystem, self._path

    def same(self, other: RemoteFilesystem) -> bool:
        """Whether a path means the same file on both."""
        if self is other or (self.uri and self.uri == other.uri):
            return True
        try:
            return bool(self.get().equals(other.get()))
        except StorageError:
            return False


def path_of(filesystem: RemoteFilesystem) -> str:
    """The path in the filesystem's URI, found without connecting if the scheme allows it."""
    parts = urlsplit(filesystem.uri)
    path = unquote(parts.path).rstrip("/")
    if parts.scheme.lower() in ("s3", "gs", "gcs"):
        return parts.netloc.rpartition("@")[2] + path
    if parts.scheme.lower() in ("hdfs", "viewfs"):
        return path or "/"
    return filesystem.resolve()[1].rstrip("/")
