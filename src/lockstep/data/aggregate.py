"""Functions that turn the rows of a dataset, or of each of its groups, into one value."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int
from lockstep.data.arrow.columns import to_numpy, to_values
from lockstep.data.arrow.tensors import is_tensor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "AbsMax",
    "AggregateFn",
    "AggregateFnV2",
    "ApproximateQuantile",
    "ApproximateTopK",
    "AsList",
    "Count",
    "CountDistinct",
    "Max",
    "Mean",
    "Min",
    "MissingValuePercentage",
    "Quantile",
    "Std",
    "Sum",
    "Unique",
    "ValueCounter",
    "ZeroPercentage",
]


class AggregateFn:
    """An aggregate of your own, computed block by block.

    Args:
        init: the value before any row, for a group's key (None for a whole dataset).
        merge: combines two values; as in Ray, though all rows are accumulated in order here.
        name: the name of the result.
        accumulate_row: the value after one more row, a dict.
        accumulate_block: instead: the value after one more Arrow table.
        finalize: the result for the last value.
    """

    on: str | None = None
    """The only column that is read, where it needs no other."""

    def __init__(
        self,
        init: Callable[[Any], Any],
        merge: Callable[[Any, Any], Any],
        name: str,
        accumulate_row: Callable[[Any, dict[str, Any]], Any] | None = None,
        accumulate_block: Callable[[Any, Any], Any] | None = None,
        finalize: Callable[[Any], Any] | None = None,
    ) -> None:
        if (accumulate_row is None) == (accumulate_block is None):
            raise ValueError("AggregateFn(): give either accumulate_row or accumulate_block.")
        if not isinstance(name, str):
            raise TypeError(f"AggregateFn(name={name!r}): the name of a column is a string.")
        self.name = name
        self.init, self.merge = init, merge
        self.accumulate_block = accumulate_block or _by_row(accumulate_row)
        self.finalize = finalize or (lambda value: value)

    def arrow(self) -> tuple[Any, str, Any] | None:
        """The column, name and options of an Arrow function that computes it for groups."""
        return None

    def of(self, tables: Any, key: Any = None) -> Any:
        """The result for the rows of some tables."""
        value = self.init(key)
        for table in tables:
            value = self.accumulate_block(value, table)
        return self.finalize(value)


def _by_row(accumulate: Any) -> Callable[[Any, Any], Any]:
    def block(value: Any, table: pa.Table) -> Any:
        from lockstep.data.arrow.formats import to_rows

        for row in to_rows(table):
            value = accumulate(value, row)
        return value

    return block


class AggregateFnV2(AggregateFn):
    """The base of aggregates written as classes: ``aggregate_block``, ``combine``, ``finalize``.

    Args:
        name: of the result.
        zero_factory: the value without rows.
        on: the column.
        ignore_nulls: leave rows with a null in the column out.
    """

    def __init__(
        self, name: str, zero_factory: Callable[[], Any], *, on: str | None, ignore_nulls: bool
    ) -> None:
        self.on, self.ignore_nulls = on, ignore_nulls
        super().__init__(
            lambda key: zero_factory(),
            self.combine,
            name,
            accumulate_block=self._accumulated,
            finalize=self.finalize,
        )

    def get_target_column(self) -> str | None:
        """The column."""
        return self.on

    def _accumulated(self, value: Any, table: pa.Table) -> Any:
        if self.ignore_nulls and self.on is not None:
            table = table.filter(table[self.on].is_valid())
        return self.combine(value, self.aggregate_block(table)) if table.num_rows else value

    @abstractmethod
    def aggregate_block(self, block: Any) -> Any:
        """The value of an Arrow table."""
        raise NotImplementedError(f"{type(self).__name__} has no aggregate_block(); define it.")

    @abstractmethod
    def combine(self, current_accumulator: Any, new: Any) -> Any:
        """Two values made one."""
        raise NotImplementedError(f"{type(self).__name__} has no combine(); define it.")

    def finalize(self, accumulator: Any) -> Any:
        """The result for the last value."""
        return accumulator


@dataclass
class _State:
    """What is known of a column after some of its blocks."""

    count: int = 0
    nulls: int = 0
    value: Any = None
    mean: Any = 0.0
    squares: Any = 0.0


class _OfColumn(AggregateFn):
    """An aggregate of one column. Arrays in rows are aggregated element by element."""

    kind: str
    ignores_nulls = True

    def __init__(
        self,
        on: str | None = None,
        ignore_nulls: bool | None = None,
        alias_name: str | None = None,
    ) -> None:
        if not isinstance(on, str):
            raise ValueError(f"{type(self).__name__}(on={on!r}): give the name of a column.")
        self.on = on
        self.ignore_nulls = self.ignores_nulls if ignore_nulls is None else ignore_nulls
        super().__init__(
            lambda key: _State(),
            _cannot_merge,
            alias_name or f"{self.kind}({on})",
            accumulate_block=self._accumulated,
            finalize=self._finished,
        )

    def _accumulated(self, state: _State, table: pa.Table) -> _State:
        import pyarrow as pa

        column = table[self.on]
        state.nulls += column.null_count
        values = column.drop_null() if column.null_count else column
        if not len(values):
            return state
        try:
            self._add(state, _elements(values), len(values))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid, TypeError) as error:
            raise TypeError(
                f"{self.kind}() cannot be computed for column {self.on!r} of type {column.type}; "
                "choose other columns."
            ) from error
        state.count += len(values)
        return state

    def _finished(self, state: _State) -> Any:
        if not state.count or (state.nulls and not self.ignore_nulls):
            return None
        return self._result(state)

    def _add(self, state: _State, values: Any, count: int) -> None:
        raise NotImplementedError

    def _result(self, state: _State) -> Any:
        return state.value

    def _options(self) -> Any:
        import pyarrow.compute as pc

        return pc.ScalarAggregateOptions(skip_nulls=self.ignore_nulls, min_count=1)


def _cannot_merge(one: Any, other: Any) -> Any:
    raise NotImplementedError("All rows are accumulated in order; there is nothing to merge.")


def _elements(column: pa.ChunkedArray) -> Any:
    """The column itself, or one array of all rows where rows have arrays of one shape."""
    import pyarrow.types as types

    if is_tensor(column.type) or types.is_fixed_size_list(column.type):
        return to_numpy(column)
    return column


def _is_array(values: Any) -> bool:
    return hasattr(values, "ndim")


class Count(AggregateFn):
    """The number of rows; of a column, with ``ignore_nulls=True``, of its values."""

    def __init__(
        self, on: str | None = None, ignore_nulls: bool = False, alias_name: str | None = None
    ) -> None:
        self.on, self.ignore_nulls = on, ignore_nulls
        super().__init__(
            lambda key: 0,
            lambda one, other: one + other,
            alias_name or f"count({on or ''})",
            accumulate_block=self._accumulated,
        )

    def _accumulated(self, value: int, table: pa.Table) -> int:
        nulls = table[self.on].null_count if self.on and self.ignore_nulls else 0
        return value + int(table.num_rows - nulls)

    def arrow(self) -> tuple[Any, str, Any]:
        """Arrow's count."""
        import pyarrow.compute as pc

        if self.on is None:
            return [], "count_all", None
        return self.on, "count", pc.CountOptions("only_valid" if self.ignore_nulls else "all")


