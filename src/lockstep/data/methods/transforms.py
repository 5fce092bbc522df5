"""The transforms of a dataset: lazy, one block at a time, in the process that uses the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from lockstep.checks import check_int
from lockstep.data.arrow.formats import check_format
from lockstep.data.compat import check_hints
from lockstep.data.expressions import Expr
from lockstep.data.methods.base import DatasetBase
from lockstep.data.plan import operations as ops

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

__all__ = ["ActorPoolStrategy", "TaskPoolStrategy", "Transforms", "call_of"]

_Concurrency = int | tuple[int, ...] | None


@dataclass(frozen=True)
class ActorPoolStrategy:
    """``compute=ActorPoolStrategy(size=4)`` is ``processes=True, concurrency=4``.

    Without a ``size``, the largest size allowed is used. The other fields configure Ray's actors
    and change nothing here.
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
    """``compute=TaskPoolStrategy(size=4)`` is ``processes=True, concurrency=4``."""

    size: int | None = None


class Transforms(DatasetBase):
    """``map_batches`` and the other transforms of rows and columns.

    They take the arguments of Ray Data. Arguments for Ray's scheduler (``num_cpus``, ``num_gpus``,
    ``memory``, ``resources``, ``max_retries`` and others: the ``hints``) are accepted and change
    nothing: a transform runs in the worker that uses its rows, in a thread beside the training
    function, or in processes that belong to the worker.
    """

    def map_batches(
        self,
        fn: Callable[..., Any],
        *,
        batch_size: int | str | None = None,
        compute: Any = None,
        batch_format: str | None = "default",
        zero_copy_batch: bool = False,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        processes: bool = False,
        max_concurrency: int | None = None,
        preserves_rows: bool | None = None,
        udf_modifying_row_count: bool | None = None,
        **hints: Any,
    ) -> Dataset:
        """Transform the rows batch by batch.

        Which rows share a batch is not defined: it depends on how the data is read.

        Args:
            fn: a function from a batch to a batch, or a class whose objects are such functions;
                also an ``async`` function or generator.
                One object is created in each worker, so that a costly setup runs once.
            batch_size: the largest number of rows in a batch; None (or ``"auto"``, ``"default"``)
                makes each piece that is read a batch.
            compute: an ``ActorPoolStrategy`` or ``TaskPoolStrategy``, as in Ray's scripts: the
                same as ``processes=True`` with the pool's size as ``concurrency``.
            batch_format: the type of batch that ``fn`` gets: ``"numpy"`` (a dict of arrays),
                ``"pandas"``, ``"pyarrow"`` or ``"torch"``. ``fn`` may return any of these types, or
                a generator of batches.
            zero_copy_batch: True gives ``fn`` arrays that share the dataset's memory and are
                read-only. By default ``fn`` may write to them; data from files is not copied for
                that, data in memory is.
            fn_args, fn_kwargs: passed to ``fn`` after the batch.
            fn_constructor_args, fn_constructor_kwargs: passed to the class.
            concurrency: the number of threads that call ``fn`` at once, or of processes.
            processes: call ``fn`` in processes of their own, as many as ``concurrency`` says, or as
                this process has CPUs. Python code then takes no time from the training function,
                and runs on all of them at once. The rows keep their order. ``fn`` is pickled; of a
                class, each process creates one object.
            max_concurrency: of an ``async`` function, how many calls wait at once; 64 by default.
            preserves_rows: whether output row i is made of input row i. None assumes so: shards,
                slices and ``count()`` depend on it. Where only rows are asked for, any number is
                accepted, with a warning. Give False where ``fn`` changes the number of rows;
                shards and ``count()`` then run it first.
            udf_modifying_row_count: Ray's name for the opposite of ``preserves_rows``.
            hints: for Ray's scheduler; accepted and ignored.
        """
        check_hints("map_batches", hints)
        if preserves_rows is None and udf_modifying_row_count is not None:
            preserves_rows = not udf_modifying_row_count
        if preserves_rows not in (None, True, False):
            raise TypeError(f"preserves_rows={preserves_rows!r} is not True, False or None.")
        if batch_size in ("auto", "default"):
            batch_size = None
        rows = (
            None if batch_size is None else check_int(f"batch_size={batch_size!r}", batch_size, 1)
        )
        call = call_of(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            compute, concurrency, processes, max_concurrency,
        )  # fmt: skip
        name = check_format(batch_format)
        write = not zero_copy_batch
        return self._with_operation(ops.MapBatches(call, rows, name, preserves_rows, write))

    def map(
        self,
        fn: Callable[..., Any],
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        processes: bool = False,
        max_concurrency: int | None = None,
        **hints: Any,
    ) -> Dataset:
        """Transform each row: ``fn`` from a dict to a dict. Arguments as in ``map_batches``."""
        check_hints("map", hints)
        call = call_of(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            compute, concurrency, processes, max_concurrency,
        )  # fmt: skip
        return self._with_operation(ops.MapRows(call))

    def flat_map(
        self,
        fn: Callable[..., Any],
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        processes: bool = False,
        max_concurrency: int | None = None,
        **hints: Any,
    ) -> Dataset:
        """Turn each row into any number of rows: ``fn`` from a dict to a list of dicts."""
        check_hints("flat_map", hints)
        call = call_of(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            compute, concurrency, processes, max_concurrency,
        )  # fmt: skip
        return self._with_operation(ops.FlatMap(call))

    def filter(
        self,
        fn: Callable[..., Any] | Expr | None = None,
        expr: Any = None,
        *,
        compute: Any = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: _Concurrency = None,
        processes: bool = False,
        max_concurrency: int | None = None,
        **hints: Any,
    ) -> Dataset:
        """Keep some rows.

        Args:
            fn: a function from a row, as a dict, to True or False.
            expr: instead of ``fn``, and much faster: an expression (``col("x") > 3``, or
                Arrow's ``pc.field("x") > 3``), or a comparison as text (``"x > 3 and y == 'a'"``).
            compute, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs, concurrency,
                hints: as in ``map_batches``.
        """
        check_hints("filter", hints)
        if isinstance(fn, Expr) and expr is None:
            fn, expr = None, fn
        if (fn is None) == (expr is None):
            raise ValueError("filter() takes either a function or expr=…; give one of them.")
        if isinstance(expr, Expr):
            try:
                expr = expr.to_pyarrow()
            except TypeError:  # a user's function, or one that is computed in Python
                computed = ops.FilterComputed(expr)
                runs = expr.runs_user_code
                return self._with_operation(computed) if runs else self._checked(computed)
        if expr is not None:
            from lockstep.data.arrow.expressions import as_expression

            return self._checked(ops.FilterExpression(as_expression(expr)))
        assert fn is not None
        assert not isinstance(fn, Expr)
        call = call_of(
            fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs,
            compute, concurrency, processes, max_concurrency,
        )  # fmt: skip
        return self._with_operation(ops.FilterRows(call))

    def add_column(
        self,
        col: str,
        fn: Callable[..., Any],
        *,
        batch_format: str | None = "pandas",
        compute: Any = None,
        concurrency: _Concurrency = None,
        processes: bool = False,
        **hints: Any,
    ) -> Dataset:
        """Add or replace a column: ``fn`` from a batch to the column's values."""
        check_hints("add_column", hints)
        if not isinstance(col, str):
            raise TypeError(f"add_column({col!r}, …): the name of a column is a string.")
        call = call_of(fn, None, None, None, None, compute, concurrency, processes)
        return self._with_operation(ops.AddColumn(call, col, check_format(batch_format)))

    def with_column(
        self, column_name: str, expr: Expr, *, compute: Any = None, **hints: Any
    ) -> Dataset:
        """Add or replace a column that Arrow computes: ``with_column("y", col("x") * 2)``.

        Args:
            column_name: its name.
            expr: of ``lockstep.data.expressions``.
            compute, hints: for Ray's scheduler; accepted and ignored.
        """
        check_hints("with_column", hints)
        if not isinstance(column_name, str):
            raise TypeError(f"with_column({column_name!r}, …): the name of a column is a string.")
        if not isinstance(expr, Expr):
            raise TypeError(
                f"with_column({column_name!r}, {expr!r}): give an expression, such as "
                "col('x') + 1; lit(…) is a constant."
            )
        operation = ops.WithColumn(column_name, expr)
        if expr.runs_user_code:
            return self._with_operation(operation)
        return self._checked(operation)

    def with_columns(self, exprs: Mapping[str, Expr], **hints: Any) -> Dataset:
        """Add or replace several columns: ``with_columns({"y": col("x") * 2})``."""
        dataset: Any = self
        for name, expr in exprs.items():
            dataset = dataset.with_column(name, expr, **hints)
        return cast("Dataset", dataset)

    def select_columns(self, cols: str | Sequence[str], **hints: Any) -> Dataset:
        """Keep some columns, in this order; only these are read from files."""
        check_hints("select_columns", hints)
        return self._checked(ops.SelectColumns(_column_names("select_columns", cols)))

    def drop_columns(self, cols: str | Sequence[str], **hints: Any) -> Dataset:
        """Leave out some columns; they are not read from files."""
        check_hints("drop_columns", hints)
        return self._checked(ops.DropColumns(_column_names("drop_columns", cols)))

    def rename_columns(self, names: Mapping[str, str] | Sequence[str], **hints: Any) -> Dataset:
        """Rename columns: a dict from old to new, or all names in order."""
        check_hints("rename_columns", hints)
        new = dict(names) if isinstance(names, Mapping) else _column_names("rename_columns", names)
        return self._checked(ops.RenameColumns(new))

    def _checked(self, operation: ops.Operation) -> Dataset:
        """The dataset with the operation, tried on an empty table where the columns are known."""
        schema = self._schema()
        if schema is not None and len(schema):
            operation.apply(schema.empty_table())
        return self._with_operation(operation)


