"""``Dataset.summary``: statistics of each column, by the kind of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.data.aggregate import (
    AggregateFn,
    ApproximateQuantile,
    ApproximateTopK,
    Count,
    Max,
    Mean,
    Min,
    MissingValuePercentage,
    Std,
    ZeroPercentage,
)
from lockstep.data.datatype import DataType

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["DatasetSummary", "summary_aggregates", "summary_of"]

_TOP = 10
_STATISTIC = "statistic"


@dataclass(frozen=True)
class DatasetSummary:
    """Statistics of the columns of a dataset.

    Attributes:
        dataset_schema: the columns of the dataset, as an Arrow schema.
        columns: those that the statistics are of.
        statistics: column → statistic → value.
    """

    dataset_schema: pa.Schema
    columns: Sequence[str]
    statistics: Mapping[str, Mapping[str, Any]]

    def to_pandas(self) -> pd.DataFrame:
        """A row for each statistic, a column for each column.

        The first column, ``"statistic"``, has the statistics' names.

        Raises:
            ValueError: a column of the dataset is called ``"statistic"``, too.
        """
        import pandas as pd

        if _STATISTIC in self.columns:
            raise ValueError(
                f"to_pandas: a column of the dataset is called {_STATISTIC!r}, as is the column of "
                "the statistics' names; use get_column_stats(), or rename the column before "
                "summary()."
            )
        names = self._names()
        values = {
            column: [self.statistics[column].get(name) for name in names] for column in self.columns
        }
        return pd.DataFrame({_STATISTIC: names, **values})

    def get_column_stats(self, column: str) -> pd.DataFrame:
        """A column's statistics: the columns ``"statistic"`` and ``"value"``.

        Raises:
            ValueError: there is no such column in the summary.
        """
        import pandas as pd

        if column not in self.statistics:
            raise ValueError(
                f"get_column_stats({column!r}): the summary has {', '.join(self.columns)}."
            )
        names = self._names()
        values = [self.statistics[column].get(name) for name in names]
        return pd.DataFrame({_STATISTIC: names, "value": values})

    def _names(self) -> list[str]:
        """The statistics that any column has."""
        return sorted({name for found in self.statistics.values() for name in found})


def summary_aggregates(
    schema: pa.Schema,
    columns: Sequence[str],
    mapping: Mapping[Any, Callable[[str], Sequence[AggregateFn]]],
) -> dict[str, list[AggregateFn]]:
    """The aggregates of each column; ``mapping`` has a user's own, by the columns' type."""
    found = {}
    for name in columns:
        kind = schema.field(name).type
        own = (make for given, make in mapping.items() if _fits(given, kind))
        found[name] = list(next(own, _by_kind(kind))(name))
    return found


def _fits(given: Any, kind: pa.DataType) -> bool:
    if isinstance(given, str):  # a TypeCategory, or its name
        return DataType(kind).is_of(given)
    return bool(getattr(given, "arrow", given) == kind)


def _by_kind(kind: pa.DataType) -> Callable[[str], Sequence[AggregateFn]]:
    import pyarrow.types as types

    if types.is_null(kind):
        return lambda name: [Count(name)]
    # Arrow computes neither the mean of booleans and 16-bit floats nor the order of durations.
    unordered = (types.is_boolean, types.is_float16, types.is_duration, types.is_interval)
    if any(is_kind(kind) for is_kind in unordered):
        return _of_any
    if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        return _of_numbers
    if types.is_temporal(kind):
        return lambda name: [Count(name), Min(name), Max(name), MissingValuePercentage(name)]
    nested = types.is_nested(kind) or hasattr(kind, "extension_name")
    if nested:  # arrays, lists, objects: the most frequent ones say little
        return _of_any
    return lambda name: [Count(name), MissingValuePercentage(name), ApproximateTopK(name, _TOP)]


def _of_any(name: str) -> Sequence[AggregateFn]:
    return [Count(name), MissingValuePercentage(name)]


def _of_numbers(name: str) -> Sequence[AggregateFn]:
    return [
        Count(name),
        Mean(name),
        Min(name),
        Max(name),
        Std(name, ddof=0),
        ApproximateQuantile(name, [0.5]),
        MissingValuePercentage(name),
        ZeroPercentage(name),
    ]


def summary_of(
    schema: pa.Schema, aggregates: Mapping[str, Sequence[AggregateFn]], results: Mapping[str, Any]
) -> DatasetSummary:
    """The results of the aggregates by column; of a list, each value for itself."""
    statistics: dict[str, dict[str, Any]] = {}
    for column, chosen in aggregates.items():
        found = statistics.setdefault(column, {})
        for aggregate in chosen:
            name, value = aggregate.name.partition("(")[0], results[aggregate.name]
            if isinstance(value, list):
                found.update({f"{name}[{place}]": each for place, each in enumerate(value)})
            else:
                found[name] = value
    return DatasetSummary(schema, list(aggregates), statistics)
