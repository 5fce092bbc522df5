"""What changes which rows there are and in which order: slices, unions, shuffles, splits, sorts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int, check_seed, is_number
from lockstep.data.base import DatasetBase, after
from lockstep.data.compat import only_hints
from lockstep.data.plan.hashing import draw_seed, hash_range, key_of
from lockstep.data.plan.operations import CastColumns, Operation, Sample, known
from lockstep.data.plan.order import EpochShuffle, Group, read_windows, total_rows, windows_of
from lockstep.data.plan.schema import known_schema, schema_of, unified
from lockstep.data.plan.unit import Reader, Unit
from lockstep.data.sources.base import Block, MemorySource, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = ["Reordering", "source_groups", "table_groups"]


class Reordering(DatasetBase):
    """``limit``, ``union``, ``random_shuffle``, ``split`` and their kin.

    Most of them change an index and move no rows. ``sort`` and ``zip``, and slices of something
    shuffled, hold their rows in memory from when they are first used.
    """

    def limit(self, limit: int) -> Dataset:
        """The first so many rows."""
        rows = check_int(f"limit({limit!r})", limit)
        return self._derive(lambda groups: _first_rows(self, groups, rows))

    def union(self, *other: Dataset) -> Dataset:
        """The rows of this one, then those of the others."""
        _only_datasets("union", other)
        parts: list[DatasetBase] = [self, *other]
        return self._new(lambda: _union([part._groups() for part in parts]))

    def zip(self, *other: Dataset) -> Dataset:
        """The columns of this one and of others with as many rows, side by side."""
        _only_datasets("zip", other)

        def make() -> list[Group]:
            import pyarrow as pa

            columns: dict[str, Any] = {}
            rows: int | None = None
            for part in (self, *other):
                table = _table(part)
                if rows is not None and table.num_rows != rows:
                    raise ValueError(
                        f"zip() got datasets of {rows} and {table.num_rows} rows; they must have "
                        "as many."
                    )
                rows = table.num_rows
                for name, column in zip(table.column_names, table.columns, strict=True):
                    free, number = name, 0
                    while free in columns:
                        number += 1
                        free = f"{name}_{number}"
                    columns[free] = column
            return table_groups(pa.table(columns))

        return self._new(make)

    def sort(self, key: str | Sequence[str], descending: bool | Sequence[bool] = False) -> Dataset:
        """The rows in the order of one or more columns; in memory."""
        keys = [key] if isinstance(key, str) else list(key)
        downs = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if not keys or len(downs) != len(keys):
            raise ValueError(
                f"sort({key!r}, descending={descending!r}): give a column or more, and one "
                "direction, or one for each."
            )

        def make() -> list[Group]:
            table = _table(self)
            if not table.column_names:  # no rows came, so nobody knows what columns they have
                return table_groups(table)
            known(keys, table.column_names, "sort")
            order = [
                (name, "descending" if down else "ascending")
                for name, down in zip(keys, downs, strict=True)
            ]
            return table_groups(table.sort_by(order))

        return self._new(make)

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        shuffle: bool = False,
    ) -> Dataset:
        """Other pieces to read it in: about so many, or of at most so many rows.

        Blocks are cut, not put together, and the rows stay where they are.
        """
        if (num_blocks is None) == (target_num_rows_per_block is None):
            raise ValueError("repartition() takes num_blocks or target_num_rows_per_block: one.")
        wanted = num_blocks if target_num_rows_per_block is None else target_num_rows_per_block
        number = check_int(f"repartition({wanted!r})", wanted, 1)

        def change(groups: list[Group]) -> list[Group]:
            size = number
            if num_blocks is not None:
                size = max(1, -(-total_rows(groups) // number))
            return [replace(group, units=_resized(group.units, size)) for group in groups]

        made = self._derive_counted(change)
        return made.random_shuffle() if shuffle else made

    def random_shuffle(
        self,
        *,
        seed: int | None = None,
        window: int | str | None = "auto",
        num_blocks: int | None = None,
        **hints: Any,
    ) -> Dataset:
        """The rows in a random order, another one in each epoch.

        The order follows from the seed, the epoch and the rows' positions: the same on any machine.

        Args:
            seed: None draws one, here and now.
            window: how far rows travel. ``"full"`` (or None): a permutation of all rows; each
                worker then reads all blocks and holds its part of the rows in memory. A number: the
                blocks (row groups) change places, and each so many rows that follow each other then
                are permuted; memory holds those only. ``"auto"``: full for what is in memory
                already, for files two blocks and at least 16 MB (one block where that is more than
                256 MB).
            num_blocks: ``repartition`` it so first.
            hints: of Ray's scheduler (``num_cpus``, …): accepted, nothing here needs them.
        """
        only_hints("random_shuffle", hints)
        rows: int | None
        if window == "auto":
            rows = None
        elif window is None or window == "full":
            rows = 0
        elif isinstance(window, str):
            raise ValueError(
                f"random_shuffle(window={window!r}): give 'auto', 'full' or a number of rows."
            )
        else:
            rows = check_int(f"random_shuffle(window={window!r})", window, 1)
        pieces = self if num_blocks is None else self.repartition(num_blocks)
        return pieces._shuffled(_seed("random_shuffle", seed), rows, True, seed is None)

    def randomize_block_order(self, *, seed: int | None = None) -> Dataset:
        """The blocks in a random order, another one in each epoch; the rows inside stay put."""
        return self._shuffled(_seed("randomize_block_order", seed), None, False, seed is None)

    def _shuffled(self, seed: int, window: int | None, rows: bool, drawn: bool) -> Dataset:
        shuffle = EpochShuffle(seed, window, rows, drawn)
        return self._derive(lambda groups: [Group([u for g in groups for u in g.units], shuffle)])

    def random_sample(self, fraction: float, *, seed: int | None = None) -> Dataset:
        """About that share of the rows, chosen at random; the same ones in each epoch."""
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise ValueError(f"random_sample({fraction!r}): give a share from 0 to 1.")
        key = key_of(_seed("random_sample", seed))
        return self._derive_counted(lambda groups: _sampled(groups, key, 0, int(fraction * 2**64)))

    def train_test_split(
        self, test_size: int | float, *, shuffle: bool = False, seed: int | None = None
    ) -> tuple[Dataset, Dataset]:
        """Two datasets: to train on, and to test on.

        Args:
            test_size: the share of rows to test on, or their number.
            shuffle: choose them at random (exactly so many), and shuffle both; otherwise they are
                the last ones.
            seed: of the choice and of the shuffle.
        """
        total = self._rows_for(test_size)
        tested = int(total * test_size) if isinstance(test_size, float) else test_size
        if not shuffle:
            return self._slice(0, total - tested), self._slice(total - tested, total)
        drawn = seed is None
        seed = _seed("train_test_split", seed)
        key = key_of(seed)
        bound = _order_statistic(key, total, tested)
        test = self._derive_counted(lambda groups: _sampled(groups, key, 0, bound))
        train = self._derive_counted(lambda groups: _sampled(groups, key, bound, 1 << 64))
        return (
            train._shuffled(seed, None, True, drawn),
            test._shuffled(seed, None, True, drawn),
        )

    def _rows_for(self, test_size: int | float) -> int:
        if not is_number(test_size):
            raise TypeError(f"train_test_split({test_size!r}): give a share or a number of rows.")
        if isinstance(test_size, float) and not 0 < test_size < 1:
            raise ValueError(f"train_test_split({test_size}): give a share between 0 and 1.")
        total = total_rows(self._counted())
        if isinstance(test_size, int) and not 0 < test_size < total:
            raise ValueError(
                f"train_test_split({test_size}): of {total} rows, give a number from 1 to "
                f"{total - 1}."
            )
        return total

    def split(
        self, n: int, *, equal: bool = False, locality_hints: Sequence[Any] | None = None
    ) -> list[Dataset]:
        """``n`` datasets; ``equal`` drops what is left over (``locality_hints`` is not needed)."""
        n = check_int(f"split({n!r})", n, 1)
        total = total_rows(self._counted())
        bounds = [(total // n if equal else 0) * part for part in range(n + 1)]
        if not equal:
            bounds = [total * part // n for part in range(n + 1)]
        return [self._slice(start, stop) for start, stop in pairwise(bounds)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """The datasets between these positions: one more than there are positions."""
        found = list(indices)
        if not found or found != sorted(found) or found[0] < 0:
            raise ValueError(
                f"split_at_indices({indices!r}): give positions, 0 or more, in ascending order."
            )
        total = total_rows(self._counted())
        bounds = [0, *(min(index, total) for index in found), total]
        return [self._slice(start, stop) for start, stop in pairwise(bounds)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """Datasets with these shares of the rows, and one more with the rest."""
        shares = list(proportions)
        if not shares or min(shares) <= 0 or sum(shares) >= 1:
            raise ValueError(
                f"split_proportionately({proportions!r}): give shares above 0 that sum up to less "
                "than 1."
            )
        total = total_rows(self._counted())
        return self.split_at_indices([int(total * share) for share in accumulate(shares)])

    def _slice(self, start: int, stop: int) -> Dataset:
        return self._derive_counted(lambda groups: _part(groups, start, stop))


def _only_datasets(doing: str, given: Sequence[Any]) -> None:
    for one in given:
        if not isinstance(one, DatasetBase):
            raise TypeError(f"{doing}({one!r}): give datasets.")


def _seed(doing: str, seed: int | None) -> int:
    number = check_seed(doing, seed)
    return draw_seed() if number is None else number


def source_groups(source: Source) -> list[Group]:
    """A source's blocks, as a dataset's groups."""
    # One that is empty, where there are none: it knows the columns.
    blocks = source.index() or [Block((), 0, 0)]
    chain: tuple[Operation, ...] = ()
    return [Group([Unit(source, block, chain, rows=block.rows) for block in blocks])]


def table_groups(table: pa.Table) -> list[Group]:
    """A table's blocks, as a dataset's groups."""
    return source_groups(MemorySource(table))


def _table(dataset: DatasetBase) -> pa.Table:
    import pyarrow as pa

    tables = list(dataset._tables()) or [schema_of(dataset._groups()).empty_table()]
    return pa.concat_tables(tables, promote_options="permissive")


def _union(parts: Sequence[list[Group]]) -> list[Group]:
    """One after the other; numbers of different types are made the same."""
    found = [(groups, known_schema(groups)) for groups in parts]
    # Without columns there are no rows: nothing that would have to fit.
    found = [(groups, schema) for groups, schema in found if schema is None or schema.names]
    parts = [groups for groups, _ in found] or parts[:1]
    schemas = [schema for _, schema in found if schema is not None]
    if schemas and len(schemas) == len(parts):
        union = reduce(unified, schemas)
        parts = [
            groups if schema.types == union.types else after(groups, CastColumns(union))
            for groups, schema in zip(parts, schemas, strict=True)
        ]
    return _plain_joined([group for groups in parts for group in groups])


def _plain_joined(groups: list[Group]) -> list[Group]:
    """Neighbours that are not shuffled as one."""
    joined: list[Group] = []
    for group in groups:
        if joined and group.shuffle is None and joined[-1].shuffle is None:
            joined[-1] = replace(group, units=[*joined[-1].units, *group.units])
        else:
            joined.append(group)
    return joined


def _first_rows(dataset: DatasetBase, groups: list[Group], limit: int) -> list[Group]:
    """Counts no further than it has to, where the order is plain."""
    from lockstep.data.plan.unit import count_rows

    if any(group.shuffle is not None for group in groups):
        counted = dataset._counted()
        return _part(counted, 0, min(limit, total_rows(counted)))
    units: list[Unit] = []
    left = limit
    for unit in (unit for group in groups for unit in group.units):
        if left <= 0:
            break
        unit = count_rows([unit], 1)[0]
        taken = min(left, unit.rows or 0)
        if taken:
            units.append(unit.part(0, taken))
        left -= taken
    return [Group(units or _none_of(groups))]


def _part(groups: list[Group], start: int, stop: int) -> list[Group]:
    """Rows ``start`` to ``stop`` of the first epoch's sequence."""
    if any(group.shuffle is not None for group in groups):
        return table_groups(_rows_of(groups, start, stop))
    units = [unit for group in groups for unit in group.units]
    ends = list(accumulate(unit.rows or 0 for unit in units))
    found: list[Unit] = []
    for place in range(bisect_right(ends, start), len(units)):
        unit, begin = units[place], ends[place] - (units[place].rows or 0)
        if begin >= stop:
            break
        if start < ends[place]:
            found.append(unit.part(max(start - begin, 0), min(stop, ends[place]) - begin))
    return [Group(found or _none_of(groups))]


