"""Tables in the driver's memory that workers on the same machine map instead of copying."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.data.arrow.objects import restored, unmarked

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SharedTables", "open_shared", "share"]

SMALLEST = 1 << 20
"""A table of fewer bytes is pickled: mapping a small one gains nothing."""

_current = threading.local()


class SharedTables:
    """Tables in anonymous files in memory (memfd).

    Inside ``active()``, a table that this thread pickles becomes a path to such a file. The system
    frees a file once this object is closed and no process maps the file any more.
    """

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, pa.Table]] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Share the tables pickled in this thread. No effect on systems without memfd."""
        before = getattr(_current, "tables", None)
        _current.tables = self if hasattr(os, "memfd_create") else None
        try:
            yield
        finally:
            _current.tables = before

    def add(self, table: pa.Table) -> str:
        """The path of a table's file; valid until this object is closed or the process ends."""
        import pyarrow as pa

        if id(table) not in self._files:
            file = os.memfd_create("lockstep-table")
            self._files[id(table)] = (file, table)
            sent = unmarked(table)
            with (
                pa.PythonFile(os.fdopen(os.dup(file), "wb", 1 << 20)) as sink,
                pa.ipc.new_file(sink, sent.schema) as writer,
            ):
                writer.write_table(sent)
        return f"/proc/{os.getpid()}/fd/{self._files[id(table)][0]}"

    def close(self) -> None:
        """Close the files. Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1][0])

    def __del__(self) -> None:
        self.close()


def share(table: pa.Table) -> str | None:
    """The path to map a table from, None where the table itself must be pickled."""
    tables: SharedTables | None = getattr(_current, "tables", None)
    return None if tables is None or table.nbytes < SMALLEST else tables.add(table)


def open_shared(path: str) -> pa.Table:
    """Map a table, without a copy."""
    import pyarrow as pa

    return restored(pa.ipc.open_file(pa.memory_map(path)).read_all())
