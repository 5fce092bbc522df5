"""Datasets from files, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lockstep.data.compat import FileShuffleConfig, only_hints
from lockstep.data.create import dataset_of
from lockstep.data.dataset import Dataset
from lockstep.data.sources.base import Source
from lockstep.data.sources.partitions import PartitionedSource, partitions_of, paths_of, pruned
from lockstep.data.sources.paths import File, Paths, list_files

if TYPE_CHECKING:
    import pyarrow.csv
    import pyarrow.fs
    import pyarrow.json

__all__ = [
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_parquet",
    "read_text",
]

Shuffle: TypeAlias = Literal["files"] | FileShuffleConfig | None


def read_parquet(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    file_extensions: Sequence[str] | None = ("parquet", "pq"),
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """Rows of Parquet files.

    Directories named ``column=value`` below ``paths`` add a column.

    Args:
        paths: a file, a directory, a glob, a URI (``s3://…``, ``gs://…``), or a list of these.
        filesystem: the Arrow or fsspec filesystem that ``paths`` are on.
        columns: to read; None is all.
        filters: keep the rows for which this is true: an Arrow expression, text such as
            ``"x > 3"``, or Arrow's lists of tuples. Row groups that cannot have such rows are not
            read.
        file_extensions: of the files that count in a directory.
        include_paths: add a column ``"path"``: the file a row is from; the files may have none.
        ignore_missing_paths: leave out paths where there is nothing, rather than raise.
        shuffle: ``"files"``, or a ``FileShuffleConfig`` with a seed: the blocks (row groups) in a
            random order, another one in each epoch; see ``Dataset.randomize_block_order``.
        hints: what Ray's scripts tell its scheduler (``override_num_blocks``, ``concurrency``,
            ``num_cpus``, …) is accepted; files are read in the pieces they have.
    """
    from lockstep.data.arrow.expressions import from_filters
    from lockstep.data.sources.parquet import ParquetSource

    files = _files("read_parquet", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    expression = None if filters is None else from_filters(filters)
    if include_paths or partitions_of(files) is not None:
        dataset = _read(files, ParquetSource, columns, expression, include_paths)
    elif expression is None:
        source = ParquetSource(files, columns)
        source.schema()
        dataset = dataset_of(source)
    else:
        source = ParquetSource(files, None, expression)
        dataset = _filtered(dataset_of(source), columns, expression)
    return _shuffled(dataset, shuffle)


def read_csv(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    file_extensions: Sequence[str] | None = None,
    read_options: pyarrow.csv.ReadOptions | None = None,
    parse_options: pyarrow.csv.ParseOptions | None = None,
    convert_options: pyarrow.csv.ConvertOptions | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """Rows of CSV files, compressed or not.

    Types are found from samples of each file; say what a column is with ``convert_options`` where
    that is not enough.

    Args:
        paths, filesystem, columns, filters, file_extensions, include_paths, ignore_missing_paths,
            shuffle, hints: as in ``read_parquet``.
        read_options, parse_options, convert_options: Arrow's. Values with line breaks in them need
            ``ParseOptions(newlines_in_values=True)``; a file is then read as a whole.
    """
    from lockstep.data.sources.csv import CsvSource

    files = _files("read_csv", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    make = partial(
        CsvSource,
        read_options=read_options,
        parse_options=parse_options,
        convert_options=convert_options,
    )
    return _shuffled(_read(files, make, columns, filters, include_paths), shuffle)


def read_json(
    paths: Paths,
    *,
    lines: bool = False,
    filesystem: pyarrow.fs.FileSystem | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    file_extensions: Sequence[str] | None = (
        "json", "jsonl", "json.gz", "jsonl.gz", "json.zst", "jsonl.zst", "json.bz2", "jsonl.bz2",
    ),
    read_options: pyarrow.json.ReadOptions | None = None,
    parse_options: pyarrow.json.ParseOptions | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:  # fmt: skip
    """Rows of JSON files, compressed or not: an object a line, or a list of objects.

    Args:
        paths, filesystem, columns, filters, file_extensions, include_paths, ignore_missing_paths,
            shuffle, hints: as in ``read_parquet``.
        lines: accepted; which of the two a file is can be seen.
        read_options, parse_options: Arrow's.
    """
    from lockstep.data.sources.json import JsonSource

    files = _files("read_json", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    make = partial(JsonSource, read_options=read_options, parse_options=parse_options)
    return _shuffled(_read(files, make, columns, filters, include_paths), shuffle)


def read_text(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    filesystem: pyarrow.fs.FileSystem | None = None,
    file_extensions: Sequence[str] | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """The lines of text files, in a column ``"text"``.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, hints: as in
            ``read_parquet``.
        encoding: of the files.
        drop_empty_lines: leave them out.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.sources.text import TextSource

    files = _files("read_text", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    source: Source = TextSource(files, encoding, drop_empty_lines)
    if include_paths:
        source = PartitionedSource(source, files, paths_of(files), paths=True)
    return _shuffled(dataset_of(source), shuffle)


def read_numpy(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("npy",),
    allow_pickle: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """The rows of ``.npy`` files, in a column ``"data"``: the first dimension counts them.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, hints: as in
            ``read_parquet``.
        include_paths: add a column ``"path"``.
        allow_pickle: read arrays of objects, which may run code.
    """
    from lockstep.data.sources.whole_files import NumpySource

    files = _files("read_numpy", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    return _shuffled(dataset_of(NumpySource(files, allow_pickle, include_paths)), shuffle)


def read_images(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif"),
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """Images as arrays of height, width and channels, in a column ``"image"``; needs Pillow.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, hints: as in
            ``read_parquet``.
        size: (height, width) to scale each to; without, they may differ.
        mode: the colours to convert to, such as ``"RGB"`` or ``"L"``.
        include_paths: add a column ``"path"``.
    """
    import importlib.util

    from lockstep.data.sources.whole_files import ImageSource

    if importlib.util.find_spec("PIL") is None:
        raise ImportError("read_images() needs Pillow; install it with: pip install pillow")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"read_images(size={size!r}): give (height, width).")
    files = _files("read_images", paths, filesystem, file_extensions, ignore_missing_paths, hints)
    return _shuffled(dataset_of(ImageSource(files, include_paths, size, mode)), shuffle)


def read_binary_files(
    paths: Paths,
    *,
    include_paths: bool = False,
    filesystem: pyarrow.fs.FileSystem | None = None,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: Shuffle = None,
    **hints: Any,
) -> Dataset:
    """Whole files, in a column ``"bytes"``.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, hints: as in
            ``read_parquet``.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.sources.whole_files import BinarySource

    doing = "read_binary_files"
    files = _files(doing, paths, filesystem, file_extensions, ignore_missing_paths, hints)
    return _shuffled(dataset_of(BinarySource(files, include_paths)), shuffle)


def _files(
    doing: str,
    paths: Paths,
    filesystem: Any,
    endings: Sequence[str] | None,
    ignore_missing: bool,
    hints: Mapping[str, Any],
) -> list[File]:
    only_hints(doing, hints)
    return list_files(paths, filesystem, endings, doing, ignore_missing)


def _shuffled(dataset: Dataset, shuffle: Shuffle) -> Dataset:
    if shuffle is None:
        return dataset
    if shuffle == "files":
        return dataset.randomize_block_order()
    if isinstance(shuffle, FileShuffleConfig):
        return dataset.randomize_block_order(seed=shuffle.seed)
    raise ValueError(f"shuffle={shuffle!r}: give 'files', a FileShuffleConfig or None.")


def _read(
    files: Sequence[File],
    make: Callable[[Sequence[File]], Source],
    columns: Sequence[str] | None,
    filters: Any,
    include_paths: bool,
) -> Dataset:
    """Files of one kind, with the columns that their directories' names add, and their paths."""
    from lockstep.data.arrow.expressions import from_filters

    expression = None if filters is None else from_filters(filters)
    partitions = partitions_of(files)
    if include_paths:
        partitions = paths_of(files, partitions)
        columns = None if columns is None else list(dict.fromkeys([*columns, "path"]))
    if partitions is None:
        return _filtered(dataset_of(make(files)), columns, expression)
    source = PartitionedSource(make(files), files, partitions, include_paths)
    if expression is not None:
        kept, rows = pruned(files, partitions, expression)
        if len(kept) < len(files):
            fewer = PartitionedSource(make(kept), kept, rows, include_paths)
            source = fewer if fewer.adds_all() else source
    if include_paths:
        source.schema()  # raises where the files have such a column
    return _filtered(dataset_of(source), columns, expression)


def _filtered(dataset: Dataset, columns: Sequence[str] | None, expression: Any) -> Dataset:
    if expression is not None:
        dataset = dataset.filter(expr=expression)
    if columns is None:
        return dataset
    there = dataset.schema().names
    for name in columns:
        if name not in there:
            file = dataset.input_files()[0]
            raise KeyError(f"{file!r} has no column {name!r}; it has {', '.join(there)}.")
    return dataset.select_columns(columns)
