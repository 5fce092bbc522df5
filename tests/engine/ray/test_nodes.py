"""Nodes of a Ray cluster that come, go, freeze and are drained."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.train import Checkpoint, DataParallelTrainer, UserCallback
from tests.engine.driving import driven, lives, wait_until
from tests.engine.ray.conftest import ENTRIES, ExtraNode

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]

ANY = GroupSpec(1, "", b"")
# One worker anywhere else, and one on the node that the test adds.
BOTH: dict[str, Any] = {
    "preload": (ENTRIES,),
    "label_selectors": ({"extra": "!yes"}, {"extra": "yes"}),
}


def see(engine: Engine, room: int) -> None:
    """Wait until the engine sees this room for workers of one CPU."""
    wait_until(lambda: engine.capacity(ANY) == room, 60)


def test_a_killed_raylet_takes_its_workers_along(
    engine: Engine, add_node: Callable[[], ExtraNode]
) -> None:
    extra = add_node()
    with driven(engine, f"{ENTRIES}:sleep", 2, **BOTH) as run:
        run.until_told()
        started = extra.processes()
        os.kill(extra.raylet, signal.SIGKILL)
        run.until(lambda: 1 in run.exits)
        assert engine.capacity(ANY) <= 4
        assert "its Ray process has ended" in run.exits[1].detail
        # The group can be started again at once, on what is left.
        with driven(engine, f"{ENTRIES}:who", 2, preload=(ENTRIES,)) as again:
            assert again.until_ended() == [0, 0]
    wait_until(lambda: not any(map(lives, started)))


def test_a_frozen_node_is_fenced(engine: Engine, add_node: Callable[[], ExtraNode]) -> None:
    extra = add_node()
    with driven(engine, f"{ENTRIES}:sleep", 2, **BOTH) as run:
        run.until_told()
        frozen = extra.processes()
        extra.signal(signal.SIGSTOP)
        run.until(lambda: 1 in run.exits)
        assert "has not answered for 6 s" in run.exits[1].detail
        assert 0 not in run.exits
        assert engine.capacity(ANY) <= 4
        with driven(engine, f"{ENTRIES}:who", 2, preload=(ENTRIES,)) as again:
            assert again.until_ended() == [0, 0]
        workers = [pid for pid in frozen if "worker)" in command(pid)]
        assert workers
        extra.signal(signal.SIGCONT)
        # What comes back finds its connections closed, and ends. The node can be used again.
        wait_until(lambda: not any(map(lives, workers)))
        see(engine, 6)
    with driven(engine, f"{ENTRIES}:who", 2, **BOTH) as run:
        assert run.until_ended() == [0, 0]


def save_or_freeze(config: dict[str, Any]) -> None:
    """Each rank saves a file. In the first attempt, rank 1 is frozen when it is about to write."""
    context, folder = train.get_context(), Path(config["folder"])
    rank, attempt = context.get_world_rank(), context.get_attempt()
    if rank == 1 and attempt == 1:
        save_files = Checkpoint.save_files

        def slow(self: Checkpoint, *args: Any, **options: Any) -> None:
            (folder / "pid").write_text(str(os.getpid()))
            while not (folder / "thawed").exists():
                time.sleep(0.001)
            save_files(self, *args, **options)

        Checkpoint.save_files = slow  # type: ignore[method-assign]
    (folder / f"{attempt}-{rank}").mkdir()
    (folder / f"{attempt}-{rank}" / f"part_{rank}").write_text(f"attempt {attempt}")
    kept = Checkpoint.from_directory(str(folder / f"{attempt}-{rank}"))
    train.report({"attempt": attempt}, checkpoint=kept, checkpoint_dir_name="mine")


def test_a_thawed_worker_changes_no_checkpoint(
    engine: Engine, add_node: Callable[[], ExtraNode], tmp_path: Path
) -> None:
    extra = add_node()
    see(engine, 6)

    def freeze_and_thaw() -> None:
        wait_until((tmp_path / "pid").exists, 120)
        extra.signal(signal.SIGSTOP)
        see(engine, 4)  # it is fenced, and the next attempt waits for a node
        (tmp_path / "thawed").touch()
        extra.signal(signal.SIGCONT)

    thread = threading.Thread(target=freeze_and_thaw)
    thread.start()
    result = DataParallelTrainer(
        save_or_freeze,
        train_loop_config={"folder": str(tmp_path)},
        scaling_config=ScalingConfig(
            num_workers=2, label_selector=[{"extra": "!yes"}, {"extra": "yes"}]
        ),
        run_config=RunConfig(
            storage_path=str(tmp_path / "runs"),
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    thread.join()
    wait_until(lambda: not lives(int((tmp_path / "pid").read_text())))
    assert result.metrics["attempt"] == 2
    assert result.checkpoint is not None
    assert str(result.checkpoint.path).endswith("/mine")
    with result.checkpoint.as_directory() as folder:
        parts = {p.name: p.read_text() for p in Path(folder).glob("part_*")}
    assert parts == {"part_0": "attempt 2", "part_1": "attempt 2"}


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def drain(cluster: str, node: ExtraNode, seconds: float) -> None:
    import ray

    client = ray._raylet.GcsClient(address=cluster)
    deadline_ms = int((time.time() + seconds) * 1000)
    # As a cloud's notice: 2 is DRAIN_NODE_REASON_PREEMPTION.
    accepted, why = client.drain_node(node.id, 2, "a test", deadline_ms)
    assert accepted, why


def test_a_drained_node_is_a_preemption(
    engine: Engine, cluster: str, add_node: Callable[[], ExtraNode]
) -> None:
    extra = add_node()
    see(engine, 6)
    with driven(engine, f"{ENTRIES}:echo", 2, **BOTH) as run:
        run.until_told()
        drain(cluster, extra, 600)
        run.until(lambda: bool(run.preempted))
        (notice,) = run.preempted
        assert notice.rank == 1
        assert notice.deadline is not None
        assert notice.deadline > time.time() + 60
        assert engine.capacity(ANY) <= 4  # nothing new goes there
        assert not run.exits


def count(config: dict[str, Any]) -> None:
    context, checkpoint = train.get_context(), train.get_checkpoint()
    start = 0 if checkpoint is None else checkpoint.to_dict()["step"] + 1
    for step in range(start, 100_000):
        kept = Checkpoint.from_dict({"step": step}) if context.get_world_rank() == 0 else None
        train.report({"step": step, "size": context.get_world_size()}, checkpoint=kept)
        if Path(config["done"]).exists() and context.get_world_size() == config["last"]:
            return


class Sizes(UserCallback):
    """The size of the group at each change."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
        size = metrics[0]["size"]
        if not self.seen or self.seen[-1] != size:
            self.seen.append(size)