class Sum(_OfColumn):
    """The sum."""

    kind = "sum"

    def _add(self, state: _State, values: Any, count: int) -> None:
        import pyarrow.compute as pc

        total = values.sum(axis=0) if _is_array(values) else pc.sum(values).as_py()
        state.value = total if state.value is None else state.value + total

    def arrow(self) -> tuple[Any, str, Any]:
        """Arrow's sum."""
        return self.on, "sum", self._options()


class _Extreme(_OfColumn):
    """The smallest or the largest value; ``zero_factory`` is Ray's, and not needed here."""

    def __init__(
        self,
        on: str | None = None,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
        zero_factory: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)

    def _add(self, state: _State, values: Any, count: int) -> None:
        import numpy as np
        import pyarrow.compute as pc

        if _is_array(values):
            found = getattr(values, self.kind)(axis=0)
            both = [found] if state.value is None else [state.value, found]
            state.value = getattr(np.stack(both), self.kind)(axis=0)
            return
        found = getattr(pc, self.kind)(values).as_py()
        pick = {"min": min, "max": max}[self.kind]
        state.value = found if state.value is None else pick(state.value, found)

    def arrow(self) -> tuple[Any, str, Any] | None:
        """Arrow's function of that name."""
        return self.on, self.kind, self._options()


class Min(_Extreme):
    """The smallest value."""

    kind = "min"


class Max(_Extreme):
    """The largest value."""

    kind = "max"


class AbsMax(_Extreme):
    """The largest absolute value."""

    kind = "abs_max"

    def _add(self, state: _State, values: Any, count: int) -> None:
        import pyarrow.compute as pc

        high = pc.max(pc.abs(values)).as_py()
        state.value = high if state.value is None else max(state.value, high)

    def arrow(self) -> tuple[Any, str, Any] | None:
        """None: Arrow has no such function of groups."""
        return None


