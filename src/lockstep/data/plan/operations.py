"""Operations on the rows of a block: each makes a table of a table.

An operation either keeps the rows (output row i is made of input row i, so a shard can be cut
before the work is done) or changes their number.
"""

from __future__ import annotations

import inspect
import os
import queue
import re
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from lockstep import settings
from lockstep.checks import check_int
from lockstep.data.arrow.expressions import by_position
from lockstep.data.arrow.formats import described, from_rows, to_format, to_rows, to_table
from lockstep.data.arrow.unify import concatenated, conformed
from lockstep.data.plan.meter import metered

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

    from lockstep.data.expressions import Expr
    from lockstep.data.plan.waiting import Waiting
    from lockstep.data.processes.pool import ProcessPool

__all__ = [
    "AddColumn",
    "Call",
    "ConformColumns",
    "DropColumns",
    "FilterComputed",
    "FilterExpression",
    "FilterRows",
    "FlatMap",
    "MapBatches",
    "MapRows",
    "Operation",
    "RenameColumns",
    "Sample",
    "SampleByValue",
    "SelectColumns",
    "SliceRows",
    "UserOperation",
    "WithColumn",
    "add_note",
    "check_columns",
    "is_async",
    "with_column",
]

_TASKS_OF_A_PROCESS = 4
"""How many parts of the rows read at once a process gets: the others work while one is late."""
_MAX_WAITING = 64
"""How many calls of an ``async`` function wait at once, unless the user says so."""
_FEW_ROWS = 256
"""Fewer rows than this are not divided further, unless a process would have none."""


class Operation(ABC):
    """One step from a table to a table; picklable, and safe to use from several threads."""

    keeps_rows = True
    runs_user_code = False
    processes = 0
    """The number of processes it runs in; 0: in this one."""
    seen_to_change_rows = False
    """Whether ``keeps_rows`` was assumed, and found to be wrong."""
    shares_memory = False
    """Whether a column of the result may have another column's memory."""

    @abstractmethod
    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """The rows after this step.

        Args:
            table: the rows before it.
            owned: no one else uses the table's memory, so a user's function may write to it.
        """

    @property
    @abstractmethod
    def text(self) -> str:
        """The call that added it, as a user would write it."""


class Call:
    """Calls a user's function, or objects of a user's class, created once in each process.

    Args:
        fn: a function, or a class whose objects can be called.
        concurrency: how many threads may call it at once; of a class, the number of objects.
        processes: call it in that many processes instead; without a number, in as many as this
            process has CPUs.
        max_concurrency: how many calls of an ``async`` function wait at once.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        concurrency: int | tuple[int, ...] | None = None,
        processes: bool = False,
        max_concurrency: int | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"{fn!r} cannot be called; give a function or a class with __call__.")
        is_class = isinstance(fn, type)
        if isinstance(fn, type) and not any("__call__" in vars(base) for base in fn.__mro__):
            raise TypeError(f"Objects of {fn.__qualname__} cannot be called; define __call__.")
        if not is_class and (fn_constructor_args or fn_constructor_kwargs):
            raise ValueError(
                f"fn_constructor_args and fn_constructor_kwargs are for a class, and "
                f"{described(fn)} is a function; use fn_args and fn_kwargs."
            )
        self.fn = fn
        self.name = described(fn)
        self.args = tuple(fn_args or ())
        self.kwargs = dict(fn_kwargs or {})
        self.constructor = (tuple(fn_constructor_args or ()), dict(fn_constructor_kwargs or {}))
        given = None if concurrency is None else _most(concurrency)
        self.in_processes = processes
        self.given = given
        self.threads = 1 if processes or given is None else given
        self.waits = is_async(fn)
        self.max_concurrency = _MAX_WAITING if max_concurrency is None else max_concurrency
        if self.waits:
            self.threads = 1
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._made = 0
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._pool: ProcessPool | None = None
        self._waiting: Waiting | None = None

    def pool(self, operation: UserOperation) -> ProcessPool:
        """The processes that run an operation with this function, started when they are needed."""
        with self._lock:
            if self._pool is None or not self._pool.usable:
                self._pool = _new_pool(operation, self.processes)
            return self._pool

    @property
    def processes(self) -> int:
        """The number of processes to call it in; 0: in this one."""
        if not self.in_processes:
            return 0
        return self.given or settings.omp_threads() or os.cpu_count() or 1

    # Locks, objects of the user's class and processes belong to one process: made again there.
    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if not key.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def __call__(self, value: Any) -> Any:
        """The function's result; of a class, waits until one of its objects is idle."""
        if not isinstance(self.fn, type):
            return self.fn(value, *self.args, **self.kwargs)
        worker = self._worker()
        try:
            return worker(value, *self.args, **self.kwargs)
        finally:
            self._idle.put(worker)

    def each(self, values: Iterable[Any]) -> Iterable[Any]:
        """The function's results, in order; calls of an ``async`` function wait together."""
        if not self.waits:
            return map(self, values)
        with self._lock:
            if self._waiting is None:
                from lockstep.data.plan.waiting import Waiting

                self._waiting = Waiting(self.max_concurrency)
        fn: Any = self.fn
        if isinstance(fn, type):
            worker = self._worker()
            self._idle.put(worker)  # one object, whose calls overlap
            fn = worker
        return self._waiting.results(lambda v: fn(v, *self.args, **self.kwargs), values)

    def _worker(self) -> Any:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        with self._lock:
            # The place is reserved under the lock; the constructor, which may be slow, runs
            # outside.
            new = self._made < self.threads
            self._made += new
        if not new:
            return self._idle.get()
        try:
            return self.fn(*self.constructor[0], **self.constructor[1])
        except BaseException:
            # Give the place back, or the others would wait for an object that never comes.
            with self._lock:
                self._made -= 1
            raise


