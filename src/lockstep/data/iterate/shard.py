"""A worker's part of a dataset: planned in the driver, then cut and read by each rank itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.formats import to_pandas
from lockstep.data.arrow.unify import concatenated
from lockstep.data.iterate.batching import locally_shuffled, skipped
from lockstep.data.iterate.iterator import DataIterator, Pass, Request
from lockstep.data.plan.hashing import draw_seed
from lockstep.data.plan.order import (
    Group,
    new_meter,
    read_windows,
    reseeded,
    total_rows,
    windows_of,
)
from lockstep.data.plan.position import (
    Cut,
    LocalShuffle,
    check_state,
    joined,
    length,
    merge_states,
    rest_of,
    untouched,
    within,
)
from lockstep.data.plan.schema import inferred_schema
from lockstep.data.plan.unit import Piece
from lockstep.data.schema import Schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from lockstep.data.dataset import Dataset

__all__ = ["DataShard", "ShardPlan", "merge_states"]


@dataclass(frozen=True)
class ShardPlan:
    """Everything a rank needs to find its rows: the dataset's index, counted. Picklable and small.

    Attributes:
        groups: the units, all counted.
        cut: how the rows are divided.
        columns: the schema, None if it is not known without reading.
        name: of the dataset, for errors.
        in_memory: makes a dataset of a table. This layer cannot import ``Dataset``.
    """

    groups: Sequence[Group]
    cut: Cut
    columns: Any
    name: str = "The dataset"
    in_memory: Callable[[pa.Table], Dataset] = field(kw_only=True)

    @property
    def rows(self) -> int:
        """The number of rows of the dataset."""
        return total_rows(self.groups)

    def shard(self, rank: int, state: Mapping[str, Any] | None = None) -> DataShard:
        """The part of one rank.

        Args:
            rank: 0 to ``world_size`` - 1.
            state: where to resume: a result of ``merge_states``, for any number of workers, or
                this rank's own ``state_dict()``.

        Raises:
            ValueError: the state does not belong to this dataset.
        """
        shard = DataShard(self, rank)
        if state is not None:
            shard.load_state_dict(state)
        return shard

    def resized(self, world_size: int) -> ShardPlan:
        """The same plan for another number of workers."""
        return replace(self, cut=replace(self.cut, world_size=world_size))


class DataShard(DataIterator):
    """The rows of one worker. Each iteration is an epoch; ``state_dict()`` is the position."""

    def __init__(self, plan: ShardPlan, rank: int) -> None:
        super().__init__()
        if not 0 <= rank < plan.cut.world_size:
            raise ValueError(f"rank={rank} is not one of {plan.cut.world_size} workers.")
        self._plan = plan
        self._rank = rank
        self._groups = list(plan.groups)
        self._rows = plan.rows
        self._epoch = 0
        # A state that was loaded; the next pass resumes there. The pass begun last.
        self._saved: dict[str, Any] | None = None
        self._pass: Pass | None = None

    def _begin(self, request: Request) -> Pass:
        cut = self._plan.cut
        size = request.batch_size
        if cut.order == "global":
            cut, size = self._global_cut(request)
        epoch, base, consumed = self._epoch, None, 0
        seed = request.shuffle_seed
        if self._saved is not None:
            base, consumed, seed = self._resume(self._saved, cut, request)
        local = None
        if request.shuffle_size is not None:
            local = LocalShuffle(request.shuffle_size, draw_seed() if seed is None else seed)
        current = Pass(
            pieces=lambda: iter(()),
            size=size,
            stats=self._stats,
            epoch=epoch,
            base=base,
            batch_size=cut.batch_size,
            full_batches=request.drop_last and cut.order == "global",
            local_shuffle=local,
            consumed=consumed,
            meter=new_meter(self._groups),
        )
        # Set afterwards, because each of the two needs the other.
        current.pieces = _Pieces(self._groups, cut, self._rank, self._rows, current)
        # Counted at the start: an iteration that is left with `break` has used its epoch up.
        self._pass, self._saved, self._epoch = current, None, epoch + 1
        return current

    def _global_cut(self, request: Request) -> tuple[Cut, int]:
        cut = replace(self._plan.cut, batch_size=request.batch_size)
        if request.batch_size is None:
            raise ValueError('batch_size=None needs order="local"; give the rows of a batch.')
        if request.single_rows:  # a global batch is one row for each rank
            cut = replace(cut, batch_size=cut.world_size)
        elif request.batch_size < cut.world_size:
            raise ValueError(
                f"batch_size={request.batch_size} counts the rows of all {cut.world_size} workers "
                'together with order="global"; give at least one for each.'
            )
        return cut, cut.batch_of(self._rank)

    def _resume(
        self, saved: dict[str, Any], cut: Cut, request: Request
    ) -> tuple[Mapping[str, Any] | None, int, int | None]:
        """The base to read, the rows of it this rank has consumed, and its local shuffle's seed.

        If ranks are cut as before, each continues its own part of the old base. Otherwise the rest
        of the old base is the new base, cut again. All ranks must decide alike, so the decision
        depends on the merged state and never on this rank's own entry.
        """
        seed = request.shuffle_seed
        if _same_cut(saved, cut) and _same_local_shuffle(saved, request):
            entry = saved["ranks"][self._rank]
            consumed = entry["consumed"]
            if consumed is None:  # this rank has finished the epoch that others are still in
                consumed = length(cut.own(self._rank, length(rest_of(saved["base"], self._rows))))
            elif consumed and entry["local_shuffle"]:
                seed = entry["local_shuffle"][1]  # an epoch keeps the order it was begun with
            return saved["base"], consumed, seed
        # A state without progress would only nest deeper at every restart.
        return saved["base"] if untouched(saved) else saved, 0, seed

    def state_dict(self) -> dict[str, Any]:
        """This rank's position, as a few integers that JSON can hold.

        Rows handed out by the iteration begun last count as consumed. An iteration that ended, or
        was left with ``break``, is a finished epoch.
        """
        current = self._pass
        if current is None or current.ended:
            if self._saved is not None:
                return self._loaded_state(self._saved)
            return self._state(self._epoch, None, 0, None, None)
        shuffle = current.local_shuffle
        return self._state(
            current.epoch,
            current.base,
            current.consumed,
            None if shuffle is None else [shuffle.size, shuffle.seed],
            current.batch_size,
        )

    def _loaded_state(self, saved: dict[str, Any]) -> dict[str, Any]:
        """This rank's position in a state that was loaded and not resumed yet."""
        if _same_cut(saved, replace(self._plan.cut, batch_size=saved["cut"]["batch_size"])):
            entry = saved["ranks"][self._rank]
            return self._state(
                saved["epoch"],
                saved["base"],
                entry["consumed"],
                entry["local_shuffle"],
                saved["cut"]["batch_size"],
            )
        base = saved["base"] if untouched(saved) else saved
        return self._state(saved["epoch"], base, 0, None, None)

    def _state(
        self,
        epoch: int,
        base: Mapping[str, Any] | None,
        consumed: int | None,
        local_shuffle: Sequence[int] | None,
        batch_size: int | None,
    ) -> dict[str, Any]:
        return {
            "version": 1,
            "epoch": epoch,
            "rows": self._rows,
            "seeds": [None if g.shuffle is None else g.shuffle.seed for g in self._groups],
            "cut": asdict(replace(self._plan.cut, batch_size=batch_size)),
            "base": base,
            "rank": self._rank,
            "consumed": consumed,
            "local_shuffle": local_shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state: the next iteration begins there.

        Args:
            state: a result of ``merge_states`` (for any number of workers), or this rank's own.

        Raises:
            ValueError: the state does not belong to this dataset, or is another rank's.
        """
        state = dict(state)
        cut = self._plan.cut
        if "rank" in state:
            if state["rank"] != self._rank or state["cut"]["world_size"] != cut.world_size:
                raise ValueError(
                    f"This is the state of rank {state['rank']} of {state['cut']['world_size']}, "
                    f"and here is rank {self._rank} of {cut.world_size}; merge the states of all "
                    "ranks with merge_states()."
                )
            ranks: list[Any] = [None] * cut.world_size
            # In the form of a merged state, with only this rank's entry known.
            ranks[state.pop("rank")] = {
                key: state.pop(key) for key in ("consumed", "local_shuffle")
            }
            state["ranks"] = ranks
        check_state(state, self._rows, self._plan.name)
        seeds = state["seeds"]
        if len(seeds) != len(self._groups):
            raise ValueError(
                f"{self._plan.name} is a union of {len(self._groups)}, but its state is one of "
                f"{len(seeds)}; restore with the same datasets."
            )
        # A seed that was drawn differs in each process; the epoch continues in its old order.
        self._groups = reseeded(self._groups, seeds)
        self._epoch = state["epoch"]
        self._saved = state
        self._pass = None

    def count(self) -> int:
        """The number of rows this worker gets in a complete epoch."""
        return length(self._plan.cut.own(self._rank, self._rows))

    def schema(self) -> Schema:
        """The columns and their types."""
        known = self._plan.columns
        return Schema(inferred_schema(self._groups) if known is None else known)

    def _epoch_pieces(self) -> Iterator[Piece]:
        """The rows of a complete epoch; the position does not change."""
        separate = Pass(lambda: iter(()), None, self._stats, epoch=self._epoch)
        return _Pieces(self._groups, self._plan.cut, self._rank, self._rows, separate)()

    def to_arrow(self) -> pa.Table:
        """The rows of a complete epoch as a table; the position does not change."""
        tables = [piece.table for piece in self._epoch_pieces()]
        return concatenated(tables) if tables else self.schema().empty_table()

    def to_pandas(self) -> pd.DataFrame:
        """The rows of a complete epoch as a data frame; the position does not change."""
        return to_pandas(self.to_arrow())

    def materialize(self) -> Dataset:
        """The rows of a complete epoch, in memory, as a dataset."""
        return self._plan.in_memory(self.to_arrow())

    @property
    def world_size(self) -> int:
        """The number of workers that share the dataset."""
        return self._plan.cut.world_size

    def __repr__(self) -> str:
        return f"DataShard(rank={self._rank}, world_size={self.world_size}, rows={self.count()})"


def _same_cut(saved: Mapping[str, Any], cut: Cut) -> bool:
    """Whether ranks are cut as in a saved state, so that each can continue its own rows."""
    old = Cut(**saved["cut"])
    # The batch size is not known before the first batch.
    return old == cut or (replace(cut, batch_size=None) == old and untouched(saved))


def _same_local_shuffle(saved: Mapping[str, Any], request: Request) -> bool:
    """Whether every rank that has consumed rows used a local shuffle of the requested size.

    Seeds need not match, since ranks may have different ones: the epoch keeps the old seeds.
    """
    return all(
        entry is None
        or not entry["consumed"]
        or (entry["local_shuffle"] or [None])[0] == request.shuffle_size
        for entry in saved["ranks"]
    )


class _Pieces:
    """Reads the rows of a pass. Holds no reference to the shard, so that the shard can be freed."""

    def __init__(
        self, groups: Sequence[Group], cut: Cut, rank: int, rows: int, current: Pass
    ) -> None:
        self._groups, self._cut, self._rank, self._rows = groups, cut, rank, rows
        self._pass = current
        self._base, self._epoch = current.base, current.epoch
        self._start, self._shuffle = current.consumed, current.local_shuffle
        self._full_batches = current.full_batches

    def __call__(self) -> Iterator[Piece]:
        import numpy as np

        from lockstep.data.iterate.threads import arrow_threads

        base = rest_of(self._base, self._rows)
        own = self._cut.own(self._rank, length(base))
        if self._full_batches:  # decide by the global batch, so that all ranks decide alike
            own = own[: length(base) // self._cut.global_batch]
        start, window = self._start, 0
        if self._shuffle is not None:
            # Read from the beginning of the shuffle's window, then skip the rows consumed.
            window = start // self._shuffle.size
            start = window * self._shuffle.size
        left = within(own, np.array([[start, length(own)]], dtype=np.int64))
        windows = windows_of(self._groups, self._epoch)
        reader = self._pass.begin_reading(arrow_threads() > 1)
        pieces = read_windows(windows, joined(within(base, left)), reader)
        if self._shuffle is None:
            return pieces
        shuffled = locally_shuffled(pieces, self._shuffle, self._epoch, self._rank, window)
        return skipped(shuffled, self._start - start)
