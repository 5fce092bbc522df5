"""Ray's names for Arrow's types: ``DataType.int64()``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["DataType"]

_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "string", "large_string", "binary", "large_binary", "bool_", "date32", "date64",
    "null",
)  # fmt: skip


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        import pyarrow as pa

        name = "bool_" if name == "bool" else name
        if name not in _NAMES:
            raise AttributeError(f"DataType has no {name!r}; use DataType.from_arrow(…).")
        return lambda: DataType(getattr(pa, name)())


@dataclass(frozen=True)
class DataType(metaclass=_Named):
    """The type of a column; ``arrow`` is Arrow's."""

    arrow: Any

    @classmethod
    def from_arrow(cls, arrow_type: Any) -> DataType:
        """Of an Arrow type."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Of a numpy type, or its name."""
        import numpy as np
        import pyarrow as pa

        return cls(pa.from_numpy_dtype(np.dtype(numpy_dtype)))

    def to_arrow_dtype(self) -> Any:
        """Arrow's type."""
        return self.arrow

    def to_numpy_dtype(self) -> Any:
        """Numpy's type."""
        import numpy as np

        return np.dtype(self.arrow.to_pandas_dtype())
