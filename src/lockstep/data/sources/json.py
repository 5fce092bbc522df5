"""JSON files: a row a line, or one list of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block
from lockstep.data.sources.lines import LineSource, read_file, read_range
from lockstep.data.sources.paths import File, unreadable
from lockstep.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.json

__all__ = ["JsonSource"]

_SAMPLE = 1 << 20


class JsonSource(LineSource):
    """Rows of JSON files: one object a line, or a list of objects (one block).

    Args:
        files: in order.
        read_options, parse_options: Arrow's, or None.
    """

    reader = "read_json"

    def __init__(
        self,
        files: Sequence[File],
        read_options: pyarrow.json.ReadOptions | None,
        parse_options: pyarrow.json.ParseOptions | None,
    ) -> None:
        import pyarrow.json

        self._read = read_options or pyarrow.json.ReadOptions()
        self._parse = parse_options or pyarrow.json.ParseOptions()
        self._lists: dict[str, bool] = {}
        super().__init__(files, single_blocks=bool(self._parse.newlines_in_values))

    def is_single_block(self, file: File) -> bool:
        """Whether a file is one block: a list of rows is, too."""
        return super().is_single_block(file) or self._is_list(file)

    def _is_list(self, file: File) -> bool:
        known = self._lists.get(file.path)
        if known is None:
            if super().is_single_block(file):
                start = bytes(memoryview(read_file(file))[:4096]) if file.size else b""
            else:
                start = read_range(file, 0, min(file.size, 4096)).to_pybytes()
            known = self._lists[file.path] = start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["
        return known

    def _find_schema(self) -> pa.Schema:
        import pyarrow as pa

        found = self._each_file(self._sample)
        first = found[0]
        for file, schema in zip(self._files, found, strict=True):
            try:
                first = pa.unify_schemas([first, schema], promote_options="permissive")
            except pa.ArrowException as error:
                name = next(n for n in schema.names if _differs(first, schema, n))
                raise ValueError(
                    f"Column {name!r} is {schema.field(name).type} in {file.path!r} but "
                    f"{first.field(name).type} in {self._files[0].path!r}; give parse_options with "
                    "an explicit_schema."
                ) from error
        return first

    def _sample(self, file: File) -> pa.Schema:
        if not file.size:
            raise StorageError(f"Could not read {file.path!r}: it is empty.")
        if self._parse.explicit_schema is not None:
            return self._parse.explicit_schema
        if self.is_single_block(file):
            return self._rows(read_file(file), file, None, True).schema
        data = read_range(file, 0, min(_SAMPLE, file.size))
        end = data.to_pybytes().rfind(b"\n") + 1
        if len(data) < file.size and end:
            data = data.slice(0, end)
        return self._rows(data, file, None, True).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Parse a range of a file, or a file."""
        import pyarrow as pa

        schema = self.schema()
        names = list(schema.names if columns is None else columns)
        wanted = pa.schema([schema.field(name) for name in names])
        file = self.file_of(block)
        return self._rows(self.bytes_of(block), file, wanted, threads).select(names)

    def _rows(self, data: Any, file: File, schema: pa.Schema | None, threads: bool) -> pa.Table:
        import pyarrow as pa
        import pyarrow.json

        if self._is_list(file):
            return _from_list(data.to_pybytes(), file, schema)
        chosen = {} if schema is None else {"explicit_schema": schema}
        unexpected = "infer" if schema is None else "ignore"
        try:
            return pyarrow.json.read_json(
                pa.BufferReader(data),
                read_options=pyarrow.json.ReadOptions(
                    use_threads=threads,
                    block_size=self._read.block_size if threads else max(len(data), 1),
                ),
                parse_options=pyarrow.json.ParseOptions(
                    newlines_in_values=self._parse.newlines_in_values,
                    unexpected_field_behavior=unexpected,
                    **chosen,
                ),
            )
        except pa.ArrowInvalid as error:
            raise unreadable(file, error) from error


def _from_list(data: bytes, file: File, schema: pa.Schema | None) -> pa.Table:
    try:
        rows = json.loads(data)
    except ValueError as error:
        raise unreadable(file, error) from error
    if not all(isinstance(row, dict) for row in rows):
        raise StorageError(
            f"Could not read {file.path!r}: it is a list, but not all of its entries are objects."
        )
    import pyarrow as pa

    types: dict[str, Any] = {key: None for row in rows for key in row}
    if schema is not None:
        types = {field.name: field.type for field in schema}
    columns = {}
    for name, kind in types.items():
        try:
            columns[name] = pa.array([row.get(name) for row in rows], kind)
        except pa.ArrowException as error:
            raise StorageError(
                f"Could not read {file.path!r}: column {name!r}: {error}; give all of its values "
                "one type."
            ) from error
    return pa.table(columns)


def _differs(first: pa.Schema, second: pa.Schema, name: str) -> bool:
    return name in first.names and first.field(name).type != second.field(name).type
