"""Functions of datasets in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import ActorPoolStrategy, Dataset, TaskPoolStrategy
from lockstep.data.processes import pool
from lockstep.errors import DataProcessError
from tests.data.datasets import blocks, column
from tests.engine.driving import wait_until
from tests.repository import SRC


class Counter:
    """Says which process has called it, and how often it was created and called there."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        self.calls += 1
        time.sleep(0.002)  # so that one process alone is not fast enough
        rows = len(batch["id"])
        batch["id"] += 1  # writable
        seen = {"pid": os.getpid(), "calls": self.calls, "object": id(self)}
        return {**batch, **{name: np.full(rows, value) for name, value in seen.items()}}


def counted(**options: Any) -> Dataset:
    return blocks(12_000).map_batches(Counter, batch_size=100, **options)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_rows_keep_their_order_and_processes_their_objects() -> None:
    dataset = counted(processes=True, concurrency=2)
    for _ in range(2):  # the processes are kept for the next epoch
        found = dataset.to_numpy()
        assert found["id"].tolist() == list(range(1, 12_001))
    pids = {int(pid) for pid in found["pid"]}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert len({(int(p), int(o)) for p, o in zip(found["pid"], found["object"], strict=True)}) == 2
    assert int(found["calls"].max()) > 60  # 240 calls in both epochs
    next(iter(dataset.iter_batches(batch_size=100)))  # an epoch that is left early
    del dataset
    wait_until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.parametrize(
    "options",
    [
        {"compute": ActorPoolStrategy(size=2)},
        {"compute": ActorPoolStrategy(min_size=1, max_size=2)},
        {"compute": TaskPoolStrategy(size=2)},
        {"compute": TaskPoolStrategy(), "concurrency": 2},
    ],
)
def test_rays_strategies_are_processes(options: dict[str, Any]) -> None:
    (operation,) = counted(**options)._units()[0].operations
    assert operation.processes == 2


def test_the_default_is_a_process_for_each_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    (operation,) = counted(processes=True)._units()[0].operations
    monkeypatch.setenv("OMP_NUM_THREADS", "3")  # what a worker has as its share
    assert operation.processes == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert operation.processes == os.cpu_count()
    with pytest.raises(TypeError, match=r"processes=2: give True or False, and their number"):
        counted(processes=2)


def test_all_functions_may_run_there() -> None:
    here = os.getpid()
    dataset = (
        blocks(40, 4)
        .map(lambda row: {**row, "a": os.getpid() != here}, processes=True, concurrency=1)
        .filter(
            lambda row: row["id"] % 2 == 0 and os.getpid() != here, processes=True, concurrency=1
        )
        .add_column(
            "b", lambda frame: frame["id"] * (os.getpid() != here), processes=True, concurrency=1
        )
        .flat_map(lambda row: [row] * (1 + (os.getpid() != here)), processes=True, concurrency=1)
    )
    found = dataset.to_numpy()
    assert found["id"].tolist() == [n for n in range(0, 40, 2) for _ in range(2)]
    assert found["a"].all()
    assert found["b"].tolist() == found["id"].tolist()
    assert dataset.count() == 40


