"""Row-by-row files in a run's directory, shared by the CSV and JSON trackers.

Rows wait in memory until ``flush``, which adds all of them or none, so a disk that was full for a
while costs no rows and leaves no torn line.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from lockstep.callback import TrialSnapshot
from lockstep.trackers.tracker_callback import TrackerCallback

__all__ = ["FileLoggerCallback", "RowFile", "append", "plain", "replace_file", "truncate"]


class RowFile(ABC):
    """One file of one trial. Not thread-safe; opened only while it is written."""

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def add(self, result: dict[str, Any]) -> None:
        """Takes one more row."""

    @abstractmethod
    def flush(self) -> None:
        """Writes the rows taken. Raises OSError, and then still has them."""


class FileLoggerCallback(TrackerCallback, ABC):
    """Writes each result to a file in the trial's directory, going on with one that is there."""

    batched: ClassVar[bool] = True
    max_waiting: ClassVar[int | None] = None
    _files: dict[str, RowFile]

    @abstractmethod
    def open_file(self, trial: TrialSnapshot) -> RowFile:
        """The file of ``trial``; nothing is written yet."""

    def on_trial_start(
        self, iteration: int, trials: Sequence[TrialSnapshot], trial: TrialSnapshot, **info: Any
    ) -> None:
        """Calls ``log_trial_start``. A trial that goes on may lie in another directory now."""
        self.log_trial_end(trial)
        super().on_trial_start(iteration, trials, trial, **info)

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        """Takes the row; it is written with the next flush."""
        files: dict[str, RowFile] = self.__dict__.setdefault("_files", {})
        file = files.get(trial.trial_id)
        if file is None:
            file = files[trial.trial_id] = self.open_file(trial)
        file.add(result)

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        """Writes what is left."""
        file = self.__dict__.get("_files", {}).pop(trial.trial_id, None)
        if file is not None:
            file.flush()

    def flush_batch(self) -> None:
        """Writes the rows taken so far."""
        for file in self.__dict__.get("_files", {}).values():
            file.flush()


def plain(value: object) -> Any:
    """Arrays and tensors as numbers and lists, anything else as its repr."""
    convert = getattr(value, "tolist", None)
    if convert is not None:
        with contextlib.suppress(Exception):
            return convert()
    return repr(value)


def append(path: str, data: bytes) -> None:
    """Adds ``data`` to the file, all of it or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
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
    """Cuts off what lies behind ``size``: the torn row of a driver that was killed."""
    if os.path.getsize(path) > size:
        os.truncate(path, size)


def replace_file(path: str, chunks: Iterable[bytes]) -> None:
    """Writes the file anew: a reader sees the old one or the new one, never a part."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
