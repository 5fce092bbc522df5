"""Numbers about columns, in one pass that holds a block at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_values
from lockstep.data.base import DatasetBase
from lockstep.data.plan.operations import SelectColumns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Aggregates"]


class Aggregates(DatasetBase):
    """``sum``, ``min``, ``max``, ``mean``, ``std``, ``unique``.

    ``on`` is a column, a list of them, or None for all. One column gives its value, several a dict
    such as ``{"sum(x)": 3}``. A null is left out; with ``ignore_nulls=False`` it makes the result
    None. Without rows the result is None.
    """

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The sum."""
        return self._aggregate("sum", on, ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The least."""
        return self._aggregate("min", on, ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The greatest."""
        return self._aggregate("max", on, ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """The mean."""
        return self._aggregate("mean", on, ignore_nulls)

    def std(
        self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True
    ) -> Any:
        """The standard deviation; ``ddof`` 1 is the sample's, 0 the population's."""
        return self._aggregate("std", on, ignore_nulls, ddof)

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """The different values of a column, in the order they appear in."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found: list[pa.Table] = []
        for table in self._then(SelectColumns((column,), "unique"))._tables():
            found.append(pa.table({column: pc.unique(table.column(0))}))
            whole = pa.concat_tables(found, promote_options="permissive")
            found = [pa.table({column: pc.unique(whole.column(0))})]
        values = to_values(found[0].column(0)) if found else []
        return [value for value in values if not (ignore_nulls and value is None)]

    def _aggregate(
        self, kind: str, on: str | Sequence[str] | None, ignore_nulls: bool, ddof: int = 1
    ) -> Any:
        wanted = None if on is None else [on] if isinstance(on, str) else list(on)
        moments: dict[str, _Moments] = {name: _Moments() for name in wanted or ()}
        columns = self._then(SelectColumns(tuple(moments), kind)) if moments else self
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
    """What is kept of a column between blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.nulls = 0
        self.sum: Any = None
        self.mean = 0.0
        self.squares = 0.0
        self.least: Any = None
        self.most: Any = None

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
                self.least = low if self.least is None else min(self.least, low)
                self.most = high if self.most is None else max(self.most, high)
            else:
                self._add_numbers(column, count, pc)
        except (pa.ArrowNotImplementedError, TypeError) as error:
            raise TypeError(
                f"{kind}() cannot be taken of column {name!r} of type {column.type}; name columns "
                "it can be taken of."
            ) from error
        self.count += count

    def _add_numbers(self, column: pa.ChunkedArray, count: int, pc: Any) -> None:
        total = pc.sum(column).as_py()
        self.sum = total if self.sum is None else self.sum + total
        mean = float(total) / count
        squares = float(pc.variance(column, ddof=0).as_py()) * count
        # Blocks are put together as Chan, Golub and LeVeque do: stable for any mean.
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
        return {"sum": self.sum, "min": self.least, "max": self.most}[kind]
