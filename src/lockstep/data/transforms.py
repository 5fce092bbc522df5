"""The transforms of a dataset: lazy, block by block, in the process that uses the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int
from lockstep.data.arrow.formats import check_format
from lockstep.data.base import DatasetBase
from lockstep.data.compat import only_hints
from lockstep.data.plan import operations as ops

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

__all__ = ["ActorPoolStrategy", "TaskPoolStrategy", "Transforms"]

_Concurrency = int | tuple[int, ...] | None


@dataclass(frozen=True)
class ActorPoolStrategy:
    """How Ray's scripts say ``concurrency``: ``size``, or the most there may be, is taken.

    What is about its actors alone (``initial_size`` and all after it) changes nothing.
    """

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None
    initial_size: int | None = None
    max_tasks_in_flight_per_actor: int | None = None
    max_concurrent_calls_per_actor: int | None = None
    enable_true_multi_threading: bool = False


@dataclass(frozen=True)
class TaskPoolStrategy:
    """The same for functions."""

    size: int | None = None


class Transforms(DatasetBase):
    """``map_batches`` and its kin.

    They take the arguments of Ray Data. Those for its scheduler (``num_cpus``, ``num_gpus``,
    ``memory``, ``resources``, ``max_retries`` and their kin: the ``hints``) are accepted and change
    nothing: a transform runs in the worker that uses its rows, in a thread beside the training
    function.
    """

    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | str | None = None,
        compute: Any = None,
        batch_format: str | None = "default",
        zero_copy_batch: bool = True,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        preserves_rows: bool | None = None,
        udf_modifying_row_count: bool | None = None,
        **hints: Any,
    ) -> Dataset:
        """Change rows a batch at a time.

        Which rows are in a batch together is not defined: it depends on how the data is read.

        Args:
            fn: a function from a batch to a batch, or a class whose objects are such functions: one
                is made in each worker, so that what is costly to set up is set up once.
            batch_size: rows of a batch, at most; None (or ``"auto"``, ``"default"``) is whatever is
                read at once.
            compute: an ``ActorPoolStrategy`` or ``TaskPoolStrategy``, in older scripts; use
                ``concurrency``.
            batch_format: what ``fn`` gets: ``"numpy"`` (a dict of arrays), ``"pandas"``,
                ``"pyarrow"`` or ``"torch"``. It may return any of them, or a generator.
            zero_copy_batch: False gives it arrays that it may write to.
            fn_args, fn_kwargs: given to ``fn`` after the batch.
            fn_constructor_args, fn_constructor_kwargs: given to the class.
            concurrency: threads that call ``fn`` at once.
            preserves_rows: whether the i-th row out is made of the i-th row in. None: yes, unless
                the rows are only looked at here, where any number is fine. Say False where ``fn``
                changes the number of rows; for equal shards they are then counted first.
            udf_modifying_row_count: Ray's name for the opposite of ``preserves_rows``.
            hints: accepted, see above.
        """
        only_hints("map_batches", hints)
        if preserves_rows is None and udf_modifying_row_count is not None:
            preserves_rows = not udf_modifying_row_count
        if preserves_rows not in (None, True, False):
            raise TypeError(f"preserves_rows={preserves_rows!r} is not True, False or None.")
        if batch_size in ("auto", "default"):
            batch_size = None
        rows = (
            None if batch_size is None else check_int(f"batch_size={batch_size!r}", batch_size, 1)
        )
        call = ops.Call(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            _pool(compute) if concurrency is None else concurrency,
        )  # fmt: skip
        name = check_format(batch_format)
        copy = not zero_copy_batch
        return self._then(ops.MapBatches(call, rows, name, preserves_rows, copy))

    def map(
        self,
        fn: Callable[..., Mapping[str, Any]],
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        **hints: Any,
    ) -> Dataset:
        """Change rows one by one: ``fn`` from a dict to a dict. Arguments as in ``map_batches``."""
        only_hints("map", hints)
        return self._then(
            ops.MapRows(
                ops.Call(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
                         _pool(compute) if concurrency is None else concurrency)
            )
        )  # fmt: skip

    def flat_map(
        self,
        fn: Callable[..., Iterable[Mapping[str, Any]]],
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        **hints: Any,
    ) -> Dataset:
        """Make any number of rows of each: ``fn`` from a dict to a list of dicts."""
        only_hints("flat_map", hints)
        return self._then(
            ops.FlatMap(
                ops.Call(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
                         _pool(compute) if concurrency is None else concurrency)
            )
        )  # fmt: skip

    def filter(
        self,
        fn: Callable[..., bool] | None = None,
        expr: Any = None,
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        **hints: Any,
    ) -> Dataset:
        """Keep some rows.

        Args:
            fn: from a row, as a dict, to True or False; arguments as in ``map_batches``.
            expr: instead of ``fn``, and faster by far: an Arrow expression
                (``pc.field("x") > 3``), or such a comparison as text (``"x > 3 and y == 'a'"``).
            compute, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, concurrency,
                hints: as in ``map_batches``.
        """
        only_hints("filter", hints)
        if (fn is None) == (expr is None):
            raise ValueError("filter() takes either a function or expr=…; give one of them.")
        if expr is not None:
            from lockstep.data.arrow.expressions import as_expression

            return self._checked(ops.FilterExpression(as_expression(expr)))
        assert fn is not None
        return self._then(
            ops.FilterRows(
                ops.Call(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
                         _pool(compute) if concurrency is None else concurrency)
            )
        )  # fmt: skip

    def add_column(
        self,
        col: str,
        fn: Callable[..., Any],
        *,
        batch_format: str | None = "pandas",
        compute: Any = None,
        concurrency: _Concurrency = None,
        **hints: Any,
    ) -> Dataset:
        """Add (or replace) a column: ``fn`` from a batch to its values."""
        only_hints("add_column", hints)
        if not isinstance(col, str):
            raise TypeError(f"add_column({col!r}, …): the name of a column is a string.")
        pool = _pool(compute) if concurrency is None else concurrency
        call = ops.Call(fn, concurrency=pool)
        return self._then(ops.AddColumn(col, call, check_format(batch_format)))

    def select_columns(self, cols: str | Sequence[str], **hints: Any) -> Dataset:
        """Keep some columns, in this order; files are asked for these only."""
        only_hints("select_columns", hints)
        return self._checked(ops.SelectColumns(_names("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str], **hints: Any) -> Dataset:
        """Leave out some columns; files are not asked for them."""
        only_hints("drop_columns", hints)
        return self._checked(ops.DropColumns(_names("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **hints: Any) -> Dataset:
        """Rename columns: a dict from old to new, or all names in order."""
        only_hints("rename_columns", hints)
        new = dict(names) if isinstance(names, Mapping) else _names("rename_columns", names)
        return self._checked(ops.RenameColumns(new))

    def _checked(self, operation: ops.Operation) -> Dataset:
        """The operation, where the columns it names are known to be there, or may be."""
        schema = self._schema()
        if schema is not None and len(schema):
            operation.apply(schema.empty_table())
        return self._then(operation)


def _names(doing: str, names: str | Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not found or not all(isinstance(name, str) for name in found):
        raise ValueError(f"{doing}({names!r}): give the names of one or more columns.")
    twice = {name for name in found if found.count(name) > 1}
    if twice:
        raise ValueError(f"{doing} names the column {min(twice)!r} twice; name it once.")
    return found


def _pool(compute: Any) -> int | None:
    """The size of an actor pool, where a script gives one; ``"actors"`` and ``"tasks"`` do not."""
    if compute is None or compute in ("actors", "tasks"):
        return None
    if isinstance(compute, TaskPoolStrategy):
        return compute.size
    if not isinstance(compute, ActorPoolStrategy):
        raise TypeError(f"compute={compute!r}: give an ActorPoolStrategy, or use concurrency=….")
    return compute.size or compute.max_size or compute.min_size
