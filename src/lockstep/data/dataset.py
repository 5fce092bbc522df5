"""Dataset: rows of any source, read and transformed when they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int, check_seed
from lockstep.data.arrow.formats import check_format, to_format, to_rows
from lockstep.data.arrow.views import without_views
from lockstep.data.compat import DataContext
from lockstep.data.iterate.shard import DataShard, ShardPlan
from lockstep.data.methods.aggregates import Aggregates
from lockstep.data.methods.base import Step
from lockstep.data.methods.grouped import Grouping
from lockstep.data.methods.outputs import Outputs
from lockstep.data.methods.reordering import Reordering, source_groups
from lockstep.data.methods.transforms import Transforms
from lockstep.data.plan.position import Cut
from lockstep.data.plan.schema import inferred_schema, known_schema
from lockstep.data.schema import Schema
from lockstep.data.sources.base import MemorySource, Source

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Dataset", "from_source", "from_table"]

_SHOWN_COLUMNS = 20
_KEPT_BLOCKS = 1000
"""``materialize`` keeps the blocks if there are not more: many small ones are slow to read."""


class Dataset(Transforms, Reordering, Grouping, Aggregates, Outputs):
    """Rows with named columns, lazily read, transformed and divided among workers.

    Create one with ``lockstep.data.read_*`` or ``from_*``. A dataset never changes: a method that
    transforms it returns a new dataset.
    """

    _name: str | None = None

    def count(self) -> int:
        """The number of rows; reads no more data than the count needs.

        A ``map_batches`` is not run unless it has ``preserves_rows=False``, or its function was
        seen to change the number of rows.
        """
        if any(unit.seen_to_change_rows for unit in self._units()):
            return sum(table.num_rows for table in self._tables())
        return sum(unit.rows or 0 for group in self._counted() for unit in group.units)

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """The first rows, as dicts."""
        return list(islice(self._rows(), check_int(f"take({limit!r})", limit)))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """All rows, as dicts.

        Raises:
            ValueError: there are more than ``limit`` rows.
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
            if not table.column_names:
                yield from ({} for _ in range(table.num_rows))
                continue
            for start in range(0, table.num_rows, 256):
                yield from to_rows(table.slice(start, 256))

    def schema(self, fetch_if_missing: bool = True) -> Any:
        """The columns and their types: a ``Schema``.

        Where a user's function decides them, the transforms run on the first rows to find out; with
        ``fetch_if_missing=False`` the result is None instead.
        """
        schema = self._schema()
        if schema is None and fetch_if_missing:
            schema = inferred_schema(self._groups())
        return None if schema is None else Schema(schema)

    def columns(self, fetch_if_missing: bool = True) -> list[str] | None:
        """The names of the columns; ``fetch_if_missing`` as in ``schema``."""
        schema = self.schema(fetch_if_missing)
        return None if schema is None else list(schema.names)

    @property
    def name(self) -> str | None:
        """The name that ``set_name`` gave it."""
        return self._name

    def set_name(self, name: str | None) -> None:
        """Give the dataset a name, which ``print(dataset)`` shows."""
        self._name = name

    @property
    def context(self) -> DataContext:
        """Ray's settings, which have no effect here."""
        return DataContext.get_current()

    def num_blocks(self) -> int:
        """The number of blocks the dataset is read in."""
        return len(self._units())

    def size_bytes(self) -> int:
        """The approximate size of the data before transforms."""
        return sum(unit.size for unit in self._units())

    def memory_bytes(self) -> int:
        """The size of the data held in memory, in each process that has the dataset."""
        sources = {id(unit.source): unit.source for unit in self._units()}.values()
        return sum(source.memory_bytes() for source in sources)

    def input_files(self) -> list[str]:
        """The files the dataset is read from."""
        found: dict[str, None] = {}
        for source in {id(unit.source): unit.source for unit in self._units()}.values():
            found.update(dict.fromkeys(source.files()))
        return list(found)

    def copy(self, ds: Dataset | None = None) -> Dataset:
        """The dataset itself (or ``ds``): a dataset never changes."""
        return self if ds is None else ds

    def get_dataset_id(self) -> str:
        """A name for this dataset, unique in this process."""
        return f"{self._name or 'dataset'}_{id(self):x}"

    def has_serializable_lineage(self) -> bool:
        """Whether it is made of files alone, so that its pickle has no rows in it."""
        return not any(unit.source.in_memory for unit in self._units())

    def serialize_lineage(self) -> bytes:
        """How the dataset is made, as a pickle; rows in memory are in it."""
        import cloudpickle

        return bytes(cloudpickle.dumps(self))

    @staticmethod
    def deserialize_lineage(serialized_ds: bytes) -> Dataset:
        """What ``serialize_lineage`` has packed. This executes it: load only what you trust."""
        import pickle

        made: Dataset = pickle.loads(serialized_ds)
        return made

    def lazy(self) -> Dataset:
        """The dataset itself: every dataset is lazy."""
        return self

    def materialize(self) -> Dataset:
        """Read and transform all rows now; the result holds them in memory."""
        # Only where the rows are known: counting would call the user's functions once more.
        rows = [unit.rows for unit in self._units()]
        table = self.to_arrow()
        ends = None
        if 1 < len(rows) <= _KEPT_BLOCKS and None not in rows:
            ends = list(accumulate(count or 0 for count in rows))
        if ends is not None and ends[-1] == table.num_rows:
            made = from_source(MemorySource(without_views(table), ends=ends))
        else:
            made = from_table(table)
        made._step = Step("materialize()", (self._step,))
        return made

    def iterator(self) -> DataShard:
        """The rows as one shard: an iterator whose position can be saved and restored."""
        return self.prepare(1, equal=False).shard(0)

    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: Sequence[Any] | None = None
    ) -> list[DataShard]:
        """``n`` shards, as workers get them. Ignores ``locality_hints``."""
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
        """Plan the shards: check the files, count the rows, and divide them among ranks.

        Each rank can then read its shard without a coordinator.

        Args:
            world_size: the number of ranks.
            equal, order: see ``DataConfig``.
            seed: replaces the seeds that ``random_shuffle()`` drew by itself.
            name: the dataset's name in error messages.
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
        return ShardPlan(groups, cut, self._schema(), name, in_memory=from_table)

    if not TYPE_CHECKING:  # a type checker must report unknown attributes

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"A dataset has no {name!r}.")

    def explain(self) -> None:
        """Print how the dataset was made."""
        print("\n".join(self._step.lines()))

    def __repr__(self) -> str:
        """The rows and columns, as far as they are known without reading, and how it was made."""
        rows, columns = "?", "?"
        if self._is_free():
            counts = [unit.rows for unit in self._units()]
            rows = "?" if None in counts else str(sum(count or 0 for count in counts))
            if all(unit.source.is_ready() for unit in self._units()):
                columns = _shown(known_schema(self._groups()))
        named = "" if self._name is None else f"name={self._name}, "
        first = f"Dataset({named}rows={rows}, schema={columns})"
        return "\n".join([first, *self._step.lines()])


def _shown(schema: pa.Schema | None) -> str:
    if schema is None:
        return "?"  # a user's function decides it
    shown = [f"{field.name}: {field.type}" for field in schema][:_SHOWN_COLUMNS]
    more = len(schema) - len(shown)
    return f"{{{', '.join(shown)}{f', … {more} more' if more else ''}}}"


def from_source(source: Source) -> Dataset:
    """A source's rows as a dataset."""
    return Dataset(lambda: source_groups(source), Step(source.text), source.is_ready)


def from_table(table: pa.Table, num_blocks: int | None = None) -> Dataset:
    """A table's rows as a dataset of about ``num_blocks`` blocks, or of blocks of 16 MB."""
    rows = None if num_blocks is None else max(1, -(-table.num_rows // num_blocks))
    return from_source(MemorySource(without_views(table), rows))
