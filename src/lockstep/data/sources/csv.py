"""CSV files. Column types are inferred from samples of each file, for all blocks alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block
from lockstep.data.sources.lines import LineSource, read_file, read_range, skip_lines
from lockstep.data.sources.paths import File, unreadable
from lockstep.errors import StorageError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.csv

__all__ = ["CsvSource"]

_SAMPLE = 1 << 20
_LATER_SAMPLE = 1 << 18


class CsvSource(LineSource):
    """Rows of CSV files with the same columns.

    Args:
        files: in order.
        read_options, parse_options, convert_options: Arrow's, or None.
    """

    reader = "read_csv"

    def __init__(
        self,
        files: Sequence[File],
        read_options: pyarrow.csv.ReadOptions | None,
        parse_options: pyarrow.csv.ParseOptions | None,
        convert_options: pyarrow.csv.ConvertOptions | None,
    ) -> None:
        import pyarrow.csv

        self._read = read_options or pyarrow.csv.ReadOptions()
        self._parse = parse_options or pyarrow.csv.ParseOptions()
        self._convert = convert_options or pyarrow.csv.ConvertOptions()
        single_blocks = (
            self._parse.newlines_in_values
            or self._read.encoding not in ("utf8", "utf-8", "UTF-8")
            or self._parse.invalid_row_handler is not None
            or not self._parse.ignore_empty_lines
        )
        self._names: list[str] = []
        super().__init__(files, single_blocks=single_blocks)

    @property
    def _has_header(self) -> bool:
        return not self._read.column_names and not self._read.autogenerate_column_names

    def _first_row(self, file: File, source: Any) -> int:
        lines = self._read.skip_rows + self._read.skip_rows_after_names + self._has_header
        return skip_lines(source, lines, file.size)

    def _find_schema(self) -> pa.Schema:
        found = self._each_file(self._sample)
        first = found[0]
        for file, schema in zip(self._files, found, strict=True):
            first = _unified(first, schema, file, self._files[0])
        self._names = first.names
        included = self._convert.include_columns
        if included:
            import pyarrow as pa

            return pa.schema([first.field(name) for name in included])
        return first

    def _sample(self, file: File) -> pa.Schema:
        """The columns of a file, inferred from its beginning, middle and end."""
        import pyarrow as pa

        if not file.size:
            raise StorageError(f"Could not read {file.path!r}: it is empty, without a header.")
        if self.is_single_block(file):
            return self._parsed(read_file(file), file, self._read, self._convert).schema
        beginning = _complete_lines(read_range(file, 0, min(_SAMPLE, file.size)), file)
        convert = self._inferring()
        first = self._parsed(beginning, file, self._read, convert).schema
        schemas = [first]
        for place in (file.size // 2, file.size - _LATER_SAMPLE):
            if place > _SAMPLE:
                part = read_range(file, place, min(place + _LATER_SAMPLE, file.size))
                lines = _complete_lines(part, file, skip_first=True)
                if len(lines):
                    named = _like(self._read, column_names=first.names)
                    schemas.append(self._parsed(lines, file, named, convert).schema)
        return pa.schema([_widest([s.field(name) for s in schemas]) for name in first.names])

    def _inferring(self) -> pyarrow.csv.ConvertOptions:
        import pyarrow.csv

        if not self._convert.include_columns:
            return self._convert
        options = _options(self._convert, pyarrow.csv.ConvertOptions)
        return pyarrow.csv.ConvertOptions(**{**options, "include_columns": None})

    def _parsed(self, data: Any, file: File, read: Any, convert: Any) -> pa.Table:
        import pyarrow as pa
        import pyarrow.csv

        try:
            return pyarrow.csv.read_csv(
                pa.BufferReader(data),
                read_options=read,
                parse_options=self._parse,
                convert_options=convert,
            )
        except pa.ArrowKeyError as error:
            raise KeyError(f"{file.path!r}: {str(error).strip(chr(39))}.") from error
        except pa.ArrowInvalid as error:
            raise _explained(file, error, self._names) from error

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Parse a range of a file."""
        import pyarrow.csv

        schema = self.schema()
        file = self.file_of(block)
        data = self.bytes_of(block)
        types = {field.name: field.type for field in schema}
        names = list(schema.names if columns is None else columns)
        options = _options(self._convert, pyarrow.csv.ConvertOptions)
        convert = pyarrow.csv.ConvertOptions(
            **{**options, "column_types": types, "include_columns": names}
        )
        # With one thread, parse in one go: each column is then one chunk, and less is copied later.
        size = self._read.block_size if threads else max(len(data), 1)
        if self.is_single_block(file):
            read = _like(self._read, use_threads=threads)
        else:
            read = pyarrow.csv.ReadOptions(
                use_threads=threads, block_size=size, column_names=self._names
            )
        return self._parsed(data, file, read, convert)