class _Moments(_OfColumn):
    """The count, the mean and the sum of squared deviations from it."""

    def _add(self, state: _State, values: Any, count: int) -> None:
        import pyarrow.compute as pc

        if _is_array(values):
            values = values.astype(float)
            total, mean = values.sum(axis=0), values.mean(axis=0)
            squares = values.var(axis=0) * count
        else:
            total = pc.sum(values).as_py()
            mean = float(total) / count
            squares = float(pc.variance(values, ddof=0).as_py()) * count
        state.value = total if state.value is None else state.value + total
        # Merge the block as Chan, Golub and LeVeque do: numerically stable for any mean.
        delta, both = mean - state.mean, state.count + count
        state.squares = state.squares + squares + delta * delta * state.count * count / both
        state.mean = state.mean + delta * count / both


class Mean(_Moments):
    """The mean."""

    kind = "mean"

    def _result(self, state: _State) -> Any:
        # The sum of integers is exact.
        exact = isinstance(state.value, int)
        return float(state.value) / state.count if exact else state.mean

    def arrow(self) -> tuple[Any, str, Any]:
        """Arrow's mean."""
        return self.on, "mean", self._options()


class Std(_Moments):
    """The standard deviation: of a sample (``ddof=1``) or of a population (``ddof=0``)."""

    kind = "std"

    def __init__(
        self,
        on: str | None = None,
        ddof: int = 1,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.ddof = ddof

    def _result(self, state: _State) -> Any:
        if state.count <= self.ddof:
            return None
        variance = state.squares / (state.count - self.ddof)
        return variance**0.5 if _is_array(variance) else math.sqrt(variance)

    def arrow(self) -> tuple[Any, str, Any]:
        """Arrow's standard deviation."""
        import pyarrow.compute as pc

        options = pc.VarianceOptions(
            ddof=self.ddof, skip_nulls=self.ignore_nulls, min_count=self.ddof + 1
        )
        return self.on, "stddev", options


class _Values(_OfColumn):
    """An aggregate of all values, which are kept until the end."""

    def _accumulated(self, state: _State, table: pa.Table) -> _State:
        column = table[self.on]
        if self.ignore_nulls and column.null_count:
            column = column.drop_null()
        state.value = self._kept([*(state.value or []), column])
        return state

    def _kept(self, columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        """What is kept of the columns so far."""
        return columns

    def _finished(self, state: _State) -> Any:
        import pyarrow as pa

        from lockstep.data.arrow.unify import concatenated

        if not state.value:
            return self._of(pa.chunked_array([], pa.null()))
        return self._of(concatenated([pa.table({"": c}) for c in state.value]).column(0))

    def _of(self, column: pa.ChunkedArray) -> Any:
        raise NotImplementedError


class AsList(_Values):
    """All values, in order."""

    kind = "list"
    ignores_nulls = False

    def _of(self, column: pa.ChunkedArray) -> list[Any]:
        return to_values(column)


class _Distinct(_Values):
    def _kept(self, columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        import pyarrow as pa
        import pyarrow.compute as pc

        from lockstep.data.arrow.unify import concatenated

        one = concatenated([pa.table({"": column}) for column in columns]).column(0)
        return [pa.chunked_array([pc.unique(one)])]


class Unique(_Distinct):
    """The distinct values, in order of appearance; ``encode_lists`` counts those inside lists."""

    kind = "unique"
    ignores_nulls = False

    def __init__(
        self,
        on: str | None = None,
        ignore_nulls: bool = False,
        alias_name: str | None = None,
        encode_lists: bool | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        self.encode_lists = encode_lists

    def _kept(self, columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        import pyarrow.compute as pc
        import pyarrow.types as types

        last = columns[-1]
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        if any(is_list(last.type) for is_list in lists):
            if not self.encode_lists:
                raise TypeError(
                    f"Unique({self.on!r}): the values are lists; give encode_lists=True for the "
                    "distinct values inside them."
                )
            columns[-1] = pc.list_flatten(last)
        return super()._kept(columns)

    def _of(self, column: pa.ChunkedArray) -> list[Any]:
        return to_values(column)


class CountDistinct(_Distinct):
    """The number of distinct values."""

    kind = "count_distinct"

    def _of(self, column: pa.ChunkedArray) -> int:
        return len(column)

    def arrow(self) -> tuple[Any, str, Any]:
        """Arrow's count of distinct values."""
        import pyarrow.compute as pc

        mode = "only_valid" if self.ignore_nulls else "all"
        return self.on, "count_distinct", pc.CountOptions(mode)


class ValueCounter(_Values):
    """The distinct values and how often each occurs: ``{"values": […], "counts": […]}``."""

    kind = "value_counter"

    def _of(self, column: pa.ChunkedArray) -> Mapping[str, list[Any]]:
        import pyarrow.compute as pc

        found = pc.value_counts(column)
        return {"values": found.field(0).to_pylist(), "counts": found.field(1).to_pylist()}


class Quantile(_Values):
    """The value below which a fraction ``q`` of the values lies, interpolated."""

    kind = "quantile"

    def __init__(
        self,
        on: str | None = None,
        q: float = 0.5,
        ignore_nulls: bool = True,
        alias_name: str | None = None,
    ) -> None:
        super().__init__(on, ignore_nulls, alias_name)
        if not 0 <= q <= 1:
            raise ValueError(f"Quantile(q={q!r}): give a fraction from 0 to 1.")
        self.q = q

    def _of(self, column: pa.ChunkedArray) -> Any:
        import pyarrow.compute as pc

        if column.null_count or not len(column):
            return None
        return pc.quantile(column, self.q)[0].as_py()


class ApproximateQuantile(_Values):
    """Several quantiles; exact here, so ``quantile_precision`` changes nothing."""

    kind = "approx_quantile"

    def __init__(
        self,
        on: str,
        quantiles: Sequence[float],
        quantile_precision: int = 800,
        alias_name: str | None = None,
    ) -> None:
        super().__init__(on, True, alias_name)
        self.quantiles = list(quantiles)

    def _of(self, column: pa.ChunkedArray) -> list[Any]:
        import pyarrow.compute as pc

        if not len(column):
            return [None] * len(self.quantiles)
        return list(pc.quantile(column, self.quantiles).to_pylist())


class ApproximateTopK(_Values):
    """The ``k`` most frequent values, as dicts ``{column: value, "count": n}``; exact here.

    So ``log_capacity`` changes nothing. ``encode_lists`` counts the values inside lists.
    """

    kind = "approx_topk"

    def __init__(
        self,
        on: str,
        k: int,
        log_capacity: int = 15,
        alias_name: str | None = None,
        encode_lists: bool = False,
    ) -> None:
        super().__init__(on, True, alias_name)
        self.k = check_int(f"ApproximateTopK(k={k!r})", k, 1)
        self.encode_lists = encode_lists

    def _of(self, column: pa.ChunkedArray) -> list[dict[str, Any]]:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as types

        if self.encode_lists:
            if isinstance(column.type, pa.FixedShapeTensorType):
                kept = [chunk.storage for chunk in column.chunks]
                column = pa.chunked_array(kept, column.type.storage_type)
            lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
            if any(is_list(column.type) for is_list in lists):
                column = pc.list_flatten(column).drop_null()
        if types.is_nested(column.type):
            counts: dict[str, int] = {}  # Arrow counts neither lists nor structs
            first: dict[str, Any] = {}
            for value in column.to_pylist():
                counts[repr(value)] = counts.get(repr(value), 0) + 1
                first.setdefault(repr(value), value)
            found = [(first[text], count) for text, count in counts.items()]
        else:
            pairs = pc.value_counts(column)
            values, numbers = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
            found = list(zip(values, numbers, strict=True))
        found.sort(key=lambda pair: -pair[1])
        return [{str(self.on): value, "count": count} for value, count in found[: self.k]]


class _Percentage(_OfColumn):
    def _add(self, state: _State, values: Any, count: int) -> None:
        state.value = (state.value or 0) + self._matching(values)

    def _matching(self, values: Any) -> int:
        """How many of the values count."""
        raise NotImplementedError


class MissingValuePercentage(_Percentage):
    """How many percent of the values are null or NaN."""

    kind = "missing_pct"

    def __init__(self, on: str, alias_name: str | None = None) -> None:
        super().__init__(on, True, alias_name)

    def _matching(self, values: Any) -> int:
        import pyarrow.compute as pc

        return pc.sum(pc.is_null(values, nan_is_null=True)).as_py() or 0

    def _finished(self, state: _State) -> Any:
        total = state.count + state.nulls
        return (state.nulls + (state.value or 0)) / total * 100 if total else None


class ZeroPercentage(_Percentage):
    """How many percent of the values are zero; with ``ignore_nulls=False``, of all rows."""

    kind = "zero_pct"

    def _matching(self, values: Any) -> int:
        import pyarrow.compute as pc

        return pc.sum(pc.equal(values, 0)).as_py() or 0

    def _finished(self, state: _State) -> Any:
        total = state.count + (0 if self.ignore_nulls else state.nulls)
        return (state.value or 0) / total * 100 if total else None
