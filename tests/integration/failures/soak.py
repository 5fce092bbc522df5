"""The soak: runs that are hit at random instants, and what must hold afterwards whatever was hit.

Used by ``test_soak.py`` (bounded) and ``benchmarks/soak.py`` (as long as you like).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

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


def train_func(config: dict[str, Any]) -> None:
    """Counts; after each report that came back it notes so, beside the run."""
    context = train.get_context()
    rank, attempt = context.get_world_rank(), context.get_attempt()
    checkpoint = train.get_checkpoint()
    start = checkpoint.to_dict()["epoch"] + 1 if checkpoint else 0
    mode = CheckpointUploadMode(config["mode"])
    with open(f"{config['notes']}/rank_{rank}", "a", buffering=1) as notes:
        for epoch in range(start, EPOCHS):
            state = Checkpoint.from_dict({"epoch": epoch, "blob": bytes([epoch]) * 5000})
            train.log({"seen": epoch})
            train.report(
                {"epoch": epoch, "rank": rank}, checkpoint=state, checkpoint_upload_mode=mode
            )
            notes.write(f"{attempt} {epoch}\n")


def make_trainer(storage: Path, notes: Path, mode: str) -> DataParallelTrainer:
    notes.mkdir(parents=True, exist_ok=True)
    return DataParallelTrainer(
        train_func,
        train_loop_config={"notes": str(notes), "mode": mode},
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


def hit_workers(storage: Path, notes: Path, rng: random.Random, mode: str) -> tuple[Result, int]:
    """One run whose workers are killed at random instants until enough have been; how many."""
    wanted, hits = rng.randint(1, 3), 0
    done = threading.Event()

    def assassin() -> None:
        nonlocal hits
        struck: set[int] = set()
        while hits < wanted and not done.wait(0.002):
            fresh = [pid for pid in pids_of(storage)[-WORKERS:] if pid not in struck]
            if fresh and not done.wait(rng.uniform(0.0, 0.05)):
                victim = rng.choice(fresh)
                struck.add(victim)
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


def hit_driver(storage: Path, notes: Path, rng: random.Random, mode: str) -> Result:
    """One run whose driver is killed at a random instant, then restored (or begun anew)."""
    source = DRIVER.format(
        path=[entry for entry in sys.path if entry],
        storage=str(storage),
        notes=str(notes),
        mode=mode,
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE
    )
    with driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(rng.uniform(0.0, 0.5))
        driver.kill()
    if DataParallelTrainer.can_restore(storage / "soak"):
        return DataParallelTrainer.restore(storage / "soak").fit()
    return make_trainer(storage, notes, mode).fit()


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
    deadline = time.monotonic() + 20
    while any(map(alive, pids_of(storage))):  # those of a killed driver are on their way out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    leftovers = [*Path(result.path).glob(".staging/*"), *Path(result.path).glob(".trash/*")]
    assert not leftovers
