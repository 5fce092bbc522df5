"""Tables in the driver's memory that workers on the same machine map instead of being sent them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SharedTables", "open_shared", "share"]

SMALLEST = 1 << 20
"""Below so many bytes sending is as good."""

_current = threading.local()


class SharedTables:
    """Tables as files in memory; they are gone once this object and all who mapped them are.

    While it is ``active`` in a thread, what that thread pickles refers to them.
    """

    def __init__(self) -> None:
        self._files: dict[int, tuple[int, pa.Table]] = {}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Pickle in here. Does nothing where the system has no such files."""
        before = getattr(_current, "tables", None)
        _current.tables = self if hasattr(os, "memfd_create") else None
        try:
            yield
        finally:
            _current.tables = before

    def add(self, table: pa.Table) -> str:
        """The table's path, for as long as this process lives and this object is not closed."""
        import pyarrow as pa

        if id(table) not in self._files:
            file = os.memfd_create("lockstep-table")
            self._files[id(table)] = (file, table)
            with (
                pa.PythonFile(os.fdopen(os.dup(file), "wb", 1 << 20)) as sink,
                pa.ipc.new_file(sink, table.schema) as writer,
            ):
                writer.write_table(table)
        return f"/proc/{os.getpid()}/fd/{self._files[id(table)][0]}"

    def close(self) -> None:
        """Let go of them. Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1][0])

    def __del__(self) -> None:
        self.close()


def share(table: pa.Table) -> str | None:
    """Where a table that is being pickled can be mapped, None where it is to be sent itself."""
    tables: SharedTables | None = getattr(_current, "tables", None)
    return None if tables is None or table.nbytes < SMALLEST else tables.add(table)


def open_shared(path: str) -> pa.Table:
    """Map a table; nothing of it is copied."""
    import pyarrow as pa

    return pa.ipc.open_file(pa.memory_map(path)).read_all()
