"""XGBoostConfig: connects the workers by XGBoost's own collective."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from lockstep.train.backend import Backend, BackendConfig, Place, Wiring
from lockstep.train.boosting_trainer import free_port

__all__ = ["XGBoostConfig"]

_RETRIES = 20
"""How often a rank tries to reach rank 0's tracker, which starts at the same time."""


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
    """Rank 0 runs XGBoost's tracker, and every rank joins it. One rank needs neither."""

    _tracker: Any = None
    _connected = False

    def announce(self, rank: int, address: str) -> Place:
        # Before any rank is launched: rank 0's tracker must not be late, because a rank that does
        # not reach it waits for seconds before it tries again.
        importlib.import_module("xgboost")
        return Place(address, free_port(address) if rank == 0 else None)

    def setup(self, wiring: Wiring) -> None:
        context = wiring.context
        if context.world_size == 1:
            return
        port = wiring.announcements[0].port
        if context.world_rank == 0:
            tracker = importlib.import_module("xgboost").RabitTracker
            self._tracker = tracker(
                context.world_size, host_ip=wiring.master_address, port=port, sortby="task"
            )
            self._tracker.start()
        importlib.import_module("xgboost.collective").init(
            dmlc_tracker_uri=wiring.master_address,
            dmlc_tracker_port=port,
            dmlc_task_id=f"{context.world_rank:08d}",  # the tracker sorts by it
            dmlc_retry=_RETRIES,
        )
        self._connected = True

    def teardown(self) -> None:
        if self._connected:
            importlib.import_module("xgboost.collective").finalize()
            self._connected = False
        if self._tracker is not None:
            self._tracker.free()
            self._tracker = None
