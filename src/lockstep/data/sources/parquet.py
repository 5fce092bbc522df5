"""Parquet: a block is a row group, and the index is the files' footers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.expressions import by_position
from lockstep.data.sources.base import BLOCK_BYTES, Block, Source
from lockstep.data.sources.paths import File, check_unchanged, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSource"]

_FOOTERS_AT_ONCE = 16


class ParquetSource(Source):
    """Row groups of Parquet files with the same columns.

    Args:
        files: in order.
        columns: to read; None is all.
        expression: row groups in which, by their statistics, no row can satisfy it are left out.
    """

    def __init__(
        self, files: Sequence[File], columns: Sequence[str] | None = None, expression: Any = None
    ) -> None:
        self._files = list(files)
        self._columns = None if columns is None else list(columns)
        self._expression = expression
        self._schema: pa.Schema | None = None
        self._blocks: list[Block] | None = None
        self._reset()

    def _reset(self) -> None:
        self._footers: dict[int, Any] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        own = ("_lock", "_footers")
        return {key: value for key, value in vars(self).items() if key not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def files(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self._files]

    def check(self) -> None:
        """Sizes, of local files."""
        check_unchanged(self._files)

    def schema(self) -> pa.Schema:
        """Of the first file."""
        if self._schema is None:
            whole = _read_footer(self._files[0])[1]
            self._schema = self._chosen(whole, self._files[0])
        return self._schema

    def _chosen(self, schema: pa.Schema, file: File) -> pa.Schema:
        import pyarrow as pa

        names = schema.names if self._columns is None else self._columns
        for name in names:
            if name not in schema.names:
                raise KeyError(
                    f"{file.path!r} has no column {name!r}; it has {', '.join(schema.names)}."
                )
        return pa.schema([schema.field(name).remove_metadata() for name in names])

    def index(self) -> list[Block]:
        """Row groups; every footer is read and its columns compared with the first one's."""
        with self._lock:
            if self._blocks is None:
                from concurrent.futures import ThreadPoolExecutor

                threads = min(_FOOTERS_AT_ONCE, len(self._files))
                with ThreadPoolExecutor(threads, "lockstep-data-index") as pool:
                    footers = list(pool.map(_read_footer, self._files))
                self._blocks = self._blocks_of(footers)
            return self._blocks

    def _blocks_of(self, footers: Sequence[tuple[Any, pa.Schema]]) -> list[Block]:
        first = self.schema()
        blocks = []
        for number, (file, (metadata, schema)) in enumerate(zip(self._files, footers, strict=True)):
            _same(first, self._chosen(schema, file), file, self._files[0])
            wanted = self._row_groups(file, metadata)
            share = len(first.names) / max(1, len(schema.names))
            for group in wanted:
                described = metadata.row_group(group)
                if described.num_rows:
                    size = int(described.total_byte_size * share)
                    blocks.append(Block((number, group), described.num_rows, size, file.path))
        return blocks

    def _row_groups(self, file: File, metadata: Any) -> Sequence[int]:
        everything = range(metadata.num_row_groups)
        if self._expression is None or by_position(self._expression):
            return everything
        import pyarrow as pa
        import pyarrow.dataset

        form = pyarrow.dataset.ParquetFileFormat()
        fragment = form.make_fragment(file.path, filesystem=file.storage.filesystem)
        schema = metadata.schema.to_arrow_schema()
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
        """Reads the columns only that the expression names."""
        if by_position(expression):  # of the columns chosen, which are not the file's
            return None
        import pyarrow.dataset

        number, group = block.where
        file = self._files[number]
        fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(
            file.path, filesystem=file.storage.filesystem, row_groups=[group]
        )
        return int(fragment.count_rows(filter=expression))

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Decode a row group."""
        wanted = self._names(columns)
        with self._opened(block) as parquet:
            table = parquet.read_row_group(block.where[1], columns=wanted, use_threads=threads)
        return _only(table, wanted)

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """Decode a row group a few pages at a time: slower, but it need not fit into memory."""
        import pyarrow as pa

        wanted = self._names(columns)
        rows = max(1, (block.rows or 1) * BLOCK_BYTES // max(block.size, 1))
        with self._opened(block) as parquet:
            for batch in parquet.iter_batches(
                rows, row_groups=[block.where[1]], columns=wanted, use_threads=threads
            ):
                yield _only(pa.Table.from_batches([batch]), wanted)

    def _names(self, columns: Sequence[str] | None) -> list[str]:
        return self.schema().names if columns is None else list(columns)

    @contextlib.contextmanager
    def _opened(self, block: Block) -> Iterator[Any]:
        """The file a block is in; what fails inside names it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        number: int = block.where[0]
        file = self._files[number]
        try:
            with (
                open_input(file) as source,
                pq.ParquetFile(
                    source,
                    metadata=self._footers.get(number),
                    pre_buffer=not file.is_local,  # several columns at a time, where each is a trip
                ) as parquet,
            ):
                self._footers[number] = parquet.metadata
                yield parquet
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file, error) from error


def _only(table: pa.Table, names: list[str]) -> pa.Table:
    if table.column_names != names:
        table = table.select(names)
    return table.replace_schema_metadata(None)


def _read_footer(file: File) -> tuple[Any, pa.Schema]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_input(file) as source, pq.ParquetFile(source) as parquet:
            return parquet.metadata, parquet.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error


def _same(first: pa.Schema, other: pa.Schema, file: File, first_file: File) -> None:
    """Raise where a file's columns are not the first one's."""
    for name in [*first.names, *other.names]:
        here = other.field(name).type if name in other.names else None
        there = first.field(name).type if name in first.names else None
        if here != there:
            raise ValueError(
                f"Column {name!r} is {here or 'missing'} in {file.path!r} but "
                f"{there or 'missing'} in {first_file.path!r}; write the files with one schema, or "
                "read the columns they share with columns=[…]."
            )
