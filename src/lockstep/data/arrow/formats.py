"""Tables converted to the format a user's function takes, and its results back to tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow, to_numpy, to_values, writable
from lockstep.data.arrow.unify import concatenated

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import torch

__all__ = [
    "FORMATS",
    "check_format",
    "described",
    "from_rows",
    "to_format",
    "to_pandas",
    "to_rows",
    "to_table",
    "to_tensor",
]

FORMATS = ("default", "numpy", "pandas", "pyarrow", "torch")


def check_format(name: str | None, allowed: Sequence[str] = FORMATS) -> str:
    """The name of a format: ``"default"`` is ``"numpy"``, None is ``"pyarrow"``."""
    if name is None:
        return "pyarrow"
    if name not in allowed:
        raise ValueError(f"batch_format={name!r} is not known; use one of {', '.join(allowed)}.")
    return "numpy" if name == "default" else name


def to_format(table: pa.Table, name: str, write: bool = False, owned: bool = False) -> Any:
    """A table as ``"numpy"``, ``"pandas"``, ``"pyarrow"`` or ``"torch"``.

    Args:
        table: the rows.
        name: what ``check_format`` returned.
        write: the arrays must be writable.
        owned: no one else uses the table's memory, so writable arrays need no copy.
    """
    if name == "pyarrow":
        return table
    if name == "pandas":
        return to_pandas(table)
    arrays = {n: to_numpy(c) for n, c in zip(table.column_names, table.columns, strict=True)}
    if write or name == "torch":  # torch has no tensors that cannot be written to
        arrays = {key: writable(array, owned) for key, array in arrays.items()}
    if name == "torch":
        return {key: to_tensor(key, array) for key, array in arrays.items()}
    return arrays


def to_tensor(name: str, array: Any) -> torch.Tensor:
    """A column as a tensor that shares the array's memory.

    Raises:
        TypeError: the array has no numbers; names the column.
    """
    import torch

    try:
        return torch.from_numpy(array)
    except TypeError as error:
        if array.dtype == object and all(value is None for value in array):
            return torch.full((len(array),), float("nan"), dtype=torch.float64)
        kind = str(array.dtype)
        if array.dtype == object and len(array):
            kind = f"{type(array[0]).__name__} (or lists of different lengths)"
        raise TypeError(
            f"Column {name!r} of type {kind} cannot be a tensor; leave it out with "
            "drop_columns, turn it into numbers with map_batches, or give a collate_fn."
        ) from error


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A data frame; a column of tensors becomes a column of arrays."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.types as types

    tensors = [
        field.name
        for field in table.schema
        if isinstance(field.type, pa.BaseExtensionType) or types.is_fixed_size_list(field.type)
    ]
    frame: pd.DataFrame = table.drop_columns(tensors).to_pandas() if tensors else table.to_pandas()
    if tensors:
        for name in tensors:
            frame[name] = pd.Series(to_values(table[name]), dtype=object, index=frame.index)
        frame = frame[table.column_names]
    return frame


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows as dicts."""
    names = table.column_names
    if not names:
        return [{} for _ in range(table.num_rows)]
    columns = [to_values(column) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def from_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None, doing: str) -> pa.Table:
    """A table from dicts; a key missing in a row becomes null.

    Args:
        rows: the dicts.
        schema: of the table if there are no rows.
        doing: the call that made the rows, for errors.
    """
    import pyarrow as pa

    if not rows:
        return pa.table({}) if schema is None else schema.empty_table()
    names: dict[str, None] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"{doing} made the row {row!r}; a row is a dict of column names and values."
            )
        names.update(dict.fromkeys(row))
    return pa.table({name: _column([row.get(name) for row in rows], name, doing) for name in names})


def _column(values: Any, name: str, doing: str) -> pa.Array | pa.ChunkedArray:
    """A column; an error names it."""
    import pyarrow as pa

    try:
        return to_arrow(values)
    except (pa.ArrowException, ValueError, TypeError) as error:
        # Not the error's own class: a UnicodeError, for example, cannot be made from a message.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{doing}, column {name!r}: {error}") from error


def to_table(batch: Any, doing: str) -> pa.Table:
    """The result of a user's function, as a table.

    Raises:
        TypeError: the function returned something that is not rows; names ``doing``.
        ValueError: the columns have different lengths.
    """
    import pyarrow as pa

    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    if isinstance(batch, Mapping):
        columns = {}
        for name, values in batch.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise TypeError(
                    f"{doing} returned {values!r} for column {name!r}; return an array or a list "
                    "with one entry a row."
                )
            columns[str(name)] = _column(values, str(name), doing)
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(
                f"{doing} returned columns of different lengths: {lengths}; make them equal."
            )
        return pa.table(columns)
    if hasattr(batch, "columns") and hasattr(batch, "iloc"):
        return _from_frame(batch, doing)
    if inspect.isgenerator(batch):
        parts = [to_table(part, doing) for part in batch]
        return concatenated(parts) if parts else pa.table({})
    raise TypeError(
        f"{doing} returned {type(batch).__name__}; return a dict of arrays, a pandas DataFrame or "
        "an Arrow table."
    )


def _from_frame(frame: pd.DataFrame, doing: str) -> pa.Table:
    import pyarrow as pa

    columns = {}
    for name in frame.columns:
        values = frame[name]
        tensors = values.dtype == object and len(values) and hasattr(values.iloc[0], "shape")
        columns[str(name)] = _column(list(values) if tensors else values, str(name), doing)
    return pa.table(columns)


def described(function: Callable[..., Any]) -> str:
    """The name of a user's function, for an error."""
    inner = getattr(function, "func", function)
    return str(getattr(inner, "__qualname__", None) or type(inner).__qualname__)
