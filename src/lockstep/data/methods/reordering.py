"""Methods that choose and reorder rows: slices, unions, shuffles, samples, splits, sorts."""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from lockstep.checks import check_int, check_seed, is_number
from lockstep.data.arrow.join import join_tables
from lockstep.data.arrow.unify import concatenated
from lockstep.data.compat import RandomSeedConfig, check_hints, plain_seed
from lockstep.data.methods.base import DatasetBase, with_operation
from lockstep.data.plan.hashing import draw_seed, hash_range, key_of
from lockstep.data.plan.operations import (
    ConformColumns,
    Operation,
    Sample,
    SampleByValue,
    check_columns,
)
from lockstep.data.plan.order import EpochShuffle, Group, read_windows, total_rows, windows_of
from lockstep.data.plan.schema import known_schema, schema_of, unified
from lockstep.data.plan.unit import Reader, Unit
from lockstep.data.sources.base import Block, MemorySource, Source

_JOINS = (
    "inner", "left_outer", "right_outer", "full_outer", "left_semi", "right_semi", "left_anti",
    "right_anti",
)  # fmt: skip

if TYPE_CHECKING:
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = [
    "MixStoppingCondition",
    "Reordering",
    "sorted_groups",
    "source_groups",
    "table_groups",
    "to_one_table",
]


class MixStoppingCondition(enum.Enum):
    """When a dataset of ``Dataset.mix`` ends: with the first, or with the last of its parts."""

    STOP_ON_SHORTEST = "stop_on_shortest"
    STOP_ON_LONGEST_DROP = "stop_on_longest_drop"


