"""Row-by-row files in a run's directory, shared by the CSV and JSON trackers.

Rows wait in memory until ``flush``, which writes all of them or none: a disk that is full for a
while loses no row and leaves no incomplete line.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.storage.local import open_private
from lockstep.trackers.tracker_callback import TrackerCallback

__all__ = ["FileLoggerCallback", "RowFile", "append", "plain", "replace_file", "truncate"]


class RowFile(ABC):
    """One file of one trial. Not thread-safe; the file is open only during a write."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def count(self) -> int:
        """How many complete rows the file has."""

    @abstractmethod
    def add(self, result: dict[str, Any]) -> None:
        """Keep one more row for the next flush."""

    @abstractmethod
    def flush(self) -> None:
        """Write the kept rows. After an OSError the rows are still kept."""


class FileLoggerCallback(TrackerCallback, ABC):
    """Appends each result to a file in the trial's directory."""

    batched: ClassVar[bool] = True
    max_waiting: ClassVar[int | None] = None
    _files: dict[str, RowFile]

    @abstractmethod
    def open_file(self, trial: TrialSnapshot) -> RowFile:
        """Return the file of ``trial``; nothing is written yet."""

    def on_trial_start(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Call ``log_trial_start``."""
        self.log_trial_end(trial)  # a resumed trial may have another directory now
        super().on_trial_start(iteration, trials, trial, **info)

    def on_trial_result(
        self,
        iteration: int,
        trials: Sequence[TrialSnapshot],
        trial: TrialSnapshot,
        result: dict[str, Any],
        **info: Any,
    ) -> None:
        """Call ``log_trial_result``."""
        # At every report, so without a look at the signature, unless it is a subclass's own.
        if type(self).log_trial_result is FileLoggerCallback.log_trial_result:
            self.log_trial_result(iteration, trial, result)
        else:
            super().on_trial_result(iteration, trials, trial, result, **info)

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Keep the row for the next flush."""
        files: dict[str, RowFile] = self.__dict__.setdefault("_files", {})
        file = files.get(trial.trial_id)
        if file is None:
            file = files[trial.trial_id] = self.open_file(trial)
        file.add(result)

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Write the remaining rows."""
        file = self.__dict__.get("_files", {}).pop(trial.trial_id, None)
        if file is not None:
            file.flush()

    def flush_batch(self) -> None:
        """Write the rows kept so far."""
        for file in self.__dict__.get("_files", {}).values():
            file.flush()


def plain(value: object) -> Any:
    """Return arrays and tensors as numbers and lists, anything else as its repr."""
    convert = getattr(value, "tolist", None)
    if convert is not None:
        with contextlib.suppress(Exception):
            return convert()
    return repr(value)


def append(path: str, data: bytes) -> None:
    """Append ``data`` to the file, completely or not at all."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = open_private(path, flags)
    try:
        size = os.fstat(descriptor).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def truncate(path: str, size: int) -> None:
    """Cut the file to ``size``: a killed driver may have left an incomplete row."""
    if os.path.getsize(path) > size:
        os.truncate(path, size)


def replace_file(path: str, chunks: Iterable[bytes]) -> None:
    """Replace the file: a reader sees the old or the new content, never a part."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb", opener=open_private) as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
