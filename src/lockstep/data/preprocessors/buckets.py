"""Values put into bins, hashed, or made categories."""

from __future__ import annotations

import decimal
import hashlib
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int
from lockstep.data.aggregate import AggregateFn, Max, Min
from lockstep.data.arrow.columns import one_array, to_arrow, to_numpy
from lockstep.data.plan.operations import check_columns, with_column
from lockstep.data.preprocessors.base import OfColumns, Preprocessor
from lockstep.data.preprocessors.encoders import Encoder, places_in, present

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Categorizer",
    "CustomKBinsDiscretizer",
    "FeatureHasher",
    "HashingVectorizer",
    "UniformKBinsDiscretizer",
]


class _KBins(OfColumns):
    """Numbers as the number of their bin, by ``pandas.cut``."""

    def __init__(
        self,
        columns: Sequence[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: Mapping[str, Any] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if isinstance(bins, Mapping) and (missing := set(self.columns) - set(bins)):
            raise ValueError(f"{type(self).__name__}(bins=…): there is none for {min(missing)!r}.")
        self.bins, self.right, self.include_lowest = bins, right, include_lowest
        self.duplicates, self.dtypes = duplicates, dtypes
        self._check_bins()

    def _check_bins(self) -> None:
        raise NotImplementedError

    def _of(self, name: str) -> Any:
        return self.bins[name] if isinstance(self.bins, Mapping) else self.bins

    def _edges(self, name: str) -> Any:
        """Where the bins of a column begin and end."""
        return self._of(name)

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pandas as pd
        import pyarrow as pa
        import pyarrow.types as types

        if _is_text(column.type):
            raise ValueError(
                f"{type(self).__name__}: column {name!r} is of type {column.type}; give numbers."
            )
        if types.is_null(column.type):
            column = column.cast(pa.float64())
        kind: Any = (self.dtypes or {}).get(name)
        labels = None if kind is None else getattr(kind, "categories", None)
        edges, values = self._edges(name), column.to_pandas()
        if isinstance(edges, pd.IntervalIndex):
            places = edges.get_indexer(pd.Index(values))
            found = pa.array(places, pa.int64(), mask=places < 0)
        else:
            cut: Any = pd.cut  # its overloads want each argument as a literal
            found = cut(
                values,
                list(edges),
                right=self.right,
                include_lowest=self.include_lowest,
                duplicates=self.duplicates,
                labels=False if labels is None else list(labels),
                ordered=labels is None or bool(kind.ordered),
            )
            if labels is not None:
                return pa.array(found, from_pandas=True)
            # The same type for every batch: pandas has floats only where a value has no bin.
            found = pa.array(found, pa.int64(), from_pandas=True)
        if labels is not None:
            return pa.DictionaryArray.from_arrays(
                found.cast(pa.int8()), pa.array(labels), ordered=bool(kind.ordered)
            )
        return found if kind is None else found.cast(pa.array(pd.array([], dtype=kind)).type)


def _is_text(kind: pa.DataType, *, or_null: bool = False) -> bool:
    import pyarrow.types as types

    if types.is_dictionary(kind):
        kind = kind.value_type
    # By name: the oldest pyarrow that is supported has no function for views.
    text = str(kind) in ("string", "large_string", "string_view")
    return text or (or_null and bool(types.is_null(kind)))


class CustomKBinsDiscretizer(_KBins):
    """Numbers as the number of their bin, in bins of your own.

    Args:
        columns, output_columns: as of the scalers.
        bins: the edges of the bins, for all columns, or a dict with those of each column; or
            pandas' ``IntervalIndex``, which says itself what its intervals include.
        right: a bin includes its right edge.
        include_lowest: the first bin includes its left edge.
        duplicates: ``"raise"``, or ``"drop"`` edges that are equal.
        dtypes: of each column, an integer type, or a ``pandas.CategoricalDtype`` whose categories
            are the names of the bins.
    """

    _is_fittable = False

    def _check_bins(self) -> None:
        if isinstance(self.bins, Mapping):
            self.bins = {name: self._checked(name, given) for name, given in self.bins.items()}
        else:
            self.bins = self._checked("columns", self.bins)

    def _checked(self, name: str, bins: Any) -> Any:
        import pandas as pd

        if isinstance(bins, pd.IntervalIndex):
            return bins
        text = f"CustomKBinsDiscretizer(bins=…) of {name}: {bins!r}"
        if isinstance(bins, str | bytes) or not isinstance(bins, Iterable):
            raise TypeError(f"{text}: give the edges of the bins, as in [0, 1, 10].")
        edges = bins.tolist() if hasattr(bins, "tolist") else list(bins)
        if len(edges) < 2 or any(low > high for low, high in itertools.pairwise(edges)):
            raise ValueError(f"{text}: give at least two edges, in ascending order.")
        return edges


class UniformKBinsDiscretizer(_KBins):
    """Numbers as the number of their bin, in bins of the same width from minimum to maximum.

    Args:
        columns, right, include_lowest, duplicates, dtypes, output_columns: as of
            ``CustomKBinsDiscretizer``.
        bins: how many, for all columns, or a dict with the number of each column.
    """

    def _check_bins(self) -> None:
        for name in self.columns:
            number = self._of(name)
            check_int(f"UniformKBinsDiscretizer(bins={number!r})", number, 1)

    def _aggregates(self) -> list[AggregateFn]:
        kinds = (("min", Min), ("max", Max))
        return [of(name, alias_name=f"{k}({name})") for name in self.columns for k, of in kinds]

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        learned = {}
        for name in self.columns:
            low, high = self._ends(name, found[f"min({name})"], found[f"max({name})"])
            # Both as pandas does: a constant is inside its bins, and the value at the open end
            # is in a bin, too.
            if low == high:
                margin = abs(low) * 0.001 or 0.001
                edges = np.linspace(low - margin, high + margin, self._of(name) + 1)
            else:
                margin = (high - low) * 0.001
                edges = np.linspace(low, high, self._of(name) + 1)
                edges[0 if self.right else -1] += -margin if self.right else margin
            learned[name] = edges
        return learned

    def _ends(self, name: str, low: Any, high: Any) -> tuple[float, float]:
        real = all(isinstance(end, numbers.Real | decimal.Decimal) for end in (low, high))
        if not real or not math.isfinite(float(high) - float(low)):
            raise ValueError(
                f"UniformKBinsDiscretizer: column {name!r} is from {low!r} to {high!r}; bins of "
                "one width need numbers with finite ends."
            )
        return float(low), float(high)

    def _edges(self, name: str) -> Any:
        return self.stats_[name]


def _place(token: object, size: int) -> int:
    """The same for a token in every process and on every machine."""
    return int(hashlib.sha1(str(token).encode(), usedforsecurity=False).hexdigest(), 16) % size


class HashingVectorizer(OfColumns):
    """Text as an array of how often words with each hash are in it. Learns nothing.

    Args:
        columns, output_columns: as of the scalers.
        num_features: the length of the array.
        tokenization_fn: as of ``Tokenizer``.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        num_features: int,
        tokenization_fn: Callable[[str], list[str]] | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        text = f"HashingVectorizer(num_features={num_features!r})"
        self.num_features = check_int(text, num_features, 1)
        self.tokenization_fn = tokenization_fn

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np

        if self.tokenization_fn is None and not _is_text(column.type, or_null=True):
            raise ValueError(
                f"HashingVectorizer: column {name!r} is of type {column.type}; give text, or a "
                "tokenization_fn for other values."
            )
        found = np.zeros((len(column), self.num_features), np.int64)
        split = self.tokenization_fn or (lambda text: text.split(" "))
        for row, text in enumerate(column.to_pylist()):
            for word in split(text) if text is not None else ():
                found[row, _place(word, self.num_features)] += 1
        return to_arrow(found)


class FeatureHasher(Preprocessor):
    """Columns of token counts as one array, by the hash of each column's name. Learns nothing.

    Args:
        columns: the columns, each of them how often one token occurs; null counts as 0.
        num_features: the length of the array.
        output_column: the name of the new column.
    """

    _is_fittable = False

    def __init__(self, columns: Sequence[str], num_features: int, output_column: str) -> None:
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        text = f"FeatureHasher(num_features={num_features!r})"
        self.num_features = check_int(text, num_features, 1)
        self.output_column = output_column

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        import numpy as np
        import pyarrow as pa
        import pyarrow.types as types

        check_columns(self.columns, table.column_names, "FeatureHasher")
        found = np.zeros((table.num_rows, self.num_features))
        for name in self.columns:
            kind = table[name].type
            if not (types.is_primitive(kind) or types.is_null(kind)) or types.is_temporal(kind):
                raise ValueError(
                    f"FeatureHasher: column {name!r} is of type {kind}; give columns of numbers, "
                    "how often each token occurs."
                )
            counts = table[name].cast(pa.float64(), safe=False).fill_null(0)
            found[:, _place(name, self.num_features)] += to_numpy(counts)
        return with_column(table, self.output_column, to_arrow(found))


class Categorizer(Encoder):
    """Columns as pandas' categories; a value that was not seen becomes null.

    Args:
        columns, output_columns: as of the scalers.
        dtypes: the ``pandas.CategoricalDtype`` of columns whose categories are known.
    """

    def __init__(
        self,
        columns: Sequence[str],
        dtypes: Mapping[str, Any] | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.dtypes = dict(dtypes or {})

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        import pandas as pd

        seen = {name: pd.CategoricalDtype(present(values)) for name, values in found.items()}
        return {**{name: seen[name] for name in self.columns}, **self.dtypes}

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pyarrow as pa

        kind = self.stats_[name]
        categories = pa.array(kind.categories)
        try:
            places = one_array(places_in(categories, column))
        except pa.ArrowException as error:
            raise ValueError(
                f"Categorizer: column {name!r} is of type {column.type}, and its categories are of "
                f"type {categories.type}; cast the column, or give other dtypes."
            ) from error
        return pa.DictionaryArray.from_arrays(places, categories, ordered=bool(kind.ordered))
