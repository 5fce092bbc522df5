"""Encoders of categories, and what replaces missing values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.aggregate import (
    AggregateFn,
    Mean,
    Unique,
    ValueCounter,
)
from lockstep.data.arrow.columns import to_arrow, to_numpy, to_values
from lockstep.data.arrow.formats import to_format, to_table
from lockstep.data.plan.operations import check_columns, with_column
from lockstep.data.preprocessors.base import OfColumns

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = [
    "Encoder",
    "LabelEncoder",
    "ListCounter",
    "MultiHotEncoder",
    "OneHotEncoder",
    "OrdinalEncoder",
    "SimpleImputer",
    "places_in",
    "present",
]


class Encoder(OfColumns):
    """Learns the distinct values of columns: ``stats_["unique_values(x)"] = {value: number}``."""

    def _aggregates(self) -> list[AggregateFn]:
        return [
            Unique(name, ignore_nulls=True, alias_name=name, encode_lists=True)
            for name in self.columns
        ]

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        return {f"unique_values({name})": _numbered(values) for name, values in found.items()}

    def _numbers(self, column: pa.ChunkedArray, name: str) -> Any:
        """The number of each value; null for one that was not seen."""
        import pyarrow as pa

        known = pa.array(list(self.stats_[f"unique_values({name})"]))
        try:
            return places_in(known, column)
        except pa.ArrowException:  # a batch of another type than the dataset
            return places_in(known, column.cast(known.type))


def places_in(values: pa.Array, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The place of each value of a column among ``values``, both in a type that holds both."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.type != values.type:
        sides = [pa.schema([("", kind)]) for kind in (column.type, values.type)]
        kind = pa.unify_schemas(sides, promote_options="permissive").field(0).type
        column, values = column.cast(kind), values.cast(kind)
    return pc.index_in(column, value_set=values, skip_nulls=True)


def present(values: Sequence[Any]) -> list[Any]:
    """The values in order, without null and NaN."""
    return sorted(value for value in values if value is not None and value == value)


def _numbered(values: Sequence[Any]) -> dict[Any, int]:
    return {value: number for number, value in enumerate(present(values))}


def _distinct_values(name: str) -> AggregateFn:
    """The distinct values of a column; a list is one value, as a tuple."""

    def accumulate(seen: dict[Any, None], table: pa.Table) -> dict[Any, None]:
        for value in table[name].to_pylist():
            seen[tuple(value) if isinstance(value, list) else value] = None
        return seen

    return AggregateFn(
        lambda key: {}, lambda a, b: {**a, **b}, name, accumulate_block=accumulate, finalize=list
    )


class OrdinalEncoder(Encoder):
    """Each value replaced by its place among the sorted distinct values; null if it is unknown.

    Args:
        columns, output_columns: as of the scalers.
        encode_lists: of lists and arrays, replace the values inside them. False: each list is one
            value.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        encode_lists: bool = True,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.encode_lists = encode_lists

    def _aggregates(self) -> list[AggregateFn]:
        if self.encode_lists:
            return super()._aggregates()
        return [_distinct_values(name) for name in self.columns]

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.types as types

        kind = column.type
        lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not lists:
            return self._numbers(column, name).cast(pa.int64())
        known = self.stats_[f"unique_values({name})"]
        rows = column.to_pylist()
        if not self.encode_lists:
            places = [None if row is None else known.get(tuple(row)) for row in rows]
            return pa.array(places, pa.int64())
        numbers = pa.list_(pa.int64())
        return pa.array([r if r is None else [known.get(v) for v in r] for r in rows], numbers)


class LabelEncoder(Encoder):
    """A column of labels as numbers; ``inverse_transform`` restores the labels.

    Args:
        label_column: the column.
        output_column: the name of the new column; None replaces the column.
    """

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__([label_column], None if output_column is None else [output_column])
        self.label_column, self.output_column = label_column, output_column

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pyarrow as pa

        return self._numbers(column, name).cast(pa.int64())

    def inverse_transform(self, ds: Dataset) -> Dataset:
        """The dataset with labels in place of numbers."""
        self.check_is_fitted()
        return ds.map_batches(self._inverse, batch_format="pyarrow", preserves_rows=True)

    def inverse_transform_batch(self, data: Any) -> Any:
        """A batch with labels in place of numbers."""
        table = self._inverse(to_table(data, "LabelEncoder.inverse_transform_batch"))
        return to_format(table, "numpy" if isinstance(data, Mapping) else "pandas")

    def _inverse(self, table: pa.Table) -> pa.Table:
        import pyarrow as pa

        labels = pa.array(list(self.stats_[f"unique_values({self.label_column})"]))
        name = self.output_columns[0]
        check_columns([name], table.column_names, "inverse_transform")
        return with_column(table, self.label_column, labels.take(table[name].combine_chunks()))