class Reordering(DatasetBase):
    """``limit``, ``union``, ``random_shuffle``, ``split`` and similar methods.

    Most of them change the index and move no rows. ``sort``, ``zip`` and slices of a shuffled
    dataset hold their rows in memory from their first use on.
    """

    def limit(self, limit: int) -> Dataset:
        """The first ``limit`` rows."""
        rows = check_int(f"limit({limit!r})", limit)

        # `_first_rows` reads nothing if all rows are counted and their order is fixed.
        def free() -> bool:
            return self._is_counted() and all(g.shuffle is None for g in self._groups())

        make = partial(_first_rows, self, rows)
        return self._new(f"limit({rows})", (self,), make, free)

    def union(self, *other: Dataset) -> Dataset:
        """The rows of this dataset, then the rows of the others.

        A column that only some of them have is null in the rows of the others.
        """
        _check_datasets("union", other)
        parts: list[DatasetBase] = [self, *other]
        return self._new(
            "union()",
            parts,
            lambda: _union([part._groups() for part in parts]),
            lambda: all(part._is_free() for part in parts),
        )

    def mix(
        self,
        *other: Dataset,
        weights: Sequence[float] | None = None,
        stopping_condition: MixStoppingCondition | str = MixStoppingCondition.STOP_ON_LONGEST_DROP,
    ) -> Dataset:
        """The blocks of several datasets in turns, so that their rows come in given proportions.

        The next block is always of the dataset that is furthest behind its share. With smaller
        blocks (``repartition``) the proportions hold for shorter parts.

        Args:
            other: the datasets to mix with this one.
            weights: how many rows of each, as proportions, this dataset first; by default equal.
            stopping_condition: ``STOP_ON_LONGEST_DROP``: all rows of all; a dataset that has ended
                drops out. ``STOP_ON_SHORTEST``: until the first of them has ended.

        Raises:
            ValueError: there is not one positive weight for each dataset, or a dataset is shuffled.
        """
        _check_datasets("mix", other)
        parts: list[DatasetBase] = [self, *other]
        shares = [1.0] * len(parts) if weights is None else list(weights)
        if len(shares) != len(parts) or not all(is_number(w) and w > 0 for w in shares):
            raise ValueError(
                f"mix(weights={weights!r}): give one positive number for each of the "
                f"{len(parts)} datasets."
            )
        shortest = MixStoppingCondition(stopping_condition) is MixStoppingCondition.STOP_ON_SHORTEST
        return self._new(
            "mix()",
            parts,
            lambda: _mixed([part._counted() for part in parts], shares, shortest),
            lambda: all(part._is_counted() for part in parts),
        )

    def zip(self, *other: Dataset) -> Dataset:
        """The columns of several datasets side by side; all must have the same number of rows."""
        _check_datasets("zip", other)

        def make() -> list[Group]:
            import pyarrow as pa

            columns: dict[str, Any] = {}
            rows: int | None = None
            for part in (self, *other):
                table = to_one_table(part)
                if rows is not None and table.num_rows != rows:
                    raise ValueError(
                        f"zip() got datasets of {rows} and {table.num_rows} rows; they must have "
                        "the same number of rows."
                    )
                rows = table.num_rows
                for name, column in zip(table.column_names, table.columns, strict=True):
                    unique, number = name, 0
                    while unique in columns:
                        number += 1
                        unique = f"{name}_{number}"
                    columns[unique] = column
            return table_groups(pa.table(columns))

        return self._new("zip()", (self, *other), make, lambda: False)

    def sort(
        self,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        boundaries: Sequence[Any] | None = None,
    ) -> Dataset:
        """The rows sorted by one or more columns; holds all rows in memory.

        Args:
            key: the columns.
            descending: one direction, or one for each column.
            boundaries: values of the first column at which blocks begin.
        """
        keys = [key] if isinstance(key, str) else list(key)
        flags = [descending] * len(keys) if isinstance(descending, bool) else list(descending)
        if not keys or len(flags) != len(keys):
            raise ValueError(
                f"sort({key!r}, descending={descending!r}): give one or more columns, and "
                "one direction, or one for each column."
            )

        def make() -> list[Group]:
            table = to_one_table(self)
            if not table.column_names:  # without rows, the columns may be unknown
                return table_groups(table)
            check_columns(keys, table.column_names, "sort")
            order = [
                (name, "descending" if flag else "ascending")
                for name, flag in zip(keys, flags, strict=True)
            ]
            table = table.sort_by(order)
            if boundaries is None:
                return table_groups(table)
            return table_groups(table, _ends(table[keys[0]], list(boundaries), flags[0]))

        return self._new(f"sort({key!r})", (self,), make, lambda: False)

    def join(
        self,
        ds: Dataset,
        join_type: str,
        num_partitions: int | None = None,
        on: str | Sequence[str] = ("id",),
        right_on: str | Sequence[str] | None = None,
        left_suffix: str | None = None,
        right_suffix: str | None = None,
        **hints: Any,
    ) -> Dataset:
        """The rows of both datasets whose keys are equal, side by side; holds both in memory.

        Args:
            ds: the right side.
            join_type: ``"inner"``, ``"left_outer"``, ``"right_outer"``, ``"full_outer"``,
                ``"left_semi"``, ``"right_semi"``, ``"left_anti"`` or ``"right_anti"``.
            num_partitions: the number of blocks of the result.
            on, right_on: the columns of the key, on the left and on the right.
            left_suffix, right_suffix: added to the names of columns that both sides have.
            hints: for Ray's scheduler; accepted and ignored.

        Raises:
            TypeError: ``ds`` is no dataset, or a name or suffix no string.
            ValueError: another argument is none of these, the keys' types do not fit, or two
                columns of the result would have one name.
        """
        if join_type not in _JOINS:
            raise ValueError(f"join(join_type={join_type!r}): expected one of {', '.join(_JOINS)}.")
        unknown = hints.keys() - {
            "partition_size_hint",
            "aggregator_ray_remote_args",
            "validate_schemas",
        }
        check_hints("join", {name: hints[name] for name in unknown})
        _check_datasets("join", (ds,))
        for name, suffix in (("left_suffix", left_suffix), ("right_suffix", right_suffix)):
            if suffix is not None and not isinstance(suffix, str):
                raise TypeError(f"join({name}={suffix!r}): give a string, such as '_2'.")
        blocks = None
        if num_partitions is not None:
            blocks = check_int(f"join(num_partitions={num_partitions!r})", num_partitions, 1)
        keys = _names("join(on=", on)
        others = keys if right_on is None else _names("join(right_on=", right_on)
        if not keys or len(keys) != len(others):
            raise ValueError(
                f"join(on={on!r}, right_on={right_on!r}): name one or more columns, and as many "
                "columns on the right as on the left."
            )

        def make() -> list[Group]:
            left, right = to_one_table(self), to_one_table(ds)
            check_columns(keys, left.column_names, "join, on the left")
            check_columns(others, right.column_names, "join, on the right")
            suffixes = (left_suffix or "", right_suffix or "")
            table = join_tables(left, right, (keys, others), join_type, suffixes)
            if blocks is None or not table.num_rows:
                return table_groups(table)
            ends = {table.num_rows * part // blocks for part in range(1, blocks + 1)}
            return table_groups(table, sorted(ends - {0}))

        return self._new(f"join({join_type!r}, on={keys!r})", (self, ds), make, lambda: False)

    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        strict: bool = False,
        shuffle: bool = False,
        keys: Sequence[str] | None = None,
        sort: bool = False,
    ) -> Dataset:
        """The same rows in other blocks.

        Blocks are cut, never joined, and the rows keep their order, except as said below.

        Args:
            num_blocks: about how many blocks.
            target_num_rows_per_block: instead: the largest number of rows in a block.
            strict: every block but the last has exactly that many rows; holds them in memory.
            shuffle: also shuffle the rows.
            keys: rows with equal values in these columns are in one of ``num_blocks`` blocks; holds
                all rows in memory.
            sort: with ``keys``: sort the rows of each block by them. They always are.
        """
        if keys is not None:
            return self._by_keys(num_blocks, list(keys))
        if (num_blocks is None) == (target_num_rows_per_block is None):
            raise ValueError("repartition(): give either num_blocks or target_num_rows_per_block.")
        given = num_blocks if target_num_rows_per_block is None else target_num_rows_per_block
        number = check_int(f"repartition({given!r})", given, 1)

        def change(groups: list[Group]) -> list[Group]:
            size = number
            if num_blocks is not None:
                size = max(1, -(-total_rows(groups) // number))
            return [replace(group, units=_resized(group.units, size)) for group in groups]

        def joined() -> list[Group]:
            table = to_one_table(self)
            size = number
            if num_blocks is not None:
                size = max(1, -(-table.num_rows // number))
            return source_groups(MemorySource(table, size))

        if strict:
            resized = self._new(f"repartition({given})", (self,), joined, lambda: False)
        else:
            resized = self._derive_counted(f"repartition({given})", change)
        return resized.random_shuffle() if shuffle else resized

    def _by_keys(self, num_blocks: int | None, keys: list[str]) -> Dataset:
        number = check_int(f"repartition({num_blocks!r}, keys={keys!r})", num_blocks, 1)

        def make() -> list[Group]:
            table = to_one_table(self)
            check_columns(keys, table.column_names, "repartition")
            table, ends = sorted_groups(table, keys)
            # Neighbouring groups share a block, so that all blocks are about equally large.
            bounds = [table.num_rows * part // number for part in range(1, number)]
            chosen = {min((end for end in ends if end >= bound), default=0) for bound in bounds}
            return table_groups(table, sorted({*chosen, table.num_rows} - {0}))

        return self._new(f"repartition({number}, keys={keys})", (self,), make, lambda: False)

    def random_shuffle(
        self,
        *,
        seed: int | RandomSeedConfig | None = None,
        window: int | str | None = "auto",
        num_blocks: int | None = None,
        **hints: Any,
    ) -> Dataset:
        """The rows in a random order, a different order in each epoch.

        The order follows from the seed, the epoch and the rows' positions: it is the same on any
        machine.

        Args:
            seed: None draws a seed when this method is called.
            window: how far rows travel. ``"full"`` (or None): a permutation of all rows; each
                worker reads all blocks and holds its part of the rows in memory. A number: the
                blocks (row groups) are reordered, then cut into windows of about that many rows,
                and the rows of each window are permuted; memory holds one window. ``"auto"``: full
                for data in memory; for files, windows of two blocks and at least 16 MB (one block
                where a block is more than 256 MB).
            num_blocks: call ``repartition(num_blocks)`` first.
            hints: for Ray's scheduler (``num_cpus``, …); accepted and ignored.
        """
        check_hints("random_shuffle", hints)
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
        dataset = self if num_blocks is None else self.repartition(num_blocks)
        seed = plain_seed("random_shuffle", seed)
        number = _seed("random_shuffle", seed)
        return dataset._shuffled("random_shuffle", number, rows, True, seed is None)

    def randomize_block_order(self, *, seed: int | RandomSeedConfig | None = None) -> Dataset:
        """The blocks in a random order, a different one in each epoch; rows stay in their block."""
        seed = plain_seed("randomize_block_order", seed)
        number = _seed("randomize_block_order", seed)
        return self._shuffled("randomize_block_order", number, None, False, seed is None)

    def _shuffled(
        self, doing: str, seed: int, window: int | None, rows: bool, drawn: bool
    ) -> Dataset:
        shuffle = EpochShuffle(seed, window, rows, drawn)
        return self._derive(
            f"{doing}({'' if drawn else f'seed={seed}'})",
            lambda groups: [Group([u for g in groups for u in g.units], shuffle)],
        )

    def random_sample(
        self, fraction: float, *, seed: int | RandomSeedConfig | None = None
    ) -> Dataset:
        """About that fraction of the rows, chosen at random; the same rows in each epoch."""
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise ValueError(f"random_sample({fraction!r}): give a fraction from 0 to 1.")
        key = key_of(_seed("random_sample", getattr(seed, "seed", seed)))
        return self._derive_counted(
            f"random_sample({fraction})",
            lambda groups: _sampled(groups, key, 0, int(fraction * 2**64)),
        )

    def train_test_split(
        self,
        test_size: int | float,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        stratify: str | None = None,
    ) -> tuple[Dataset, Dataset]:
        """Two datasets: one to train on, one to test on.

        Args:
            test_size: the fraction of rows to test on, or their number.
            shuffle: choose the test rows at random (their number stays exact) and shuffle both
                datasets; otherwise the last rows are the test rows.
            seed: of the choice and of the shuffle.
            stratify: a column whose values are equally frequent in both datasets, as far as the
                number of rows allows; reads the column now.
        """
        total = self._check_test_size(test_size)
        test_rows = int(total * test_size) if isinstance(test_size, float) else test_size
        text = f"train_test_split({test_size})"
        if stratify is not None:
            return self._stratified(text, test_rows, stratify, shuffle, seed)
        if not shuffle:
            bounds = (0, total - test_rows, total)
            train, test = (self._slice(text, start, stop) for start, stop in pairwise(bounds))
            return train, test
        drawn = seed is None
        seed = _seed("train_test_split", seed)
        key = key_of(seed)
        # The rows with the smallest hashes are the test rows: no list of them is needed.
        # Hashes differ for all rows (see hash_range), so exactly test_rows are below the bound.
        bound = _order_statistic(key, total, test_rows)
        test = self._derive_counted(text, lambda groups: _sampled(groups, key, 0, bound))
        train = self._derive_counted(text, lambda groups: _sampled(groups, key, bound, 1 << 64))
        train, test = (
            part._shuffled("random_shuffle", seed, None, True, drawn) for part in (train, test)
        )
        return train, test

    def _stratified(
        self, text: str, test_rows: int, column: str, shuffle: bool, seed: int | None
    ) -> tuple[Dataset, Dataset]:
        drawn = seed is None
        number = _seed("train_test_split", seed)
        rows = to_one_table(self)
        check_columns([column], rows.column_names, "train_test_split")
        chosen = _stratified_rows(rows[column], test_rows, key_of(number) if shuffle else None)
        parts = [
            self._new(text, (self,), partial(table_groups, rows.filter(mask)), lambda: True)
            for mask in chosen
        ]
        if shuffle:
            parts = [p._shuffled("random_shuffle", number, None, True, drawn) for p in parts]
        return parts[0], parts[1]

    def streaming_train_test_split(
        self,
        test_size: float,
        *,
        split_type: str = "random",
        hash_column: str | None = None,
        seed: int | None = None,
        **hints: Any,
    ) -> tuple[Dataset, Dataset]:
        """Two datasets of about these sizes: each row is assigned by a hash.

        Args:
            test_size: the fraction of rows to test on.
            split_type: ``"random"``: a hash of the row's place and the seed; ``"hash"``: of its
                value in ``hash_column``, so that a row stays where it is when others are added.
            hash_column: the column.
            seed: of the random choice.
            hints: for Ray's scheduler; accepted and ignored.
        """
        check_hints("streaming_train_test_split", hints)
        if not isinstance(test_size, float) or not 0 < test_size < 1:
            raise ValueError(
                f"streaming_train_test_split({test_size!r}): give a fraction between 0 and 1."
            )
        if split_type not in ("random", "hash") or (split_type == "hash") != bool(hash_column):
            raise ValueError(
                f"streaming_train_test_split(split_type={split_type!r}, "
                f"hash_column={hash_column!r}): give 'random', or 'hash' with a hash_column."
            )
        bound = int(test_size * 2**64)
        parts = ((bound, 1 << 64), (0, bound))
        text = f"streaming_train_test_split({test_size})"
        if hash_column is not None:
            train, test = (
                self._with_operation(SampleByValue(hash_column, low, high)) for low, high in parts
            )
            return train, test
        key = key_of(_seed("streaming_train_test_split", seed))
        train, test = (
            self._derive_counted(text, partial(_sampled, key=key, low=low, high=high))
            for low, high in parts
        )
        return train, test

    def _check_test_size(self, test_size: int | float) -> int:
        """The number of rows of the dataset, after a check that ``test_size`` fits."""
        if not is_number(test_size):
            raise TypeError(
                f"train_test_split({test_size!r}): give a fraction or a number of rows."
            )
        if isinstance(test_size, float) and not 0 < test_size < 1:
            raise ValueError(f"train_test_split({test_size}): give a fraction between 0 and 1.")
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
        """``n`` datasets; ``equal`` drops rows that do not divide. Ignores ``locality_hints``."""
        n = check_int(f"split({n!r})", n, 1)
        total = total_rows(self._counted())
        if equal:
            total -= total % n
        bounds = [total * part // n for part in range(n + 1)]
        return [self._slice(f"split({n})", start, stop) for start, stop in pairwise(bounds)]

    def split_at_indices(self, indices: Sequence[int]) -> list[Dataset]:
        """Cut before each of these positions; returns one dataset more than there are positions."""
        positions = list(indices)
        if not positions or positions != sorted(positions) or positions[0] < 0:
            raise ValueError(
                f"split_at_indices({indices!r}): give positions, 0 or more, in ascending order."
            )
        total = total_rows(self._counted())
        bounds = [0, *(min(position, total) for position in positions), total]
        text = f"split_at_indices({positions})"
        return [self._slice(text, start, stop) for start, stop in pairwise(bounds)]

    def split_proportionately(self, proportions: Sequence[float]) -> list[Dataset]:
        """A dataset for each of these fractions of the rows, and one with the remaining rows."""
        fractions = list(proportions)
        if not fractions or min(fractions) <= 0 or sum(fractions) >= 1:
            raise ValueError(
                f"split_proportionately({proportions!r}): give fractions above 0 that sum up to "
                "less than 1."
            )
        total = total_rows(self._counted())
        return self.split_at_indices([int(total * end) for end in accumulate(fractions)])

    def _slice(self, text: str, start: int, stop: int) -> Dataset:
        """Rows ``start`` to ``stop``, one of the datasets that a call returned."""
        text = f"{text}: rows {start} to {stop}"
        return self._derive_counted(text, lambda groups: _slice_groups(groups, start, stop))


def _check_datasets(doing: str, given: Sequence[Any]) -> None:
    for value in given:
        if not isinstance(value, DatasetBase):
            raise TypeError(f"{doing}({value!r}): give datasets.")


def _names(given: str, names: Any) -> list[str]:
    """One or several names of columns as a list; ``given`` begins the message of the error."""
    found = [names] if isinstance(names, str) else names
    if not isinstance(found, Sequence) or not all(isinstance(name, str) for name in found):
        raise TypeError(f"{given}{names!r}): give the name of a column, or a list of names.")
    return list(found)


def _seed(doing: str, seed: Any) -> int:
    number = check_seed(doing, seed)
    return draw_seed() if number is None else number


def source_groups(source: Source) -> list[Group]:
    """A source's blocks as the groups of a dataset."""
    # A source without blocks gets an empty one, because a unit is needed to know the columns.
    blocks = source.index() or [Block((), 0, 0)]
    chain: tuple[Operation, ...] = ()
    return [Group([Unit(source, block, chain, rows=block.rows) for block in blocks])]


def table_groups(table: pa.Table, ends: Sequence[int] | None = None) -> list[Group]:
    """A table's blocks as the groups of a dataset; ``ends`` says where each block ends."""
    return source_groups(MemorySource(table, None, ends))


def sorted_groups(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, list[int]]:
    """The rows sorted by key, in their order within a group, and where each group ends."""
    import numpy as np
    import pyarrow as pa

    if not table.num_rows:
        return table, []
    if not keys:
        return table, [table.num_rows]
    place = "__place__"
    order = [(key, "ascending") for key in (*keys, place)]
    numbered = table.select(list(keys)).append_column(place, pa.array(np.arange(table.num_rows)))
    table = table.take(numbered.sort_by(order)[place])
    changes = np.zeros(table.num_rows - 1, dtype=bool)
    for key in keys:
        codes = table[key].combine_chunks().dictionary_encode(null_encoding="encode").indices
        changes |= np.diff(np.asarray(codes)) != 0
    return table, [*(np.flatnonzero(changes) + 1).tolist(), table.num_rows]


def _ends(column: Any, boundaries: list[Any], descending: bool) -> list[int]:
    """Where the blocks end that begin at these values of a sorted column."""
    import pyarrow.compute as pc

    compare = pc.greater_equal if descending else pc.less
    found = {pc.sum(compare(column, bound)).as_py() or 0 for bound in boundaries}
    return sorted({*found, len(column)} - {0})


def to_one_table(dataset: DatasetBase) -> pa.Table:
    """All rows of a dataset, in memory."""
    tables = list(dataset._tables()) or [schema_of(dataset._groups()).empty_table()]
    return concatenated(tables)


def _union(parts: Sequence[list[Group]]) -> list[Group]:
    """The groups of all parts, in order; all get the columns of all, where these are known."""
    alike = _with_same_columns(parts)
    return _join_unshuffled([group for groups in alike for group in groups])


def _with_same_columns(parts: Sequence[list[Group]]) -> Sequence[list[Group]]:
    """The parts that have columns, each with the columns of all, where these are known."""
    found = [(groups, known_schema(groups)) for groups in parts]
    # A part without columns has no rows, so it need not have the columns of the others.
    found = [(groups, schema) for groups, schema in found if schema is None or schema.names]
    parts = [groups for groups, _ in found] or parts[:1]
    schemas = [schema for _, schema in found if schema is not None]
    if schemas and len(schemas) == len(parts):
        union = reduce(unified, schemas)
        parts = [
            groups if schema.equals(union) else with_operation(groups, ConformColumns(union))
            for groups, schema in zip(parts, schemas, strict=True)
        ]
    return parts


def _mixed(parts: Sequence[list[Group]], weights: Sequence[float], shortest: bool) -> list[Group]:
    """The units of all parts, each time one of the part that is furthest behind its weight."""
    if any(group.shuffle is not None for groups in parts for group in groups):
        raise ValueError(
            "mix() of a shuffled dataset: a shuffle chooses the order of its own blocks; call "
            "random_shuffle() on the mixed dataset."
        )
    there = [place for place, groups in enumerate(parts) if total_rows(groups)]
    if not there or (shortest and len(there) < len(parts)):
        return [Group(_empty_like(parts[0]))]
    alike = _with_same_columns([parts[place] for place in there])
    waiting = [deque(unit for group in groups for unit in group.units) for groups in alike]
    given = [0.0] * len(waiting)
    mixed: list[Unit] = []

    def share(place: int) -> float:
        return given[place] / weights[there[place]]

    while all(waiting) if shortest else any(waiting):
        behind = min((place for place, units in enumerate(waiting) if units), key=share)
        unit = waiting[behind].popleft()
        given[behind] += unit.rows or 0
        mixed.append(unit)
    return [Group(mixed)]


def _join_unshuffled(groups: list[Group]) -> list[Group]:
    """Join each run of neighbouring groups that are not shuffled."""
    joined: list[Group] = []
    for group in groups:
        if joined and group.shuffle is None and joined[-1].shuffle is None:
            joined[-1] = replace(group, units=[*joined[-1].units, *group.units])
        else:
            joined.append(group)
    return joined


def _first_rows(dataset: DatasetBase, limit: int) -> list[Group]:
    """The first ``limit`` rows; counts no more units than needed, unless rows are shuffled."""
    from lockstep.data.plan.unit import count_rows

    groups = dataset._groups()
    if any(group.shuffle is not None for group in groups):
        counted = dataset._counted()
        return _slice_groups(counted, 0, min(limit, total_rows(counted)))
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
    return [Group(units or _empty_like(groups))]


def _slice_groups(groups: list[Group], start: int, stop: int) -> list[Group]:
    """Rows ``start`` to ``stop`` of the first epoch."""
    if any(group.shuffle is not None for group in groups):
        # A shuffle changes with the epoch, and a slice may not: so its rows are kept in memory.
        return table_groups(_read_rows(groups, start, stop))
    units = [unit for group in groups for unit in group.units]
    ends = list(accumulate(unit.rows or 0 for unit in units))
    found: list[Unit] = []
    for place in range(bisect_right(ends, start), len(units)):
        unit, begin = units[place], ends[place] - (units[place].rows or 0)
        if begin >= stop:
            break
        if start < ends[place]:
            found.append(unit.part(max(start - begin, 0), min(stop, ends[place]) - begin))
    return [Group(found or _empty_like(groups))]


def _empty_like(groups: list[Group]) -> list[Unit]:
    """A unit with the same columns and no rows."""
    first = next((unit for group in groups for unit in group.units), None)
    if first is None:
        return []
    return [replace(first, block=replace(first.block, rows=0), start=0, stop=0, rows=0)]


def _stratified_rows(column: Any, test_rows: int, key: int | None) -> tuple[Any, Any]:
    """Masks of the rows to train on and to test on; the latter are each value's last, or random."""
    import numpy as np
    import pyarrow as pa

    codes = column.combine_chunks().dictionary_encode(null_encoding="encode").indices
    codes = np.asarray(codes)
    order = np.argsort(codes, kind="stable")
    if key is not None:
        order = np.lexsort((hash_range(key, 0, len(codes)), codes))
    counts = np.bincount(codes)
    shares = counts * test_rows / max(len(codes), 1)
    taken = np.floor(shares).astype(np.int64)
    # The rows that are left go to the values that lost most by rounding down.
    for code in np.argsort(taken - shares, kind="stable")[: test_rows - taken.sum()]:
        taken[code] += 1
    test = np.zeros(len(codes), dtype=bool)
    for end, number in zip(np.cumsum(counts), taken, strict=True):
        test[order[end - number : end]] = True
    return pa.array(~test), pa.array(test)


def _read_rows(groups: list[Group], start: int, stop: int) -> pa.Table:
    import numpy as np

    interval = np.array([[start, stop]], dtype=np.int64)
    pieces = read_windows(windows_of(groups, 0), interval, Reader())
    tables = [piece.table for piece in pieces] or [schema_of(groups).empty_table()]
    return concatenated(tables)


def _resized(units: Sequence[Unit], size: int) -> list[Unit]:
    """Parts of at most ``size`` rows; no part spans two blocks."""
    parts = []
    for unit in units:
        rows = unit.rows or 0
        pieces = max(1, -(-rows // size))
        bounds = [rows * piece // pieces for piece in range(pieces + 1)]
        parts += [unit.part(a, b) for a, b in pairwise(bounds)]
    return parts


def _sampled(groups: list[Group], key: int, low: int, high: int) -> list[Group]:
    """The rows whose hash is from ``low`` to below ``high``; their numbers are known."""
    offset = 0
    found = []
    for group in groups:
        units: list[Unit] = []
        for unit in group.units:
            # The offset makes the choice depend on a row's position, not on how files are cut in
            # blocks.
            sample = Sample(key, offset, low, high)
            offset += unit.rows or 0
            rows = int(sample.mask(unit.rows or 0).sum())
            if not rows:
                continue
            # Sample before the other operations where the result is the same: less work for them.
            chain = (sample, *unit.operations) if unit.keeps_rows else (*unit.operations, sample)
            units.append(replace(unit, operations=chain, rows=rows, exact=True))
        found.append(replace(group, units=units or _empty_like([group])))
    return found


def _order_statistic(key: int, total: int, rank: int) -> int:
    """The hash with exactly ``rank`` of the rows' hashes below it."""
    import numpy as np

    hashes = hash_range(key, 0, total)
    return int(np.partition(hashes, rank)[rank]) if rank < total else 1 << 64
