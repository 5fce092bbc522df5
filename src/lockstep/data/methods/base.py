"""The base of every dataset: groups of units, created on first use, and reading their rows."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from lockstep.data.iterate.batching import locally_shuffled
from lockstep.data.iterate.iterator import DataIterator, Pass, Request
from lockstep.data.plan.hashing import draw_seed
from lockstep.data.plan.operations import Operation
from lockstep.data.plan.order import Group, new_meter, read_windows, windows_of
from lockstep.data.plan.position import LocalShuffle
from lockstep.data.plan.schema import known_schema
from lockstep.data.plan.unit import Piece, Reader, Unit, count_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = ["DatasetBase", "Step", "with_operation"]

_MAX_COUNT_THREADS = 8
"""A counting thread holds one block in memory."""

Make = Callable[[], Sequence[Group]]
"""Creates the groups of a dataset, on first use."""


@dataclass(frozen=True)
class Step:
    """How a dataset was made, for ``print``: a source, or a call on other datasets."""

    text: str
    inputs: tuple[Step, ...] = ()

    def lines(self, indent: str = "") -> Iterator[str]:
        """The call, and indented below it those that it was made on."""
        yield f"{indent}+- {self.text}"
        for step in self.inputs:
            yield from step.lines(indent + "   ")


class DatasetBase(DataIterator):
    """A lazy, immutable dataset: nothing is read before rows, counts or a schema are requested."""

    def __init__(self, make: Make, step: Step, free: Callable[[], bool]) -> None:
        """``free`` says whether ``make`` reads and computes nothing: its result can be shown."""
        super().__init__()
        self._make: Make | None = make
        self._free: Callable[[], bool] | None = free
        self._step = step
        self._known_groups: list[Group] | None = None
        self._lock = threading.RLock()
        self._epoch = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"groups": self._groups(), "step": self._step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        groups = state["groups"]
        DatasetBase.__init__(self, lambda: groups, state["step"], lambda: True)

    def _groups(self) -> list[Group]:
        with self._lock:
            if self._known_groups is None:
                assert self._make is not None
                self._known_groups = list(self._make())
                self._make = self._free = None  # frees the datasets it was derived from
            return self._known_groups

    def _counted(self) -> list[Group]:
        """The groups; every unit has a number of rows, counted where it was not known."""
        with self._lock:
            groups = self._groups()
            if any(unit.rows is None for group in groups for unit in group.units):
                threads = min(_MAX_COUNT_THREADS, os.cpu_count() or 1)
                self._known_groups = [
                    replace(group, units=count_rows(group.units, threads)) for group in groups
                ]
            return self._groups()

    def _schema(self) -> pa.Schema | None:
        """The columns, or None where only running a user's function can find them."""
        return known_schema(self._groups())

    def _units(self) -> list[Unit]:
        return [unit for group in self._groups() for unit in group.units]

    def _is_free(self) -> bool:
        """Whether finding the groups reads nothing, because it is done or needs no file."""
        return self._free is None or self._free()

    def _is_counted(self) -> bool:
        return self._is_free() and all(unit.rows is not None for unit in self._units())

    def _derive(self, text: str, change: Callable[[list[Group]], Sequence[Group]]) -> Dataset:
        """A dataset of this one's groups, changed on first use; ``text`` is the user's call."""
        return self._new(text, (self,), lambda: change(self._groups()), self._is_free)

    def _derive_counted(
        self, text: str, change: Callable[[list[Group]], Sequence[Group]]
    ) -> Dataset:
        """A dataset of this one's counted groups, changed on first use."""
        return self._new(text, (self,), lambda: change(self._counted()), self._is_counted)

    def _new(
        self, text: str, parents: Sequence[DatasetBase], make: Make, free: Callable[[], bool]
    ) -> Dataset:
        """Another dataset of this one's class: ``Dataset``, which this module cannot import."""
        step = Step(text, tuple(parent._step for parent in parents))
        return cast("Dataset", type(self)(make, step, free))

    def _with_operation(self, operation: Operation) -> Dataset:
        """A dataset with one more operation on each block."""
        return self._derive(operation.text, lambda groups: with_operation(groups, operation))

    def _pieces(self, epoch: int = 0, current: Pass | None = None) -> Iterator[Piece]:
        """All rows of an epoch, in order; ``current`` is the user's pass over them."""
        from lockstep.data.iterate.threads import arrow_threads

        groups = self._groups()
        # A window of a given number of rows can only be filled from units of known sizes.
        if any(g.shuffle is not None and g.shuffle.window for g in groups) and any(
            unit.raw_rows is None for group in groups for unit in group.units
        ):
            groups = self._counted()
        begin = Reader if current is None else current.begin_reading
        reader = begin(arrow_threads() > 1, exact=False)
        return read_windows(windows_of(groups, epoch), None, reader)

    def _tables(self) -> Iterator[pa.Table]:
        return (piece.table for piece in self._pieces())

    def _begin(self, request: Request) -> Pass:
        epoch, self._epoch = self._epoch, self._epoch + 1
        shuffle = None
        if request.shuffle_size is not None:
            seed = draw_seed() if request.shuffle_seed is None else request.shuffle_seed
            shuffle = LocalShuffle(request.shuffle_size, seed)

        def pieces() -> Iterator[Piece]:
            rows = self._pieces(epoch, current)
            return rows if shuffle is None else locally_shuffled(rows, shuffle, epoch, 0, 0)

        current = Pass(pieces, request.batch_size, self._stats, epoch)
        current.meter = new_meter(self._groups())
        return current


def with_operation(groups: Sequence[Group], operation: Operation) -> list[Group]:
    """The groups with one more operation on each block."""
    # Units that shared a tuple of operations share the new one: comparing them is then quick.
    chains: dict[int, tuple[Operation, ...]] = {}

    def extended(unit: Unit) -> Unit:
        chain = chains.setdefault(id(unit.operations), (*unit.operations, operation))
        rows = unit.rows if operation.keeps_rows else None
        return replace(unit, operations=chain, rows=rows)

    return [replace(group, units=[extended(unit) for unit in group.units]) for group in groups]
