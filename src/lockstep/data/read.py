"""Datasets of files, on any filesystem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lockstep.checks import check_int
from lockstep.data.compat import FileShuffleConfig, check_hints
from lockstep.data.dataset import Dataset, from_source
from lockstep.data.plan.hashing import hash_range
from lockstep.data.plan.operations import ConformColumns, check_columns
from lockstep.data.sources.base import Source
from lockstep.data.sources.partitions import (
    PartitionedSource,
    Partitioning,
    partitions_of,
    paths_of,
    pruned,
)
from lockstep.data.sources.paths import File, Paths, list_files
from lockstep.data.sources.row_hash import ROW_HASH, RowHashSource

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.fs
    import pyarrow.json

__all__ = [
    "read_audio",
    "read_avro",
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_orc",
    "read_parquet",
    "read_text",
    "read_tfrecords",
    "read_videos",
    "read_webdataset",
]

PartitionFilter: TypeAlias = Callable[[list[str]], list[str]] | None
_HIVE = Partitioning("hive")
FileShuffle: TypeAlias = Literal["files"] | FileShuffleConfig | None


def read_parquet(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    columns: Sequence[str] | None = None,
    filters: Any = None,
    filter: Any = None,
    file_extensions: Sequence[str] | None = ("parquet", "pq"),
    include_paths: bool = False,
    include_row_hash: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = _HIVE,
    partition_filter: PartitionFilter = None,
    schema: pa.Schema | None = None,
    **hints: Any,
) -> Dataset:
    """Rows of Parquet files.

    Directories named ``column=value`` below ``paths`` add a column.

    Args:
        paths: a file, a directory, a glob, a URI (``s3://…``, ``gs://…``), or a list of these.
        filesystem: the Arrow or fsspec filesystem that ``paths`` are on.
        columns: the columns to read; None reads all.
        filters: keep only the rows that match: an Arrow expression, text such as ``"x > 3"``, or
            Arrow's lists of tuples, or an expression of ``lockstep.data.expressions``. Row groups
            whose statistics rule out a match are not read.
        filter: another name for ``filters``.
        file_extensions: which files of a directory are read; None reads all.
        include_paths: add a column ``"path"`` with the file of each row; it is an error if the
            files have such a column.
        include_row_hash: add a column ``"row_hash"`` with a number of 64 bits for each row, from
            its file's path and its place there; it replaces a column of the files.
        ignore_missing_paths: skip paths that do not exist instead of raising.
        shuffle: ``"files"``, or a ``FileShuffleConfig`` with a seed: the blocks (row groups) in a
            random order, a different order in each epoch; see ``Dataset.randomize_block_order``.
        partitioning: which columns directories add: a ``Partitioning``; None: none.
        partition_filter: called with the files' paths, returns those to read:
            ``PathPartitionFilter.of(…)``.
        schema: the columns and types of the dataset: values are cast, a column that the files do
            not have becomes null, and others are left out.
        hints: for Ray's scheduler (``override_num_blocks``, ``concurrency``, ``num_cpus``, …);
            accepted and ignored: the files decide the blocks.
    """
    import pyarrow as pa

    from lockstep.data.sources.parquet import ParquetSource

    given = _given_schema(schema, columns)
    make: Callable[..., ParquetSource] = ParquetSource
    if given is not None:
        make = partial(ParquetSource, given=given)
    doing = "read_parquet"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    expression = _expression(filter if filters is None else filters)
    if include_row_hash:
        dataset = _read(
            files,
            lambda files: RowHashSource(make(files), hash_range),
            None if columns is None else list(dict.fromkeys([*columns, ROW_HASH])),
            expression,
            include_paths,
            partitioning,
        )
        given = None if given is None else given.append(pa.field(ROW_HASH, pa.uint64()))
    elif include_paths or partitions_of(files, partitioning) is not None:
        dataset = _read(files, make, columns, expression, include_paths, partitioning)
    elif expression is None:
        source = make(files, columns)
        source.schema()  # raises now where a column is missing
        dataset = from_source(source)
    else:
        source = make(files, None, expression)
        dataset = _filtered(from_source(source), columns, expression)
    if given is not None:
        there = dataset.schema().names
        read = [name for name in given.names if name in there]
        if read:  # with no column, the number of rows would be lost
            dataset = dataset.select_columns(read)
        text = f"schema={given.names}"
        dataset = dataset._checked(ConformColumns(given, text, "read_parquet(schema=…)"))
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
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = _HIVE,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """Rows of CSV files, compressed or not.

    The types of columns are inferred from samples of each file. Set a column's type with
    ``convert_options`` where the samples do not show it.

    Args:
        paths, filesystem, columns, filters, file_extensions, include_paths, ignore_missing_paths,
            shuffle, partitioning, partition_filter, hints: as in ``read_parquet``.
        read_options, parse_options, convert_options: of Arrow. Values that contain line breaks need
            ``ParseOptions(newlines_in_values=True)``; each file is then one block.
    """
    from lockstep.data.sources.csv import CsvSource

    doing = "read_csv"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    make = partial(
        CsvSource,
        read_options=read_options,
        parse_options=parse_options,
        convert_options=convert_options,
    )
    return _shuffled(_read(files, make, columns, filters, include_paths, partitioning), shuffle)


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
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = _HIVE,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:  # fmt: skip
    """Rows of JSON files, compressed or not: one object per line, or a list of objects.

    Args:
        paths, filesystem, columns, filters, file_extensions, include_paths, ignore_missing_paths,
            shuffle, partitioning, partition_filter, hints: as in ``read_parquet``.
        lines: accepted and ignored; each file's layout is detected.
        read_options, parse_options: of Arrow.
    """
    from lockstep.data.sources.json import JsonSource

    doing = "read_json"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    make = partial(JsonSource, read_options=read_options, parse_options=parse_options)
    return _shuffled(_read(files, make, columns, filters, include_paths, partitioning), shuffle)


def read_text(
    paths: Paths,
    *,
    encoding: str = "utf-8",
    drop_empty_lines: bool = True,
    filesystem: pyarrow.fs.FileSystem | None = None,
    file_extensions: Sequence[str] | None = None,
    include_paths: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """The lines of text files, in a column ``"text"``.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partitioning,
            partition_filter, hints: as in ``read_parquet``.
        encoding: of the files.
        drop_empty_lines: leave empty lines out.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.sources.text import TextSource

    doing = "read_text"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    source = TextSource(files, encoding, drop_empty_lines)
    dataset = _read(files, lambda files: source, None, None, include_paths, partitioning)
    return _shuffled(dataset, shuffle)


def read_numpy(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("npy",),
    allow_pickle: bool = False,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """The rows of ``.npy`` files, in a column ``"data"``; the first dimension counts the rows.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partitioning,
            partition_filter, hints: as in ``read_parquet``.
        include_paths: add a column ``"path"``.
        allow_pickle: read arrays of objects, which may run code.
    """
    from lockstep.data.sources.whole_files import NumpySource

    doing = "read_numpy"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    source = NumpySource(files, allow_pickle, include_paths)
    dataset = _read(files, lambda files: source, None, None, False, partitioning)
    return _shuffled(dataset, shuffle)


def read_images(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif"),
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """Images as arrays of height, width and channels, in a column ``"image"``; needs Pillow.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partitioning,
            partition_filter, hints: as in ``read_parquet``.
        size: scale each image to this (height, width); by default, sizes may differ.
        mode: the colour mode to convert to, such as ``"RGB"`` or ``"L"``.
        include_paths: add a column ``"path"``.
    """
    import importlib.util

    from lockstep.data.sources.whole_files import ImageSource

    if importlib.util.find_spec("PIL") is None:
        raise ImportError("read_images() needs Pillow; install it with: pip install pillow")
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise ValueError(f"read_images(size={size!r}): give (height, width).")
    doing = "read_images"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    partitions = partitions_of(files, partitioning)
    source = ImageSource(files, include_paths, size, mode, partitions)
    return _shuffled(from_source(source), shuffle)


def read_binary_files(
    paths: Paths,
    *,
    include_paths: bool = False,
    filesystem: pyarrow.fs.FileSystem | None = None,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """The contents of files, one file per row, in a column ``"bytes"``.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partitioning,
            partition_filter, hints: as in ``read_parquet``.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.sources.whole_files import BinarySource

    doing = "read_binary_files"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    source = BinarySource(files, include_paths, partitions_of(files, partitioning))
    return _shuffled(from_source(source), shuffle)


def read_tfrecords(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """The ``tf.train.Example`` records of TFRecord files, a column a feature; needs no TensorFlow.

    A feature that has at most one value in each row of a file is that value, otherwise a list. Each
    file is a block. Files whose name ends with ``.gz`` are decompressed.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partitioning,
            partition_filter, hints: as in ``read_parquet``.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.sources.records import TFRecordSource

    doing = "read_tfrecords"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    dataset = _read(files, TFRecordSource, None, None, include_paths, partitioning)
    return _shuffled(dataset, shuffle)


def read_webdataset(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    decoder: bool | Callable[[str, bytes], Any] | None = True,
    suffixes: Sequence[str] | None = None,
    expand_json: bool = False,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("tar",),
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """The samples of WebDataset's tar files: ``"__key__"``, and a column for each ending.

    Each file is a block.

    Args:
        paths, filesystem, file_extensions, ignore_missing_paths, shuffle, partition_filter, hints:
            as in ``read_parquet``.
        decoder: True decodes text, numbers, JSON, ``.npy`` and images (needs Pillow) by their
            ending; None leaves bytes; a function is called with the ending and the bytes. Pickles
            and PyTorch's files stay bytes: reading them executes them.
        suffixes: the endings to read; all by default.
        expand_json: make columns of the keys of each sample's ``json``.
        include_paths: add a column ``"path"``.
    """
    from lockstep.data.arrow.webdataset import decoded
    from lockstep.data.sources.records import WebDatasetSource

    doing = "read_webdataset"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    decode = decoded if decoder is True else decoder or None
    source = WebDatasetSource(files, decode, suffixes, expand_json, include_paths)
    return _shuffled(from_source(source), shuffle)


def read_orc(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    columns: Sequence[str] | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = ("orc",),
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = _HIVE,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """Rows of ORC files; each file is a block.

    Args:
        paths, filesystem, columns, include_paths, file_extensions, ignore_missing_paths, shuffle,
            partitioning, partition_filter, hints: as in ``read_parquet``.
    """
    from lockstep.data.sources.media import OrcSource

    doing = "read_orc"
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    return _shuffled(_read(files, OrcSource, columns, None, include_paths, partitioning), shuffle)


def read_avro(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = None,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """Records of Avro files; each file is a block. Needs ``pip install fastavro``.

    Args:
        paths, filesystem, include_paths, file_extensions, ignore_missing_paths, shuffle,
            partitioning, partition_filter, hints: as in ``read_parquet``.
    """
    from lockstep.data.sources.media import AvroSource, library_for

    doing = "read_avro"
    library_for(doing, "fastavro", "fastavro")
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    return _shuffled(_read(files, AvroSource, None, None, include_paths, partitioning), shuffle)


_AUDIO = ("mp3", "wav", "flac", "ogg", "opus", "aiff", "au", "caf")
_VIDEO = ("mp4", "mkv", "mov", "avi", "wmv", "flv", "webm", "m4v", "3gp", "mpeg", "mpg", "ts")


def read_audio(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    file_extensions: Sequence[str] | None = _AUDIO,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """A row for each audio file: ``"amplitude"``, an array of channels and samples (32-bit floats),
    and ``"sample_rate"``. Needs ``pip install soundfile``.

    Args:
        paths, filesystem, include_paths, file_extensions, ignore_missing_paths, shuffle,
            partitioning, partition_filter, hints: as in ``read_parquet``.
    """
    from lockstep.data.sources.media import AudioSource, library_for

    doing = "read_audio"
    library_for(doing, "soundfile", "soundfile")
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    return _shuffled(_read(files, AudioSource, None, None, include_paths, partitioning), shuffle)


def read_videos(
    paths: Paths,
    *,
    filesystem: pyarrow.fs.FileSystem | None = None,
    include_paths: bool = False,
    include_timestamps: bool = False,
    fps: int | None = None,
    resize: tuple[int, int] | None = None,
    file_extensions: Sequence[str] | None = _VIDEO,
    ignore_missing_paths: bool = False,
    shuffle: FileShuffle = None,
    partitioning: Partitioning | None = None,
    partition_filter: PartitionFilter = None,
    **hints: Any,
) -> Dataset:
    """A row for each frame: ``"frame"``, an array of height, width and 3 colours, and
    ``"frame_index"``. Each file is a block. Needs ``pip install av``.

    Args:
        paths, filesystem, include_paths, file_extensions, ignore_missing_paths, shuffle,
            partitioning, partition_filter, hints: as in ``read_parquet``.
        include_timestamps: add ``"frame_timestamp"``: when the frame begins and ends, in seconds.
        fps: keep about this many frames of each second; None keeps all.
        resize: (height, width) to scale each frame to.
    """
    from lockstep.data.sources.media import VideoSource, library_for

    doing = "read_videos"
    if fps is not None:
        fps = check_int(f"read_videos(fps={fps!r})", fps, 1)
    if resize is not None:
        height, width = resize
        resize = (
            check_int(f"read_videos(resize={resize!r})", height, 1),
            check_int(f"read_videos(resize={resize!r})", width, 1),
        )
    library_for(doing, "av", "av")
    files = _files(
        doing, paths, filesystem, file_extensions, ignore_missing_paths, hints, partition_filter
    )
    make = partial(VideoSource, timestamps=include_timestamps, fps=fps, size=resize)
    return _shuffled(_read(files, make, None, None, include_paths, partitioning), shuffle)


def _files(
    doing: str,
    paths: Paths,
    filesystem: Any,
    endings: Sequence[str] | None,
    ignore_missing: bool,
    hints: Mapping[str, Any],
    chosen: PartitionFilter = None,
) -> list[File]:
    check_hints(doing, hints)
    files = list_files(paths, filesystem, endings, doing, ignore_missing)
    if chosen is None:
        return files
    kept = set(chosen([file.path for file in files]))
    left = [file for file in files if file.path in kept]
    if not left:
        raise ValueError(
            f"{doing}(partition_filter=…) leaves none of {len(files)} files, such as "
            f"{files[0].path!r}."
        )
    return left


def _expression(filters: Any) -> Any:
    from lockstep.data.arrow.expressions import from_filters

    return None if filters is None else from_filters(filters)


def _given_schema(schema: Any, columns: Sequence[str] | None) -> pa.Schema | None:
    """What the user gave ``read_parquet`` as schema, less the columns that are not read."""
    import pyarrow as pa

    if schema is None:
        return None
    given = getattr(schema, "base_schema", schema)
    if not isinstance(given, pa.Schema):
        raise TypeError(
            f"read_parquet(schema={schema!r}): a {type(schema).__name__} is no schema; give a "
            "pyarrow.Schema, such as pa.schema([('x', pa.int64())])."
        )
    if columns is None:
        return given
    check_columns(columns, given.names, "read_parquet(schema=…)")
    return pa.schema([given.field(name) for name in columns])


def _shuffled(dataset: Dataset, shuffle: FileShuffle) -> Dataset:
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
    partitioning: Partitioning | None,
) -> Dataset:
    """Rows of files, with the columns that directory names and ``include_paths`` add."""
    expression = _expression(filters)
    partitions = partitions_of(files, partitioning)
    if include_paths:
        partitions = paths_of(files, partitions)
        columns = None if columns is None else list(dict.fromkeys([*columns, "path"]))
    if partitions is None:
        return _filtered(from_source(make(files)), columns, expression)
    source = PartitionedSource(make(files), files, partitions, include_paths)
    if expression is not None:
        kept, rows = pruned(files, partitions, expression)
        if len(kept) < len(files):
            fewer = PartitionedSource(make(kept), kept, rows, include_paths)
            # A column in the files replaces the directories' one: then no file can be ruled out.
            source = fewer if fewer.adds_all() else source
    if include_paths:
        source.schema()  # raises now where the files have a column "path"
    return _filtered(from_source(source), columns, expression)


def _filtered(dataset: Dataset, columns: Sequence[str] | None, expression: Any) -> Dataset:
    if expression is not None:
        dataset = dataset.filter(expr=expression)
    if columns is None:
        return dataset
    names = dataset.schema().names
    for name in columns:
        if name not in names:
            file = dataset.input_files()[0]
            raise KeyError(f"{file!r} has no column {name!r}; it has {', '.join(names)}.")
    return dataset.select_columns(columns)