def _none_of(groups: list[Group]) -> list[Unit]:
    """No rows, but the columns of what there was."""
    first = next((unit for group in groups for unit in group.units), None)
    if first is None:
        return []
    return [replace(first, block=replace(first.block, rows=0), start=0, stop=0, rows=0)]


def _rows_of(groups: list[Group], start: int, stop: int) -> pa.Table:
    import numpy as np
    import pyarrow as pa

    interval = np.array([[start, stop]], dtype=np.int64)
    pieces = read_windows(windows_of(groups, 0), interval, Reader())
    tables = [piece.table for piece in pieces] or [schema_of(groups).empty_table()]
    return pa.concat_tables(tables, promote_options="permissive")


def _resized(units: Sequence[Unit], size: int) -> list[Unit]:
    """Parts of at most ``size`` rows, none over two blocks."""
    parts = []
    for unit in units:
        rows = unit.rows or 0
        pieces = max(1, -(-rows // size))
        bounds = [rows * piece // pieces for piece in range(pieces + 1)]
        parts += [unit.part(a, b) for a, b in pairwise(bounds)]
    return parts


def _sampled(groups: list[Group], key: int, low: int, high: int) -> list[Group]:
    """The rows whose hash is in a range, with their numbers known."""
    offset = 0
    found = []
    for group in groups:
        units: list[Unit] = []
        for unit in group.units:
            sample = Sample(key, offset, low, high)
            offset += unit.rows or 0
            rows = int(sample.mask(unit.rows or 0).sum())
            if not rows:
                continue
            # Before the other operations, where that comes to the same: they have less to do.
            chain = (sample, *unit.operations) if unit.keeps_rows else (*unit.operations, sample)
            units.append(replace(unit, operations=chain, rows=rows, exact=True))
        found.append(replace(group, units=units or _none_of([group])))
    return found


def _order_statistic(key: int, total: int, rank: int) -> int:
    """The hash below which exactly ``rank`` of the rows' hashes are."""
    import numpy as np

    hashes = hash_range(key, 0, total)
    return int(np.partition(hashes, rank)[rank]) if rank < total else 1 << 64
