"""A source over an object that can be indexed, such as a torch dataset."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.formats import from_rows
from lockstep.data.sources.base import Block, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ItemSource", "row_of"]

_ITEMS_OF_A_BLOCK = 1024


class ItemSource(Source):
    """The items of an object with ``__len__`` and ``__getitem__``, read when they are needed."""

    def __init__(self, items: Any) -> None:
        self.items = items
        self._schema: pa.Schema | None = None

    @property
    def text(self) -> str:
        """With the class of the object."""
        return f"from_torch({type(self.items).__name__})"

    def is_ready(self) -> bool:
        """Whether an item was read."""
        return self._schema is not None

    def index(self) -> list[Block]:
        """Ranges of items."""
        total, step = len(self.items), _ITEMS_OF_A_BLOCK
        return [
            Block((start, min(start + step, total)), min(step, total - start), step * 1024)
            for start in builtins.range(0, total, step)
        ]

    def schema(self) -> pa.Schema:
        """The columns of the first item."""
        import pyarrow as pa

        if self._schema is None:
            rows = min(1, len(self.items))
            table = self.read(Block((0, rows), rows, 0), None, False)
            self._schema = table.schema if rows else pa.schema([])
        return self._schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Read a block item by item."""
        start, stop = block.where
        rows = [row_of(self.items[place]) for place in builtins.range(start, stop)]
        table = from_rows(rows, None, f"from_torch({type(self.items).__name__})")
        return table if columns is None else table.select(list(columns))


def row_of(item: Any) -> Mapping[str, Any]:
    """An item as a row: a dict as it is, a tuple as columns ``item_0``, ``item_1``, …"""
    if isinstance(item, Mapping):
        return item
    if isinstance(item, tuple):
        return {f"item_{place}": part for place, part in enumerate(item)}
    return {"item": item}
