"""One worker's shards of the trainer's datasets; ``train/datasets.py`` plans them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.train.protocol import DataReport, Stream
from lockstep.train.streams import open_stream

if TYPE_CHECKING:
    from lockstep.data import DataShard

__all__ = ["Shards"]


class Shards:
    """One worker's shards of the trainer's datasets.

    Args:
        plans: dataset → its pickled plan.
        rank, world_size: which worker this is.
        positions: dataset → where to resume; None: at the beginning.
        device: returns this worker's device, for ``iter_torch_batches(device="auto")``.
        streams: the datasets that are divided again for each attempt; their plans are empty.
    """

    def __init__(
        self,
        plans: Mapping[str, bytes],
        rank: int,
        world_size: int,
        positions: Mapping[str, Any] | None,
        device: Callable[[], Any] | None = None,
        streams: Mapping[str, Stream] | None = None,
    ) -> None:
        self._plans = plans
        self._rank = rank
        self._world_size = world_size
        self._positions = self.first = {} if positions is None else positions
        self._device = device
        self._shards: dict[str, DataShard] = {}
        self._streams = streams or {}
        self._planned = [name for name, plan in plans.items() if plan]
        self._opened: dict[str, Any] = {}
        self._waited_s = 0.0

    def get(self, name: str | None) -> Any:
        """This rank's part of a dataset; the same object every time. Of a stream, it is Ray's.

        Raises:
            KeyError: there is no such dataset; lists those there are.
        """
        if name is None and len(self._plans) == 1:
            (name,) = self._plans
        if name is None or (name not in self._plans and name not in self._streams):
            there = ", ".join(map(repr, self._plans)) or "none"
            raise KeyError(
                f"get_dataset_shard({name!r}): the trainer's datasets are {there}; "
                "give it to the trainer in datasets={…}"
            )
        if name in self._streams:
            if name not in self._opened:
                self._opened[name] = opened = open_stream(self._streams[name])
                if hasattr(opened, "auto_device"):
                    opened.auto_device = self._device
            return self._opened[name]
        if name not in self._planned:
            there = ", ".join(map(repr, self._streams)) or "none"
            raise KeyError(
                f"get_dataset_shard({name!r}): DataConfig.configure() gave rank {self._rank} "
                f"{there}; let it return an iterator of {name!r} for this rank."
            )
        if name not in self._shards:
            plan, split = pickle.loads(self._plans[name])
            # A dataset that is not split is complete on every rank: each is rank 0 of 1 there.
            rank, size = (self._rank, self._world_size) if split else (0, 1)
            shard = plan.resized(size).shard(rank, self._positions.get(name))
            shard.auto_device = self._device
            self._shards[name] = shard
        return self._shards[name]

    def start_at(self, positions: Mapping[str, Any] | None) -> None:
        """Resume elsewhere, also with the shards that the function has already."""
        positions = {} if positions is None else positions
        if positions is self._positions:
            return
        self._positions = positions
        for name, shard in list(self._shards.items()):
            del self._shards[name]
            # The function may hold the object: it becomes the new one.
            shard.__dict__.update(self.get(name).__dict__)
            self._shards[name] = shard

    def rows_read(self, *, begin: bool = False) -> dict[str, int]:
        """How many rows of each dataset this rank has read in the current epoch.

        ``begin``: also of those that were not asked for yet.
        """
        for name in self._planned if begin else ():
            self.get(name)
        return {name: shard.state_dict()["consumed"] or 0 for name, shard in self._shards.items()}

    def progress(self, seconds: float) -> DataReport:
        """Every dataset's position, and the share of these ``seconds`` waited for batches."""
        if len(self._shards) < len(self._planned):
            # Other ranks may have used such a dataset. Their positions can be merged only with
            # this rank's, also if this rank has read nothing.
            for name in self._planned:
                self.get(name)
        positions, waited = {}, 0.0
        for name, shard in self._shards.items():
            positions[name] = shard.state_dict()
            waited += shard.stats().lost_s
        since = waited - self._waited_s
        share = since / seconds if seconds > 0 else 0.0
        self._waited_s = waited
        # Rounded, because it is written to the journal with every report.
        return DataReport(positions, round(min(max(share, 0.0), 1.0), 4), since)
