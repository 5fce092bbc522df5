"""Parquet: a block is a row group, and the index is the files' footers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.expressions import by_position
from lockstep.data.arrow.unify import Mismatch, common_schema, conformed
from lockstep.data.sources.base import BLOCK_BYTES, Block
from lockstep.data.sources.files import FileSource
from lockstep.data.sources.paths import File, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSource"]


_GIVEN = "read_parquet(schema=…)"


class ParquetSource(FileSource):
    """Row groups of Parquet files.

    A column that a file lacks is null in its rows. Types that differ become one that fits all.

    Args:
        files: in order.
        columns: to read; None is all.
        expression: a filter. Row groups whose statistics rule out a match are left out.
        given: the types that columns have instead of those of the files.
    """

    reader = "read_parquet"
    not_pickled = ("_lock", "_footers", "_scanned")

    def __init__(
        self,
        files: Sequence[File],
        columns: Sequence[str] | None = None,
        expression: Any = None,
        given: pa.Schema | None = None,
    ) -> None:
        super().__init__(files)
        self._given = given
        self._columns = None if columns is None else list(columns)
        self._expression = expression
        self._different: frozenset[int] = frozenset()
        """The files whose columns are not those of the schema."""

    def _reset(self) -> None:
        super()._reset()
        self._footers: dict[int, Any] = {}
        self._scanned: list[tuple[Any, pa.Schema]] | None = None

    def is_ready(self) -> bool:
        """Whether it has read the footers."""
        return super().is_ready() or self._scanned is not None

    def _find_schema(self) -> pa.Schema:
        """The columns of all files, from their footers; the blocks are found in the same ones."""
        import pyarrow as pa

        self._scanned = self._each_file(_read_footer)
        found = [self._chosen(schema) for _, schema in self._scanned]
        typed = [self._typed(schema) for schema in found]
        union = typed[0]
        for file, schema in zip(self._files, typed, strict=True):
            try:
                union = common_schema(union, schema)
            except Mismatch as error:
                raise ValueError(
                    f"Column {error.name!r} is {error.other} in {file.path!r} but {error.one} in "
                    f"{self._files[0].path!r}; write the files with one schema, or read other "
                    "columns with columns=[…], or give the column's type in schema=."
                ) from error
        for name in self._columns or ():
            if name not in union.names:
                there = self._scanned[0][1].names
                raise KeyError(
                    f"{self._files[0].path!r} has no column {name!r}; it has {', '.join(there)}."
                )
        if self._columns is not None:
            union = pa.schema([union.field(name) for name in self._columns])
        different = (n for n, schema in enumerate(found) if not schema.equals(union))
        self._different = frozenset(different)
        return union

    def _typed(self, schema: pa.Schema) -> pa.Schema:
        """A file's columns, with the given types.

        Raises:
            ValueError: a column cannot be cast to its type.
        """
        import pyarrow as pa

        if self._given is None:
            return schema
        given = {field.name: field.type for field in self._given}
        typed = pa.schema([f.with_type(given.get(f.name, f.type)) for f in schema])
        return conformed(schema.empty_table(), typed, _GIVEN).schema

    def _chosen(self, schema: pa.Schema) -> pa.Schema:
        """The columns to read that a file has."""
        import pyarrow as pa

        names = schema.names if self._columns is None else self._columns
        fields = [schema.field(name).remove_metadata() for name in names if name in schema.names]
        return pa.schema(fields)

    def _find_blocks(self) -> list[Block]:
        """The row groups."""
        first = self.schema()
        footers = self._each_file(_read_footer) if self._scanned is None else self._scanned
        self._scanned = None
        blocks = []
        for number, (file, (metadata, schema)) in enumerate(zip(self._files, footers, strict=True)):
            share = len(first.names) / max(1, len(schema.names))
            for group in self._row_groups(number, metadata):
                described = metadata.row_group(group)
                if described.num_rows:
                    size = int(described.total_byte_size * share)
                    blocks.append(Block((number, group), described.num_rows, size, file.path))
        return blocks

    def _row_groups(self, number: int, metadata: Any) -> Sequence[int]:
        everything = range(metadata.num_row_groups)
        if self._expression is None or by_position(self._expression):
            return everything
        if self._given is not None and number in self._different:
            return everything  # its statistics are of other types than the filter's values
        file = self._files[number]
        import pyarrow as pa
        import pyarrow.dataset

        form = pyarrow.dataset.ParquetFileFormat()
        fragment = form.make_fragment(file.path, filesystem=file.storage.filesystem)
        schema = self.schema()  # with an expression, all columns
        try:
            parts = fragment.split_by_row_group(self._expression, schema)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            cause = str(error).partition(" in ")[0].strip()
            raise ValueError(
                f"The filter does not fit the columns {', '.join(schema.names)} of {file.path!r} "
                f"({cause})."
            ) from error
        return [part.row_groups[0].id for part in parts]

    def count_matching(self, block: Block, expression: Any) -> int | None:
        """Read only the columns that the expression names."""
        # Positions are among the chosen columns, and types are the schema's, not the file's.
        if by_position(expression) or block.where[0] in self._different:
            return None
        import pyarrow.dataset

        file, group = self.file_of(block), block.where[1]
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(
            file.path, filesystem=file.storage.filesystem, row_groups=[group]
        )
        return int(fragment.count_rows(filter=expression))

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Decode a row group."""
        wanted = self._names(columns)
        with self._opened(block) as parquet:
            table = parquet.read_row_group(block.where[1], columns=wanted, use_threads=threads)
        return self._only(table, wanted)

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """Decode a row group a few pages at a time: slower, but in little memory."""
        import pyarrow as pa

        wanted = self._names(columns)
        rows = max(1, (block.rows or 1) * BLOCK_BYTES // max(block.size, 1))
        with self._opened(block) as parquet:
            for batch in parquet.iter_batches(
                rows, row_groups=[block.where[1]], columns=wanted, use_threads=threads
            ):
                yield self._only(pa.Table.from_batches([batch]), wanted)

    def _only(self, table: pa.Table, names: list[str]) -> pa.Table:
        """The columns of the schema, without the file's metadata."""
        import pyarrow as pa

        if self._different:
            schema = pa.schema([self.schema().field(name) for name in names])
            table = conformed(table, schema, "" if self._given is None else _GIVEN)
        elif table.column_names != names:
            table = table.select(names)
        return table.replace_schema_metadata(None)

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        return self.schema().names if columns is None else list(columns)

    @contextlib.contextmanager
    def _opened(self, block: Block) -> Iterator[Any]:
        """The file of a block, opened. Errors inside the ``with`` block name the file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number, file = block.where[0], self.file_of(block)
        try:
            with (
                open_input(file) as source,
                pq.ParquetFile(
                    source,
                    metadata=self._footers.get(number),
                    pre_buffer=not file.is_local,  # fewer round trips to remote storage
                ) as parquet,
            ):
                self._footers[number] = parquet.metadata
                yield parquet
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file, error) from error


def _read_footer(file: File) -> tuple[Any, pa.Schema]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_input(file) as source, pq.ParquetFile(source) as parquet:
            return parquet.metadata, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
