"""Preprocessor: columns changed in a way that is learned from a dataset, and kept with a model."""

from __future__ import annotations

import base64
import enum
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lockstep.data.arrow.formats import to_format, to_table
from lockstep.data.compat import check_hints
from lockstep.data.plan.operations import check_columns, with_column

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.aggregate import AggregateFn
    from lockstep.data.dataset import Dataset

__all__ = ["FitStatus", "OfColumns", "Preprocessor", "PreprocessorNotFittedException"]


class PreprocessorNotFittedException(RuntimeError):
    """A preprocessor was used before it was fitted."""


class _FitStatus(str, enum.Enum):
    """Whether a preprocessor has learned what it needs."""

    NOT_FITTABLE = "NOT_FITTABLE"
    NOT_FITTED = "NOT_FITTED"
    PARTIALLY_FITTED = "PARTIALLY_FITTED"
    FITTED = "FITTED"


FitStatus = _FitStatus


class Preprocessor:
    """The base of all preprocessors.

    ``fit`` learns from a dataset, in one pass; ``transform`` returns a dataset, lazily, and
    ``transform_batch`` a batch of the type it was given. A class of your own defines ``_fit``
    (unless ``_is_fittable = False``) and ``_transform_pandas``, ``_transform_numpy`` or
    ``_transform_arrow``.
    """

    FitStatus = _FitStatus
    _is_fittable = True
    _kinds: ClassVar[dict[str, type[Preprocessor]]] = {}
    """The classes of this library, by name: these are kept as JSON."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            Preprocessor._kinds[cls.__name__] = cls

    def fit_status(self) -> _FitStatus:
        """Whether it has to be fitted, and is."""
        if not self._is_fittable:
            return _FitStatus.NOT_FITTABLE
        return _FitStatus.FITTED if hasattr(self, "stats_") else _FitStatus.NOT_FITTED

    def fit(self, ds: Dataset) -> Preprocessor:
        """Learn from a dataset; what was learned before is forgotten. Returns itself."""
        if self._is_fittable:
            self._fit(ds)
        return self

    def fit_transform(
        self, ds: Dataset, *, transform_batch_size: int | None = None, **hints: Any
    ) -> Dataset:
        """``fit`` and ``transform``.

        Args:
            ds: the dataset.
            transform_batch_size: the largest number of rows changed at once.
            hints: for Ray's scheduler (``transform_num_cpus``, …); accepted and ignored.
        """
        names = {name: name.removeprefix("transform_") for name in hints}
        check_hints("fit_transform", {names[name]: hints[name] for name in hints})
        return self.fit(ds).transform(ds, batch_size=transform_batch_size)

    def transform(self, ds: Dataset, *, batch_size: int | None = None, **hints: Any) -> Dataset:
        """The dataset with its columns changed, lazily.

        Args:
            ds: the dataset.
            batch_size: the largest number of rows changed at once.
            hints: for Ray's scheduler (``num_cpus``, ``concurrency``, …); accepted and ignored.
        """
        self.check_is_fitted()
        return ds.map_batches(
            self._transform_arrow,
            batch_format="pyarrow",
            batch_size=batch_size,
            preserves_rows=True,
        )

    def transform_batch(self, data: Any) -> Any:
        """A batch with its columns changed: a data frame, a dict of arrays, or an Arrow table."""
        import pyarrow as pa

        self.check_is_fitted()
        table = self._transform_arrow(to_table(data, f"{type(self).__name__}.transform_batch"))
        if isinstance(data, pa.Table):
            return table
        return to_format(table, "numpy" if isinstance(data, Mapping) else "pandas")

    def check_is_fitted(self) -> None:
        """Check that it was fitted, if it has to be.

        Raises:
            PreprocessorNotFittedException: it was not.
        """
        if self.fit_status() in (_FitStatus.NOT_FITTED, _FitStatus.PARTIALLY_FITTED):
            raise PreprocessorNotFittedException(
                f"{self!r} was not fitted; call fit(dataset) before transform."
            )

    def get_input_columns(self) -> list[str]:
        """The columns that it reads."""
        found = getattr(self, "columns", None) or getattr(self, "label_column", None) or []
        return [found] if isinstance(found, str) else list(found)

    def get_output_columns(self) -> list[str]:
        """The columns that it writes."""
        one = getattr(self, "output_column", None) or getattr(self, "output_column_name", None)
        return [one] if one else list(getattr(self, "output_columns", self.get_input_columns()))

    def has_stats(self) -> bool:
        """Whether something was learned."""
        return hasattr(self, "stats_")

    def _fit(self, dataset: Dataset) -> Preprocessor:
        """Learn from a dataset; sets ``stats_``."""
        self.stats_ = self._learned(dataset.aggregate(*self._aggregates()))
        return self

    def _aggregates(self) -> list[AggregateFn]:
        """What to compute of the dataset."""
        raise NotImplementedError(f"{type(self).__name__} has no _fit(); define it.")

    def _learned(self, found: dict[str, Any]) -> dict[str, Any]:
        """``stats_``, from the aggregates."""
        return found

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        """A table with its columns changed."""
        for name in ("_transform_numpy", "_transform_pandas"):
            if hasattr(self, name):
                batch = to_format(table, name.rpartition("_")[2], write=True)
                return to_table(getattr(self, name)(batch), f"{type(self).__name__}.{name}")
        raise NotImplementedError(
            f"{type(self).__name__} has no _transform_pandas(), _transform_numpy() or "
            "_transform_arrow(); define one of them."
        )

    def serialize(self) -> str:
        """As text: JSON of its arguments and what it has learned.

        A function that was given, and a class of your own, are in it as a pickle.
        """
        return json.dumps(self._as_json())

    def _as_json(self) -> dict[str, Any]:
        if type(self).__name__ not in self._kinds:
            return {"pickle": _pickled(self)}
        found = {"type": type(self).__name__, "arguments": _encoded(self._arguments())}
        if hasattr(self, "stats_"):
            found["stats"] = _encoded(self.stats_)
        return found

    def _arguments(self) -> dict[str, Any]:
        """The arguments that make another one like it."""
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def deserialize(serialized: str | Mapping[str, Any]) -> Preprocessor:
        """The preprocessor of a text that ``serialize`` has made.

        A function or a class of the user in it is unpickled: trust where the text is from.

        Raises:
            ValueError: the text is not one of a preprocessor.
        """
        found = json.loads(serialized) if isinstance(serialized, (str, bytes)) else serialized
        if "pickle" in found:
            made: Preprocessor = _unpickled(found["pickle"])
            return made
        kind = Preprocessor._kinds.get(found.get("type", ""))
        if kind is None:
            raise ValueError(
                f"There is no preprocessor of type {found.get('type')!r}; give text that "
                "serialize() returned, and import the class first if it is your own."
            )
        made = kind._made(_decoded(found["arguments"]))
        if "stats" in found:
            made.stats_ = _decoded(found["stats"])
        return made

    @classmethod
    def _made(cls, arguments: dict[str, Any]) -> Preprocessor:
        return cls(**arguments)

    def __repr__(self) -> str:
        """The call that makes it."""
        if type(self).__name__ not in self._kinds:
            return f"{type(self).__name__}()"
        given = {k: v for k, v in self._arguments().items() if v is not None}
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in given.items())})"


class OfColumns(Preprocessor):
    """Changes columns, each by itself.

    Args:
        columns: the columns.
        output_columns: the names of the new columns; None replaces the columns.
    """

    def __init__(self, columns: Sequence[str], output_columns: Sequence[str] | None = None) -> None:
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        self.output_columns = self.columns if output_columns is None else list(output_columns)
        if len(self.columns) != len(self.output_columns):
            raise ValueError(
                f"{type(self).__name__}: {len(self.output_columns)} output_columns for "
                f"{len(self.columns)} columns; give one for each."
            )

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        check_columns(self.columns, table.column_names, type(self).__name__)
        for name, output in zip(self.columns, self.output_columns, strict=True):
            table = with_column(table, output, self._changed(table[name], name))
        return table

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        """The new values of a column."""
        raise NotImplementedError


def _pickled(value: Any) -> str:
    import cloudpickle

    return base64.b64encode(cloudpickle.dumps(value)).decode()


def _unpickled(text: str) -> Any:
    import pickle

    return pickle.loads(base64.b64decode(text))


def _encoded(value: Any) -> Any:
    """A value as JSON has it; dicts as pairs, since their keys may be numbers."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Preprocessor):
        return {"preprocessor": value._as_json()}
    if isinstance(value, Mapping):
        return {"pairs": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    if isinstance(value, type) and value.__module__ == "numpy":
        return value.__name__  # NumPy takes the name for the type
    if hasattr(value, "closed"):  # pandas' intervals
        return {"pickle": _pickled(value)}
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    if hasattr(value, "categories") and hasattr(value, "ordered"):  # pandas' categories
        return {"categories": _encoded(value.categories.tolist()), "ordered": bool(value.ordered)}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_encoded(item) for item in value]
    return {"pickle": _pickled(value)}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        pairs = [(_decoded(key), _decoded(item)) for key, item in value["pairs"]]
        return {tuple(k) if isinstance(k, list) else k: item for k, item in pairs}
    if "preprocessor" in value:
        return Preprocessor.deserialize(value["preprocessor"])
    if "array" in value:
        import numpy as np

        return np.array(value["array"], value["dtype"])
    if "categories" in value:
        import pandas as pd

        return pd.CategoricalDtype(_decoded(value["categories"]), value["ordered"])
    return _unpickled(value["pickle"])
