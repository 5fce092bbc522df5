"""The journal: an append-only record of one run's events, one JSON object a line.

    run         once: the names, ids and configs
    attempt     the workers are up
    report      one row: every rank's metrics
    log         a batch of train.log() rows of one rank
    checkpoint  committed
    delete      an old checkpoint was deleted
    failure     an attempt ended in errors
    leave       an attempt stopped on a notice: a preemption, or to change size
    end         finished, failed, interrupted or preempted
    restore     resumed after an end, or after the driver was killed

Everything else in a run directory, except checkpoints, can be rebuilt from the journal. If a driver
was killed while it wrote a line, readers ignore that line, and the next driver removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from typing import Any

from lockstep.errors import StorageError
from lockstep.run_layout import FORMAT_VERSION

__all__ = ["Journal", "check_version", "is_driven", "parse_line", "read_lines"]


_encode = json.JSONEncoder(separators=(",", ":"), default=repr).encode


class Journal:
    """Appends events. Used from the driver's thread only, and by one process at a time.

    Raises:
        StorageError: another process is writing this journal, or it cannot be written here.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise StorageError(
                f"could not open the run's journal {path}: {error.strerror}."
            ) from error
        # The kernel releases the lock when the process dies: no stale lock can remain.
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StorageError(
                f"the run in {os.path.dirname(path)} is still being driven by another process; "
                "wait for it, or end it first."
            ) from error
        except OSError:
            pass  # a filesystem without locks
        _cut_half_line(path)

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Write one event. Once this returns, the event survives the driver's death."""
        record = {"event": event, **fields}
        self._write(_encode(record) + "\n")
        return record

    def append_logs(self, rank: int, attempt: int, rows: list[str]) -> None:
        """Write ``train.log()`` rows that are JSON already."""
        # The rows are spliced in as text: they were encoded in the worker.
        head = _encode({"event": "log", "rank": rank, "attempt": attempt})[:-1]
        self._write(f'{head},"rows":[{",".join(rows)}]}}\n')

    def flush(self) -> None:
        """Wait until every event would survive a power loss, too."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file, and so release the lock. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _write(self, line: str) -> None:
        data = memoryview(line.encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise StorageError(
                f"could not write the run's journal {self._path}: {error.strerror}."
            ) from error


def is_driven(path: str) -> bool:
    """Whether a process has the journal at ``path`` open for writing.

    True also if that cannot be known: not every filesystem has locks.
    """
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def read_lines(data: bytes) -> Iterator[bytes]:
    """The complete lines of a journal's content."""
    return (line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))


def parse_line(line: bytes) -> dict[str, Any]:
    """One event of a journal."""
    record: dict[str, Any] = json.loads(line)
    return record


def check_version(header: dict[str, Any], path: str) -> None:
    """Check the format version in ``header``, the first record of the journal at ``path``.

    Raises:
        StorageError: a later lockstep, with a newer format, wrote the journal.
    """
    found = header.get("version", FORMAT_VERSION)
    if found > FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {found}, and this lockstep reads versions up to "
            f"{FORMAT_VERSION}; read it with the lockstep that wrote it, or update this one."
        )


def _cut_half_line(path: str) -> None:
    with open(path, "rb+") as file:
        data = file.read()
        end = data.rfind(b"\n") + 1
        if end != len(data):
            file.truncate(end)
