"""Large arrays and bytes that a training function captures: kept beside its pickle, by content.

A function may capture a table of hundreds of megabytes. Its bytes are a file of the run, named by
their SHA-256. Runs on one disk share the file: a later run gets a hard link to it, so every run's
directory is complete, and the space is used once and freed with the last of them.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import pickle
from contextlib import suppress
from typing import Any

from lockstep.run_layout import OBJECT_DIRECTORY
from lockstep.storage import Storage

__all__ = ["LargeObjects", "load_with_large_objects"]

LARGE = 4 << 20
"""The smallest object, in bytes, that is kept in a file of its own."""


class LargeObjects:
    """Collects the large parts of what is pickled; ``persistent_id`` is called for each object."""

    def __init__(self) -> None:
        self._found: dict[str, memoryview] = {}
        self._known: dict[tuple[int, int], tuple[str, memoryview]] = {}

    def persistent_id(self, value: Any) -> tuple[str, bool] | None:
        """The digest, and whether the bytes may be changed; None: the value is not large."""
        kind = type(value)
        if kind is pickle.PickleBuffer:
            view = value.raw()
        elif kind is bytes or kind is bytearray:
            view = memoryview(value)
        else:
            return None
        if view.nbytes < LARGE:
            return None
        # An object is pickled several times if the first attempts fail. Hashing takes long, so do
        # it once. The view keeps the object alive, so its id stays its own.
        key = (id(view.obj), view.nbytes)
        if key not in self._known:
            self._known[key] = hashlib.sha256(view).hexdigest(), view
        digest, kept = self._known[key]
        self._found[digest] = kept
        return digest, not view.readonly

    def save(self, storage: Storage) -> None:
        """Write what was found to a run's storage, or link to another run's files."""
        for digest, view in self._found.items():
            name = f"{OBJECT_DIRECTORY}/{digest}"
            if storage.exists(name):
                continue
            if not (storage.is_local and _link(storage.path(name), digest, view.nbytes)):
                storage.make_directory(OBJECT_DIRECTORY)
                storage.write(name, view)


def load_with_large_objects(pickled: bytes, storage: Storage | None) -> Any:
    """Unpickle something whose large parts are in files of ``storage``."""
    return _Unpickler(pickled, storage).load()


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, storage: Storage | None) -> None:
        super().__init__(io.BytesIO(pickled))
        self._storage = storage

    def persistent_load(self, key: Any) -> bytes | bytearray:
        digest, writable = key
        assert self._storage is not None
        data = self._storage.read(f"{OBJECT_DIRECTORY}/{digest}")
        # The file may be a hard link, so a change in another run's directory would show here.
        if hashlib.sha256(data).hexdigest() != digest:
            file = self._storage.path(f"{OBJECT_DIRECTORY}/{digest}")
            raise ValueError(f"{file} is damaged")
        return bytearray(data) if writable else data


def _link(target: str, digest: str, size: int) -> bool:
    """Make ``target`` a link to the same file of another run in the same results."""
    results = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(target))))
    pattern = os.path.join(glob.escape(results), "*", "*", OBJECT_DIRECTORY, digest)
    for earlier in glob.iglob(pattern):
        with suppress(OSError):  # deleted meanwhile, or a filesystem without links
            if os.path.getsize(earlier) == size:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(earlier, target)
                return True
    return False