def test_a_position_is_that_of_the_rows() -> None:
    def plain(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"] * 2}

    source = blocks(3000, 6).random_shuffle(seed=3, window=1000)
    here = source.map_batches(plain)
    there = source.map_batches(plain, processes=True, concurrency=2)
    expected = [
        batch["id"].tolist() for batch in here.prepare(2).shard(1).iter_batches(batch_size=70)
    ]
    shard = there.prepare(2).shard(1)
    batches = iter(shard.iter_batches(batch_size=70))
    first = [next(batches)["id"].tolist() for _ in range(5)]
    state = shard.state_dict()
    del batches
    assert first == expected[:5]
    resumed = there.prepare(2).shard(1, state).iter_batches(batch_size=70)
    assert [batch["id"].tolist() for batch in resumed] == expected[5:]


class Mine(Exception):
    pass


def test_an_error_is_the_users_own() -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["id"][-1] >= 5000:
            raise Mine("here", int(batch["id"][0]))
        return batch

    dataset = blocks(12_000).map_batches(fail, processes=True, concurrency=2)
    with pytest.raises(Mine, match="here") as caught:
        for _ in dataset.iter_batches():
            pass
    assert caught.value.args == ("here", 4875)
    trace = "".join(traceback.format_exception(caught.value))
    assert 'raise Mine("here", int(batch["id"][0]))' in trace
    if sys.version_info >= (3, 11):
        assert "(in rows 1875 to 2249 of 3000 read at once)" in trace
    assert len(dataset.limit(3000).take_all()) == 3000  # the processes are still there


def test_a_killed_process_is_named() -> None:
    def die(batch: dict[str, Any]) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return batch

    dataset = blocks(100, 1).map_batches(die, processes=True, concurrency=1)
    message = r"Process \d+ of map_batches\(.*die\) was killed by SIGKILL .* it had 100 rows"
    with pytest.raises(DataProcessError, match=message):
        dataset.take_all()


def test_a_function_that_cannot_be_sent() -> None:
    lock = threading.Lock()
    dataset = blocks(4).map_batches(lambda batch: (lock, batch)[1], processes=True)
    with pytest.raises(TypeError, match=r"cannot be sent to other processes \(TypeError.*__init__"):
        dataset.take_all()


def test_a_function_that_does_not_load() -> None:
    class Broken:
        def __reduce__(self) -> Any:
            return int, ("not a number",)

        def __call__(self, batch: Any) -> Any:
            return batch

    dataset = blocks(4).map_batches(Broken(), processes=True, concurrency=1)
    with pytest.raises(ValueError, match="invalid literal"):
        dataset.take_all()


def test_leaving_early_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    def note(batch: dict[str, Any]) -> dict[str, Any]:
        with open(tmp_path / "calls", "a") as file:
            file.write(".")
        time.sleep(0.01)
        return batch

    dataset = blocks(4000, 8).map_batches(note, batch_size=10, processes=True, concurrency=1)
    for _ in dataset.iter_batches(batch_size=10, prefetch_batches=0):
        break
    assert len((tmp_path / "calls").read_text()) < 300  # of 400


def test_idle_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE_S", 0.05)
    dataset = counted(processes=True, concurrency=1)
    first = set(column(dataset, "pid"))
    wait_until(lambda: all(gone(pid) for pid in first))
    second = set(column(dataset, "pid"))
    assert not first & second


SCRIPT = """
import os, sys, time
import numpy as np
import lockstep.data

def note(batch):
    os.write(1, f"pid {{os.getpid()}}\\n".encode())  # in one piece: two processes write
    time.sleep({seconds})
    return batch

dataset = lockstep.data.range(4000, override_num_blocks=4)
dataset = dataset.map_batches(note, processes=True, concurrency=2)
print("rows", sum(len(batch["id"]) for batch in dataset.iter_batches()), flush=True)
"""


def run(tmp_path: Path, seconds: float) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(seconds=seconds))
    return subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def first_pids(process: subprocess.Popen[str]) -> set[int]:
    assert process.stdout is not None
    pids: set[int] = set()
    while len(pids) < 2:
        word, number = process.stdout.readline().split()
        assert word == "pid"
        pids.add(int(number))
    return pids


def test_a_script_needs_no_guard_and_leaves_nothing(tmp_path: Path) -> None:
    process = run(tmp_path, 0)
    out, err = process.communicate(timeout=60)
    assert out.splitlines()[-1] == "rows 4000"
    assert err == ""
    pids = {int(line.split()[1]) for line in out.splitlines()[:-1]}
    wait_until(lambda: all(gone(pid) for pid in pids))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(tmp_path: Path, number: signal.Signals) -> None:
    process = run(tmp_path, 0.5)
    try:
        pids = first_pids(process)
        if number == signal.SIGINT:  # as from a terminal: to all of them
            os.killpg(process.pid, number)
        else:
            process.kill()
        err = process.communicate(timeout=60)[1]
        assert process.returncode == -number
        if number == signal.SIGINT:
            assert err.count("KeyboardInterrupt") == 1  # the parent's; the others say nothing
        wait_until(lambda: all(gone(pid) for pid in pids))
    finally:
        process.kill()
        process.communicate()