def _like(options: Any, **changes: Any) -> Any:
    import pyarrow.csv

    if "column_names" in changes:  # there is no header to skip in the middle of a file
        changes |= {"skip_rows": 0, "skip_rows_after_names": 0, "autogenerate_column_names": False}
    return pyarrow.csv.ReadOptions(**{**_options(options, pyarrow.csv.ReadOptions), **changes})


_FIELDS = {
    "ReadOptions": (
        "use_threads", "block_size", "skip_rows", "skip_rows_after_names", "column_names",
        "autogenerate_column_names", "encoding",
    ),
    "ConvertOptions": (
        "check_utf8", "column_types", "default_column_type", "null_values", "true_values",
        "false_values", "decimal_point", "strings_can_be_null", "quoted_strings_can_be_null",
        "include_columns", "include_missing_columns", "auto_dict_encode",
        "auto_dict_max_cardinality", "timestamp_parsers",
    ),
}  # fmt: skip


def _options(options: Any, kind: type) -> dict[str, Any]:
    """The arguments that recreate an options object."""
    return {
        name: getattr(options, name) for name in _FIELDS[kind.__name__] if hasattr(options, name)
    }


def _complete_lines(data: pa.Buffer, file: File, skip_first: bool = False) -> pa.Buffer:
    """Without the partial line at the end and, with ``skip_first``, the one at the beginning."""
    view = data.to_pybytes()
    begin = view.find(b"\n") + 1 if skip_first else 0
    end = view.rfind(b"\n") + 1 if len(view) < file.size else len(view)
    if end <= begin and not skip_first:
        end = len(view)
    return data.slice(begin, max(end - begin, 0))


def _widest(fields: Sequence[pa.Field]) -> pa.Field:
    """A type that fits all samples of one file; text where no other type does."""
    import pyarrow as pa

    schemas = [pa.schema([field]) for field in fields]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0)
    except pa.ArrowException:
        return pa.field(fields[0].name, pa.string())


def _unified(first: pa.Schema, other: pa.Schema, file: File, first_file: File) -> pa.Schema:
    import pyarrow as pa

    if other.names != first.names:
        missing = [name for name in first.names if name not in other.names]
        extra = [name for name in other.names if name not in first.names]
        what = (
            f"has no column {missing[0]!r}, which is"
            if missing
            else f"has a column {extra[0]!r}, which is not"
            if extra
            else "has its columns in another order than those"
        )
        raise ValueError(
            f"{file.path!r} {what} in {first_file.path!r} ({', '.join(first.names)}); write the "
            "files with the same columns in the same order."
        )
    fields = []
    for one, two in zip(first, other, strict=True):
        try:
            both = pa.unify_schemas(
                [pa.schema([one]), pa.schema([two])], promote_options="permissive"
            )
        except pa.ArrowException as error:
            raise ValueError(
                f"Column {one.name!r} looks like {two.type} in {file.path!r} but like {one.type} "
                f"in {first_file.path!r}; say what it is with convert_options="
                f"pyarrow.csv.ConvertOptions(column_types={{{one.name!r}: …}})."
            ) from error
        fields.append(both.field(0))
    return pa.schema(fields)


def _explained(file: File, error: Exception, names: Sequence[str]) -> Exception:
    text = str(error).partition("\n")[0]
    match = re.search(r"In CSV column #(\d+): (.*)", text)
    if match and int(match.group(1)) < len(names):
        name = names[int(match.group(1))]
        return StorageError(
            f"Could not read {file.path!r}: column {name!r}: {match.group(2).strip()}; say what it "
            f"is with convert_options=pyarrow.csv.ConvertOptions(column_types={{{name!r}: …}})."
        )
    if "Expected" in text and "columns" in text:
        return StorageError(
            f"Could not read {file.path!r}: {text.rstrip('.')}; give parse_options="
            "pyarrow.csv.ParseOptions(newlines_in_values=True) if values have line breaks in them."
        )
    return unreadable(file, error)