def is_async(fn: Any) -> bool:
    """Whether a function, or the objects of a class, return something to wait for."""
    called = fn.__call__ if isinstance(fn, type) or not inspect.isroutine(fn) else fn
    return any(
        test(given)
        for test in (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
        for given in (fn, called)
    )


def _most(concurrency: int | tuple[int, ...]) -> int:
    most = max(concurrency) if isinstance(concurrency, tuple) and concurrency else concurrency
    return check_int(f"concurrency={concurrency!r}", most, 1)


def _new_pool(operation: UserOperation, size: int) -> ProcessPool:
    import cloudpickle

    from lockstep.data.processes.pool import ProcessPool

    try:
        function = cloudpickle.dumps(operation.here)
    except Exception as error:
        raise TypeError(
            f"{operation.text} cannot be sent to other processes ({type(error).__name__}: {error});"
            " create what cannot be pickled in the __init__ of a class, or leave out processes=True"
            " and compute."
        ) from error
    return ProcessPool(
        function, size or settings.omp_threads() or os.cpu_count() or 1, operation.text
    )


@dataclass(frozen=True, eq=False)
class UserOperation(Operation):
    """An operation that calls a user's function, in this process or in others."""

    call: Call
    runs_user_code = True

    @property
    def processes(self) -> int:  # type: ignore[override]  # computed here
        """The number of processes it runs in; 0: in this one."""
        return self.call.processes

    @abstractmethod
    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """The rows after this step, in this process."""

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """In this process; a ``Reader`` calls ``submit`` and ``collect`` where there are others."""
        return self.here(table, owned)

    def submit(self, table: pa.Table) -> list[Future[pa.Table]]:
        """Send the rows to the processes, in parts."""
        pool = self.call.pool(self)
        size = self.rows_of_a_task(table.num_rows, pool.size)
        return [pool.submit(table.slice(n, size)) for n in range(0, table.num_rows, size)]

    def collect(self, table: pa.Table, tasks: list[Future[pa.Table]]) -> pa.Table:
        """The rows of all parts, in order; the first error ends the others. Empties ``tasks``."""
        done: list[pa.Table] = []
        try:
            while len(done) < len(tasks):
                # In order: an error is then that of the first rows, whichever process was faster.
                done.append(tasks[len(done)].result())
        except Exception as error:
            size = self.rows_of_a_task(table.num_rows, self.processes)
            first = len(done) * size
            last = min(first + size, table.num_rows) - 1
            add_note(error, f"(in rows {first} to {last} of {table.num_rows} read at once)")
            raise
        finally:
            while tasks:  # they have the error, whose traceback has this frame
                tasks.pop().cancel()
        return concatenated(done)

    def rows_of_a_task(self, rows: int, processes: int) -> int:
        """How many rows to send to a process at once."""
        even = -(-rows // processes)
        return max(-(-even // _TASKS_OF_A_PROCESS), min(even, _FEW_ROWS), 1)


@dataclass(frozen=True, eq=False)
class MapBatches(UserOperation):
    """A user's function on batches."""

    batch_size: int | None
    batch_format: str
    keeps: bool | None
    write: bool
    _seen: list[str] = field(default_factory=list, init=False)

    @property
    def text(self) -> str:
        """With the function's name."""
        return f"map_batches({self.call.name})"

    def changes_rows(self, before: int, after: int) -> None:
        """Note that the function does not keep the rows after all, and warn the user once."""
        if not self._seen:
            self._seen.append(f"{after} rows for {before}")
            warnings.warn(
                f"{self.text} returned {after} rows for {before}, but count() and shards take a "
                "function to keep the rows; give map_batches preserves_rows=False.",
                UserWarning,
                stacklevel=2,
            )

    @property
    def seen_to_change_rows(self) -> bool:  # type: ignore[override]  # computed here
        """Whether the function was seen to change the number of rows, which was not declared."""
        return bool(self._seen)

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]  # computed here
        """Whether rows are kept; assumed unless the user denied it."""
        return self.keeps is not False

    def rows_of_a_task(self, rows: int, processes: int) -> int:
        """A multiple of the batch size."""
        found = super().rows_of_a_task(rows, processes)
        return found if self.batch_size is None else -(-found // self.batch_size) * self.batch_size

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """Cut into batches, call the function on each, concatenate the results."""
        rows = table.num_rows
        # Without a batch size the user leaves the size open: one batch for each thread.
        size = self.batch_size or max(1, -(-rows // self.call.threads))
        if rows <= size:
            return self._one(table, owned)
        batches = [table.slice(start, size) for start in range(0, rows, size)]
        if self.call.threads == 1:
            given = (self._given(batch, owned) for batch in batches)
            done = [to_table(made, self.text) for made in self.call.each(given)]
        else:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(self.call.threads, "lockstep-data-map") as pool:
                done = list(pool.map(metered(partial(self._one, owned=owned)), batches))
        return concatenated(done)

    def _one(self, table: pa.Table, owned: bool) -> pa.Table:
        (made,) = self.call.each([self._given(table, owned)])
        return to_table(made, self.text)

    def _given(self, table: pa.Table, owned: bool) -> Any:
        return to_format(table, self.batch_format, write=self.write, owned=owned)


@dataclass(frozen=True, eq=False)
class MapRows(UserOperation):
    """A user's function on each row."""

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """Row by row."""
        rows = [self._checked(new) for new in self.call.each(to_rows(table))]
        return from_rows(rows, table.schema, self.text)

    @property
    def text(self) -> str:
        """With the function's name."""
        return f"map({self.call.name})"

    def _checked(self, new: Any) -> Mapping[str, Any]:
        if not isinstance(new, Mapping):
            raise TypeError(
                f"{self.text} returned {new!r}; return a dict of column names and values."
            )
        return new


@dataclass(frozen=True, eq=False)
class FlatMap(UserOperation):
    """A user's function from a row to rows."""

    keeps_rows = False

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """Row by row."""
        rows: list[Mapping[str, Any]] = []
        for new in self.call.each(to_rows(table)):
            if isinstance(new, Mapping) or not isinstance(new, Iterable):
                raise TypeError(f"{self.text} returned {new!r}; return a list of dicts.")
            for made in new:  # a generator may yield lists of rows
                rows.extend(made if isinstance(made, list) else [made])
        return from_rows(rows, table.schema, self.text)

    @property
    def text(self) -> str:
        """With the function's name."""
        return f"flat_map({self.call.name})"


@dataclass(frozen=True, eq=False)
class FilterRows(UserOperation):
    """The rows for which a user's function returns true."""

    keeps_rows = False

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """Row by row; the values do not change."""
        import pyarrow as pa

        kept = [bool(keep) for keep in self.call.each(to_rows(table))]
        return table.filter(pa.array(kept, pa.bool_()))

    @property
    def text(self) -> str:
        """With the function's name."""
        return f"filter({self.call.name})"


@dataclass(frozen=True, eq=False)
class FilterExpression(Operation):
    """The rows for which an Arrow expression is true."""

    expression: Any
    keeps_rows = False

    @property
    def text(self) -> str:
        """As Arrow writes the expression."""
        return f"filter({self.expression})"

    _needs: dict[tuple[str, ...], list[str] | None] = field(default_factory=dict, init=False)

    def needs(self, schema: pa.Schema) -> list[str] | None:
        """The columns the expression names, None where they cannot be determined."""
        names = tuple(schema.names)
        if names not in self._needs:
            self._needs[names] = self._find_needs(schema)
        return self._needs[names]

    def _find_needs(self, schema: pa.Schema) -> list[str] | None:
        # Arrow has no call for this. But it raises for a missing column, so add them one by one.
        import pyarrow as pa

        if by_position(self.expression):
            return None
        found: list[str] = []
        while True:
            try:
                pa.schema([schema.field(name) for name in found]).empty_table().filter(
                    self.expression
                )
                return found
            except pa.ArrowException as error:
                missed = re.search(r"No match for FieldRef\.Name\((.*?)\) in ", str(error))
                if missed is None or missed[1] in found or missed[1] not in schema.names:
                    return None
                found.append(missed[1])

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Filter in Arrow; null counts as false."""
        import pyarrow as pa

        try:
            return table.filter(self.expression)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            cause = str(error).partition(" in ")[0].strip()
            raise ValueError(
                f"The filter does not fit the columns {', '.join(table.column_names)} ({cause})."
            ) from error


@dataclass(frozen=True, eq=False)
class FilterComputed(Operation):
    """The rows for which an expression with a user's function is true."""

    expression: Expr
    keeps_rows = False
    runs_user_code = True

    @property
    def text(self) -> str:
        """With the expression."""
        return f"filter({self.expression!r})"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Null counts as false."""
        return table.filter(self.expression.evaluate(table))


@dataclass(frozen=True, eq=False)
class WithColumn(Operation):
    """A column that an expression makes of others."""

    name: str
    expression: Expr
    shares_memory = True  # ``col("x")`` is the column itself

    @property
    def runs_user_code(self) -> bool:  # type: ignore[override]  # computed here
        """Whether the expression calls a user's function."""
        return self.expression.runs_user_code

    @property
    def text(self) -> str:
        """With the column and the expression."""
        return f"with_column({self.name!r}, {self.expression!r})"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Append the column, or replace the one of that name."""
        import pyarrow as pa

        values = self.expression.evaluate(table)
        if isinstance(values, pa.Scalar):
            values = pa.repeat(values, table.num_rows)
        return with_column(table, self.name, values)


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with the column appended, or in place of the one of that name."""
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, values)
    return table.append_column(name, values)


@dataclass(frozen=True, eq=False)
class AddColumn(UserOperation):
    """A column that a user's function makes from a batch."""

    name: str
    batch_format: str

    @property
    def text(self) -> str:
        """With the column and the function's name."""
        return f"add_column({self.name!r}, {self.call.name})"

    def here(self, table: pa.Table, owned: bool = True) -> pa.Table:
        """Append the column, or replace the one of that name."""
        doing = self.text
        values = self.call(to_format(table, self.batch_format, write=True, owned=owned))
        if isinstance(values, (int, float, str, bool)):
            values = [values] * table.num_rows
        column = to_table({self.name: values}, doing).column(0)
        if len(column) != table.num_rows:
            raise ValueError(
                f"{doing} returned {len(column)} values for {table.num_rows} rows; return one a row"
                "."
            )
        return with_column(table, self.name, column)


@dataclass(frozen=True)
class SelectColumns(Operation):
    """Some columns, in this order; ``doing`` is the method called, for errors."""

    names: tuple[str, ...]
    doing: str = "select_columns"

    @property
    def text(self) -> str:
        """With the columns."""
        return f"select_columns({list(self.names)})"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Without a copy."""
        return table.select(check_columns(self.names, table.column_names, self.doing))


@dataclass(frozen=True)
class DropColumns(Operation):
    """All columns but some."""

    names: tuple[str, ...]

    @property
    def text(self) -> str:
        """With the columns."""
        return f"drop_columns({list(self.names)})"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Without a copy."""
        return table.drop_columns(check_columns(self.names, table.column_names, "drop_columns"))


@dataclass(frozen=True)
class RenameColumns(Operation):
    """New names: a mapping from old to new, or all names in order."""

    names: Mapping[str, str] | tuple[str, ...]

    @property
    def text(self) -> str:
        """With the names."""
        names = dict(self.names) if isinstance(self.names, Mapping) else list(self.names)
        return f"rename_columns({names})"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Without a copy."""
        return table.rename_columns(self.renamed(table.column_names))

    def renamed(self, columns: Sequence[str]) -> list[str]:
        """The names of the columns afterwards."""
        if isinstance(self.names, Mapping):
            check_columns(self.names, columns, "rename_columns")
            new = [self.names.get(name, name) for name in columns]
        elif len(self.names) != len(columns):
            raise ValueError(
                f"rename_columns got {len(self.names)} names for {len(columns)} columns "
                f"({', '.join(columns)}); give one for each, or a dict from old to new."
            )
        else:
            new = list(self.names)
        twice = {name for name in new if new.count(name) > 1}
        if twice:
            raise ValueError(
                f"rename_columns gives several columns the name {min(twice)!r}; names must differ."
            )
        return new


@dataclass(frozen=True, eq=False)
class ConformColumns(Operation):
    """The columns and types of a union; a column that this part lacks becomes null.

    Attributes:
        schema: the columns and types.
        text: of the method.
        given: how the user has given the schema, for errors; empty for a union.
    """

    schema: Any
    text: str = "union()"
    given: str = ""

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Copy the columns whose type changes."""
        return conformed(table, self.schema, self.given)


def add_note(error: BaseException, note: str) -> None:
    """Say below an error where it happened; Python 3.10 has no such notes."""
    if hasattr(error, "add_note"):
        error.add_note(note)


def check_columns(names: Iterable[str], columns: Sequence[str], doing: str) -> list[str]:
    """The names, checked to be columns."""
    names = list(names)
    for name in names:
        if name not in columns:
            there = f"there are {', '.join(columns)}" if columns else "the dataset has no columns"
            raise KeyError(f"{doing}: there is no column {name!r}; {there}.")
    return names


@dataclass(frozen=True)
class Sample(Operation):
    """The rows whose hash is in a range: a random choice described by four integers.

    Attributes:
        key: of the hash.
        offset: the position of the block's first row in the dataset.
        low, high: a row is kept if ``low <= hash < high``.
    """

    key: int
    offset: int
    low: int
    high: int
    keeps_rows = False
    text = "random_sample()"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Filter by the mask; the order stays."""
        import pyarrow as pa

        return table.filter(pa.array(self.mask(table.num_rows)))

    def mask(self, rows: int) -> Any:
        """Which of a block's rows are kept."""
        import numpy as np

        from lockstep.data.plan.hashing import hash_range

        hashes = hash_range(self.key, self.offset, self.offset + rows)
        mask = np.ones(rows, dtype=bool)
        if self.low > 0:
            mask &= hashes >= np.uint64(self.low)
        if self.high < 1 << 64:
            mask &= hashes < np.uint64(self.high)
        return mask


@dataclass(frozen=True)
class SampleByValue(Operation):
    """The rows whose value in a column has a hash in a range, on any machine."""

    column: str
    low: int
    high: int
    keeps_rows = False
    text = "streaming_train_test_split()"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Filter by the hashes; the order stays."""
        import numpy as np
        import pandas as pd
        import pyarrow as pa

        check_columns([self.column], table.column_names, "streaming_train_test_split")
        values = table[self.column].to_pandas()
        hashes = pd.util.hash_pandas_object(values, index=False).to_numpy(np.uint64)
        mask = hashes >= np.uint64(self.low)
        if self.high < 1 << 64:
            mask &= hashes < np.uint64(self.high)
        return table.filter(pa.array(mask))


@dataclass(frozen=True)
class SliceRows(Operation):
    """Rows ``start`` to ``stop`` of the result of the operations before."""

    start: int
    stop: int
    keeps_rows = False
    text = "limit()"

    def apply(self, table: pa.Table, owned: bool = False) -> pa.Table:
        """Without a copy."""
        return table.slice(self.start, self.stop - self.start)
