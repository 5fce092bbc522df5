"""The soak: runs that are hit at random instants, and what must hold afterwards whatever was hit.

Used by ``test_soak.py`` (bounded) and ``benchmarks/soak.py`` (as long as you like).
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from lockstep import train
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    FailureConfig,
    Result,
    RunConfig,
    ScalingConfig,
)

EPOCHS = 8
WORKERS = 2


HOSTILE = [
    "\x1b[2J\x1b]0;title\x07",
    "\ud800 lone surrogate".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    'Current thread 0x00007f0000000000 (most recent call first):\n  File "/dev/zero", line 1 in f',
    "NCCL " * 2000,
    "x" * 200_000,
    '{"event":"checkpoint"}',
]
"""What a worker may print without any effect on its run."""


def train_func(config: dict[str, Any]) -> None:
    """Counts; after each report that came back it notes so, beside the run."""
    texts = HOSTILE if config["hostile"] else []
    context = train.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    mode = CheckpointUploadMode(config["mode"])
    with open(f"{config['notes']}/rank_{rank}", "a", buffering=1) as notes:
        for epoch in range(start, EPOCHS):
            for text in texts:
                print(text, flush=True)
            if texts and epoch == 3 and attempt <= 2:
                raise RuntimeError("\n".join([*texts, "NCCL error"] * 50))
            state = Checkpoint.from_dict({"epoch": epoch, "blob": bytes([epoch]) * 5000})
            train.log({"seen": epoch})
            train.report(
                {"epoch": epoch, "rank": rank}, checkpoint=state, checkpoint_upload_mode=mode
            )
            notes.write(f"{attempt} {epoch}\n")


def make_trainer(
    storage: Path, notes: Path, mode: str, hostile: bool = False
) -> DataParallelTrainer:
    notes.mkdir(parents=True, exist_ok=True)
    return DataParallelTrainer(
        train_func,
        train_loop_config={"notes": str(notes), "mode": mode, "hostile": hostile},
        scaling_config=ScalingConfig(num_workers=WORKERS),
        run_config=RunConfig(
            name="soak",
            storage_path=storage,
            verbose=0,
            failure_config=FailureConfig(max_failures=-1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    )


def journal_of(storage: Path) -> list[dict[str, Any]]:
    journals = list(storage.glob("soak/*/journal.jsonl"))
    if not journals:
        return []
    lines = journals[0].read_bytes().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def pids_of(storage: Path) -> list[int]:
    """Every process that ever was a worker of the run."""
    return [
        worker["pid"]
        for event in journal_of(storage)
        if event["event"] == "attempt"
        for worker in event["workers"]
    ]


def newest_attempt(storage: Path) -> tuple[list[int], bool]:
    """The workers of the run's newest attempt, and whether it has committed a checkpoint."""
    pids: list[int] = []
    saved = False
    for event in journal_of(storage):
        if event["event"] == "attempt":
            pids, saved = [worker["pid"] for worker in event["workers"]], False
        elif event["event"] == "checkpoint":
            saved = True
    return pids, saved


def hit_workers(storage: Path, notes: Path, rng: random.Random, mode: str) -> tuple[Result, int]:
    """One run whose workers are killed at random instants until enough have been; how many.

    Only the first kill may come before the attempt's first checkpoint: after several attempts in a
    row without progress a run waits, and an idle driver tests nothing.
    """
    wanted, hits = rng.randint(1, 3), 0
    early = rng.random() < 0.5
    done = threading.Event()

    def assassin() -> None:
        nonlocal hits
        struck: set[int] = set()
        while hits < wanted and not done.wait(0.002):
            pids, saved = newest_attempt(storage)
            fresh = [pid for pid in pids if pid not in struck]
            if not fresh or not (saved or (early and not hits)):
                continue
            if not done.wait(rng.uniform(0.0, 0.02 if saved else 0.05)):
                victim = rng.choice(fresh)
                struck.update(pids)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSEGV]))
                    hits += 1

    thread = threading.Thread(target=assassin)
    thread.start()
    try:
        result = make_trainer(storage, notes, mode).fit()
    finally:
        done.set()
        thread.join()
    return result, hits


