"""A state in memory that goes from one driver to the next: ``lockstep run --reload``.

    driver ── give() ──▶ the process above ──▶ the next driver: its run starts from the memory
                              │                and writes it beside that; stored() ──▶ freed
                              └─ no driver takes it, since the new code is broken: main() writes it

The memory is the workers' (``state.memory``). It has no name, so what is given are descriptors.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from lockstep.config import CheckpointUploadMode
from lockstep.journal.lock import Lock
from lockstep.journal.records import RunRecords, existing_checkpoints
from lockstep.retention import CheckpointRecord
from lockstep.run_layout import JOURNAL_FILE, METADATA_FILE
from lockstep.state.memory import create_memory
from lockstep.storage import Storage, open_storage
from lockstep.train.driver.events import Save
from lockstep.train.driver.memory import StateMemory
from lockstep.train.protocol import MemoryPart
from lockstep.train.record.run import Run
from lockstep.warm.reload_session import MAX_DESCRIPTORS, ReloadSession

__all__ = ["Handed", "Reloading", "main"]


class Handed(NamedTuple):
    """A complete state in memory, whose descriptors are this process's."""

    record: CheckpointRecord
    parts: tuple[MemoryPart, ...]
    metadata: dict[str, Any]

    def save(self) -> Save:
        """What the state machine knows of a state whose ranks are gone."""
        return Save(
            name=self.record.name,
            id=self.record.id,
            mode=CheckpointUploadMode.ASYNC,
            reports=(),
            report_number=self.record.index,
            snapshots_due=frozenset(),
            parts_due=frozenset(),
            is_row=False,
            is_state=True,
            committing=True,
            adopted=True,
        )

    def close(self) -> None:
        """Free the memory, as far as this process has it."""
        for part in self.parts:
            os.close(part.descriptor)


class Reloading:
    """One call of ``fit()`` under ``lockstep run --reload``.

    Args:
        session: the connection to the process above.
        number: of the call.
        run: what it drives, not begun yet.

    Attributes:
        taken: the state that the driver before has given away, and that is not on storage yet.
        gives: whether this driver may give one away.
    """

    def __init__(self, session: ReloadSession, number: int, run: Run) -> None:
        self.session = session
        self._number = number
        # Elsewhere than in a local directory nobody but the driver could write it.
        self.gives = run.storage.is_local
        self.taken: Handed | None = None
        self._is_kept = False
        descriptors = session.take(number)
        if descriptors:
            self._is_kept = True
            handed = _unpack(descriptors)
            # A run that is not restored is another one: that of the state was deleted.
            if run.restored and _is_new(handed.record, run.newest_stored()):
                self.taken, run.pending = handed, handed.record
            else:
                handed.close()
                self.stored()

    def give(
        self, record: CheckpointRecord, parts: Sequence[MemoryPart], metadata: Mapping[str, Any]
    ) -> bool:
        """Give a state away, which nobody writes here then; False if nobody takes it."""
        if not self.gives or not 0 < len(parts) < MAX_DESCRIPTORS:
            return False
        with suppress(OSError):
            content = pickle.dumps(Handed(record, tuple(parts), dict(metadata)))
            described, _ = create_memory(len(content))
            try:
                os.pwrite(described, content, 0)
                files = [described, *(part.descriptor for part in parts)]
                self.session.hand_over(self._number, files)
            finally:
                os.close(described)
            return True
        return False

    def stored(self) -> None:
        """A state is on storage: the process above may free what it keeps."""
        if self._is_kept:
            self._is_kept = False
            self.session.stored(self._number)


def _is_new(record: CheckpointRecord, newest: CheckpointRecord | None) -> bool:
    return newest is None or record.id > newest.id


def _unpack(descriptors: Sequence[int]) -> Handed:
    described, *rest = descriptors
    with open(described, "rb") as file:
        file.seek(0)  # the offset is shared by all who have the memory
        handed: Handed = pickle.load(file)
    parts = tuple(
        part._replace(pid=os.getpid(), descriptor=descriptor)
        for part, descriptor in zip(handed.parts, rest, strict=True)
    )
    return handed._replace(parts=parts)


def _write(handed: Handed, storage: Storage) -> None:
    record = handed.record
    lock = Lock(os.path.join(storage.root, JOURNAL_FILE))
    try:
        stored = existing_checkpoints(storage, RunRecords(storage).checkpoints)
        if not _is_new(record, stored[-1] if stored else None):
            return
        directory = storage.stage(record.name)
        memory = StateMemory()
        memory.take(record.name, record.id, handed.parts)
        memory.write(record.name, storage, directory)
        if handed.metadata:
            storage.put_bytes(f"{directory}/{METADATA_FILE}", json.dumps(handed.metadata).encode())
        # Not in the journal, which is a driver's to write. The manifest says the same.
        storage.publish(record.name, json.dumps(asdict(record), default=repr).encode())
    finally:
        lock.release()


def main() -> None:
    """In a process of its own: write the state of the descriptors on the command line to a run."""
    uri, *numbers = sys.argv[1:]
    _write(_unpack([int(number) for number in numbers]), open_storage(uri))
