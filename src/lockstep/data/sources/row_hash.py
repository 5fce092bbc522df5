"""A column with a number for each row of some files, from its file and its place there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW_HASH", "RowHashSource"]

ROW_HASH = "row_hash"


class RowHashSource(Source):
    """The rows of a source, with a column ``"row_hash"`` in place of one that the files have.

    Args:
        source: of files; its blocks are in the files' order and have a known number of rows.
        hashes: the numbers for a key and a range of places.
    """

    def __init__(self, source: Source, hashes: Callable[[int, int, int], Any]) -> None:
        self._source = source
        self._hashes = hashes
        self._starts: dict[tuple[Any, ...], int] | None = None

    @property
    def text(self) -> str:  # type: ignore[override]
        """As of the files."""
        return self._source.text

    def is_ready(self) -> bool:
        """As of the files."""
        return self._source.is_ready()

    def index(self) -> list[Block]:
        """The files' blocks."""
        return self._source.index()

    def schema(self) -> pa.Schema:
        """The files' columns, and the hash."""
        import pyarrow as pa

        fields = [field for field in self._source.schema() if field.name != ROW_HASH]
        return pa.schema([*fields, pa.field(ROW_HASH, pa.uint64())])

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A block with the hashes of its rows."""
        table = self._source.read(block, self._inside(columns), threads)
        return self._with_hash(table, block, 0, columns)

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """The same rows in parts."""
        done = 0
        for table in self._source.stream(block, self._inside(columns), threads):
            yield self._with_hash(table, block, done, columns)
            done += table.num_rows

    def _inside(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is None:
            return None
        # At least one column, to know the number of rows.
        return [name for name in columns if name != ROW_HASH] or self._source.schema().names[:1]

    def _with_hash(
        self, table: pa.Table, block: Block, done: int, columns: Sequence[str] | None
    ) -> pa.Table:
        import pyarrow as pa

        if self._starts is None:
            self._starts = starts = {}
            ends: dict[str, int] = {}
            for each in self.index():
                starts[each.where] = ends.get(each.name, 0)
                ends[each.name] = starts[each.where] + (each.rows or 0)
        start = self._starts[block.where] + done
        key = zlib.crc32(block.name.encode()) << 32 | zlib.adler32(block.name.encode())
        hashes = pa.array(self._hashes(key, start, start + table.num_rows), pa.uint64())
        if ROW_HASH in table.column_names:
            table = table.drop_columns([ROW_HASH])
        table = table.append_column(ROW_HASH, hashes)
        return table if columns is None else table.select(list(columns))

    def count(self, block: Block) -> int:
        """The number of rows in a block."""
        return self._source.count(block)

    def files(self) -> list[str]:
        """The files' paths."""
        return self._source.files()

    def check(self) -> None:
        """Check the files."""
        self._source.check()
