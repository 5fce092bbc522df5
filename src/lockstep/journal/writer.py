"""The journal: an append-only record of one run's events, one JSON object a line.

    run              once: the names, ids and configs
    attempt          the workers are up
    report           one row: every rank's metrics
    log              a batch of train.log() rows of one rank
    checkpoint       committed
    delete           an old checkpoint was deleted
    failure          an attempt ended in errors
    fall_back        an attempt starts from storage: the newer state in memory was lost
    attempt_stopped  on a notice: a preemption, or to change size
    guard            what RunConfig(guard=…) has found in a report of a rank
    end              finished, failed, interrupted or preempted
    restore          resumed after an end, or after the driver was killed

Everything else in a run directory, except checkpoints, can be rebuilt from the journal. If a driver
was killed while it wrote a line, readers ignore that line, and the next driver removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

from lockstep.errors import StorageError
from lockstep.journal.lock import Lock
from lockstep.run_layout import FORMAT_VERSION
from lockstep.storage.local import open_private

__all__ = ["Journal", "check_version", "parse_line", "read_lines"]


_BLOCK = 1 << 16
# One encoder for all lines: json.dumps() with options would create one for each call.
_encode = json.JSONEncoder(separators=(",", ":"), default=repr).encode


class Journal:
    """Appends events. Used from the driver's thread only, and by one process at a time.

    Raises:
        StorageError: another process is writing this journal, or it cannot be written here.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1
        self._lock = Lock(path)
        try:
            self._fd = _open(path)
            # Under the lock. Appending to half a line would damage the next event, too.
            _cut_half_line(self._fd)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise _failed("open", path, error) from error
            raise

    def append(self, event: str, **fields: Any) -> dict[str, Any]:
        """Write one event. Once this returns, the event survives the driver's death."""
        record = {"event": event, **fields}
        try:
            line = _encode(record)
        except (TypeError, ValueError, RecursionError) as error:
            raise StorageError(
                f"could not write {event!r} to the run's journal {self._path}: it contains a value "
                f"that JSON cannot hold ({error})."
            ) from error
        self._write(line + "\n")
        return record

    def append_logs(self, rank: int, attempt: int, rows: list[str]) -> None:
        """Write ``train.log()`` rows that are JSON already."""
        # The rows are spliced in as text: they were encoded in the worker.
        head = _encode({"event": "log", "rank": rank, "attempt": attempt})[:-1]
        self._write(f'{head},"rows":[{",".join(rows)}]}}\n')

    def flush(self) -> None:
        """Wait until every event would survive a power loss, too."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise _failed("flush", self._path, error) from error

    def close(self) -> None:
        """Close the file and release the lock. Idempotent."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):  # what was not flushed is not promised
                os.close(descriptor)
        self._lock.release()

    def _write(self, line: str) -> None:
        # One write for a line, so that a kill leaves at most the last line incomplete.
        data = memoryview(line.encode())
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise _failed("write", self._path, error) from error


def _failed(doing: str, path: str, error: OSError) -> StorageError:
    return StorageError(f"could not {doing} the run's journal {path}: {error.strerror or error}.")


def read_lines(data: bytes) -> Iterator[bytes]:
    """The complete lines of a journal's content."""
    return (line for line in data.splitlines(keepends=True) if line.endswith(b"\n"))


def parse_line(line: bytes) -> dict[str, Any]:
    """One event of a journal, or a manifest.

    Raises:
        ValueError: it is not a JSON object.
    """
    try:
        record = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"it is a {type(record).__name__}, not an object")
    # Half of a surrogate pair cannot be printed, or be in a dataframe.
    return _encodable(record) if b"\\ud" in line.lower() else record


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def check_version(header: dict[str, Any], path: str) -> None:
    """Check the format version in ``header``, the first record of the journal at ``path``.

    Raises:
        StorageError: a later lockstep, with a newer format, wrote the journal.
    """
    found = header.get("version", FORMAT_VERSION)
    if not isinstance(found, int) or found > FORMAT_VERSION:
        raise StorageError(
            f"{path} has format version {found}, and this lockstep reads versions up to "
            f"{FORMAT_VERSION}; read it with the lockstep that wrote it, or update this one."
        )


def _open(path: str) -> int:
    # Without O_NONBLOCK, to open a pipe would wait for its reader.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = open_private(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return descriptor


def _cut_half_line(descriptor: int) -> None:
    end = size = os.fstat(descriptor).st_size
    while end > 0:
        # From the end: a journal may have gigabytes, and the last line is usually short.
        start = max(end - _BLOCK, 0)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
