"""Where rows come from: the contract of a source, and those that live in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.shared_tables import open_shared, share

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Block", "MemorySource", "RangeSource", "Source"]

BLOCK_BYTES = 16 << 20
"""About how much is read at once where the data does not say (a row group does)."""


@dataclass(frozen=True)
class Block:
    """What a source reads at once.

    Attributes:
        where: what the source needs to find it; integers and strings.
        rows: how many there are, None until they are counted.
        size: about how many bytes they have in memory.
        name: for people: the file it is in.
    """

    where: tuple[Any, ...]
    rows: int | None
    size: int
    name: str = ""


class Source(ABC):
    """Blocks of rows, the same ones in the same order whenever and wherever it is asked.

    Picklable, and what it pickles is small unless the rows are in it. Safe to use from several
    threads. Files are opened when they are read and not kept open.
    """

    in_memory = False
    """Whether reading costs nothing and gives memory that others look at, too."""

    @abstractmethod
    def index(self) -> list[Block]:
        """Every block, in order; finds out once, then remembers."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns, without reading rows where the format allows."""

    @abstractmethod
    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A block's rows; ``columns`` None is all of them, ``threads`` allows Arrow's own."""

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """A block's rows as one or more tables, for one that is too large to be held as a whole."""
        yield self.read(block, columns, threads)

    def count(self, block: Block) -> int:
        """How many rows a block has."""
        rows = block.rows
        return self.read(block, None, True).num_rows if rows is None else rows

    def count_matching(self, block: Block, expression: Any) -> int | None:
        """How many rows satisfy an expression, None where that needs the rows."""
        return None

    def files(self) -> list[str]:
        """The files it reads, for people."""
        return []

    def memory_bytes(self) -> int:
        """How much of it lies in memory."""
        return 0

    def check(self) -> None:
        """See that files are as they were when they were listed.

        Raises:
            StorageError: one has changed or is gone.
        """
        return None


class MemorySource(Source):
    """An Arrow table; nothing of it is copied."""

    in_memory = True

    def __init__(self, table: pa.Table, block_rows: int | None = None) -> None:
        self.table = table
        self.block_rows = block_rows

    def __reduce__(self) -> Any:
        path = share(self.table)
        if path is None:
            return MemorySource, (self.table, self.block_rows)
        return _mapped, (path, self.block_rows)

    def index(self) -> list[Block]:
        """Slices of the table."""
        rows = self.table.num_rows
        width = max(1, self.table.nbytes // max(rows, 1))
        step = self.block_rows or max(1, BLOCK_BYTES // width)
        return [
            Block((start, min(start + step, rows)), min(step, rows - start), width * step)
            for start in range(0, rows, step)
        ]

    def memory_bytes(self) -> int:
        """The table's size."""
        return int(self.table.nbytes)

    def schema(self) -> pa.Schema:
        """The table's."""
        return self.table.schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A slice, without a copy."""
        start, stop = block.where
        table = self.table if columns is None else self.table.select(list(columns))
        return table.slice(start, stop - start)


def _mapped(path: str, block_rows: int | None) -> MemorySource:
    return MemorySource(open_shared(path), block_rows)


class RangeSource(Source):
    """The integers below ``n``, as a column of numbers or of tensors filled with them."""

    def __init__(self, n: int, column: str, shape: tuple[int, ...] | None, blocks: int | None):
        self.n = n
        self.column = column
        self.shape = shape
        self.blocks = blocks

    def index(self) -> list[Block]:
        """Ranges of equal length."""
        width = 8
        for side in self.shape or ():
            width *= max(side, 1)
        step = -(-self.n // self.blocks) if self.blocks else max(1, BLOCK_BYTES // width)
        return [
            Block((start, min(start + step, self.n)), min(step, self.n - start), width * step)
            for start in range(0, self.n, max(step, 1))
        ]

    def schema(self) -> pa.Schema:
        """One column."""
        return self.read(Block((0, 0), 0, 0), None, False).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Numbers, made on the spot."""
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
