"""A column with a number for each row of some files, from its file and its place there."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block, Source, WithMoreColumns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ROW_HASH", "RowHashSource"]

ROW_HASH = "row_hash"


class RowHashSource(WithMoreColumns):
    """The rows of a source, with a column ``"row_hash"`` in place of one that the files have.

    Args:
        source: of files; its blocks are in the files' order and have a known number of rows.
        hashes: the numbers for a key and a range of places.
    """

    def __init__(self, source: Source, hashes: Callable[[int, int, int], Any]) -> None:
        super().__init__(source)
        self._hashes = hashes
        self._starts: dict[tuple[Any, ...], int] | None = None

    def schema(self) -> pa.Schema:
        """The files' columns, and the hash."""
        import pyarrow as pa

        fields = [field for field in self._source.schema() if field.name != ROW_HASH]
        return pa.schema([*fields, pa.field(ROW_HASH, pa.uint64())])

    def _inside(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name != ROW_HASH]

    def _extended(self, table: pa.Table, block: Block, start: int) -> pa.Table:
        import pyarrow as pa

        if self._starts is None:
            self._starts = starts = {}
            ends: dict[str, int] = {}
            for each in self.index():
                starts[each.where] = ends.get(each.name, 0)
                ends[each.name] = starts[each.where] + (each.rows or 0)
        start += self._starts[block.where]
        key = zlib.crc32(block.name.encode()) << 32 | zlib.adler32(block.name.encode())
        hashes = pa.array(self._hashes(key, start, start + table.num_rows), pa.uint64())
        if ROW_HASH in table.column_names:
            table = table.drop_columns([ROW_HASH])
        return table.append_column(ROW_HASH, hashes)
