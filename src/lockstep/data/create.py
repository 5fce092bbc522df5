"""Datasets of data in memory: lists, frames, arrays, tables, datasets of other libraries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep import core
from lockstep.checks import check_int
from lockstep.data.arrow.columns import to_arrow
from lockstep.data.arrow.formats import from_rows, to_table
from lockstep.data.arrow.unify import concatenated
from lockstep.data.arrow.views import without_views
from lockstep.data.compat import check_hints
from lockstep.data.dataset import Dataset, from_source, from_table
from lockstep.data.sources.base import RangeSource
from lockstep.data.sources.items import ItemSource, row_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = [
    "from_arrow",
    "from_arrow_refs",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_numpy_refs",
    "from_pandas",
    "from_pandas_refs",
    "from_tf",
    "from_torch",
    "range",
    "range_tensor",
    "read_sql",
]


def _blocks(count: int | None, parallelism: int = -1) -> int | None:
    if count is None and parallelism != -1:
        count = parallelism
    return None if count is None else check_int(f"override_num_blocks={count!r}", count, 1)


def from_items(
    items: Iterable[Any], *, parallelism: int = -1, override_num_blocks: int | None = None
) -> Dataset:
    """A dataset of Python objects: dicts as rows, anything else in a column ``"item"``.

    Args:
        items: the objects; a generator is read to its end.
        parallelism: the older name of ``override_num_blocks``.
        override_num_blocks: the number of blocks.
    """
    rows = list(items)
    if not all(isinstance(item, Mapping) for item in rows):
        rows = [{"item": item} for item in rows]
    blocks = _blocks(override_num_blocks, parallelism)
    return from_table(from_rows(rows, None, "from_items"), blocks)


def from_pandas(
    dfs: pd.DataFrame | Sequence[pd.DataFrame], override_num_blocks: int | None = None
) -> Dataset:
    """A dataset of one or more data frames; the index is left out."""
    frames = [dfs] if hasattr(dfs, "iloc") else list(dfs)
    for frame in frames:
        if not hasattr(frame, "iloc"):
            raise TypeError(f"from_pandas() got {frame!r}; give a data frame, or a list of them.")
    tables = [to_table(frame, "from_pandas") for frame in frames]
    if not tables:
        raise ValueError("from_pandas([]): give at least one data frame.")
    return from_table(_joined(tables), _blocks(override_num_blocks))


def from_arrow(tables: Any, *, override_num_blocks: int | None = None) -> Dataset:
    """A dataset of Arrow data, without a copy (except of string views, which Arrow cannot sort).

    Args:
        tables: a table, a record batch, anything with ``__arrow_c_stream__`` (a frame of Polars,
            DuckDB or Daft, a ``RecordBatchReader``), a serialised stream, or a list of these.
        override_num_blocks: the number of blocks.
    """
    given = tables if isinstance(tables, (list, tuple)) else [tables]
    if not given:
        raise ValueError("from_arrow([]): give at least one table.")
    joined = _joined([without_views(_as_table(table)) for table in given])
    return from_table(joined, _blocks(override_num_blocks))


def _as_table(value: Any) -> pa.Table:
    import pyarrow as pa

    if isinstance(value, pa.Table):
        return value
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, (bytes, memoryview, pa.Buffer)):
        return pa.ipc.open_stream(value).read_all()
    if hasattr(value, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(value).read_all()
    raise TypeError(
        f"from_arrow() got a {type(value).__name__}; give an Arrow table, or an object with "
        "__arrow_c_stream__."
    )


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return concatenated(tables) if len(tables) > 1 else tables[0]


def from_numpy(ndarrays: Any, column: str = "data") -> Dataset:
    """A dataset of an array, a list of arrays (concatenated), or a dict from column to array.

    The first dimension of an array counts the rows.
    """
    import numpy as np
    import pyarrow as pa

    if isinstance(ndarrays, Mapping):
        return from_table(to_table(ndarrays, "from_numpy"))
    if isinstance(ndarrays, (list, tuple)):
        ndarrays = np.concatenate([np.asarray(array) for array in ndarrays])
    return from_table(pa.table({column: to_arrow(np.asarray(ndarrays))}))


def from_torch(dataset: Any, local_read: bool = False) -> Dataset:
    """A dataset of a torch dataset's items.

    A map-style dataset is read by the worker that needs its rows, so it must be picklable; an
    iterable dataset is read now. A dict becomes a row, a tuple becomes the columns ``"item_0"``,
    ``"item_1"``, …, any other item the column ``"item"``.

    Args:
        dataset: the torch dataset.
        local_read: accepted and ignored; reading is always local.
    """
    import torch.utils.data

    if isinstance(dataset, torch.utils.data.IterableDataset):
        return from_items([row_of(item) for item in dataset])
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"from_torch() got a {type(dataset).__name__}, which has no __getitem__ or no __len__; "
            "define them, or make it an IterableDataset."
        )
    return from_source(ItemSource(dataset))


def from_huggingface(
    dataset: Any, *, parallelism: int = -1, override_num_blocks: int | None = None, **hints: Any
) -> Dataset:
    """A dataset of a Hugging Face ``datasets.Dataset``; its Arrow table is used without a copy.

    An ``IterableDataset`` is read now.

    Args:
        dataset: the Hugging Face dataset.
        parallelism, override_num_blocks: as in ``from_items``.
        hints: for Ray's scheduler (``concurrency``); accepted and ignored.
    """
    blocks = _blocks(override_num_blocks, parallelism)
    check_hints("from_huggingface", hints)
    if hasattr(dataset, "keys") and not hasattr(dataset, "features"):
        raise ValueError(
            f"from_huggingface() got a dict of datasets ({', '.join(map(str, dataset))}); choose "
            "one of them."
        )
    table = getattr(getattr(dataset, "data", None), "table", None)
    if table is None:
        return from_items(list(dataset), override_num_blocks=blocks)
    if getattr(dataset, "_indices", None) is not None:  # rows were selected or shuffled
        return from_huggingface(dataset.flatten_indices(), override_num_blocks=blocks)
    return from_arrow(table.replace_schema_metadata(None), override_num_blocks=blocks)


def from_tf(dataset: Any) -> Dataset:
    """A dataset of a ``tf.data.Dataset``, read now; its items become rows as in ``from_torch``."""
    return from_items([row_of(item) for item in dataset.as_numpy_iterator()])


def range(
    n: int,
    *,
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """The integers below ``n``, in a column ``"id"``.

    Args:
        n: the number of rows.
        parallelism, override_num_blocks: as in ``from_items``.
        concurrency: for Ray's scheduler; accepted and ignored.
    """
    blocks = _blocks(override_num_blocks, parallelism)
    return from_source(RangeSource(check_int(f"range({n!r})", n), "id", None, blocks))


def range_tensor(
    n: int,
    *,
    shape: tuple[int, ...] = (1,),
    parallelism: int = -1,
    concurrency: int | None = None,
    override_num_blocks: int | None = None,
) -> Dataset:
    """``n`` tensors in a column ``"data"``, the i-th filled with i; see ``range``."""
    blocks = _blocks(override_num_blocks, parallelism)
    rows = check_int(f"range_tensor({n!r})", n)
    return from_source(RangeSource(rows, "data", tuple(shape), blocks))


def read_sql(
    sql: str,
    connection_factory: Callable[[], Any],
    *,
    sql_params: Any = None,
    shard_keys: Sequence[str] | None = None,
    shard_hash_fn: str | None = None,
    **hints: Any,
) -> Dataset:
    """The rows of a query, read now.

    Args:
        sql: the query.
        connection_factory: opens a connection, of any database with Python's DB API.
        sql_params: for ``cursor.execute``.
        shard_keys, shard_hash_fn: for Ray's scheduler; accepted and ignored, as are ``hints``
            (``concurrency``, …).

    Raises:
        ValueError: the statement returns no rows, or columns have the same name.
    """
    check_hints("read_sql", hints)
    connection = connection_factory()
    try:
        cursor = connection.cursor()
        cursor.execute(sql, *(() if sql_params is None else (sql_params,)))
        if cursor.description is None:
            raise ValueError("read_sql: the statement returns no rows.")
        names = [column[0] for column in cursor.description]
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(
                f"read_sql: several columns are called {', '.join(map(repr, twice))}; give them "
                "different names with AS."
            )
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    finally:
        connection.close()
    if not rows:
        import pyarrow as pa

        return from_table(pa.table({name: pa.nulls(0) for name in names}))
    return from_table(from_rows(rows, None, "read_sql"))


def from_pandas_refs(dfs: Any) -> Dataset:
    """A dataset of data frames that ``put`` has returned references to."""
    return from_pandas(_got(dfs))


def from_numpy_refs(ndarrays: Any) -> Dataset:
    """A dataset of arrays that ``put`` has returned references to."""
    return from_numpy(_got(ndarrays))


def from_arrow_refs(tables: Any) -> Dataset:
    """A dataset of Arrow tables that ``put`` has returned references to."""
    return from_arrow(_got(tables))


def _got(refs: Any) -> list[Any]:
    return [core.get(ref) for ref in (refs if isinstance(refs, (list, tuple)) else [refs])]
