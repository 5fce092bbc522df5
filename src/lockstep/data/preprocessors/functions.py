"""Text, images, functions of the user, columns side by side, and chains of preprocessors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow, to_numpy, to_values
from lockstep.data.arrow.formats import check_format, to_format, to_table
from lockstep.data.plan.operations import check_columns, with_column
from lockstep.data.preprocessors.base import FitStatus, OfColumns, Preprocessor
from lockstep.data.preprocessors.encoders import ListCounter

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = [
    "BatchMapper",
    "Chain",
    "Concatenator",
    "CountVectorizer",
    "Tokenizer",
    "TorchVisionPreprocessor",
]


class Tokenizer(OfColumns):
    """Text as lists of words.

    Args:
        columns, output_columns: as of the scalers.
        tokenization_fn: from a text to a list; None splits at spaces.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.tokenization_fn is None:
            return pc.split_pattern(column, " ")
        split = self.tokenization_fn
        return pa.array([None if text is None else split(text) for text in column.to_pylist()])


class CountVectorizer(OfColumns):
    """Text as an array of how often each known word is in it.

    Args:
        columns, output_columns: as of the scalers.
        tokenization_fn: as of ``Tokenizer``.
        max_features: keep only that many words, the most frequent ones.
    """

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        max_features: int | None = None,
        *,
        output_columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn, self.max_features = tokenization_fn, max_features

    def _fit(self, dataset: Dataset) -> Preprocessor:
        words = Tokenizer(self.columns, self.tokenization_fn).transform(dataset)
        found = words.aggregate(*(ListCounter(name, alias_name=name) for name in self.columns))
        self.stats_ = {}
        for name, counted in found.items():
            pairs = zip(counted["values"], counted["counts"], strict=True)
            often = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[: self.max_features]
            self.stats_[f"token_counts({name})"] = dict(often)
        return self

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        import numpy as np

        words = {word: place for place, word in enumerate(self.stats_[f"token_counts({name})"])}
        found = np.zeros((len(column), len(words)), np.int64)
        split = self.tokenization_fn or (lambda text: text.split(" "))
        for row, text in enumerate(column.to_pylist()):
            for word in split(text) if text is not None else ():
                if word in words:
                    found[row, words[word]] += 1
        return to_arrow(found)


class TorchVisionPreprocessor(OfColumns):
    """A transform of torchvision on columns of images.

    Args:
        columns, output_columns: as of the scalers.
        transform: from an array to a tensor.
        batched: call it with all images of a batch, rather than with one.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str],
        transform: Callable[..., Any],
        output_columns: Sequence[str] | None = None,
        batched: bool = False,
    ) -> None:
        super().__init__(columns, output_columns)
        self.transform_fn, self.batched = transform, batched

    @property
    def torchvision_transform(self) -> Callable[..., Any]:
        """The transform."""
        return self.transform_fn

    def _arguments(self) -> dict[str, Any]:
        return {
            "columns": self.columns,
            "transform": self.transform_fn,
            "output_columns": self.output_columns,
            "batched": self.batched,
        }

    def _changed(self, column: pa.ChunkedArray, name: str) -> Any:
        if self.batched:
            return to_arrow(self.transform_fn(to_numpy(column)))
        return to_arrow([self.transform_fn(image) for image in to_values(column)])


class Concatenator(Preprocessor):
    """Several columns of numbers, or of arrays, as one column of arrays.

    Args:
        columns: the columns, in order; None with ``include`` or ``exclude`` is all others.
        output_column_name: the name of the new column.
        dtype: the numpy type of the arrays.
        raise_if_missing: whether a column that does not exist is an error.
        flatten: accepted; arrays in rows are always flattened.
        include, exclude: older names: the columns to use (None: all), and those to leave.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] | str | None = None,
    ) -> None:
        given = columns if columns is not None else include
        self.columns = (
            given if given is None else [given] if isinstance(given, str) else list(given)
        )
        self.include = None
        self.exclude = [exclude] if isinstance(exclude, str) else exclude and list(exclude)
        self.output_column_name = output_column_name
        self.dtype = dtype
        self.raise_if_missing, self.flatten = raise_if_missing, flatten

    def _arguments(self) -> dict[str, Any]:
        import numpy as np

        dtype = None if self.dtype is None else np.dtype(self.dtype).name
        return {**super()._arguments(), "dtype": dtype}

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        import numpy as np

        names = list(table.column_names if self.columns is None else self.columns)
        if self.raise_if_missing:
            check_columns([*names, *(self.exclude or ())], table.column_names, "Concatenator")
        gone = set(self.exclude or ())
        names = [n for n in names if n in table.column_names and n not in gone]
        if not names:
            raise ValueError(
                f"{self!r}: there are no such columns; there are {table.column_names}."
            )
        parts = [to_numpy(table[name]).reshape(table.num_rows, -1) for name in names]
        try:
            joined = np.concatenate(parts, axis=1)
            joined = joined if self.dtype is None else joined.astype(self.dtype)
        except ValueError as error:
            raise ValueError(f"{self!r}: {error}; choose columns of numbers.") from error
        return with_column(table.drop_columns(names), self.output_column_name, to_arrow(joined))


