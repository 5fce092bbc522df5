"""Rows as objects of other libraries, and as files."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lockstep import core
from lockstep.checks import check_int
from lockstep.data.arrow.columns import as_written, to_numpy, to_values
from lockstep.data.arrow.formats import to_format, to_pandas
from lockstep.data.arrow.unify import concatenated
from lockstep.data.compat import check_hints
from lockstep.data.iterate.batching import cut_tables
from lockstep.data.methods.base import DatasetBase
from lockstep.data.methods.filenames import FilenameProvider, file_name
from lockstep.data.methods.reordering import sorted_groups
from lockstep.data.plan.operations import check_columns
from lockstep.data.plan.schema import schema_of
from lockstep.run_layout import TEMPORARY, scratch_prefix

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.fs

    from lockstep.storage import Storage

__all__ = ["Outputs"]

_ROWS_PER_FILE = 1 << 20
_FILE = re.compile(
    r"part-(\d+)(-[0-9a-f]{8})?\.(parquet|orc|csv|json|npy|tar|tfrecords|png|jpe?g|bmp|tiff?|gif|webp)"
)
_HAVE_TENSORS = ("parquet", "npy", "tar", "png", "jpeg", "jpg", "bmp", "tiff", "tif", "gif", "webp")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_MODES = {"create": "error", **{m: m for m in ("append", "overwrite", "ignore", "error")}}


class Outputs(DatasetBase):
    """``to_pandas``, ``to_arrow``, ``to_numpy``, ``write_parquet`` and the other outputs.

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
            return schema_of(self._groups()).empty_table()
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

    def to_pandas_refs(self) -> list[Any]:
        """References to the blocks as data frames, for ``get``."""
        return [core.put(to_pandas(table)) for table in self._tables()]

    def to_arrow_refs(self) -> list[Any]:
        """References to the blocks as Arrow tables, for ``get``."""
        return [core.put(table) for table in self._tables()]

    def to_numpy_refs(self, *, column: str | None = None) -> list[Any]:
        """References to the blocks as dicts of arrays, or to a column's arrays, for ``get``."""
        blocks = (to_format(table, "numpy") for table in self._tables())
        return [core.put(block if column is None else block[column]) for block in blocks]

    def write_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        partition_cols: Sequence[str] | None = None,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        max_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_parquet_args: Any,
    ) -> list[str]:
        """Write Parquet files into a directory.

        Args:
            path: the directory, or its URI.
            partition_cols: columns whose values become directories (``year=2024/kind=a/``), and are
                not in the files; ``read_parquet`` brings them back.
            filesystem: the filesystem of ``path``.
            num_rows_per_file: None is about a million.
            min_rows_per_file: another name for ``num_rows_per_file``.
            max_rows_per_file: no file has more rows.
            mode: what happens to files of earlier writes, of any format: ``"append"`` keeps them
                and numbers the new files after them, ``"overwrite"`` removes them once the new
                files are written, ``"ignore"`` writes nothing if there are such files, ``"error"``
                (or ``"create"``) raises.
            filename_provider: chooses the files' names; see ``FilenameProvider``. With it, every
                file with the format's ending is one of an earlier write.
            try_create_dir, arrow_open_stream_args: accepted and ignored; the directory is always
                created.
            concurrency, ray_remote_args: for Ray's scheduler; accepted and ignored.
            arrow_parquet_args: for ``pyarrow.parquet.write_table``.

        Returns:
            The names of the files.

        Raises:
            FileExistsError: there are files of an earlier write, and ``mode`` is ``"error"``; or
                the ``filename_provider`` returned a name that is taken.
        """
        import pyarrow.parquet as pq

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        if max_rows_per_file is not None:
            most = check_int(f"max_rows_per_file={max_rows_per_file!r}", max_rows_per_file, 1)
            rows = most if rows is None else min(rows, most)
        write = partial(pq.write_table, **arrow_parquet_args)
        keys = list(partition_cols or ())
        return self._write(path, filesystem, "parquet", rows, mode, write, filename_provider, keys)

    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write a column as ``.npy`` files, whose first dimension counts the rows.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
            column: the column.
        """
        import numpy as np

        def write(table: pa.Table, file: str) -> None:
            check_columns([column], table.column_names, "write_numpy")
            np.save(file, to_numpy(table[column]))

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        return self._write(path, filesystem, "npy", rows, mode, write, filename_provider)

    def write_images(
        self,
        path: str | os.PathLike[str],
        column: str,
        file_format: str = "png",
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write each row's image, an array of height, width and channels; needs Pillow.

        Args:
            path, filesystem, mode, filename_provider, try_create_dir, arrow_open_stream_args,
                concurrency, ray_remote_args: as in ``write_parquet``.
            column: the images.
            file_format: the format and the files' ending, such as ``"png"`` or ``"jpeg"``.
        """
        from PIL import Image

        def write(table: pa.Table, file: str) -> None:
            check_columns([column], table.column_names, "write_images")
            image = to_values(table[column])[0]
            image = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
            Image.fromarray(image).save(file, format=file_format)

        return self._write(path, filesystem, file_format, 1, mode, write, filename_provider)

    def write_orc(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_orc_args: Any,
    ) -> list[str]:
        """Write ORC files; arrays become lists, which lose their shape.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
            arrow_orc_args: for ``pyarrow.orc.write_table``.
        """
        import pyarrow as pa
        import pyarrow.types as types
        from pyarrow import orc

        def write(table: pa.Table, file: str) -> None:
            for place, field in enumerate(table.schema):
                if types.is_fixed_size_list(field.type) or types.is_large_list(field.type):
                    lists = table.column(place).cast(pa.list_(field.type.value_type))
                    table = table.set_column(place, field.name, lists)
            orc.write_table(table, file, **arrow_orc_args)

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        return self._write(path, filesystem, "orc", rows, mode, write, filename_provider)

    def write_sql(self, sql: str, connection_factory: Callable[[], Any], **hints: Any) -> None:
        """Insert the rows: ``write_sql("INSERT INTO t VALUES(?, ?)", connect)``.

        All rows are one transaction: an error leaves the table as it was.

        Args:
            sql: the statement, with a place for each column.
            connection_factory: opens a connection, of any database with Python's DB API.
            hints: for Ray's scheduler; accepted and ignored.
        """
        check_hints("write_sql", hints)
        connection = connection_factory()
        try:
            cursor = connection.cursor()
            for table in self._tables():
                rows = list(zip(*(to_values(column) for column in table.columns), strict=True))
                cursor.executemany(sql, rows)
            connection.commit()
        finally:
            connection.close()

    def write_csv(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **arrow_csv_args: Any,
    ) -> list[str]:
        """Write CSV files with headers.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
            arrow_csv_args: for ``pyarrow.csv.write_csv``.
        """
        import pyarrow.csv

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        write = partial(pyarrow.csv.write_csv, **arrow_csv_args)
        return self._write(path, filesystem, "csv", rows, mode, write, filename_provider)

    def write_json(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
        **pandas_json_args: Any,
    ) -> list[str]:
        """Write JSON files, one row per line.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
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
        return self._write(path, filesystem, "json", rows, mode, write, filename_provider)

    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write TFRecord files of ``tf.train.Example``, a feature a column; needs no TensorFlow.

        Integers and booleans become ``int64_list``, other numbers ``float_list`` (32 bits), text
        and bytes ``bytes_list``; arrays lose their shape.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
        """
        from lockstep.data.arrow.tfrecords import encode_example, pack_record

        def write(table: pa.Table, file: str) -> None:
            with open(file, "wb") as out:
                for row in table.to_pylist():
                    out.write(pack_record(encode_example(row)))

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        return self._write(path, filesystem, "tfrecords", rows, mode, write, filename_provider)

    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        filesystem: pyarrow.fs.FileSystem | None = None,
        num_rows_per_file: int | None = None,
        min_rows_per_file: int | None = None,
        mode: Any = "append",
        encoder: bool | Callable[[str, Any], bytes] = True,
        filename_provider: FilenameProvider | None = None,
        try_create_dir: bool = True,
        arrow_open_stream_args: Mapping[str, Any] | None = None,
        concurrency: int | None = None,
        ray_remote_args: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Write WebDataset's tar files: a row's columns are files with the same name.

        Args:
            path, filesystem, num_rows_per_file, min_rows_per_file, mode, filename_provider,
                try_create_dir, arrow_open_stream_args, concurrency, ray_remote_args: as in
                ``write_parquet``.
            encoder: how values become bytes: True by the column's name, which is the file's ending
                (``txt``, ``cls``, ``json``, ``npy``, ``png``, …); or a function of the column and
                the value.

        A column ``"__key__"`` has the names; otherwise rows are numbered.
        """
        from lockstep.data.arrow.webdataset import encoded, write_samples

        encode = encoder if callable(encoder) else encoded

        def write(table: pa.Table, file: str) -> None:
            names = table.column_names
            values = zip(*(to_values(table[name]) for name in names), strict=True)
            write_samples(file, (dict(zip(names, row, strict=True)) for row in values), encode)

        rows = min_rows_per_file if num_rows_per_file is None else num_rows_per_file
        return self._write(path, filesystem, "tar", rows, mode, write, filename_provider)

    def _write(
        self,
        path: str | os.PathLike[str],
        filesystem: pyarrow.fs.FileSystem | None,
        ending: str,
        rows: int | None,
        mode: Any,
        write: Callable[[pa.Table, str], None],
        provider: FilenameProvider | None,
        keys: Sequence[str] = (),
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
        if keys or provider is not None:  # a walk tells files from directories
            there = {name for name in storage.walk_files() if keys or "/" not in name}
        else:
            there = set(storage.listdir())
        earlier = _earlier(there, None if provider is None else ending)
        if earlier and mode == "error":
            raise FileExistsError(
                f"{storage.uri!r} has {min(earlier)!r} of an earlier write; write to "
                "another directory, or give mode='append' or 'overwrite'."
            )
        if earlier and mode == "ignore":
            return []
        first = max(earlier.values(), default=-1) + 1
        if provider is not None:
            # Its names may have no number, and those that "overwrite" finds may be used again.
            first = 0 if mode == "overwrite" else max(first, len(earlier))
        token = secrets.token_hex(4)
        names: dict[str, None] = {}
        replacing: list[tuple[str, str, str]] = []
        with tempfile.TemporaryDirectory(prefix=scratch_prefix("data")) as scratch:
            tables = cut_tables(self._pieces(), rows or _ROWS_PER_FILE, False, "pyarrow")
            parts = (
                (place, directory, part)
                for place, (table, _) in enumerate(tables, first)
                for directory, part in _partitioned(table, keys)
            )
            for number, directory, table in parts:
                short = f"part-{number:05d}-{token}.{ending}"
                if provider is not None:
                    short = file_name(provider, table, token, number)
                name = directory + short
                if name in names or (name in there and mode != "overwrite"):
                    raise _is_taken(storage, name)
                file = os.path.join(scratch, f"{len(names)}-{short}")
                write(_as_written(table, tensors=ending in _HAVE_TENSORS), file)
                names[name] = None
                if name in there:
                    replacing.append((file, directory, short))
                else:
                    # Another write, at the same time, may choose the same name.
                    new = provider is not None and mode != "overwrite"
                    _put(storage, file, directory, short, new)
            # Only now: a write that fails loses nothing, and the rows may be read from these files.
            for file, directory, short in replacing:
                _put(storage, file, directory, short, new=False)
        if mode == "overwrite":
            for name in earlier.keys() - names.keys():
                with contextlib.suppress(FileNotFoundError):  # another write removed it
                    storage.filesystem.delete_file(storage.path(name))
        return list(names)


def _earlier(names: Iterable[str], ending: str | None) -> dict[str, int]:
    """The files of earlier writes → their numbers, -1 for none.

    With an ``ending``, a ``FilenameProvider`` chooses names: every file that ends so counts.
    """
    found = {}
    for name in names:
        if match := _FILE.fullmatch(name.rpartition("/")[2]):
            found[name] = int(match[1])
        elif ending is not None and name.endswith(f".{ending}"):
            found[name] = -1
    return found


def _put(storage: Storage, file: str, directory: str, short: str, new: bool) -> None:
    """Move a file into the storage; a ``new`` one replaces none.

    Readers of a local directory see it only once it is complete. An object store publishes an
    object when its upload ends.

    Raises:
        FileExistsError: the name of a ``new`` file is taken.
    """
    name = directory + short
    if not storage.is_local:
        if new and storage.exists(name):
            raise _is_taken(storage, name)
        storage.put(name, file, move=True, flush=False)
        return
    temporary = f"{directory}{TEMPORARY}{secrets.token_hex(6)}"
    storage.put(temporary, file, move=True, flush=False)
    staged, path = storage.path(temporary), storage.path(name)
    try:
        if new:
            os.link(staged, path)  # unlike a rename, it fails where there is a file
            os.remove(staged)
            return
    except FileExistsError:
        os.remove(staged)
        raise _is_taken(storage, name) from None
    except OSError:  # a filesystem without hard links
        pass
    os.replace(staged, path)


def _is_taken(storage: Storage, name: str) -> FileExistsError:
    return FileExistsError(
        f"{storage.uri!r} has {name!r} already; the filename_provider must return another name for "
        "each file."
    )


def _partitioned(table: pa.Table, keys: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """The directory of each part of a table, ``""`` without keys, and the part's rows."""
    if not keys:
        yield "", table
        return
    check_columns(keys, table.column_names, "write_parquet")
    table, ends = sorted_groups(table, keys)
    for start, end in pairwise([0, *ends]):
        values = [table[key][start].as_py() for key in keys]
        shown = (_NULL if v is None else quote(str(v), safe="") for v in values)
        directory = "".join(f"{key}={value}/" for key, value in zip(keys, shown, strict=True))
        yield directory, table.slice(start, end - start).drop_columns(list(keys))


def _as_written(table: pa.Table, tensors: bool) -> pa.Table:
    """The table as a file format can hold it; ``tensors`` says whether it has tensors."""
    for place, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        written = as_written(name, column, tensors)
        if written is not column:
            table = table.set_column(place, name, written)
    return table
