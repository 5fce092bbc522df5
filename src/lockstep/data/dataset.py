"""Dataset: rows from anywhere, read and transformed when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int, check_seed
from lockstep.data.aggregates import Aggregates
from lockstep.data.arrow.formats import check_format, to_format, to_rows
from lockstep.data.arrow.views import without_views
from lockstep.data.iterate.shard import DataShard, ShardPlan
from lockstep.data.outputs import Outputs
from lockstep.data.plan.position import Cut
from lockstep.data.reordering import Reordering, table_groups
from lockstep.data.transforms import Transforms

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Dataset"]


class Dataset(Transforms, Reordering, Aggregates, Outputs):
    """Rows with named columns, lazily read, transformed and divided among workers.

    Make one with ``lockstep.data.read_*`` or ``from_*``. Every method that changes something
    returns another dataset and leaves this one as it is.
    """

    def count(self) -> int:
        """How many rows there are; reads no more than is needed to know."""
        if any(unit.guessed for unit in self._units()):
            return sum(table.num_rows for table in self._tables())
        return sum(unit.rows or 0 for group in self._counted() for unit in group.units)

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows, as dicts."""
        return list(islice(self._rows(), check_int(f"take({limit!r})", limit)))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows, as dicts.

        Raises:
            ValueError: there are more than ``limit``.
        """
        if limit is None:
            return list(self._rows())
        rows = self.take(limit + 1)
        if len(rows) > limit:
            raise ValueError(f"take_all(limit={limit}): there are more rows; raise the limit.")
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: str | None = "default") -> Any:
        """The first rows, as a batch."""
        from lockstep.data.iterate.batching import cut_tables

        batch_size = check_int(f"take_batch({batch_size!r})", batch_size, 1)
        name = check_format(batch_format)
        for table, _ in cut_tables(self._pieces(), batch_size, False, "pyarrow"):
            return to_format(table, name)
        raise ValueError("take_batch(): the dataset is empty; there is no batch in it.")

    def show(self, limit: int = 20) -> None:
        """Print the first rows."""
        for row in self.take(limit):
            print(row)

    def _rows(self) -> Any:
        for table in self._tables():
            for start in range(0, table.num_rows, 256):
                yield from to_rows(table.slice(start, 256))

    def schema(self, fetch_if_missing: bool = True) -> pa.Schema:
        """The columns and their types; may run transforms on the first rows to find out."""
        schema = self._schema()
        if schema is None and fetch_if_missing:
            from lockstep.data.plan.schema import inferred_schema

            schema = inferred_schema(self._groups())
        return schema

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """The names of the columns."""
        schema = self.schema(fetch_if_missing)
        return None if schema is None else list(schema.names)

    def num_blocks(self) -> int:
        """How many pieces it is read in."""
        return len(self._units())

    def size_bytes(self) -> int:
        """About how many bytes go in, before transforms."""
        return sum(unit.size for unit in self._units())

    def memory_bytes(self) -> int:
        """How many bytes of it lie in memory, here and wherever it is sent."""
        sources = {id(unit.source): unit.source for unit in self._units()}.values()
        return sum(source.memory_bytes() for source in sources)

    def input_files(self) -> list[str]:
        """The files it is read from."""
        found: dict[str, None] = {}
        for source in {id(unit.source): unit.source for unit in self._units()}.values():
            found.update(dict.fromkeys(source.files()))
        return list(found)

    def materialize(self) -> Dataset:
        """The rows read and transformed now, and kept in memory."""
        return _in_memory(self.to_arrow())

    def iterator(self) -> DataShard:
        """The rows as one shard: an iterator whose position can be saved and restored."""
        return self.prepare(1, equal=False).shard(0)

    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: Sequence[Any] | None = None
    ) -> list[DataShard]:
        """``n`` shards, as workers get them; ``locality_hints`` is accepted and not needed."""
        plan = self.prepare(n, equal=equal)
        return [plan.shard(rank) for rank in range(n)]

    def prepare(
        self,
        world_size: int,
        *,
        equal: bool = True,
        order: str = "local",
        seed: int | None = None,
        name: str = "The dataset",
    ) -> ShardPlan:
        """Find everything that ranks need to read their parts by themselves; counts the rows.

        Args:
            world_size: how many ranks.
            equal, order: see ``DataConfig``.
            seed: replaces those that ``random_shuffle()`` drew for itself.
            name: what to call it in errors.
        """
        world_size = check_int(f"world_size={world_size!r}", world_size, 1)
        if order not in ("local", "global"):
            raise ValueError(f"order={order!r} is not known; give 'local' or 'global'.")
        for source in {id(unit.source): unit.source for unit in self._units()}.values():
            source.check()
        groups = self._counted()
        seed = check_seed("prepare", seed)
        if seed is not None:
            groups = [
                replace(group, shuffle=replace(group.shuffle, seed=seed))
                if group.shuffle is not None and group.shuffle.drawn
                else group
                for group in groups
            ]
        cut = Cut(world_size, equal, order)
        return ShardPlan(groups, cut, self.schema(False), name, in_memory=_in_memory)

    if not TYPE_CHECKING:  # a type checker is to find what there is not, too

        def __getattr__(self, name: str) -> Any:
            if name in ("groupby", "join", "aggregate"):
                raise AttributeError(
                    f"A dataset has no {name}(): do that in a frame library (Polars, DuckDB, "
                    "pandas) and bring the result back with from_arrow()."
                )
            raise AttributeError(f"A dataset has no {name!r}.")

    def __repr__(self) -> str:
        from lockstep.data.plan.schema import known_schema

        made = self._made
        if made is None:
            return "Dataset(not read yet)"
        schema = known_schema(made)
        names = "?" if schema is None else ", ".join(schema.names)
        rows = [unit.rows for group in made for unit in group.units]
        known = "?" if None in rows else sum(row or 0 for row in rows)
        return f"Dataset(rows={known}, columns=[{names}])"


def _in_memory(table: pa.Table) -> Dataset:
    """A table's rows as a dataset."""
    table = without_views(table)
    return Dataset(lambda: table_groups(table))
