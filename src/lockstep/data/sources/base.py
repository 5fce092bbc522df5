"""Where rows come from: the contract of a source, and the sources that need no files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.shared_tables import open_shared, share

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "MemorySource", "RangeSource", "Source", "WithMoreColumns"]

BLOCK_BYTES = 16 << 20
"""About how many bytes a block has, where the format does not decide it (as Parquet does)."""


@dataclass(frozen=True)
class Block:
    """Rows that a source reads at once.

    Attributes:
        where: what the source needs to find the block; integers and strings.
        rows: the number of rows, None until they are counted.
        size: about how many bytes the rows take in memory.
        name: the file of the block, for error messages.
    """

    where: tuple[Any, ...]
    rows: int | None
    size: int
    name: str = ""


class Source(ABC):
    """Blocks of rows: the same blocks in the same order, in every process and at any time.

    A source is picklable, and small when pickled unless it holds the rows itself. It is safe to use
    from several threads. Files are opened for each read and not kept open.
    """

    in_memory = False
    """Whether reading costs nothing. The memory is then shared with others: do not write to it."""

    @property
    def text(self) -> str:
        """What it reads, for ``print(dataset)``."""
        return "a source"

    @abstractmethod
    def index(self) -> list[Block]:
        """Every block, in order."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns; reads no rows where the format allows that."""

    @abstractmethod
    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A block's rows. ``columns=None`` reads all; ``threads`` lets Arrow use its threads."""

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """A block's rows in one or more tables, for blocks too large to hold in memory."""
        yield self.read(block, columns, threads)

    def is_ready(self) -> bool:
        """Whether ``index`` and ``schema`` read nothing (any more)."""
        return False

    def count(self, block: Block) -> int:
        """The number of rows in a block."""
        rows = block.rows
        return self.read(block, None, True).num_rows if rows is None else rows

    def count_matching(self, block: Block, expression: Any) -> int | None:
        """The number of rows that match, None where counting needs all columns."""
        return None

    def files(self) -> list[str]:
        """The paths of the files it reads."""
        return []

    def memory_bytes(self) -> int:
        """The number of bytes it holds in memory."""
        return 0

    def check(self) -> None:
        """Check that the files are still as they were when they were listed.

        Raises:
            StorageError: a file has changed or is gone.
        """
        return None


class WithMoreColumns(Source):
    """The rows of another source, with columns that its blocks do not have."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @abstractmethod
    def _inside(self, columns: Sequence[str]) -> list[str]:
        """Which of the columns the other source has."""

    @abstractmethod
    def _extended(self, table: pa.Table, block: Block, start: int) -> pa.Table:
        """Rows of a block, from the row ``start`` of it, with all columns."""

    @property
    def text(self) -> str:
        """As of the other source."""
        return self._source.text

    def is_ready(self) -> bool:
        """As of the other source."""
        return self._source.is_ready()

    def index(self) -> list[Block]:
        """The other source's blocks."""
        return self._source.index()

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A block with all columns."""
        table = self._source.read(block, self._read_there(columns), threads)
        return self._chosen(table, block, 0, columns)

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """The same rows in parts."""
        done = 0
        for table in self._source.stream(block, self._read_there(columns), threads):
            yield self._chosen(table, block, done, columns)
            done += table.num_rows

    def _read_there(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is None:
            return None
        # At least one column, to know the number of rows.
        return self._inside(columns) or self._source.schema().names[:1]

    def _chosen(
        self, table: pa.Table, block: Block, start: int, columns: Sequence[str] | None
    ) -> pa.Table:
        table = self._extended(table, block, start)
        return table if columns is None else table.select(list(columns))

    def count(self, block: Block) -> int:
        """The number of rows in a block."""
        return self._source.count(block)

    def files(self) -> list[str]:
        """The other source's files."""
        return self._source.files()

    def check(self) -> None:
        """Check the other source's files."""
        self._source.check()


class MemorySource(Source):
    """An Arrow table, never copied.

    Args:
        table: the rows.
        block_rows: how many of them are a block; None is about 16 MB.
        ends: instead, where each block ends.
    """

    in_memory = True

    def __init__(
        self, table: pa.Table, block_rows: int | None = None, ends: Sequence[int] | None = None
    ) -> None:
        self.table = table
        self.block_rows = block_rows
        self.ends = ends

    def __reduce__(self) -> Any:
        path = share(self.table)
        if path is None:
            return MemorySource, (self.table, self.block_rows, self.ends)
        return _mapped, (path, self.block_rows, self.ends)

    def index(self) -> list[Block]:
        """Slices of the table."""
        rows = self.table.num_rows
        width = max(1, self.table.nbytes // max(rows, 1))
        if self.ends is not None:
            return [
                Block((start, end), end - start, width * (end - start))
                for start, end in pairwise([0, *self.ends])
            ]
        step = self.block_rows or max(1, BLOCK_BYTES // width)
        return _ranges(rows, step, width)

    @property
    def text(self) -> str:
        """The table's size."""
        return f"{self.table.num_rows} rows in memory"

    def is_ready(self) -> bool:
        """Always."""
        return True

    def memory_bytes(self) -> int:
        """The table's size."""
        return int(self.table.nbytes)

    def schema(self) -> pa.Schema:
        """The table's schema."""
        return self.table.schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A slice, without a copy."""
        start, stop = block.where
        table = self.table if columns is None else self.table.select(list(columns))
        return table.slice(start, stop - start)


def _ranges(rows: int, step: int, width: int) -> list[Block]:
    """Blocks of ``step`` rows, of ``width`` bytes each; the last one has what is left."""
    ends = [(start, min(start + step, rows)) for start in range(0, rows, step)]
    return [Block(where, where[1] - where[0], width * (where[1] - where[0])) for where in ends]


def _mapped(path: str, block_rows: int | None, ends: Sequence[int] | None) -> MemorySource:
    return MemorySource(open_shared(path), block_rows, ends)


class RangeSource(Source):
    """The integers below ``n``, as a column of numbers or of tensors filled with them."""

    def __init__(self, n: int, column: str, shape: tuple[int, ...] | None, blocks: int | None):
        self.n = n
        self.column = column
        self.shape = shape
        self.blocks = blocks

    @property
    def text(self) -> str:
        """The call."""
        return f"range({self.n})" if self.shape is None else f"range_tensor({self.n})"

    def is_ready(self) -> bool:
        """Always."""
        return True

    def index(self) -> list[Block]:
        """Ranges of equal length."""
        width = 8
        for side in self.shape or ():
            width *= max(side, 1)
        step = -(-self.n // self.blocks) if self.blocks else max(1, BLOCK_BYTES // width)
        return _ranges(self.n, max(step, 1), width)

    def schema(self) -> pa.Schema:
        """One column."""
        return self.read(Block((0, 0), 0, 0), None, False).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Generate the numbers of a block."""
        import numpy as np
        import pyarrow as pa

        from lockstep.data.arrow.columns import to_arrow

        start, stop = block.where
        numbers = np.arange(start, stop, dtype=np.int64)
        if self.shape is not None:
            tall = numbers.reshape(-1, *(1 for _ in self.shape))
            numbers = np.ascontiguousarray(np.broadcast_to(tall, (len(numbers), *self.shape)))
        table = pa.table({self.column: to_arrow(numbers)})
        return table if columns is None else table.select(list(columns))
