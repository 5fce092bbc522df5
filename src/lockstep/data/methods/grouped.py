"""Groups of rows with the same key: ``dataset.groupby("kind").mean("x")``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.data.aggregate import AggregateFn, Count, Max, Mean, Min, Std, Sum
from lockstep.data.arrow.formats import check_format, from_rows
from lockstep.data.compat import check_hints
from lockstep.data.methods.base import DatasetBase
from lockstep.data.methods.reordering import sorted_groups, table_groups, to_one_table
from lockstep.data.methods.transforms import call_of
from lockstep.data.plan import operations as ops
from lockstep.data.plan.order import Group
from lockstep.data.plan.schema import schema_of

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = ["GroupedData", "Grouping", "check_aggregates", "needed"]


class Grouping(DatasetBase):
    """``groupby``."""

    def groupby(
        self, key: str | Sequence[str] | None, num_partitions: int | None = None
    ) -> GroupedData:
        """Group the rows by one or more columns, to aggregate or transform each group.

        The columns that an aggregate needs are held in memory. The results are sorted by the key.

        Args:
            key: a column, or several; None makes one group of all rows.
            num_partitions: for Ray's scheduler; accepted and ignored.
        """
        keys = [] if key is None else [key] if isinstance(key, str) else list(key)
        schema = self._schema()
        if schema is not None and len(schema):
            ops.check_columns(keys, schema.names, "groupby")
        return GroupedData(self, keys)


class GroupedData:
    """The groups of a dataset; each method makes a dataset of them, on first use."""

    def __init__(self, dataset: DatasetBase, keys: Sequence[str]) -> None:
        self._dataset = dataset
        self._keys = list(keys)

    def __repr__(self) -> str:
        """The dataset and the key."""
        return f"GroupedData(keys={self._keys}, dataset={self._dataset!r})"

    def aggregate(self, *aggs: AggregateFn) -> Dataset:
        """A row for each group: its key and the results, such as ``{"kind": "a", "mean(x)": 2}``.

        Args:
            aggs: of ``lockstep.data.aggregate``.
        """
        check_aggregates(aggs)
        names = [f"{agg.name!r}" for agg in aggs]
        text = f"groupby({self._keys}).aggregate({', '.join(names)})"
        return self._made(
            text, lambda: table_groups(_aggregated(self._rows(aggs), self._keys, aggs))
        )

    def count(self) -> Dataset:
        """The number of rows of each group, in a column ``"count()"``."""
        return self.aggregate(Count())

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """The sums of a column, of several, or of all but the key."""
        return self._each(on, lambda name: Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """The smallest values; ``on`` as in ``sum``."""
        return self._each(on, lambda name: Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """The largest values; ``on`` as in ``sum``."""
        return self._each(on, lambda name: Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Dataset:
        """The means; ``on`` as in ``sum``."""
        return self._each(on, lambda name: Mean(name, ignore_nulls))

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Dataset:
        """The standard deviations; ``on`` as in ``sum``, ``ddof`` as in ``Dataset.std``."""
        return self._each(on, lambda name: Std(name, ddof, ignore_nulls))

    def _each(self, on: str | Sequence[str] | None, make: Callable[[str], AggregateFn]) -> Dataset:
        if on is None:
            on = [n for n in schema_of(self._dataset._groups()).names if n not in self._keys]
        return self.aggregate(*(make(name) for name in ([on] if isinstance(on, str) else on)))

    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        zero_copy_batch: bool = False,
        compute: Any = None,
        batch_format: str | None = "default",
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: int | tuple[int, ...] | None = None,
        processes: bool = False,
        **hints: Any,
    ) -> Dataset:
        """Call ``fn`` with the rows of each group, as a batch; it returns any number of rows.

        All rows are held in memory. Arguments as in ``map_batches``.
        """
        check_hints("map_groups", hints)
        call = call_of(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            compute, concurrency, processes,
        )  # fmt: skip
        operation = _MapGroups(call, None, check_format(batch_format), False, not zero_copy_batch)
        grouped = self._made(
            f"groupby({self._keys})",
            lambda: table_groups(*sorted_groups(to_one_table(self._dataset), self._keys)),
        )
        return grouped._with_operation(operation)

    def _made(self, text: str, make: Callable[[], list[Group]]) -> Dataset:
        return self._dataset._new(text, (self._dataset,), make, lambda: False)

    def _rows(self, aggs: Sequence[AggregateFn]) -> pa.Table:
        """All rows, with only the columns that are needed."""
        return to_one_table(needed(self._dataset, aggs, self._keys, "groupby"))


def check_aggregates(aggs: Sequence[Any]) -> None:
    """Check that functions to aggregate with were given.

    Raises:
        TypeError, ValueError: something else, or nothing.
    """
    if not aggs:
        raise ValueError("aggregate(): give one or more of lockstep.data.aggregate, as Sum('x').")
    for agg in aggs:
        if not isinstance(agg, AggregateFn):
            raise TypeError(
                f"aggregate({agg!r}): give one or more of lockstep.data.aggregate, as Sum('x')."
            )


def needed(
    dataset: DatasetBase, aggs: Sequence[AggregateFn], keys: Sequence[str], doing: str
) -> DatasetBase:
    """The dataset with the columns that the functions need, where they say so."""
    if not all(isinstance(agg, Count) or agg.on is not None for agg in aggs):
        return dataset  # a user's function may look at any column
    names = dict.fromkeys([*keys, *(agg.on for agg in aggs if agg.on is not None)])
    if not names:
        return dataset
    return dataset._with_operation(ops.SelectColumns(tuple(names), doing))


@dataclass(frozen=True, eq=False)
class _MapGroups(ops.MapBatches):
    """A user's function on groups: each block is one."""

    @property
    def text(self) -> str:
        """With the function's name."""
        return f"map_groups({self.call.name})"

    def rows_of_a_task(self, rows: int, processes: int) -> int:
        """The whole group."""
        return max(rows, 1)

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """In one call."""
        return self._one(table, owned)


