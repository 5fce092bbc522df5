"""Rows as objects of other libraries, and as files."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int
from lockstep.data.arrow.columns import as_written, to_numpy
from lockstep.data.arrow.formats import to_pandas
from lockstep.data.arrow.unify import concatenated
from lockstep.data.base import DatasetBase
from lockstep.data.iterate.batching import cut_tables
from lockstep.data.plan.operations import check_columns
from lockstep.run_layout import TEMPORARY, scratch_prefix

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.fs

__all__ = ["Outputs"]

_ROWS_PER_FILE = 1 << 20
_FILE = re.compile(r"part-(\d+)(-[0-9a-f]{8})?\.(parquet|csv|json)")
_MODES = {"create": "error", **{m: m for m in ("append", "overwrite", "ignore", "error")}}


class Outputs(DatasetBase):
    """``to_pandas``, ``to_arrow``, ``to_numpy``, ``write_parquet``, ``write_csv``, ``write_json``.

    ``write_*`` writes a directory of files; a file is complete or does not exist. The files' names
    sort in the order of the rows and are unique to a write, so several writes may run at once.
    """

    def to_arrow(self, limit: int | None = None) -> pa.Table:
        """All rows as one Arrow table.

        Raises:
            ValueError: there are more than ``limit`` rows.
        """
        tables: list[pa.Table] = []
        rows = 0
        for table in self._tables():
            rows += table.num_rows
            if limit is not None and rows > limit:
                raise ValueError(f"There are more than limit={limit} rows; raise it or set None.")
            tables.append(table)
        if not tables:
            return self.schema().empty_table()
        return concatenated(tables)

    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """All rows as a data frame; ``limit`` as in ``to_arrow``."""
        return to_pandas(self.to_arrow(limit))

    def to_numpy(self, column: str | None = None) -> Any:
        """All rows as a dict of arrays, or a column as an array."""
        table = self.to_arrow()
        if column is not None:
            return to_numpy(table[check_columns([column], table.column_names, "to_numpy")[0]])
        names = table.column_names
        return {n: to_numpy(c) for n, c in zip(names, table.columns, strict=True)}

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_parquet_args: Any,
    ) -> list[str]:
        """Write Parquet files into a directory.

        Args:
            path: the directory, or its URI.
            filesystem: the filesystem of ``path``.
            num_rows_per_file: None is about a million.
            min_rows_per_file: another name for ``num_rows_per_file``.
            mode: what happens to files of earlier writes, of any format: ``"append"`` keeps them
                and numbers the new files after them, ``"overwrite"`` removes them once the new
                files are written, ``"ignore"`` writes nothing if there are such files, ``"error"``
                (or ``"create"``) raises.
            concurrency, ray_remote_args: for Ray's scheduler; accepted and ignored.
            arrow_parquet_args: for ``pyarrow.parquet.write_table``.

        Returns:
            The names of the files.

        Raises:
            FileExistsError: there are files of an earlier write, and ``mode`` is ``"error"``.
        """
        import pyarrow.parquet as pq

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        write = partial(pq.write_table, **arrow_parquet_args)
        return self._write(path, filesystem, "parquet", rows, mode, write)

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_csv_args: Any,
    ) -> list[str]:
        """Write CSV files with headers.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, concurrency,
                ray_remote_args: as in ``write_parquet``.
            arrow_csv_args: for ``pyarrow.csv.write_csv``.
        """
        import pyarrow.csv

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        write = partial(pyarrow.csv.write_csv, **arrow_csv_args)
        return self._write(path, filesystem, "csv", rows, mode, write)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **pandas_json_args: Any,
    ) -> list[str]:
        """Write JSON files, one row per line.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, concurrency,
                ray_remote_args: as in ``write_parquet``.
            pandas_json_args: for ``DataFrame.to_json``.
        """
        options = {
            "orient": "records",
            "lines": True,
            "double_precision": 15,  # the most that pandas supports; its default of 10 loses digits
            **pandas_json_args,
        }

        def write(table: pa.Table, file: str) -> None:
            to_pandas(table).to_json(file, **options)

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        return self._write(path, filesystem, "json", rows, mode, write)

    def _write(
        self,
        path: str | os.PathLike[str],
        filesystem: pyarrow.fs.FileSystem | None,
        ending: str,
        rows: int | None,
        mode: Any,
        write: Callable[[pa.Table, str], None],
    ) -> list[str]:
        """Write the files; ``write`` writes a table to a local path."""
        import tempfile

        from lockstep.storage import open_storage

        if rows is not None:
            rows = check_int(f"num_rows_per_file={rows!r}", rows, 1)
        mode = str(getattr(mode, "value", mode)).lower()
        if mode not in _MODES:
            raise ValueError(
                f"mode={mode!r} is not known; give 'append', 'overwrite', 'ignore' or 'error'."
            )
        mode = _MODES[mode]
        storage = open_storage(path, filesystem)
        storage.make_directory()
        earlier = {
            name: int(found[1]) for name in storage.listdir() if (found := _FILE.fullmatch(name))
        }
        if earlier and mode == "error":
            raise FileExistsError(
                f"{storage.uri!r} has {min(earlier)!r} of an earlier write; write to "
                "another directory, or give mode='append' or 'overwrite'."
            )
        if earlier and mode == "ignore":
            return []
        first = max(earlier.values(), default=-1) + 1
        token = secrets.token_hex(4)
        names: list[str] = []
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("data")) as scratch:
            tables = cut_tables(self._pieces(), rows or _ROWS_PER_FILE, False, "pyarrow")
            for number, (table, _) in enumerate(tables, first):
                name = f"part-{number:05d}-{token}.{ending}"
                file = os.path.join(scratch, name)
                write(_as_written(table, tensors=ending == "parquet"), file)
                # Readers of a local directory see a file only once it is complete. An object store
                # publishes an object when its upload ends.
                staged = f"{TEMPORARY}{name}" if storage.is_local else name
                storage.put(staged, file, move=True, flush=False)
                if storage.is_local:
                    os.replace(storage.path(staged), storage.path(name))
                names.append(name)
        if mode == "overwrite":  # only now: a write that fails loses nothing
            for name in earlier:
                with contextlib.suppress(FileNotFoundError):  # another write removed it
                    storage.filesystem.delete_file(storage.path(name))
        return names


def _as_written(table: pa.Table, tensors: bool) -> pa.Table:
    """The table as a file format can hold it; ``tensors`` says whether it has tensors."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        written = as_written(column, tensors)
        if written is not column:
            table = table.set_column(place, name, written)
    return table
