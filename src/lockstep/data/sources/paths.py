"""Finds the files of a path, a list, a glob, a directory or a URI, on any filesystem."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lockstep.errors import StorageError
from lockstep.redact import redact, without_secrets
from lockstep.storage import LocalStorage, Storage, open_storage

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["File", "Paths", "check_unchanged", "list_files", "open_input", "unreadable"]

Paths: TypeAlias = "str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"

_MAGIC = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class File:
    """A file somewhere: a path on ``storage``'s filesystem, and its size in bytes."""

    storage: Storage
    path: str
    size: int

    @property
    def is_local(self) -> bool:
        """Whether it can be memory-mapped."""
        return self.storage.is_local


def open_input(file: File) -> Any:
    """An Arrow file to read from; memory-mapped where that is possible."""
    import pyarrow as pa

    try:
        if file.is_local:
            return pa.memory_map(file.path)
        return file.storage.filesystem.open_input_file(file.path)
    except OSError as error:
        raise unreadable(file, error) from error


def check_unchanged(files: Iterable[File]) -> None:
    """Check that local files are as large as when they were listed.

    Raises:
        StorageError: a file has another size or is gone.
    """
    for file in files:
        if not file.is_local:
            continue
        try:
            size = os.stat(file.path).st_size
        except OSError as error:
            raise unreadable(file, error) from error
        if size != file.size:
            raise StorageError(
                f"{file.path!r} has {size} bytes, but had {file.size} when the dataset was made; "
                "create the dataset again."
            )


def unreadable(file: File, error: BaseException) -> StorageError:
    """The error for a file that cannot be read."""
    # Without the number and, once more, the name of the file.
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    cause = text.partition("\n")[0].strip().rstrip(".") or type(error).__name__
    return StorageError(f"Could not read {file.path!r}: {cause}.")


def list_files(
    paths: Paths,
    filesystem: pyarrow.fs.FileSystem | None,
    endings: Sequence[str] | None,
    doing: str,
    ignore_missing: bool = False,
) -> list[File]:
    """The files at these paths: in the order given, sorted in each directory and glob.

    Args:
        paths: one or more paths, globs, directories or URIs.
        filesystem: of the paths; None derives it from each path.
        endings: of the files that count in a directory, without the dot; None is all. Files and
            directories whose names begin with ``.`` or ``_`` never count in directories and globs.
        doing: the function the user called, for errors.
        ignore_missing: leave out paths that do not exist, unless none exists.

    Raises:
        FileNotFoundError: there is no such file, or no file with these endings.
    """
    if not isinstance(paths, (str, os.PathLike, Iterable)):
        raise TypeError(f"{doing}({redact(repr(paths))}): give a path, or a list of them.")
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise ValueError(f"{doing}([]): give at least one path.")
    found: list[File] = []
    missing: FileNotFoundError | None = None
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"{doing}({redact(repr(path))}): a path is a string or a Path.")
        try:
            found += _of_one(os.fspath(path), filesystem, endings, doing)
        except FileNotFoundError as error:
            if not ignore_missing:
                raise
            missing = error
    if missing is not None and not found:
        raise missing
    return found


def _of_one(
    path: str, filesystem: Any, endings: Sequence[str] | None, doing: str
) -> Iterable[File]:
    address, mark, query = path.partition("?") if "://" in path else (path, "", "")
    if _MAGIC.search(address.partition("://")[2] or address) and not os.path.exists(path):
        return _of_glob(address, mark + query, filesystem, endings, doing)
    storage = open_storage(path, filesystem)
    if isinstance(storage, LocalStorage):
        if os.path.isfile(storage.root):
            parent = LocalStorage(os.path.dirname(storage.root))
            return [File(parent, storage.root, os.path.getsize(storage.root))]
    else:
        import pyarrow.fs

        try:
            info = storage.filesystem.get_file_info(storage.root)
        except OSError as error:
            raise unreadable(File(storage, storage.uri, 0), error) from error
        if info.type == pyarrow.fs.FileType.File:
            return [File(storage, storage.root, info.size)]
    if not storage.is_directory():
        shown = without_secrets(path)
        raise FileNotFoundError(f"{doing}({shown!r}): there is no such file or directory.")
    return _in_directory(storage, path, "", endings, doing)


def _of_glob(
    path: str, query: str, filesystem: Any, endings: Sequence[str] | None, doing: str
) -> Iterable[File]:
    scheme, mark, rest = path.rpartition("://")
    parts = rest.split("/")
    plain = next(place for place, part in enumerate(parts) if _MAGIC.search(part))
    root = scheme + mark + "/".join(parts[:plain]) + query
    if plain == 1 and parts[0] == "" and not mark:
        root = "/"
    storage = open_storage(root or ".", filesystem)
    return _in_directory(storage, path, "/".join(parts[plain:]), endings, doing)


def _in_directory(
    storage: Storage, path: str, pattern: str, endings: Sequence[str] | None, doing: str
) -> list[File]:
    expression = re.compile(_translated(pattern)) if pattern else None
    files = [
        File(storage, storage.path(name), size)
        for name, size in storage.walk_files().items()
        if not any(part[0] in "._" for part in name.split("/"))
        and (expression is None or expression.fullmatch(name))
        and (endings is None or pattern or name.lower().endswith(tuple(f".{e}" for e in endings)))
    ]
    if not files:
        kinds = "" if endings is None or pattern else f" with the ending {' or '.join(endings)}"
        shown = without_secrets(path)
        raise FileNotFoundError(f"{doing}({shown!r}): there are no files{kinds} there.")
    return files


def _translated(pattern: str) -> str:
    """A glob as a regular expression: ``*`` stays within a directory, ``**`` does not."""
    tokens = re.split(r"(\*\*/|\*\*?|\?|\[!?\]?[^\]/]*\])", pattern)
    return "".join(map(_token, tokens))


def _token(text: str) -> str:
    wild = {"**/": "(?:[^/]+/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if text in wild:
        return wild[text]
    if text.startswith("[") and text.endswith("]"):
        inside = text[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(text)
