"""A worker's place among all workers."""

from __future__ import annotations

from lockstep.engine.base import WorkerInfo
from lockstep.train.context import Ranks, ranks_by_machine


def test_ranks_of_machines() -> None:
    nodes = ["b", "b", "a", "b"]
    workers = [WorkerInfo(rank, 1, "host", "10.0.0.1", 1, node) for rank, node in enumerate(nodes)]
    assert ranks_by_machine(workers) == [
        {0: Ranks(0, 4, 0, 3, 0), 1: Ranks(1, 4, 1, 3, 0), 3: Ranks(3, 4, 2, 3, 0)},
        {2: Ranks(2, 4, 0, 1, 1)},
    ]