class BatchMapper(Preprocessor):
    """A function of batches as a preprocessor.

    Args:
        fn: from a batch to a batch, as in ``map_batches``.
        batch_format: ``"pandas"`` or ``"numpy"``.
        batch_size: accepted; each piece that is read is a batch.
    """

    _is_fittable = False

    def __init__(
        self, fn: Callable[[Any], Any], batch_format: str = "pandas", batch_size: Any = None
    ) -> None:
        self.fn, self.batch_format, self.batch_size = fn, check_format(batch_format), batch_size

    def transform(self, ds: Dataset, *, batch_size: int | None = None, **hints: Any) -> Dataset:
        """The dataset after ``map_batches``: ``fn`` may change the number of rows."""
        rows = self.batch_size if batch_size is None else batch_size
        return ds.map_batches(self.fn, batch_format=self.batch_format, batch_size=rows)

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        return to_table(self.fn(to_format(table, self.batch_format, write=True)), "BatchMapper")


class Chain(Preprocessor):
    """Several preprocessors, one after the other; each is fitted on the result of those before."""

    def __init__(self, *preprocessors: Preprocessor) -> None:
        for given in preprocessors:
            if not isinstance(given, Preprocessor):
                raise TypeError(f"Chain({given!r}): give preprocessors.")
        self.preprocessors = preprocessors

    def fit_status(self) -> FitStatus:
        """Of all that can be fitted."""
        statuses = {p.fit_status() for p in self.preprocessors} - {FitStatus.NOT_FITTABLE}
        if not statuses:
            return FitStatus.NOT_FITTABLE
        return statuses.pop() if len(statuses) == 1 else FitStatus.PARTIALLY_FITTED

    def get_input_columns(self) -> list[str]:
        """The columns that they read and none before has written."""
        found: dict[str, None] = {}
        written: set[str] = set()
        for preprocessor in self.preprocessors:
            read = preprocessor.get_input_columns()
            found.update(dict.fromkeys(name for name in read if name not in written))
            written.update(preprocessor.get_output_columns())
        return list(found)

    def get_output_columns(self) -> list[str]:
        """The columns that they write."""
        names = (name for one in self.preprocessors for name in one.get_output_columns())
        return list(dict.fromkeys(names))

    def _fit(self, dataset: Dataset) -> Preprocessor:
        for preprocessor in self.preprocessors[:-1]:
            dataset = preprocessor.fit_transform(dataset)
        if self.preprocessors:
            self.preprocessors[-1].fit(dataset)
        return self

    def transform(self, ds: Dataset, *, batch_size: int | None = None, **hints: Any) -> Dataset:
        """The dataset after all of them."""
        self.check_is_fitted()
        for preprocessor in self.preprocessors:
            ds = preprocessor.transform(ds, batch_size=batch_size, **hints)
        return ds

    def _transform_arrow(self, table: pa.Table) -> pa.Table:
        for preprocessor in self.preprocessors:
            table = preprocessor._transform_arrow(table)
        return table

    def _arguments(self) -> dict[str, Any]:
        return {"preprocessors": list(self.preprocessors)}

    @classmethod
    def _made(cls, arguments: dict[str, Any]) -> Preprocessor:
        return cls(*arguments["preprocessors"])

    def __repr__(self) -> str:
        """All of them."""
        return f"Chain({', '.join(map(repr, self.preprocessors))})"