def _column_names(doing: str, names: str | Iterable[str]) -> tuple[str, ...]:
    found = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in found):
        raise ValueError(f"{doing}({names!r}): give the names of columns.")
    twice = {name for name in found if found.count(name) > 1}
    if twice:
        raise ValueError(f"{doing} names the column {min(twice)!r} twice; name it once.")
    return found


def call_of(
    fn: Callable[..., Any],
    args: Iterable[Any] | None,
    kwargs: Mapping[str, Any] | None,
    constructor_args: Iterable[Any] | None,
    constructor_kwargs: Mapping[str, Any] | None,
    compute: Any,
    concurrency: _Concurrency,
    processes: bool,
    max_concurrency: int | None = None,
) -> ops.Call:
    """How a user's function is called, from the arguments that all transforms take."""
    if not isinstance(processes, bool):
        raise TypeError(
            f"processes={processes!r}: give True or False, and their number with concurrency=…."
        )
    size = _pool_size(compute) if concurrency is None else concurrency
    elsewhere = processes or compute is not None
    if max_concurrency is not None:
        max_concurrency = check_int(f"max_concurrency={max_concurrency!r}", max_concurrency, 1)
    return ops.Call(
        fn, args, kwargs, constructor_args, constructor_kwargs, size, elsewhere, max_concurrency
    )


def _pool_size(compute: Any) -> int | None:
    """The size of a pool, or None where it sets none."""
    if compute is None or compute in ("actors", "tasks"):
        return None
    if isinstance(compute, TaskPoolStrategy):
        return compute.size
    if not isinstance(compute, ActorPoolStrategy):
        raise TypeError(f"compute={compute!r}: give an ActorPoolStrategy, or use concurrency=….")
    return compute.size or compute.max_size or compute.min_size
