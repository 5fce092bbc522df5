"""Which rows are a rank's, and which rows of an epoch are left: pure functions of a few integers.

An epoch is a sequence of positions, 0 to the number of rows. Three terms describe progress in it:

- A *base* is the part of an epoch that a group of workers reads: all of it, or the rest that an
  interrupted group left.
- A *cut* divides a base among ranks.
- A *state* holds the epoch, the base, the cut and the number of rows each rank has consumed.

A base is stored as the state whose rest it is (None: the complete epoch). So states nest, and a run
may be interrupted and resized any number of times within an epoch:

    epoch     0 1 2 3 4 5 6 7 8 9         base None, cut among 2 ranks: 0-4 and 5-9
    consumed  x x . . . x . . . .         rank 0 had two rows, rank 1 one
    base          2 3 4   6 7 8 9         the rest, cut among 3 ranks: 2-4, 6-7 and 8-9
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.data.plan.hashing import key_of, permutation

if TYPE_CHECKING:
    import numpy as np

    from lockstep.data.plan.order import Intervals

__all__ = [
    "Cut",
    "LocalShuffle",
    "check_state",
    "joined",
    "length",
    "merge_states",
    "rest_of",
    "untouched",
    "within",
]


@dataclass(frozen=True)
class Cut:
    """How a base is divided among ranks.

    Attributes:
        world_size: the number of ranks.
        equal: every rank gets the same number of rows (local) or batches (global), and the
            remainder is dropped. Otherwise every row belongs to a rank.
        order: ``"local"``: a rank's rows are consecutive. ``"global"``: the ranks share each batch
            of ``batch_size`` rows.
        batch_size: the rows of a global batch.
    """

    world_size: int
    equal: bool
    order: str
    batch_size: int | None = None

    def own(self, rank: int, rows: int) -> Intervals:
        """A rank's positions in a base of ``rows`` rows."""
        import numpy as np

        size = self.world_size
        if self.order == "local":
            # Ranks with one batch more would wait for ever in a collective that the others never
            # enter.
            shared = rows - rows % size if self.equal else rows
            starts, lengths = np.zeros(1, dtype=np.int64), np.array([shared], dtype=np.int64)
        else:
            batch = self.global_batch
            starts = np.arange(0, rows, batch, dtype=np.int64)
            lengths = np.minimum(batch, rows - starts)
            # A last batch with fewer rows than ranks would leave some ranks a batch short.
            if self.equal and len(lengths) and lengths[-1] < size:
                starts, lengths = starts[:-1], lengths[:-1]
        begin = starts + _share_before(rank, lengths, size)
        return np.stack([begin, starts + _share_before(rank + 1, lengths, size)], axis=1)

    @property
    def global_batch(self) -> int:
        """The rows of a global batch; one for each rank where no batch size is known."""
        return self.batch_size or self.world_size

    def batch_of(self, rank: int) -> int:
        """The number of rows of a global batch that a rank gets."""
        size, batch = self.world_size, self.global_batch
        return int(_share_before(rank + 1, batch, size) - _share_before(rank, batch, size))


