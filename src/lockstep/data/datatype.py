"""Ray's names for Arrow's types: ``DataType.int64()``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

__all__ = ["DataType", "TypeCategory"]

_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
    "float64", "string", "large_string", "binary", "large_binary", "bool_", "date32", "date64",
    "null",
)  # fmt: skip
_TIMES = ("timestamp", "date32", "date64", "time32", "time64", "duration")


class TypeCategory(str, Enum):
    """Kinds of types, for ``DataType.is_of``."""

    LIST = "list"
    LARGE_LIST = "large_list"
    STRUCT = "struct"
    MAP = "map"
    TENSOR = "tensor"
    TEMPORAL = "temporal"


class _Named(type):
    def __getattr__(cls, name: str) -> Any:
        import pyarrow as pa

        name = "bool_" if name == "bool" else name
        if name not in _NAMES:
            raise AttributeError(f"DataType has no {name!r}; use DataType.from_arrow(…).")
        return lambda: DataType(getattr(pa, name)())


class DataType(metaclass=_Named):
    """The type of a column.

    Args:
        physical_dtype: a type of Arrow or numpy, or a class of Python.

    Attributes:
        arrow: Arrow's type; None for a class of Python that Arrow does not have.
    """

    def __init__(self, physical_dtype: Any) -> None:
        import numpy as np
        import pyarrow as pa

        self._given = physical_dtype
        if isinstance(physical_dtype, pa.DataType):
            self.arrow: Any = physical_dtype
        elif isinstance(physical_dtype, np.dtype):
            try:
                self.arrow = pa.from_numpy_dtype(physical_dtype)
            except pa.ArrowNotImplementedError:  # such as a text of a fixed length
                self.arrow = pa.array(np.zeros(1, physical_dtype)).type
        elif isinstance(physical_dtype, type):
            known = {int: pa.int64(), float: pa.float64(), str: pa.string(), bytes: pa.binary()}
            self.arrow = pa.bool_() if physical_dtype is bool else known.get(physical_dtype)
        else:
            raise TypeError(
                f"DataType({physical_dtype!r}): give a type of Arrow or numpy, or a class."
            )

    @classmethod
    def from_arrow(cls, arrow_type: Any) -> DataType:
        """Of an Arrow type."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Of a numpy type, or its name."""
        import numpy as np

        return cls(np.dtype(numpy_dtype))

    @classmethod
    def infer_dtype(cls, value: Any) -> DataType:
        """Of a value."""
        import pyarrow as pa

        if hasattr(value, "dtype") and not hasattr(value, "iloc"):
            return cls(value.dtype)
        try:
            return cls(pa.scalar(value).type)
        except pa.ArrowException:
            return cls(type(value))

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Lists of values of a type."""
        import pyarrow as pa

        return cls(pa.list_(value_type.arrow))

    @classmethod
    def large_list(cls, value_type: DataType) -> DataType:
        """Lists of values of a type, with offsets of 64 bits."""
        import pyarrow as pa

        return cls(pa.large_list(value_type.arrow))

    @classmethod
    def fixed_size_list(cls, value_type: DataType, list_size: int) -> DataType:
        """Lists of one length."""
        import pyarrow as pa

        return cls(pa.list_(value_type.arrow, list_size))

    @classmethod
    def struct(cls, fields: Sequence[tuple[str, DataType]]) -> DataType:
        """Structs with these fields."""
        import pyarrow as pa

        return cls(pa.struct([(name, kind.arrow) for name, kind in fields]))

    @classmethod
    def map(cls, key_type: DataType, value_type: DataType) -> DataType:
        """Maps from keys to values."""
        import pyarrow as pa

        return cls(pa.map_(key_type.arrow, value_type.arrow))

    @classmethod
    def tensor(cls, shape: tuple[int, ...], dtype: DataType) -> DataType:
        """Arrays of one shape."""
        import pyarrow as pa

        return cls(pa.fixed_shape_tensor(dtype.arrow, shape))

    @classmethod
    def variable_shaped_tensor(cls, dtype: DataType, ndim: int = 2) -> DataType:
        """Arrays of several shapes."""
        from lockstep.data.arrow.tensors import ragged_type

        return cls(ragged_type(dtype.arrow))

    @classmethod
    def temporal(
        cls, temporal_type: str, unit: str | None = None, tz: str | None = None
    ) -> DataType:
        """A time: ``"timestamp"``, ``"date32"``, ``"time64"``, ``"duration"``, …, with its unit."""
        import pyarrow as pa

        name = temporal_type.lower()
        if name not in _TIMES:
            raise ValueError(f"temporal({temporal_type!r}): give one of {', '.join(_TIMES)}.")
        if name.startswith("date"):
            return cls(getattr(pa, name)())
        unit = unit or ("s" if name == "time32" else "us")
        return cls(pa.timestamp(unit, tz=tz) if name == "timestamp" else getattr(pa, name)(unit))

    def to_arrow_dtype(self, values: Any = None) -> Any:
        """Arrow's type; of a class that Arrow does not have, the type of these values."""
        import pyarrow as pa

        if self.arrow is None and values:
            return pa.array(values).type
        return self.arrow

    def to_numpy_dtype(self) -> Any:
        """Numpy's type."""
        import numpy as np

        if isinstance(self._given, np.dtype):
            return self._given
        return np.dtype(object if self.arrow is None else self.arrow.to_pandas_dtype())

    def to_python_type(self) -> type:
        """The class of Python that was given.

        Raises:
            ValueError: it was made of another type.
        """
        if not self.is_python_type():
            raise ValueError(f"{self!r} was not made of a class of Python.")
        given: type = self._given
        return given

    def is_arrow_type(self) -> bool:
        """Whether it was made of a type of Arrow."""
        import pyarrow as pa

        return isinstance(self._given, pa.DataType)

    def is_numpy_type(self) -> bool:
        """Whether it was made of a type of numpy."""
        import numpy as np

        return isinstance(self._given, np.dtype)

    def is_python_type(self) -> bool:
        """Whether it was made of a class of Python."""
        return isinstance(self._given, type)

    def _is(self, *tests: str) -> bool:
        import pyarrow.types as types

        return self.arrow is not None and any(
            getattr(types, f"is_{test}")(self.arrow) for test in tests
        )

    def is_list_type(self) -> bool:
        """Whether the values are lists."""
        return self._is("list", "large_list", "fixed_size_list")

    def is_tensor_type(self) -> bool:
        """Whether the values are arrays with more than one dimension."""
        from lockstep.data.arrow.tensors import is_ragged, is_tensor

        return self.arrow is not None and (is_tensor(self.arrow) or is_ragged(self.arrow))

    def is_struct_type(self) -> bool:
        """Whether the values are structs."""
        return self._is("struct")

    def is_map_type(self) -> bool:
        """Whether the values are maps."""
        return self._is("map")

    def is_nested_type(self) -> bool:
        """Whether the values have values in them."""
        return self._is("nested")

    def is_null_type(self) -> bool:
        """Whether all values are null."""
        return self._is("null")

    def is_boolean_type(self) -> bool:
        """Whether the values are True or False."""
        return self._is("boolean")

    def is_integer_type(self) -> bool:
        """Whether the values are integers."""
        return self._is("integer")

    def is_floating_type(self) -> bool:
        """Whether the values are floating-point numbers."""
        return self._is("floating")

    def is_numerical_type(self) -> bool:
        """Whether the values are numbers."""
        return self._is("integer", "floating", "decimal")

    def is_string_type(self) -> bool:
        """Whether the values are text."""
        return self._is("string", "large_string")

    def is_binary_type(self) -> bool:
        """Whether the values are bytes."""
        return self._is("binary", "large_binary", "fixed_size_binary")

    def is_temporal_type(self) -> bool:
        """Whether the values are times."""
        return self._is("temporal")

    def is_of(self, category: TypeCategory | str) -> bool:
        """Whether it is of a kind of types."""
        name = TypeCategory(category).value
        if name == "large_list":
            return self._is("large_list")
        found: bool = getattr(self, f"is_{name}_type")()
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataType) and self._given == other._given

    def __hash__(self) -> int:
        return hash(self._given)

    def __repr__(self) -> str:
        if self.is_arrow_type():
            return f"DataType(arrow:{self._given})"
        if self.is_numpy_type():
            return f"DataType(numpy:{self._given})"
        return f"DataType(python:{self._given.__name__})"