class ListCounter(ValueCounter):
    """How often each value occurs, in lists, too."""

    def _kept(self, columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
        import pyarrow.compute as pc
        import pyarrow.types as types

        kind = columns[-1].type
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            columns[-1] = pc.list_flatten(columns[-1])
        return columns


class OneHotEncoder(Encoder):
    """Each value as an array with a 1 at its place; all 0 if it is unknown.

    Args:
        columns, output_columns: as of the scalers.
        max_categories: for some columns, keep only that many values, the most frequent ones.
    """

    def __init__(
        self,
        columns: Sequence[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.max_categories = None if max_categories is None else dict(max_categories)

    def _aggregates(self) -> list[AggregateFn]:
        return [ListCounter(name, alias_name=name) for name in self.columns]

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        learned = {}
        for name, counted in found.items():
            pairs = zip(counted["values"], counted["counts"], strict=True)
            often = [value for value, _ in sorted(pairs, key=lambda pair: -pair[1])]
            most = (self.max_categories or {}).get(name, len(often))
            learned[f"unique_values({name})"] = _numbered(often[:most])
        return learned

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np

        width = len(self.stats_[f"unique_values({name})"])
        numbers = to_numpy(self._numbers(column, name).fill_null(width)).astype(np.int64)
        return to_arrow(np.eye(width + 1, dtype=np.uint8)[numbers][:, :width])


class MultiHotEncoder(OneHotEncoder):
    """Each list as an array of how often each known value is in it."""

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np

        known = self.stats_[f"unique_values({name})"]
        found = np.zeros((len(column), len(known)), np.uint8)
        for row, values in enumerate(to_values(column)):
            for value in () if values is None else values:
                if value in known:
                    found[row, known[value]] += 1
        return to_arrow(found)


class SimpleImputer(OfColumns):
    """Nulls and NaN replaced.

    Args:
        columns, output_columns: as of the scalers.
        strategy: by the column's ``"mean"``, its ``"most_frequent"`` value, or a ``"constant"``.
        fill_value: the constant.
    """

    def __init__(
        self,
        columns: Sequence[str],
        strategy: str = "mean",
        fill_value: Any = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if strategy not in ("mean", "most_frequent", "constant"):
            raise ValueError(f"strategy={strategy!r}: give 'mean', 'most_frequent' or 'constant'.")
        if strategy == "constant" and fill_value is None:
            raise ValueError("SimpleImputer(strategy='constant'): give fill_value, too.")
        self.strategy, self.fill_value = strategy, fill_value
        self._is_fittable = strategy != "constant"

    def _aggregates(self) -> list[AggregateFn]:
        if self.strategy == "mean":
            return [_PresentMean(name) for name in self.columns]
        return [ValueCounter(name, alias_name=f"most_frequent({name})") for name in self.columns]

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        if self.strategy == "mean":
            return found
        return {
            name: c["values"][c["counts"].index(max(c["counts"]))] if c["values"] else None
            for name, c in found.items()
        }

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as types

        value = (
            self.fill_value if not self._is_fittable else self.stats_[f"{self.strategy}({name})"]
        )
        if value is None:
            raise ValueError(
                f"SimpleImputer: column {name!r} had no values to learn from; leave it out, or "
                "give strategy='constant'."
            )
        if types.is_null(column.type):
            return pa.repeat(pa.scalar(value), len(column))
        if types.is_integer(column.type) and isinstance(value, float):
            column = column.cast(pa.float64())
        if types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        return column.fill_null(pa.scalar(value).cast(column.type))


class _PresentMean(Mean):
    """The mean without nulls and NaN."""

    def _add(self, state: Any, values: Any, count: int) -> None:
        import pyarrow.compute as pc
        import pyarrow.types as types

        if types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
            state.count -= count - len(values)
            count_before, state.count = state.count, state.count + count - len(values)
            if not len(values):
                return
            state.count = count_before + count - len(values)
        super()._add(state, values, len(values))