DRIVER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from tests.integration.failures.soak import make_trainer
print("go", flush=True)
make_trainer(Path({storage!r}), Path({notes!r}), {mode!r}).fit()
"""


@contextlib.contextmanager
def driver_process(
    storage: Path, notes: Path, mode: str, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process of its own; killed at the end, if it is still there."""
    source = DRIVER.format(
        path=[entry for entry in sys.path if entry],
        storage=str(storage),
        notes=str(notes),
        mode=mode,
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    with driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        try:
            yield driver
        finally:
            driver.kill()


def resume(storage: Path, notes: Path, mode: str) -> Result:
    """Finish what a driver left: restore the run, or start it if there is nothing to restore."""
    if DataParallelTrainer.can_restore(storage / "soak"):
        return DataParallelTrainer.restore(storage / "soak").fit()
    return make_trainer(storage, notes, mode).fit()


def hit_driver(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run whose driver is killed at a random instant."""
    with driver_process(storage, notes, mode) as driver, _until(driver, rng.uniform(0.0, 0.5)):
        pass
    return resume(storage, notes, mode)


def hit_all(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run whose driver and everything below it are killed at the same instant."""
    with driver_process(storage, notes, mode) as driver, _until(driver, rng.uniform(0.0, 0.5)):
        for pid in [driver.pid, *_below(driver.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return resume(storage, notes, mode)


def stop_for_a_while(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run some of whose processes, perhaps all, are stopped and continued."""
    with driver_process(storage, notes, mode) as driver:
        for _ in range(3):
            with _until(driver, rng.uniform(0.0, 0.3)):
                pids = [driver.pid, *_below(driver.pid)]
                stopped = rng.sample(pids, rng.randint(1, len(pids)))
                for signum in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in stopped:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signum)
                    time.sleep(rng.uniform(0.0, 0.2))
        driver.wait()
        assert driver.returncode == 0
    return Result.from_path(next(storage.glob("soak/*/")))


def fail_a_change(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run in which the n-th change of a file fails, in each of its processes."""
    number = rng.choice([errno.EIO, errno.ENOSPC])
    variables = {
        "LD_PRELOAD": str(fault_library()),
        "FAULT_PATH": str(storage),
        "FAULT_AT": str(rng.randint(1, 120)),
        "FAULT_ERRNO": str(number),
    }
    with driver_process(storage, notes, mode, **variables) as driver:
        driver.wait()
    return resume(storage, notes, mode)


def jump_the_clock(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run on a machine whose wall clock jumps."""
    seconds = rng.choice([3600, 86_400, 40 * 365 * 86_400, -86_400])
    variables = {"LD_PRELOAD": str(fault_library()), "FAULT_CLOCK": str(seconds)}
    with driver_process(storage, notes, mode, **variables) as driver:
        driver.wait()
        assert driver.returncode == 0
    return Result.from_path(next(storage.glob("soak/*/")))


def print_hostile_texts(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run whose workers print and raise texts that are made to do harm."""
    return make_trainer(storage, notes, mode, hostile=True).fit()


def workers_only(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """``hit_workers`` without the count."""
    return hit_workers(storage, notes, rng, mode)[0]


KINDS = {
    "workers killed": workers_only,
    "driver killed": hit_driver,
    "all killed at once": hit_all,
    "processes stopped": stop_for_a_while,
    "a file change failed": fail_a_change,
    "the clock jumped": jump_the_clock,
    "hostile texts": print_hostile_texts,
}
"""What can happen to a run → a run to which it happens."""


@functools.cache
def fault_library() -> Path:
    """``faults.c``, compiled; needs a C compiler."""
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "faults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return library


@contextlib.contextmanager
def _until(process: subprocess.Popen[bytes], seconds: float) -> Iterator[None]:
    """Wait that long, or until the process has ended."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    yield


def _below(pid: int) -> list[int]:
    """The process's descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def check(storage: Path, notes: Path, result: Result) -> None:
    """Nothing committed is lost, nothing is there twice, nobody is left."""
    assert result.state == "finished"
    rows = list(result.metrics_dataframe[["attempt", "epoch"]].itertuples(index=False, name=None))
    assert len(rows) == len(set(rows)), f"a row is there twice: {rows}"
    assert rows == sorted(rows), f"rows are out of order: {rows}"
    assert {epoch for _, epoch in rows} == set(range(EPOCHS))
    for rank in range(WORKERS):
        for line in (notes / f"rank_{rank}").read_text().splitlines():
            attempt, epoch = map(int, line.split())
            assert (attempt, epoch) in rows, f"rank {rank}'s report {line} is lost"
    committed = [e for e in journal_of(storage) if e["event"] == "checkpoint"]
    assert len({e["name"] for e in committed}) == len(committed)
    assert 1 <= len(result.best_checkpoints) <= 2
    for checkpoint, metrics in result.best_checkpoints:
        state = checkpoint.to_dict()
        assert state["blob"] == bytes([state["epoch"]]) * 5000
        assert metrics["epoch"] == state["epoch"]
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == EPOCHS - 1
    deadline = time.monotonic() + 120
    while any(map(alive, pids_of(storage))):  # those of a killed driver are on their way out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    leftovers = [*Path(result.path).glob(".staging/*"), *Path(result.path).glob(".trash/*")]
    assert not leftovers
