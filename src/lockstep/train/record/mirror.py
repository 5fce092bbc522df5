"""The spool of a run or an experiment on remote storage, and the copy of its small files there.

A journal that grows by a line a report cannot be appended to on an object store. So a run writes
its journal, logs and tables to a spool, a temporary directory of this machine, and the mirror
copies what has changed: the journal before each checkpoint is published and every second, all of
them every few seconds and at the end. An experiment's journal and the states of its callbacks
are copied in the same way. Checkpoints never go through a spool.

A small journal is always copied completely. Of a larger one, the new lines are copied as a segment
(``segments``), and the complete journal from time to time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress

from lockstep.errors import StorageError
from lockstep.journal.segments import (
    delete_segments,
    list_segments,
    read_journal,
    segment_directory,
    segment_name,
)
from lockstep.run_layout import COPIED_FILE, KEPT_FILE, SNAPSHOT_PREFIX, lock_path
from lockstep.storage import Lease, Storage
from lockstep.train.record.leftovers import take_lost_lines

__all__ = ["Mirror"]

SMALL_JOURNAL = 64 << 10
"""Up to this many bytes a journal is always copied completely."""
MANY_SEGMENTS = 64
"""With this many segments the complete journal is copied again, and replaces them."""


class Mirror:
    """A spool and its copy on ``storage``. ``sync`` and ``sync_journal`` may run in any thread.

    Args:
        storage: where the copy is.
        journal: the file that is always copied first: what it records must never be newer than
            itself.
        prefix: how the name of the temporary directory begins.
        leased: take a ``Lease``, so that no other driver copies to the same place. Without effect
            on stores where there can be none.

    Raises:
        StorageError: another driver has the lease.
    """

    def __init__(self, storage: Storage, journal: str, prefix: str, *, leased: bool) -> None:
        self._storage = storage
        self._journal = journal
        self.directory = tempfile.mkdtemp(prefix=prefix)
        self._lease: Lease | None = None
        self._keep = False
        # File → its size and time when it was copied last, to skip what has not changed.
        self._copied: dict[str, tuple[int, int]] = {}
        self._journal_end = 0
        """How much of the journal is on storage."""
        self._whole_end = 0
        """How long the journal was when it was last copied completely."""
        self.found_spool = False
        """Whether ``fetch`` has found the spool of the last driver, so that nothing is missing."""
        self._segments: set[tuple[int, int]] = set()
        self._whole_under_way: list[int] = []
        """The ends of whole copies that may still arrive; more than one if one was abandoned."""
        self._is_fetching = False
        self._unreachable: StorageError | None = None
        # Taken before anything is read: another driver may still be writing.
        if leased and Lease.is_possible(storage):
            try:
                self._lease = Lease(storage, journal)
            except BaseException:
                self.close()
                raise

    def fetch(self, names: Iterable[str]) -> None:
        """Copy these files and directories from storage into the spool."""
        self._is_fetching = True
        for name in names:
            path = os.path.join(self.directory, name)
            if name != self._journal:
                self._storage.get(name, path)
                continue
            self._segments = set(list_segments(self._storage, name))
            found = read_journal(self._storage, name)
            whole, self.found_spool = take_lost_lines(found)
            with open(path, "wb") as file:
                file.write(whole)
            if len(whole) > len(found):  # readers on storage need these lines, too
                self.sync_journal()
        self._copied = {name: _version(path) for name, path in self._files()}
        self._is_fetching = False

    def sync_journal(self) -> None:
        """Copy what is new in the journal to storage, in complete lines.

        Raises:
            StorageError: that failed, or another driver has taken over.
        """
        self.check_lease()
        size = os.path.getsize(os.path.join(self.directory, self._journal))
        if size == self._journal_end:
            return
        many = (
            size <= SMALL_JOURNAL
            # Doubling: every byte is then copied about twice in all, however long the journal gets.
            or size >= 2 * self._whole_end
            or len(self._segments) >= MANY_SEGMENTS
        )
        # A complete copy that was abandoned may still arrive and replace a newer one. Segments have
        # names of their own, so until then only they are safe.
        if not self._journal_end or (many and not self._whole_under_way):
            self._copy_whole()
        else:
            self._copy_segment()

    def check_lease(self) -> None:
        """Raise a StorageError if another driver has taken over."""
        if self._lease is not None:
            self._lease.check()

    def _note_copied(self, end: int) -> None:
        self._journal_end = max(self._journal_end, end)
        if self._is_fetching:
            return  # the journal is not locked yet: another run would take the spool for a dead one
        with (
            suppress(OSError),
            open(os.path.join(self.directory, COPIED_FILE), "w", encoding="ascii") as file,
        ):
            # On this disk, for clear_leftovers: what is copied need not be kept if this process
            # dies.
            file.write(str(self._journal_end))

    def _copy_segment(self) -> None:
        start = self._journal_end
        data = self._lines_from(start)
        if data:
            # The range is the name: readers can tell what is missing, and writing it twice is
            # harmless.
            segment = (start, start + len(data))
            self._storage.write(segment_name(self._journal, *segment), data)
            self._segments.add(segment)
            self._note_copied(segment[1])

    def _copy_whole(self) -> None:
        data = self._lines_from(0)
        if not data:
            return
        end, others = len(data), self._whole_under_way[:]
        self._whole_under_way.append(end)
        try:
            self._storage.write(self._journal, data)
        except BaseException:
            self._journal_end = self._whole_end = 0  # what is on storage now is not known
            raise
        finally:
            self._whole_under_way.remove(end)
        # A copy that was abandoned may replace this one later. So only what the shortest of them
        # has counts as copied; the next segment begins there.
        self._whole_end = min([end, *others])
        self._note_copied(self._whole_end)
        # Only after the complete copy is there: a reader always finds every line somewhere.
        if not others:
            old = {segment for segment in self._segments if segment[1] <= end}
            delete_segments(self._storage, self._journal, old)
            self._segments -= old

    def _lines_from(self, start: int) -> bytes:
        with open(os.path.join(self.directory, self._journal), "rb") as file:
            file.seek(start)
            data = file.read()
        # The driver's thread may be in the middle of a line; this is another thread.
        return data[: data.rfind(b"\n") + 1]

    def sync(self) -> None:
        """Copy the journal, then every other file that has changed."""
        self.sync_journal()
        for name, path in self._files():
            with suppress(FileNotFoundError):  # deleted since it was listed
                # Looked at before the copy: what is written during it is copied the next time.
                version = _version(path)
                if self._copied.get(name) == version:
                    continue
                if name.endswith(".pkl"):  # in one step: half of a pickled state is of no use
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
            if self._segments and not self._whole_under_way:
                self._copy_whole()
                self._storage.discard(segment_directory(self._journal))
        except StorageError as error:
            self._keep = True
            # Marks the spool, so that no later process deletes the only copy.
            with suppress(OSError), open(os.path.join(self.directory, KEPT_FILE), "w"):
                pass
            text = f"{error} The records are kept in {self.directory!r}."
            raise StorageError(text) from error

    def close(self) -> None:
        """Remove the spool, unless ``finish`` has left it, and release the lease. Idempotent."""
        if self._lease is not None and self._unreachable is None:
            self._lease.release()
        # release() would wait for a store that does not answer.
        elif self._lease is not None:
            self._lease.abandon()
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
                own = (self._journal, lock_path(self._journal), COPIED_FILE, KEPT_FILE)
                if name not in own and not name.endswith(".tmp"):
                    yield name, path


def _version(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns
