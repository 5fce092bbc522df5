"""XGBoostConfig: connects the workers by XGBoost's own collective."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from lockstep import settings
from lockstep.train.backend import Backend, BackendConfig, Place, Wiring
from lockstep.train.meeting import Meeting, join

__all__ = ["XGBoostConfig"]


@dataclass(frozen=True)
class XGBoostConfig(BackendConfig):
    """How XGBoost's workers are connected.

    Args:
        xgboost_communicator: ``"rabit"``, the only one.
    """

    xgboost_communicator: str = "rabit"

    def __post_init__(self) -> None:
        if self.xgboost_communicator != "rabit":
            raise ValueError(
                f"XGBoostConfig(xgboost_communicator={self.xgboost_communicator!r}): "
                "expected 'rabit'."
            )

    def make_backend(self) -> Backend:
        """The backend to send to the workers."""
        return _XGBoostBackend()


class _XGBoostBackend(Backend):
    """Rank 0 runs XGBoost's tracker, and every rank joins it. One rank needs neither.

    XGBoost's connections that fail are tried again only seconds later, then after longer and longer
    waits. So the other ranks learn of the tracker when it runs, and it ends after the last of them.
    """

    preload = ("xgboost", "lockstep.train.xgboost")
    needs_all_announcements = False

    def __init__(self) -> None:
        self._meeting: Meeting | None = None
        self._tracker: Any = None
        self._connected = False

    def announce(self, rank: int, address: str) -> Place:
        if rank != 0:
            return Place(address)
        self._meeting = Meeting(address)
        return self._meeting.place

    def setup(self, wiring: Wiring) -> None:
        threads = settings.omp_threads()
        if threads is not None:
            # The fork server imported XGBoost before this worker had its share of the CPUs.
            importlib.import_module("xgboost").set_config(nthread=threads)
        rank, size = wiring.context.world_rank, wiring.context.world_size
        if self._meeting is not None:
            connections = self._meeting.wait_for(size - 1)
            if size == 1:
                return
            tracker = importlib.import_module("xgboost").RabitTracker
            self._tracker = tracker(size, host_ip=wiring.master_address, sortby="task")
            self._tracker.start()
            arguments = self._tracker.worker_args()
            for connection in connections.values():
                with connection:
                    connection.send(arguments)
        else:
            with join(wiring.announcements[0], rank) as connection:
                arguments = connection.recv()
        importlib.import_module("xgboost.collective").init(
            **arguments,
            dmlc_task_id=f"{rank:08d}",  # the tracker sorts by it
        )
        self._connected = True

    def teardown(self) -> None:
        if self._connected:
            importlib.import_module("xgboost.collective").finalize()
            self._connected = False
        if self._tracker is not None:
            self._tracker.wait_for()  # every rank notifies the tracker that it leaves
            self._tracker.free()
            self._tracker = None
