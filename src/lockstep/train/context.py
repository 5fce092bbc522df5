"""TrainContext: a worker's identity, for the training function."""

from __future__ import annotations

import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.engine.base import WorkerInfo
from lockstep.storage import Storage

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = ["PreemptionInfo", "Ranks", "StorageContext", "TrainContext", "ranks_by_machine"]


class StorageContext:
    """Where a run's files are: a filesystem, and paths on it.

    Attributes:
        storage_fs_path: the directory of all results.
        experiment_dir_name, experiment_fs_path: the experiment's directory in it.
        trial_dir_name, trial_fs_path: the run's directory in that; its checkpoints are there.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.trial_fs_path = storage.root.rstrip("/")
        self.experiment_fs_path, self.trial_dir_name = posixpath.split(self.trial_fs_path)
        self.storage_fs_path, self.experiment_dir_name = posixpath.split(self.experiment_fs_path)

    @property
    def storage_filesystem(self) -> pyarrow.fs.FileSystem:
        """The ``pyarrow.fs.FileSystem`` of the paths."""
        return self._storage.filesystem

    def build_checkpoint_path_from_name(self, checkpoint_name: str) -> str:
        """The path of the run's checkpoint with this directory name."""
        return posixpath.join(self.trial_fs_path, checkpoint_name)


@dataclass(frozen=True)
class TrainContext:
    """A worker's identity. The defaults are those outside a training function."""

    world_rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    trial_id: str = ""
    trial_name: str = ""
    trial_dir: str = ""
    experiment_name: str = ""
    storage_path: str = ""
    trial_resources: Mapping[str, float] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    attempt: int = 1
    storage: Storage | None = None

    def get_world_rank(self) -> int:
        """Return this worker's rank among all workers."""
        return self.world_rank

    def get_world_size(self) -> int:
        """Return the number of workers."""
        return self.world_size

    def get_local_rank(self) -> int:
        """Return this worker's rank among the workers of its machine."""
        return self.local_rank

    def get_local_world_size(self) -> int:
        """Return the number of workers on this machine."""
        return self.local_world_size

    def get_node_rank(self) -> int:
        """Return the rank of this worker's machine."""
        return self.node_rank

    def get_trial_id(self) -> str:
        """Return the run's id: unique, and the same after every restart."""
        return self.trial_id

    def get_trial_name(self) -> str:
        """Return the trainer's name and the run's id."""
        return self.trial_name

    def get_trial_dir(self) -> str:
        """Return the run's directory."""
        return self.trial_dir

    def get_experiment_name(self) -> str:
        """Return the name of the experiment directory."""
        return self.experiment_name

    def get_storage_path(self) -> str:
        """Return where the run's files are: a directory or a URI."""
        return self.storage_path

    def get_storage(self) -> StorageContext:
        """Return where the run's files are, as a filesystem and paths on it.

        Raises:
            RuntimeError: there is no run.
        """
        if self.storage is None:
            raise RuntimeError("get_storage() works only inside a training function.")
        return StorageContext(self.storage)

    def get_trial_resources(self) -> dict[str, float]:
        """Return the resources of each worker."""
        return dict(self.trial_resources)

    def get_metadata(self) -> dict[str, Any]:
        """Return the trainer's ``metadata``."""
        return dict(self.metadata)

    def get_attempt(self) -> int:
        """Return the attempt: 1, and one more after each restart."""
        return self.attempt


@dataclass(frozen=True)
class PreemptionInfo:
    """This run must stop soon. Every rank sees it after the same report."""

    rank: int | None
    """The rank whose process received the SIGTERM; None: the driver."""
    deadline: float
    """When the run is ended regardless, in seconds since the epoch."""

    @property
    def seconds_left(self) -> float:
        """How much time is left to save."""
        return max(0.0, self.deadline - time.time())

    @property
    def deadline_ms(self) -> int:
        """The deadline in milliseconds since the epoch."""
        return int(self.deadline * 1000)

    @property
    def preempted_ranks(self) -> list[int]:
        """The rank that received the SIGTERM, in a list; empty: the driver did."""
        return [] if self.rank is None else [self.rank]


class Ranks(NamedTuple):
    """A worker's place among all workers."""

    world_rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int


def ranks_by_machine(workers: Sequence[WorkerInfo]) -> list[dict[int, Ranks]]:
    """For each machine, the workers there: their ranks in the world, and their places."""
    machines: dict[tuple[str, str, str], list[int]] = {}
    for worker in workers:
        place = worker.hostname, worker.node_ip, worker.node_id
        machines.setdefault(place, []).append(worker.rank)
    return [
        {
            rank: Ranks(rank, len(workers), local, len(members), node)
            for local, rank in enumerate(members)
        }
        for node, members in enumerate(machines.values())
    ]
