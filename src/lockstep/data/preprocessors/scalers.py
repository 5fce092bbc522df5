"""Scalers: columns of numbers, shifted and scaled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.aggregate import (
    AbsMax,
    AggregateFn,
    ApproximateQuantile,
    Max,
    Mean,
    Min,
    Std,
)
from lockstep.data.arrow.columns import to_arrow, to_numpy
from lockstep.data.plan.operations import check_columns, with_column
from lockstep.data.preprocessors.base import OfColumns, Preprocessor

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = [
    "MaxAbsScaler",
    "MinMaxScaler",
    "Normalizer",
    "PowerTransformer",
    "RobustScaler",
    "StandardScaler",
]


class _Scaler(OfColumns):
    """``(x - shift) / scale``; columns of arrays are scaled element by element."""

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.types as types

        shift, scale = self._shift_and_scale(name)
        if shift is None or scale is None:
            return pa.nulls(len(column), pa.float64())
        if types.is_floating(column.type) or types.is_integer(column.type):
            scale = 1 if scale == 0 else scale
            return pc.divide(pc.subtract(column.cast(pa.float64()), float(shift)), float(scale))
        scale = np.where(np.asarray(scale) == 0, 1, scale)
        return to_arrow((to_numpy(column).astype(float) - shift) / scale)

    def _shift_and_scale(self, name: str) -> tuple[Any, Any]:
        raise NotImplementedError


class StandardScaler(_Scaler):
    """Each column with mean 0 and standard deviation 1 (of a population)."""

    def _aggregates(self) -> list[AggregateFn]:
        return [f for name in self.columns for f in (Mean(name), Std(name, ddof=0))]

    def _shift_and_scale(self, name: str) -> tuple[Any, Any]:
        return self.stats_[f"mean({name})"], self.stats_[f"std({name})"]


class MinMaxScaler(_Scaler):
    """Each column from 0 to 1."""

    def _aggregates(self) -> list[AggregateFn]:
        return [f for name in self.columns for f in (Min(name), Max(name))]

    def _shift_and_scale(self, name: str) -> tuple[Any, Any]:
        low, high = self.stats_[f"min({name})"], self.stats_[f"max({name})"]
        return low, None if low is None else high - low


class MaxAbsScaler(_Scaler):
    """Each column divided by its largest absolute value."""

    def _aggregates(self) -> list[AggregateFn]:
        return [AbsMax(name) for name in self.columns]

    def _shift_and_scale(self, name: str) -> tuple[Any, Any]:
        return 0, self.stats_[f"abs_max({name})"]


class RobustScaler(_Scaler):
    """Each column with median 0, divided by the distance of two quantiles.

    Args:
        columns, output_columns: as of the other scalers.
        quantile_range: the two quantiles.
        quantile_precision: Ray's; the quantiles are exact here.
    """

    def __init__(
        self,
        columns: Sequence[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: Sequence[str] | None = None,
        quantile_precision: int = 800,
    ) -> None:
        super().__init__(columns, output_columns)
        self.quantile_range = tuple(quantile_range)
        self.quantile_precision = quantile_precision

    def _aggregates(self) -> list[AggregateFn]:
        low, high = self.quantile_range
        return [
            ApproximateQuantile(name, [low, 0.5, high], alias_name=name) for name in self.columns
        ]

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        return {
            f"{kind}({name})": value
            for name, values in found.items()
            for kind, value in zip(("low_quantile", "median", "high_quantile"), values, strict=True)
        }

    def _shift_and_scale(self, name: str) -> tuple[Any, Any]:
        low, high = self.stats_[f"low_quantile({name})"], self.stats_[f"high_quantile({name})"]
        return self.stats_[f"median({name})"], None if low is None else high - low


class PowerTransformer(OfColumns):
    """Each column more like a normal distribution: Yeo-Johnson's or Box-Cox's transform."""

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        if method not in ("yeo-johnson", "box-cox"):
            raise ValueError(f"method={method!r}: give 'yeo-johnson' or 'box-cox'.")
        self.power, self.method = power, method

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np

        x, p = to_numpy(column).astype(float), self.power
        if self.method == "box-cox":
            return to_arrow(np.log(x) if p == 0 else (x**p - 1) / p)
        above, below = np.maximum(x, 0), np.minimum(x, 0)
        up = np.log1p(above) if p == 0 else ((above + 1) ** p - 1) / p
        down = -np.log1p(-below) if p == 2 else -((1 - below) ** (2 - p) - 1) / (2 - p)
        return to_arrow(np.where(x >= 0, up, down))


class Normalizer(Preprocessor):
    """The columns of each row, together, scaled to norm 1.

    Args:
        columns, output_columns: as of the scalers.
        norm: ``"l1"``, ``"l2"`` or ``"max"``.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        norm: str = "l2",
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        if norm not in ("l1", "l2", "max"):
            raise ValueError(f"norm={norm!r}: give 'l1', 'l2' or 'max'.")
        self.columns, self.norm = list(columns), norm
        self.output_columns = self.columns if output_columns is None else list(output_columns)

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        import numpy as np

        check_columns(self.columns, table.column_names, "Normalizer")
        rows = np.stack([to_numpy(table[name]).astype(float) for name in self.columns], axis=1)
        order = {"l1": 1, "l2": 2, "max": np.inf}[self.norm]
        norms = np.linalg.norm(rows, order, axis=1, keepdims=True)
        rows = rows / np.where(norms == 0, 1, norms)
        for place, output in enumerate(self.output_columns):
            table = with_column(table, output, to_arrow(rows[:, place].copy()))
        return table
