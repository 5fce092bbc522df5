"""Aggregates of columns, computed in one pass that holds one block at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.data.aggregate import AggregateFn, Max, Mean, Min, Std, Sum, Unique
from lockstep.data.methods.base import DatasetBase
from lockstep.data.methods.grouped import check_aggregates, needed
from lockstep.data.methods.summary import DatasetSummary, summary_aggregates, summary_of
from lockstep.data.plan.operations import check_columns
from lockstep.data.plan.schema import schema_of

__all__ = ["Aggregates"]


class Aggregates(DatasetBase):
    """``sum``, ``min``, ``max``, ``mean``, ``std``, ``unique``, ``aggregate``.

    ``on`` is a column, a list of columns, or None for all columns. The result for one column is its
    value, for several columns a dict such as ``{"sum(x)": 3}``. Nulls are left out; with
    ``ignore_nulls=False`` a null makes the result None. Without rows the result is None.
    """

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The sum."""
        return self._each("sum", on, lambda name: Sum(name, ignore_nulls))

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The smallest value."""
        return self._each("min", on, lambda name: Min(name, ignore_nulls))

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The largest value."""
        return self._each("max", on, lambda name: Max(name, ignore_nulls))

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The mean."""
        return self._each("mean", on, lambda name: Mean(name, ignore_nulls))

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Any:
        """The standard deviation: of a sample (``ddof=1``) or of a population (``ddof=0``)."""
        return self._each("std", on, lambda name: Std(name, ddof, ignore_nulls))

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """The distinct values of a column, in order of appearance."""
        found: list[Any] = self._of_all("unique", [Unique(column, ignore_nulls)])[
            f"unique({column})"
        ]
        return found

    def aggregate(self, *aggs: AggregateFn) -> dict[str, Any]:
        """Several aggregates in one pass: ``aggregate(Sum("x"), Count())``.

        Args:
            aggs: of ``lockstep.data.aggregate``.

        Returns:
            The results by name: ``{"sum(x)": 3, "count()": 2}``.
        """
        check_aggregates(aggs)
        return self._of_all("aggregate", aggs)

    def summary(
        self,
        columns: Sequence[str] | None = None,
        override_dtype_agg_mapping: Mapping[Any, Callable[[str], Sequence[AggregateFn]]]
        | None = None,
    ) -> DatasetSummary:
        """Statistics of each column, in one pass: the count, and by the kind of its values more.

        Numbers have mean, min, max, std, median, and how many percent are missing or zero; times
        min and max; text the ten most frequent values. Booleans, 16-bit floats, durations, lists
        and arrays have how many percent are missing.

        Args:
            columns: of these columns; None: of all.
            override_dtype_agg_mapping: other aggregates for columns of a type: a dict from
                ``DataType`` (or an Arrow type) to a function of the column's name.

        Raises:
            KeyError: there is no such column.
        """
        schema = schema_of(self._groups())
        names = check_columns(schema.names if columns is None else columns, schema.names, "summary")
        chosen = summary_aggregates(schema, names, override_dtype_agg_mapping or {})
        every = [aggregate for found in chosen.values() for aggregate in found]
        check_aggregates(every)
        return summary_of(schema, chosen, self._of_all("summary", every))

    def _of_all(self, doing: str, aggs: Sequence[AggregateFn]) -> dict[str, Any]:
        values = [agg.init(None) for agg in aggs]
        for table in needed(self, aggs, (), doing)._tables():
            for place, agg in enumerate(aggs):
                values[place] = agg.accumulate_block(values[place], table)
        return {agg.name: agg.finalize(v) for agg, v in zip(aggs, values, strict=True)}

    def _each(
        self, doing: str, on: str | Sequence[str] | None, make: Callable[[str], AggregateFn]
    ) -> Any:
        if on is None:
            names = schema_of(self._groups()).names
        else:
            names = [on] if isinstance(on, str) else list(on)
        results = self._of_all(doing, [make(name) for name in names])
        if isinstance(on, str) or (on is None and len(results) == 1):
            return next(iter(results.values()))
        return results