def _aggregated(table: pa.Table, keys: Sequence[str], aggs: Sequence[AggregateFn]) -> pa.Table:
    import pyarrow as pa

    found = _by_arrow(table, keys, aggs)
    if found is not None:
        return found
    ordered, ends = sorted_groups(table, keys)
    rows = list(_by_group(ordered, ends, keys, aggs))
    made = from_rows(rows, None, "aggregate()")
    for place, key in enumerate(keys):  # the key keeps its type
        if rows and made.schema.field(key).type != table.schema.field(key).type:
            made = made.set_column(place, key, made[key].cast(table.schema.field(key).type))
    if not rows:
        empty = {key: pa.array([], table.schema.field(key).type) for key in keys}
        return pa.table({**empty, **{agg.name: pa.nulls(0) for agg in aggs}})
    return made


def _by_arrow(table: pa.Table, keys: Sequence[str], aggs: Sequence[AggregateFn]) -> pa.Table | None:
    """The results of Arrow's own functions; None where it has none for a column or a function."""
    import pyarrow as pa

    calls = [agg.arrow() for agg in aggs]
    if not keys or any(call is None for call in calls):
        return None
    try:
        found = table.group_by(list(keys)).aggregate(calls)
    except (pa.ArrowNotImplementedError, pa.ArrowKeyError):
        return None
    names = [*keys, *(agg.name for agg in aggs)]
    return pa.table(found.columns, names=names).sort_by([(key, "ascending") for key in keys])


def _by_group(
    table: pa.Table, ends: Sequence[int], keys: Sequence[str], aggs: Sequence[AggregateFn]
) -> Iterator[dict[str, Any]]:
    start = 0
    for end in ends:
        rows = table.slice(start, end - start)
        values = [rows[key][0].as_py() for key in keys]
        key = values[0] if len(values) == 1 else tuple(values) or None
        row: dict[str, Any] = dict(zip(keys, values, strict=True))
        for agg in aggs:
            row[agg.name] = agg.of([rows], key)
        yield row
        start = end
