"""``progress.csv`` in the run's directory: one row for each report."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.callback import TrialSnapshot
from lockstep.metrics import flatten
from lockstep.run_layout import PROGRESS_FILE
from lockstep.trackers.files import (
    FileLoggerCallback,
    RowFile,
    append,
    plain,
    replace_file,
    truncate,
)

__all__ = ["CSVLoggerCallback", "csv_file"]

_CELL_TYPES = (str, int, float, bool, type(None))
_CELLS = frozenset(_CELL_TYPES)


class CSVLoggerCallback(FileLoggerCallback):
    """Writes ``progress.csv``: every key but ``config``, nested keys joined by ``/``.

    A key that appears later adds a column, which is empty in earlier rows.
    """

    def open_file(self, trial: TrialSnapshot) -> RowFile:
        """Return the trial's ``progress.csv``."""
        return csv_file(trial.local_path)


def csv_file(directory: str) -> RowFile:
    """The ``progress.csv`` of a run's directory."""
    return _Table(os.path.join(directory, PROGRESS_FILE))


class _Table(RowFile):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._columns: dict[str, None] | None = None
        self._pending: list[dict[str, Any]] = []

    def count(self) -> int:
        try:
            with open(self.path, "rb") as file:
                return max(sum(1 for _ in _complete_rows(file)) - 1, 0)  # without the header
        except FileNotFoundError:
            return 0

    def add(self, result: dict[str, Any]) -> None:
        row = dict(result)
        row.pop("config", None)
        if not _CELLS.issuperset(map(type, row.values())):
            row = {
                key: value if isinstance(value, _CELL_TYPES) else plain(value)
                for key, value in flatten(row).items()
            }
        self._pending.append(row)

    def flush(self) -> None:
        if not self._pending:
            return
        if self._columns is None:
            self._columns = self._existing_columns()
        columns = dict(self._columns)
        for row in self._pending:
            if row.keys() != columns.keys() and not row.keys() <= columns.keys():
                columns.update(dict.fromkeys(row))
        empty = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
        if not empty and len(columns) > len(self._columns):
            self._widen(columns, len(columns) - len(self._columns))
            self._columns = columns
        rows: list[Iterable[Any]] = [columns] if empty else []
        rows.extend(map(row.get, columns) for row in self._pending)
        append(self.path, _encode(rows))
        self._columns = columns
        self._pending.clear()

    def _existing_columns(self) -> dict[str, None]:
        try:
            with open(self.path, "rb") as file:
                rows = _complete_rows(file)
                header = next(rows, b"")
                size = len(header) + sum(map(len, rows))
        except FileNotFoundError:
            return {}
        truncate(self.path, size)
        names = next(csv.reader(io.StringIO(header.decode(errors="replace"), newline="")), [])
        return dict.fromkeys(names)

    def _widen(self, columns: Iterable[str], added: int) -> None:
        with open(self.path, "rb") as file:
            rows = _complete_rows(file)
            next(rows)
            cells = b"," * added + b"\r\n"
            replace_file(self.path, _chain(_encode([columns]), rows, cells))


def _chain(header: bytes, rows: Iterator[bytes], cells: bytes) -> Iterator[bytes]:
    yield header
    for row in rows:
        yield row.rstrip(b"\r\n") + cells


def _complete_rows(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the rows as written: a cell may contain line breaks. An incomplete row is left out."""
    row = b""
    for line in lines:
        row += line
        if line.endswith(b"\n") and row.count(b'"') % 2 == 0:
            yield row
            row = b""


def _encode(rows: Iterable[Iterable[Any]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    return buffer.getvalue().encode("utf-8", errors="backslashreplace")