def fit_elastic(
    folder: Path, last: int, *acts: tuple[int, Callable[[], object]]
) -> tuple[Any, list[int]]:
    """Fit on one to three nodes, and do each act when the group has that size.

    The run ends when all are done and the group has the size ``last``.
    """
    sizes = Sizes()
    trainer = DataParallelTrainer(
        count,
        train_loop_config={"done": str(folder / "done"), "last": last},
        scaling_config=ScalingConfig(num_workers=(1, 3), resources_per_worker={"CPU": 2}),
        run_config=RunConfig(
            storage_path=str(folder / "runs"),
            verbose=0,
            callbacks=[sizes],
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )
    # Ray adds nodes in the main thread only, so the run is in another one.
    results: queue.Queue[Any] = queue.Queue()
    running = threading.Thread(target=lambda: results.put(trainer.fit()), daemon=True)
    running.start()
    for size, act in acts:
        wait_until(lambda size=size: sizes.seen[-1:] == [size], 60)  # type: ignore[misc]
        act()
    (folder / "done").touch()
    result = results.get(timeout=60)
    running.join()
    return result, sizes.seen


def test_an_elastic_run_shrinks_and_grows(
    engine: Engine, cluster: str, tmp_path: Path, add_node: Callable[[], ExtraNode]
) -> None:
    see(engine, 4)
    nodes = [add_node()]
    see(engine, 6)
    result, sizes = fit_elastic(
        tmp_path,
        2,
        # Ray itself takes 15 s to see this: the engine must not offer the node meanwhile.
        (3, nodes[0].kill),
        (2, lambda: nodes.append(add_node())),
        (3, lambda: drain(cluster, nodes[1], 600)),
    )
    assert sizes == [3, 2, 3, 2]
    rows = result.metrics_dataframe
    assert rows["step"].is_monotonic_increasing  # each attempt began where the one before had saved
    # Of what the drained group had done, nothing was lost.
    assert rows["step"].tolist()[-3:] == list(range(rows["step"].max() - 2, rows["step"].max() + 1))
