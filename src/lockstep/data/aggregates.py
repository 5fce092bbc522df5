"""Aggregates of columns, computed in one pass that holds one block at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_values
from lockstep.data.arrow.unify import concatenated
from lockstep.data.base import DatasetBase
from lockstep.data.plan.operations import SelectColumns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Aggregates"]


class Aggregates(DatasetBase):
    """``sum``, ``min``, ``max``, ``mean``, ``std``, ``unique``.

    ``on`` is a column, a list of columns, or None for all columns. The result for one column is its
    value, for several columns a dict such as ``{"sum(x)": 3}``. Nulls are left out; with
    ``ignore_nulls=False`` a null makes the result None. Without rows the result is None.
    """

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The sum."""
        return self._aggregate("sum", on, ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The smallest value."""
        return self._aggregate("min", on, ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The largest value."""
        return self._aggregate("max", on, ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The mean."""
        return self._aggregate("mean", on, ignore_nulls)

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Any:
        """The standard deviation: of a sample (``ddof=1``) or of a population (``ddof=0``)."""
        return self._aggregate("std", on, ignore_nulls, ddof)

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """The distinct values of a column, in order of appearance."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[pa.Table] = []
        for table in self._with_operation(SelectColumns((column,), "unique"))._tables():
            found.append(pa.table({column: pc.unique(table.column(0))}))
            merged = concatenated(found)
            found = [pa.table({column: pc.unique(merged.column(0))})]
        values = to_values(found[0].column(0)) if found else []
        return [value for value in values if not (ignore_nulls and value is None)]

    def _aggregate(
        self, kind: str, on: str | Sequence[str] | None, ignore_nulls: bool, ddof: int = 1
    ) -> Any:
        names = [on] if isinstance(on, str) else () if on is None else on
        moments = {name: _Moments() for name in names}
        columns = self._with_operation(SelectColumns(tuple(moments), kind)) if moments else self
        for table in columns._tables():
            for name in table.column_names:
                moments.setdefault(name, _Moments()).add(table[name], kind, name)
        results = {
            f"{kind}({name})": found.result(kind, ignore_nulls, ddof)
            for name, found in moments.items()
        }
        if isinstance(on, str) or (on is None and len(results) == 1):
            return next(iter(results.values()))
        return results


class _Moments:
    """What is known of a column after some of its blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.nulls = 0
        self.sum: Any = None
        self.mean = 0.0
        self.squares = 0.0
        self.min: Any = None
        self.max: Any = None

    def add(self, column: pa.ChunkedArray, kind: str, name: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self.nulls += column.null_count
        count = len(column) - column.null_count
        if not count:
            return
        try:
            if kind in ("min", "max"):
                low, high = pc.min_max(column).as_py().values()
                self.min = low if self.min is None else min(self.min, low)
                self.max = high if self.max is None else max(self.max, high)
            else:
                self._add_numbers(column, count, pc)
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise TypeError(
                f"{kind}() cannot be computed for column {name!r} of type {column.type}; choose "
                "other columns."
            ) from error
        self.count += count

    def _add_numbers(self, column: pa.ChunkedArray, count: int, pc: Any) -> None:
        total = pc.sum(column).as_py()
        self.sum = total if self.sum is None else self.sum + total
        mean = float(total) / count
        squares = float(pc.variance(column, ddof=0).as_py()) * count
        # Merge the block as Chan, Golub and LeVeque do: numerically stable for any mean.
        delta, both = mean - self.mean, self.count + count
        self.squares += squares + delta * delta * self.count * count / both
        self.mean += delta * count / both

    def result(self, kind: str, ignore_nulls: bool, ddof: int) -> Any:
        if not self.count or (self.nulls and not ignore_nulls):
            return None
        if kind == "std":
            return math.sqrt(self.squares / (self.count - ddof)) if self.count > ddof else None
        if kind == "mean":
            return self.mean if isinstance(self.sum, float) else float(self.sum) / self.count
        return {"sum": self.sum, "min": self.min, "max": self.max}[kind]