def _share_before(rank: int, rows: Any, size: int) -> Any:
    """The number of rows that the ranks below ``rank`` get.

    If the rows do not divide evenly, the first ranks get one more. So a rank's part of a smaller
    batch is never larger than its part of a full one.
    """
    import numpy as np

    return rank * (rows // size) + np.minimum(rank, rows % size)


@dataclass(frozen=True)
class LocalShuffle:
    """A shuffle within a rank: every ``size`` consecutive rows of its own are permuted."""

    size: int
    seed: int

    def order(self, epoch: int, rank: int, window: int, rows: int) -> np.ndarray[Any, Any]:
        """The order of the rows in one such window."""
        return permutation(key_of(self.seed, epoch, rank, window), rows)


def rest_of(state: Mapping[str, Any] | None, rows: int) -> Intervals:
    """The positions of an epoch of ``rows`` rows that a merged state leaves; None is all."""
    import numpy as np

    if state is None:
        return np.array([[0, rows]], dtype=np.int64)
    # The states nest, so this recurses to the complete epoch and cuts again on the way back.
    base = rest_of(state["base"], rows)
    total = length(base)
    cut = Cut(**state["cut"])
    read = []
    for rank, entry in enumerate(state["ranks"]):
        if entry is None:
            raise ValueError(
                f"The position of rank {rank} is not known, and it is needed to resume with "
                "another number of workers; merge the states of all ranks with merge_states()."
            )
        # Positions in the base, which `within` translates to positions in the epoch at the end.
        read.append(_read_by(cut, rank, entry, int(state["epoch"]), total))
    return within(base, _without(np.concatenate(read), total))


def _read_by(cut: Cut, rank: int, entry: Mapping[str, Any], epoch: int, total: int) -> Intervals:
    """The positions in the base that a rank has consumed."""
    import numpy as np

    own = cut.own(rank, total)
    consumed = entry["consumed"]
    local = entry["local_shuffle"]
    if consumed is None:  # the rank has finished the epoch
        return own
    if local is None:
        return _first(own, consumed)
    # All windows before the current one are consumed. In the current one the rows consumed are
    # spread, since they came in the shuffled order: they become intervals of one row each.
    shuffle = LocalShuffle(*local)
    window = consumed // shuffle.size
    begin = window * shuffle.size
    order = shuffle.order(epoch, rank, window, min(shuffle.size, length(own) - begin))
    single = np.sort(order[: consumed - begin]) + begin
    pairs = np.stack([single, single + 1], axis=1)
    return np.concatenate([_first(own, begin), within(own, pairs)])


def _first(intervals: Intervals, rows: int) -> Intervals:
    """The first rows of some intervals."""
    import numpy as np

    return within(intervals, np.array([[0, rows]], dtype=np.int64))


def within(outer: Intervals, inner: Intervals) -> Intervals:
    """Translate ``inner`` to the positions of ``outer``.

    ``inner`` numbers the rows in ``outer`` consecutively from 0: in ``[[5, 8], [20, 30]]`` the rows
    ``[[2, 4]]`` are ``[[7, 8], [20, 21]]``.
    """
    import numpy as np

    lengths = outer[:, 1] - outer[:, 0]
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    inner = np.clip(inner, 0, total)
    inner = inner[inner[:, 0] < inner[:, 1]]
    if not len(inner):
        return np.empty((0, 2), dtype=np.int64)
    # By far the most frequent case: an epoch that was never interrupted.
    if len(outer) == 1:
        return inner + int(outer[0, 0])
    # Each inner interval covers the outer intervals first to last; cut it at their bounds.
    first = np.searchsorted(ends, inner[:, 0], side="right")
    last = np.searchsorted(ends, inner[:, 1], side="left")
    counts = last - first + 1
    # Piece i is a part of inner interval which[i], inside outer interval piece[i].
    which = np.repeat(np.arange(len(inner)), counts)
    begins = np.cumsum(counts) - counts
    piece = np.repeat(first, counts) + np.arange(int(counts.sum())) - np.repeat(begins, counts)
    low = np.maximum(inner[which, 0], ends[piece] - lengths[piece])
    high = np.minimum(inner[which, 1], ends[piece])
    shift = outer[piece, 0] - (ends[piece] - lengths[piece])
    found = np.stack([low + shift, high + shift], axis=1)
    # An interval that ends at a bound has an empty part behind it.
    return found[found[:, 0] < found[:, 1]]


def joined(intervals: Intervals) -> Intervals:
    """The intervals with those that touch joined."""
    import numpy as np

    if len(intervals) < 2:
        return intervals
    apart = intervals[1:, 0] != intervals[:-1, 1]
    starts = intervals[np.concatenate([[True], apart]), 0]
    stops = intervals[np.concatenate([apart, [True]]), 1]
    return np.stack([starts, stops], axis=1)


def _without(intervals: Intervals, total: int) -> Intervals:
    """The complement in ``0…total``; the intervals may touch but not overlap."""
    import numpy as np

    intervals = intervals[intervals[:, 0] < intervals[:, 1]]
    # Ranks' intervals are interleaved where the order is global.
    intervals = intervals[np.argsort(intervals[:, 0], kind="stable")]
    starts = np.concatenate([[0], intervals[:, 1]])
    stops = np.concatenate([intervals[:, 0], [total]])
    left = np.stack([starts, stops], axis=1).astype(np.int64)
    return left[left[:, 0] < left[:, 1]]


def merge_states(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state from the states of all ranks, taken at the same moment.

    The result, a dict that JSON can hold, can be given to ``ShardPlan.shard`` and
    ``load_state_dict``, for any number of workers. All ranks resume in the earliest epoch that a
    rank is in the middle of; ranks past it have consumed their part. A rank at the beginning of an
    earlier epoch (it iterated less often) joins the others.

    Raises:
        ValueError: these are not the states of all ranks of one group.
    """
    if not states:
        raise ValueError("merge_states() got no states; give those of all ranks.")
    if any("rank" not in state for state in states):
        raise ValueError("merge_states() got a merged state; give what state_dict() returned.")
    first = _first_unfinished(states)
    size = first["cut"]["world_size"]
    ranks: list[dict[str, Any] | None] = [None] * size
    batch = None
    for state in states:
        rank = state["rank"]
        if state["cut"]["world_size"] != size or ranks[rank] is not None:
            raise ValueError(
                f"merge_states() got {len(states)} states that are not one each of {size} ranks; "
                "give the states of all ranks of one group."
            )
        if state["epoch"] == first["epoch"]:
            # A rank that has not begun the epoch does not know the batch size; any other does.
            batch = batch or state["cut"]["batch_size"]
            if state["base"] != first["base"]:
                raise ValueError(
                    f"Ranks {first['rank']} and {rank} do not agree on what was left of epoch "
                    f"{first['epoch']}; merge states that were taken at the same moment."
                )
        # A rank in a later epoch has finished this one (None); one in an earlier has not begun.
        later = state["epoch"] - first["epoch"]
        consumed = state["consumed"] if later == 0 else None if later > 0 else 0
        ranks[rank] = {"consumed": consumed, "local_shuffle": state["local_shuffle"]}
    if None in ranks:
        raise ValueError(
            f"merge_states() got the states of {len(states)} of {size} ranks; give all of them."
        )
    shared = {key: first[key] for key in ("version", "epoch", "rows", "seeds", "base")}
    return {**shared, "cut": {**first["cut"], "batch_size": batch}, "ranks": ranks}


def _first_unfinished(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The state of a rank in the earliest epoch that is begun and not finished, or the latest."""
    begun = [state for state in states if state["consumed"] != 0 or state["base"] is not None]
    latest = max(states, key=lambda state: int(state["epoch"]))
    earliest = min(begun, key=lambda state: int(state["epoch"]), default=latest)
    return earliest if earliest["epoch"] < latest["epoch"] else latest


def check_state(state: Mapping[str, Any], rows: int, name: str) -> None:
    """Check that a state belongs to a dataset of ``rows`` rows.

    Raises:
        ValueError: it does not, and part of the epoch was consumed already.
    """
    if state.get("version") != 1 or "cut" not in state:
        raise ValueError(f"{state!r} is not the state of a dataset; give what state_dict() gave.")
    # Between epochs no row has a meaning yet, so the data may change there.
    begun = state["base"] is not None or not untouched(state)
    if state["rows"] != rows and begun:
        raise ValueError(
            f"{name} has {rows} rows, but was left in the middle of an epoch of {state['rows']}; "
            "restore with the same data, or begin a new epoch."
        )


def untouched(state: Mapping[str, Any]) -> bool:
    """Whether it is known that no rank has consumed a row of a merged state's base."""
    return all(entry is not None and entry["consumed"] == 0 for entry in state.get("ranks", [None]))


def length(intervals: Intervals) -> int:
    """The number of positions in some intervals."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())
