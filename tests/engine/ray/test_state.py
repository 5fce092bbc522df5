"""train.State on a Ray cluster: a snapshot outlives its worker, and its node."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import train
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.storage import local
from lockstep.train import DataParallelTrainer, Result, State
from lockstep.train.driver.cluster_memory import ClusterMemory
from tests.engine.driving import wait_until
from tests.engine.ray.conftest import ExtraNode

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]


def learn(config: dict[str, Any]) -> None:
    """In the first attempt nothing is written to storage, and rank 0 may end itself."""
    rank = train.get_context().get_world_rank()
    state = State(values=np.full(1000, -1.0), step=0)
    restored = state.restore()
    if restored:
        assert (state.values == float(rank)).all()
        state.step += 1
        train.report({"step": state.step, "restored": True}, checkpoint=state)
        return

    def never(path: str) -> None:
        threading.Event().wait()

    local._fsync = never
    state.values[:] = rank
    state.step = 1
    train.report({"step": 1, "restored": False}, checkpoint=state)
    while not (config["dies"] and rank == 0 and Path(config["go"]).exists()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def fit_until_kept(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int | tuple[int, int],
    holders: int,
    then: Callable[[], object],
    **config: Any,
) -> Result:
    """Fit, and call ``then`` when every rank's snapshot is kept by this number of nodes."""
    memories: list[ClusterMemory] = []
    expect = ClusterMemory.expect

    def note(self: ClusterMemory, name: str, number: int) -> None:
        expect(self, name, number)
        memories.append(self)

    def kept() -> bool:
        for snapshot in memories[0]._parts.values() if memories else ():
            parts = list(snapshot.values())
            size = workers if isinstance(workers, int) else workers[1]
            return len(parts) == size and all(
                len(one.holders) == holders and one.sealed is not None for one in parts
            )
        return False

    monkeypatch.setattr(ClusterMemory, "expect", note)
    trainer = DataParallelTrainer(
        learn,
        train_loop_config={"go": str(folder / "go"), "dies": False, **config},
        scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 2}),
        run_config=RunConfig(
            storage_path=str(folder / "runs"),
            verbose=0,
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(peer_copies=holders - 1),
        ),
    )
    # Ray adds nodes in the main thread only, so the run is in another one.
    results: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            results.put(trainer.fit())
        except BaseException as error:
            results.put(error)

    running = threading.Thread(target=run, daemon=True)
    running.start()
    wait_until(kept, 120)
    then()
    result = results.get(timeout=120)
    running.join()
    if isinstance(result, BaseException):
        raise result
    assert isinstance(result, Result)
    return result


def rows(result: Result) -> list[tuple[int, bool]]:
    frame = result.metrics_dataframe
    assert frame is not None
    return list(zip(frame["step"], frame["restored"], strict=True))


def test_a_dead_worker_restores_from_the_memory_of_its_node(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fit_until_kept(tmp_path, monkeypatch, 2, 1, (tmp_path / "go").touch, dies=True)
    # Nothing of the first attempt was on storage: without the memory, step 1 would be there twice.
    assert rows(result) == [(1, False), (2, True)]
    assert [c.to_dict()["step"] for c, _ in result.best_checkpoints] == [1, 2]


def test_a_lost_node_restores_from_its_peer(
    engine: Engine,
    add_node: Callable[[], ExtraNode],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = add_node()
    wait_until(lambda: engine.capacity(GroupSpec(1, "", b"")) == 6, 60)
    result = fit_until_kept(tmp_path, monkeypatch, (1, 3), 2, extra.kill)
    assert rows(result) == [(1, False), (2, True)]
    kept = [checkpoint.to_dict()["step"] for checkpoint, _ in result.best_checkpoints]
    assert kept == [1, 2]
    frame = result.metrics_dataframe
    assert frame is not None
    assert list(frame["attempt"]) == [1, 2]
