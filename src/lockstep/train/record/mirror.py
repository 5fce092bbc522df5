"""The spool of a run or an experiment on remote storage, and the copy of its small files there.

A journal that grows by a line a report cannot be appended to on an object store. So a run writes
its journal, logs and tables to a spool, a temporary directory of this machine, and the mirror
copies what has changed: before each checkpoint is published, every few seconds, and at the end. An
experiment's journal and the states of its callbacks likewise. Checkpoints never go through a spool.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from lockstep.errors import StorageError
from lockstep.run_layout import SNAPSHOT_PREFIX, lock_path
from lockstep.storage import Storage

__all__ = ["Mirror"]


class Mirror:
    """A spool and its copy on ``storage``. ``sync`` and ``sync_journal`` may run in any thread.

    Args:
        storage: where the copy is.
        journal: the file that is always copied first, and as a whole: what it records must never
            be newer than itself.
        prefix: how the name of the temporary directory begins.
    """

    def __init__(self, storage: Storage, journal: str, prefix: str) -> None:
        self._storage = storage
        self._journal = journal
        self.directory = tempfile.mkdtemp(prefix=prefix)
        self._keep = False
        self._copied: dict[str, tuple[int, int]] = {}
        self._newest_journal = b""
        self._unreachable: StorageError | None = None

    def fetch(self, names: Iterable[str]) -> None:
        """Copy these files and directories from storage into the spool."""
        for name in names:
            self._storage.get(name, os.path.join(self.directory, name))
        self._copied = {name: _version(path) for name, path in self._files()}

    def sync_journal(self) -> None:
        """Copy the journal to storage, as one object: a driver killed meanwhile leaves the old."""
        with open(os.path.join(self.directory, self._journal), "rb") as file:
            self._newest_journal = file.read()
        written = None
        # A write of another thread that was abandoned may arrive after this one. That thread sees
        # here that there is a newer journal, and writes it again.
        while written is not self._newest_journal:
            written = self._newest_journal
            self._storage.write(self._journal, written)

    def sync(self) -> None:
        """Copy the journal, then every other file that has changed."""
        self.sync_journal()
        for name, path in self._files():
            with suppress(FileNotFoundError):  # it was there a moment ago
                version = _version(path)
                if self._copied.get(name) == version:
                    continue
                if name.endswith(".pkl"):  # half of a pickled state is of no use: in one step
                    with open(path, "rb") as file:
                        self._storage.write(name, file.read())
                else:
                    self._storage.put(name, path)
                self._copied[name] = version

    def abandon(self, error: StorageError) -> None:
        """Storage does not answer: ``finish`` does not try again."""
        self._unreachable = error

    def finish(self) -> None:
        """Copy everything for the last time.

        Raises:
            StorageError: the copy failed; the spool stays, and the error names it.
        """
        try:
            if self._unreachable is not None:
                raise self._unreachable
            self.sync()
        except StorageError as error:
            self._keep = True
            text = f"{error} The records are kept in {self.directory!r}."
            raise StorageError(text) from error

    def close(self) -> None:
        """Remove the spool, unless ``finish`` has left it. Idempotent."""
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _files(self) -> Iterator[tuple[str, str]]:
        """Name and path of each file that belongs on storage, besides the journal."""
        for directory, folders, files in os.walk(self.directory):
            folders[:] = [name for name in folders if not name.startswith(SNAPSHOT_PREFIX)]
            for file in files:
                path = os.path.join(directory, file)
                name = os.path.relpath(path, self.directory).replace(os.sep, "/")
                # A file that is being written has this ending until it is complete.
                own = (self._journal, lock_path(self._journal))
                if name not in own and not name.endswith(".tmp"):
                    yield name, path


def _version(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
