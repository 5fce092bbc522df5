"""Columns encoded in directory names: ``data/year=2024/kind=a/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lockstep.data.arrow.expressions import by_position
from lockstep.data.sources.base import Block, Source
from lockstep.data.sources.paths import File

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PartitionedSource", "partitions_of", "paths_of", "pruned"]

_PART = re.compile(r"([A-Za-z_]\w*)=(.*)")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def partitions_of(files: Sequence[File]) -> pa.Table | None:
    """A row of partition columns for each file; None where no directory is named so.

    Only directories below the path the user gave count.

    Raises:
        ValueError: a file has other partition columns than the first one.
    """
    import pyarrow as pa

    found = [_values(file) for file in files]
    if not any(found):
        return None
    for file, values in zip(files, found, strict=True):
        if list(values) != list(found[0]):
            raise ValueError(
                f"{file.path!r} is in directories of {', '.join(values) or 'no column'}, and "
                f"{files[0].path!r} in those of {', '.join(found[0]) or 'no column'}; read them as "
                "two datasets."
            )
    return pa.table({name: _typed([values[name] for values in found]) for name in found[0]})


def paths_of(files: Sequence[File], partitions: pa.Table | None = None) -> pa.Table:
    """A row for each file with its path, beside other columns.

    Raises:
        ValueError: the directories have a column ``"path"`` already.
    """
    import pyarrow as pa

    if partitions is not None and "path" in partitions.column_names:
        raise _path_is_taken(f"the directories of {files[0].path!r} are named 'path=…'")
    paths = pa.array([file.path for file in files], pa.string())
    if partitions is None:
        return pa.table({"path": paths})
    return partitions.append_column("path", paths)


def _path_is_taken(why: str) -> ValueError:
    return ValueError(
        f"include_paths=True adds a column 'path', but {why}; rename that, or leave out "
        "include_paths."
    )


def _values(file: File) -> dict[str, str | None]:
    below = file.path[len(file.storage.root) :].split("/")[:-1]
    matches = [match for part in below if (match := _PART.fullmatch(part))]
    return {m[1]: None if m[2] == _NULL else unquote(m[2]) for m in matches}


def _typed(values: Sequence[str | None]) -> pa.Array:
    """Integers where all values are integers, otherwise text."""
    import pyarrow as pa

    if all(value is None or re.fullmatch(r"-?(0|[1-9]\d{0,17})", value) for value in values):
        return pa.array([None if value is None else int(value) for value in values], pa.int64())
    return pa.array(values, pa.string())


def pruned(
    files: Sequence[File], partitions: pa.Table, expression: Any
) -> tuple[list[File], pa.Table]:
    """The files left, and their partitions, where a filter names only partition columns."""
    import numpy as np
    import pyarrow as pa

    if by_position(expression):
        return list(files), partitions
    numbered = partitions.append_column("", pa.array(np.arange(len(files))))
    try:
        kept = numbered.filter(expression)[""].to_pylist()
    except pa.ArrowException:  # the filter names columns of the files, or does not fit these
        return list(files), partitions
    kept = kept or [0]  # one file shows the columns; the filter drops its rows later
    return [files[place] for place in kept], partitions.take(kept)


class PartitionedSource(Source):
    """The rows of files, with the columns that their directories' names add.

    A column that is in the files themselves is taken from there.

    Args:
        source: of the rows.
        files: of that source.
        partitions: a row for each file, from ``partitions_of`` or ``paths_of``.
        paths: whether ``partitions`` has a column ``"path"``, which no file may have.
    """

    def __init__(
        self, source: Source, files: Sequence[File], partitions: pa.Table, paths: bool = False
    ) -> None:
        self._source = source
        self._paths = paths
        self._rows = {file.path: place for place, file in enumerate(files)}
        self._partitions = partitions

    @property
    def text(self) -> str:  # type: ignore[override]
        """As of the files."""
        return self._source.text

    def is_ready(self) -> bool:
        """As of the files."""
        return self._source.is_ready()

    def index(self) -> list[Block]:
        """The files' blocks."""
        return self._source.index()

    def _added(self) -> list[str]:
        inside = self._source.schema().names
        if self._paths and "path" in inside:
            raise _path_is_taken(f"{self._source.files()[0]!r} has one")
        return [name for name in self._partitions.column_names if name not in inside]

    def adds_all(self) -> bool:
        """Whether no file has a partition column itself, so the directories alone decide it."""
        return len(self._added()) == len(self._partitions.column_names)

    def schema(self) -> pa.Schema:
        """The files' columns, then the directories'."""
        import pyarrow as pa

        added = [self._partitions.schema.field(name) for name in self._added()]
        return pa.schema([*self._source.schema(), *added])

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """A block with its file's partition values in each row."""
        table = self._source.read(block, self._inside(columns), threads)
        return self._with_partitions(table, block, columns)

    def stream(self, block: Block, columns: Sequence[str] | None, threads: bool) -> Iterator[Any]:
        """The same rows in parts."""
        for table in self._source.stream(block, self._inside(columns), threads):
            yield self._with_partitions(table, block, columns)

    def _inside(self, columns: Sequence[str] | None) -> list[str] | None:
        if columns is None:
            return None
        inside = self._source.schema().names
        # At least one column, to know the number of rows.
        return [name for name in columns if name in inside] or inside[:1]

    def _with_partitions(
        self, table: pa.Table, block: Block, columns: Sequence[str] | None
    ) -> pa.Table:
        import pyarrow as pa

        place = self._rows[block.name]
        for name in self._added():
            value = self._partitions[name][place]
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        return table if columns is None else table.select(list(columns))

    def count(self, block: Block) -> int:
        """The number of rows in a block."""
        return self._source.count(block)

    def files(self) -> list[str]:
        """The files' paths."""
        return self._source.files()

    def check(self) -> None:
        """Check the files."""
        self._source.check()
