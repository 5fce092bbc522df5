"""Columns encoded in directory names: ``data/year=2024/kind=a/part-0.parquet``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lockstep.data.arrow.expressions import by_position
from lockstep.data.sources.base import Block, Source, WithMoreColumns
from lockstep.data.sources.paths import File

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PartitionStyle",
    "PartitionedSource",
    "Partitioning",
    "PathPartitionFilter",
    "partitions_of",
    "paths_of",
    "pruned",
]


class PartitionStyle(str, Enum):
    """How directories say values: ``"hive"`` is ``year=2024/``, ``"dir"`` is ``2024/``."""

    HIVE = "hive"
    DIRECTORY = "dir"


@dataclass(frozen=True)
class Partitioning:
    """Which columns the directories of files add.

    Args:
        style: ``"hive"`` (``year=2024/kind=a/``) or ``"dir"`` (``2024/a/``).
        base_dir: only directories below it count; by default, those below the path that is read.
        field_names: the columns: needed for ``"dir"``, one for each directory.
        field_types: column → ``int``, ``float``, ``bool`` or ``str``; by default integers where all
            values are integers, otherwise text.
        filesystem: accepted and ignored: the reader has one.
    """

    style: PartitionStyle | str
    base_dir: str | None = None
    field_names: Sequence[str] | None = None
    field_types: Mapping[str, type] | None = None
    filesystem: Any = None

    def __post_init__(self) -> None:
        try:
            style = PartitionStyle(self.style)
        except ValueError:
            raise ValueError(f"Partitioning({self.style!r}): expected 'hive' or 'dir'.") from None
        if style is PartitionStyle.DIRECTORY and not self.field_names:
            raise ValueError("Partitioning('dir') needs field_names: a column for each directory.")
        for name, kind in (self.field_types or {}).items():
            if kind not in _CONVERSIONS:
                raise ValueError(
                    f"Partitioning(field_types={{{name!r}: {kind!r}}}): expected int, float, bool "
                    "or str."
                )

    def values_of(self, path: str, root: str = "") -> dict[str, str | None]:
        """The columns of a file. ``root`` counts where there is no ``base_dir``.

        Raises:
            ValueError: the directories do not fit to ``field_names``.
        """
        base = root if self.base_dir is None else self.base_dir.partition("://")[2] or self.base_dir
        base = base.rstrip("/")
        place = path.find(base + "/") if base else -1
        below = path[place + len(base) :] if place >= 0 else path
        parts = [part for part in below.split("/")[:-1] if part]
        if self.style == PartitionStyle.HIVE:
            matches = [match for part in parts if (match := _PART.fullmatch(part))]
            found = {m[1]: None if m[2] == _NULL else unquote(m[2]) for m in matches}
            if self.field_names is not None and list(found) != list(self.field_names):
                raise ValueError(
                    f"{path!r} is in directories of {', '.join(found) or 'no column'}, not of "
                    f"Partitioning(field_names={list(self.field_names)!r}); name its directories."
                )
            return found
        names = list(self.field_names or ())
        if len(parts) != len(names):
            raise ValueError(
                f"{path!r} has {len(parts)} directories below {base!r}, and "
                f"Partitioning(field_names={names!r}) names {len(names)}; give a base_dir, or a "
                "name for each."
            )
        return dict(zip(names, parts, strict=True))


class PathPartitionFilter:
    """Chooses files by the columns of their directories: ``read_*(partition_filter=…)``.

    ``PathPartitionFilter.of(lambda columns: columns["year"] == "2024")`` is the usual way.
    """

    def __init__(
        self, partitioning: Partitioning, filter_fn: Callable[[dict[str, Any]], bool]
    ) -> None:
        self._partitioning = partitioning
        self._filter = filter_fn

    @classmethod
    def of(
        cls,
        filter_fn: Callable[[dict[str, Any]], bool],
        style: PartitionStyle | str = PartitionStyle.HIVE,
        base_dir: str | None = None,
        field_names: Sequence[str] | None = None,
        field_types: Mapping[str, type] | None = None,
        filesystem: Any = None,
    ) -> PathPartitionFilter:
        """A filter; the arguments after the function are those of ``Partitioning``."""
        where = Partitioning(style, base_dir, field_names, field_types, filesystem)
        return cls(where, filter_fn)

    def __call__(self, paths: Sequence[str]) -> list[str]:
        """The paths whose columns the function accepts."""
        types = self._partitioning.field_types or {}

        def accepted(path: str) -> bool:
            values: dict[str, Any] = self._partitioning.values_of(path)
            for name, kind in types.items():
                if values.get(name) is not None:
                    values[name] = _CONVERSIONS[kind](values[name])
            return bool(self._filter(values))

        return [path for path in paths if accepted(path)]


def _truth(text: str) -> bool:
    return text.lower() in ("true", "1")


_CONVERSIONS: dict[Any, Callable[[str], Any]] = {int: int, float: float, bool: _truth, str: str}
_PART = re.compile(r"([A-Za-z_]\w*)=(.*)")
_NULL = "__HIVE_DEFAULT_PARTITION__"


_HIVE = Partitioning(PartitionStyle.HIVE)


def partitions_of(
    files: Sequence[File], partitioning: Partitioning | None = _HIVE
) -> pa.Table | None:
    """A row of partition columns for each file; None where no directory is named so.

    Only directories below the path the user gave count, or below the partitioning's ``base_dir``.

    Raises:
        ValueError: a file has other partition columns than the first one.
    """
    import pyarrow as pa

    if partitioning is None:
        return None
    found = [partitioning.values_of(file.path, file.storage.root) for file in files]
    if not any(found):
        return None
    for file, values in zip(files, found, strict=True):
        if list(values) != list(found[0]):
            raise ValueError(
                f"{file.path!r} is in directories of {', '.join(values) or 'no column'}, and "
                f"{files[0].path!r} in those of {', '.join(found[0]) or 'no column'}; read them as "
                "two datasets."
            )
    types = partitioning.field_types or {}
    columns = {name: [values[name] for values in found] for name in found[0]}
    return pa.table(
        {name: _typed(values, types.get(name), files) for name, values in columns.items()}
    )


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


def _typed(values: Sequence[str | None], kind: type | None, files: Sequence[File]) -> pa.Array:
    """Values of the type; by default integers where all values are integers, otherwise text."""
    import pyarrow as pa

    if kind is not None:
        converted = []
        for value, file in zip(values, files, strict=True):
            try:
                converted.append(None if value is None else _CONVERSIONS[kind](value))
            except ValueError:
                raise ValueError(
                    f"The directory {value!r} of {file.path!r} is no {kind.__name__}; give another "
                    "type in Partitioning(field_types=…)."
                ) from None
        return pa.array(converted)
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


class PartitionedSource(WithMoreColumns):
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
        super().__init__(source)
        self._paths = paths
        self._rows = {file.path: place for place, file in enumerate(files)}
        self._partitions = partitions

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

    def _inside(self, columns: Sequence[str]) -> list[str]:
        inside = self._source.schema().names
        return [name for name in columns if name in inside]

    def _extended(self, table: pa.Table, block: Block, start: int) -> pa.Table:
        import pyarrow as pa

        place = self._rows[block.name]
        for name in self._added():
            value = self._partitions[name][place]
            table = table.append_column(name, pa.repeat(value, table.num_rows))
        return table
