"""Opening the storage at a path or a URI, or on a given filesystem."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lockstep.redact import has_open_secret, redact, without_secrets
from lockstep.storage.base import Storage
from lockstep.storage.local import LocalStorage
from lockstep.storage.remote import RemoteStorage
from lockstep.storage.remote_filesystem import RemoteFilesystem, path_of

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["open_storage"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_REMOTE_SCHEMES = ("s3", "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")


def open_storage(
    path: str | os.PathLike[str], filesystem: pyarrow.fs.FileSystem | None = None
) -> Storage:
    """The storage at a path, a URI, or a path on a given Arrow (or fsspec) filesystem.

    Nothing is read or created: a missing or unusable place is reported at the first use.

    Raises:
        TypeError: the path is bytes, or ``filesystem`` is not a filesystem.
        ValueError: the URI's scheme is unknown, or the path is not valid.
    """
    text = os.fspath(path)
    if not isinstance(text, str):
        shown = redact(repr(path))
        raise TypeError(f"The storage path {shown} is {type(path).__name__}; give a str or Path.")
    shown = without_secrets(text)
    if "\0" in text:
        raise ValueError(f"The storage path {shown!r} has a null character in it; leave it out.")
    match = _SCHEME.match(text)
    if filesystem is not None:
        return _on_filesystem(text[match.end() :] if match else text, filesystem)
    if match is None:
        return LocalStorage(os.path.expanduser(text))
    scheme = match.group(1).lower()
    if scheme == "local":  # Ray's own for paths of this machine
        return LocalStorage(text[match.end() :])
    if scheme == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise ValueError(
                f"{shown!r} names the host {parts.netloc.rpartition('@')[2]!r}; write file:///… "
                "with three slashes."
            )
        return LocalStorage(unquote(parts.path))
    if scheme not in _REMOTE_SCHEMES:
        raise ValueError(
            f"{shown!r} has the unknown scheme {scheme!r}; use a path or one of file, "
            f"{', '.join(_REMOTE_SCHEMES)}, or give a filesystem as well."
        )
    if has_open_secret(text):
        raise ValueError(
            f"The URI {shown!r} was given with a password that has a '/', '?' or '#' in it; write "
            "these as %2F, %3F and %23, or leave the password out and set it in the environment."
        )
    remote = RemoteFilesystem(uri=text)
    return RemoteStorage(remote, path_of(remote), shown)


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
    return RemoteStorage(RemoteFilesystem(filesystem), root, root)
