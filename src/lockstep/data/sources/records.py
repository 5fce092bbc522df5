"""Files of records: TFRecord files and the tar files of WebDataset. A block is a file."""

from __future__ import annotations

import struct
import tarfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow
from lockstep.data.arrow.tfrecords import decode_example, records_of
from lockstep.data.arrow.webdataset import decoded, read_samples
from lockstep.data.sources.base import Block
from lockstep.data.sources.files import FileSource
from lockstep.data.sources.lines import read_file
from lockstep.data.sources.paths import File, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RecordSource", "TFRecordSource", "WebDatasetSource"]


class RecordSource(FileSource):
    """Rows that are found by reading a file from its start. The first file shows the columns."""

    def _find_blocks(self) -> list[Block]:
        return [Block((n,), None, file.size, file.path) for n, file in enumerate(self._files)]

    def _find_schema(self) -> pa.Schema:
        return self._table(self._files[0]).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A file's rows, with the columns of the first file."""
        import pyarrow as pa

        file, schema = self.file_of(block), self.schema()
        table = self._table(file)
        unknown = [name for name in table.column_names if name not in schema.names]
        if unknown:
            raise ValueError(
                f"{file.path!r} has a column {unknown[0]!r}, which {self._files[0].path!r} does "
                "not have; read them as two datasets."
            )
        arrays = []
        for field in schema:
            if field.name not in table.column_names:
                arrays.append(pa.nulls(table.num_rows, field.type))
                continue
            column = table[field.name]
            if pa.types.is_list(field.type) and not pa.types.is_list(column.type):
                # At most one value in each row of this file, more in the first.
                column = pa.chunked_array(
                    [[None if value is None else [value] for value in column.to_pylist()]]
                )
            try:
                arrays.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise ValueError(
                    f"Column {field.name!r} is {table.schema.field(field.name).type} in "
                    f"{file.path!r} but {field.type} in {self._files[0].path!r}; read them as two "
                    "datasets."
                ) from error
        table = pa.table(arrays, schema=schema)
        return table if columns is None else table.select(list(columns))

    @abstractmethod
    def _table(self, file: File) -> pa.Table:
        """All rows of a file."""


def _bytes_of(file: File) -> memoryview:
    return memoryview(read_file(file)).cast("B")


def _columns(rows: Sequence[dict[str, Any]]) -> pa.Table:
    import pyarrow as pa

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: to_arrow([row.get(name) for row in rows]) for name in names})


class TFRecordSource(RecordSource):
    """The Examples of TFRecord files, a column a feature.

    A feature that has at most one value in every row of a file is that value, otherwise a list.
    """

    reader = "read_tfrecords"

    def _table(self, file: File) -> pa.Table:
        try:
            rows: list[dict[str, Any]] = [
                dict(decode_example(record)) for record in records_of(_bytes_of(file))
            ]
        except (ValueError, KeyError, IndexError, TypeError, struct.error) as error:
            raise unreadable(file, error) from error
        names = dict.fromkeys(name for row in rows for name in row)
        for name in names:
            single = all(len(row.get(name) or ()) <= 1 for row in rows)
            for row in rows:
                values = row.get(name)
                row[name] = (values[0] if values else None) if single else values
        return _columns(rows)

    def count(self, block: Block) -> int:
        """The number of records, without decoding them."""
        file = self.file_of(block)
        try:
            return sum(1 for _ in records_of(_bytes_of(file)))
        except ValueError as error:
            raise unreadable(file, error) from error


class WebDatasetSource(RecordSource):
    """The samples of tar files, a column an ending, and ``"__key__"``.

    Args:
        files: in order.
        decode: called with an ending and its bytes; None: leave the bytes.
        suffixes: the endings to read; None: all.
        expand_json: make columns of the keys of a sample's ``json``.
        include_paths: add a column ``"path"``.
    """

    reader = "read_webdataset"

    def __init__(
        self,
        files: Sequence[File],
        decode: Callable[[str, bytes], Any] | None = decoded,
        suffixes: Sequence[str] | None = None,
        expand_json: bool = False,
        include_paths: bool = False,
    ) -> None:
        super().__init__(files)
        self._decode = decode
        self._suffixes = suffixes
        self._expand_json = expand_json
        self._include_paths = include_paths

    def _table(self, file: File) -> pa.Table:
        rows = []
        try:
            for sample in read_samples(read_file(file)):
                row = {"__key__": sample.pop("__key__")}
                for ending, value in sample.items():
                    if self._suffixes is None or ending in self._suffixes:
                        row[ending] = self._decode(ending, value) if self._decode else value
                if self._expand_json and isinstance(row.get("json"), dict):
                    row.update(row.pop("json"))
                if self._include_paths:
                    row["path"] = file.path
                rows.append(row)
        except (tarfile.TarError, ValueError, OSError) as error:
            raise unreadable(file, error) from error
        return _columns(rows)
