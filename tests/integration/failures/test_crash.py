"""The driver is killed with SIGKILL at every single step: what its run directory says is true.

A driver script counts the changes it makes on disk (storage's primitives and the journal's writes)
and kills itself before or after the n-th, for every n there is; in another round it is a worker
that kills it at its own n-th change.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lockstep.result import Result
from lockstep.run_layout import MANIFEST
from lockstep.train import Checkpoint, CheckpointConfig, DataParallelTrainer, RunConfig
from tests.repository import SRC

STEPS = 3
KEEP_ONE = RunConfig(verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1))
DRIVER = """
import json, os, pathlib, signal, sys, tempfile, threading
from lockstep import journal, train
from lockstep.storage import local

PRIMITIVES = ("_rename", "_write_file", "_fsync", "_remove_tree", "_copy_file")

class Changes:
    def __init__(self, case, victim):
        self.case, self.victim, self.count, self.lock = case, victim, 0, threading.Lock()
        for name in PRIMITIVES:
            setattr(local, name, self.counted(getattr(local, name)))

    def counted(self, change):
        def changed(*args):
            with self.lock:
                self.count += 1
                due = self.count == self.case["at"]
                if self.case["at"] == 0:
                    pathlib.Path(self.case["count"]).write_text(str(self.count))
            if due and self.case["when"] == "before":
                os.kill(self.victim, signal.SIGKILL)
            result = change(*args)
            if due and self.case["when"] == "after":
                os.kill(self.victim, signal.SIGKILL)
            return result
        return changed

def save(config, rank, step):
    mode = train.CheckpointUploadMode(config["mode"])
    if config["kind"] == "dict":
        data = {"step": step, "text": "x" * 100}
        train.report({"step": step}, train.Checkpoint.from_dict(data), checkpoint_upload_mode=mode)
        return
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, f"rank_{rank}").write_text(f"{step} " * 50)
        checkpoint = train.Checkpoint.from_directory(folder)
        train.report({"step": step}, checkpoint, checkpoint_upload_mode=mode)

def train_func(config):
    rank = train.get_context().get_world_rank()
    if config["where"] == "worker" and rank == 0:
        Changes(config, config["driver"])
    for step in range(config["steps"]):
        save(config, rank, step)
        known = train.get_all_reported_checkpoints()
        newest = known[-1].metrics["step"] if known else -1
        with open(f"{config['seen']}.{rank}", "a") as file:
            file.write(f"{step} {newest}\\n")

case = json.loads(sys.argv[1])
if case["where"] == "driver":
    driver = Changes(case, os.getpid())
    journal.Journal._write = driver.counted(journal.Journal._write)
train.DataParallelTrainer(
    train_func,
    train_loop_config={**case, "driver": os.getpid()},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(
        name="run", verbose=0, storage_path=case["storage"],
        checkpoint_config=train.CheckpointConfig(num_to_keep=1),
    ),
).fit()
"""

REMOTE_DRIVER = """
import json, os, pathlib, signal, sys, threading
from pyarrow import fs
from lockstep import train
from lockstep.storage import RemoteStorage

case, lock, count = json.loads(sys.argv[1]), threading.Lock(), 0

def counted(change):
    def changed(*args):
        global count
        with lock:
            count += 1
            due = count == case["at"]
        if due and case["when"] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = change(*args)
        if due and case["when"] == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return changed

for name in ("_upload", "_delete"):
    setattr(RemoteStorage, name, counted(getattr(RemoteStorage, name)))

def train_func(config):
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 0, config["steps"]):
        checkpoint = train.Checkpoint.from_dict({"step": step, "text": "x" * 100})
        train.report({"step": step}, checkpoint, checkpoint_upload_mode=config["mode"])

train.DataParallelTrainer(
    train_func,
    train_loop_config=case,
    run_config=train.RunConfig(
        name="run", verbose=0, storage_path="root",
        storage_filesystem=fs.SubTreeFileSystem(case["storage"], fs.LocalFileSystem()),
        checkpoint_config=train.CheckpointConfig(num_to_keep=1),
    ),
).fit()
pathlib.Path(case["count"]).write_text(str(count))
"""


class Case(NamedTuple):
    mode: str
    kind: str
    where: str
    when: str
    at: int


class Seen(NamedTuple):
    """What a worker knew when the driver died."""

    reports: int
    newest: int


def start(case: Case, folder: Path, script: str = DRIVER, steps: int = STEPS) -> int:
    """Run the driver to its end, and see that nothing of it is left; returns its exit code."""
    (folder / "results").mkdir(parents=True)
    settings = {
        **case._asdict(),
        "steps": steps,
        "storage": str(folder / "results"),
        "seen": str(folder / "seen"),
        "count": str(folder / "count"),
    }
    mark = f"LOCKSTEP_TEST_MARK={folder}"
    driver = subprocess.run(
        [sys.executable, "-c", script, json.dumps(settings)],
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_TEST_MARK": str(folder),
            "TMPDIR": str(folder),  # a killed driver leaves its records of a run elsewhere
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=150,
    )
    # Its output is at an end, so every process that held it is gone; the fork server and a worker
    # whose output goes elsewhere are looked for.
    deadline = time.monotonic() + 120
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not left, f"{case}: left behind: {left}"
    assert driver.returncode in (0, -signal.SIGKILL), driver.stdout.decode()
    return driver.returncode


def processes_with(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environment = Path("/proc", name, "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environment.split(b"\0"):
                found.append(int(name))
    return found


def seen_by_workers(folder: Path) -> Seen:
    reports, newest = 0, -1
    for path in folder.glob("seen.*"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                step, known = map(int, line.split())
                reports, newest = max(reports, step + 1), max(newest, known)
    return Seen(reports, newest)


def check(case: Case, folder: Path, returncode: int) -> None:
    seen = seen_by_workers(folder)
    try:
        result = Result.from_path(folder / "results" / "run")
    except FileNotFoundError:
        assert seen.reports == 0
        return
    assert result.state == ("unfinished" if returncode else "finished") or (
        result.state == "finished" and returncode  # killed after its last word
    )
    steps = [] if result.metrics_dataframe.empty else result.metrics_dataframe["step"].tolist()
    assert steps == list(range(len(steps)))
    assert len(steps) >= seen.reports
    newest = -1
    if result.checkpoint is not None:
        newest = step_of(case, result.checkpoint)
    assert newest >= seen.newest
    assert len(result.best_checkpoints) <= 1
    for checkpoint, metrics in result.best_checkpoints:
        assert step_of(case, checkpoint) == metrics["step"]
    for path in Path(result.path).glob("checkpoint_*"):
        assert (path / MANIFEST).is_file(), "visible but not whole"
        assert f"checkpoint_{step_of(case, Checkpoint(path)):06d}" == path.name
    if returncode == 0:
        assert (newest, len(steps)) == (STEPS - 1, STEPS)


def step_of(case: Case, checkpoint: Checkpoint) -> int:
    """Which step's it is; fails unless it is complete."""
    if case.kind == "dict":
        data = checkpoint.to_dict()
        assert data["text"] == "x" * 100
        step: int = data["step"]
        return step
    with checkpoint.as_directory() as directory:
        texts = [Path(directory, f"rank_{rank}").read_text() for rank in (0, 1)]
    step = int(texts[0].split()[0])
    assert texts == [f"{step} " * 50] * 2
    return step


@pytest.mark.slow
@pytest.mark.timeout(180)  # dozens of drivers, on a machine that may be busy
@pytest.mark.parametrize(
    ("where", "mode", "kind", "when"),
    [
        ("driver", "sync", "dict", "before"),
        ("driver", "async", "directory", "after"),
        ("worker", "sync", "dict", "after"),
        ("worker", "sync", "directory", "before"),
        ("worker", "async", "dict", "before"),
        ("worker", "async", "directory", "after"),
    ],
)
def test_killed_at_every_step(tmp_path: Path, where: str, mode: str, kind: str, when: str) -> None:
    def attempt(at: int) -> Any:
        case, folder = Case(mode, kind, where, when, at), tmp_path / str(at)
        returncode = start(case, folder)
        try:
            check(case, folder, returncode)
        except Exception as error:
            raise AssertionError(f"{case}: {error}") from error
        return returncode

    assert attempt(0) == 0
    changes = int((tmp_path / "0" / "count").read_text())
    assert changes >= STEPS
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(attempt, range(1, changes + 1)))
    # The last changes may come a little earlier or later in another run, but hardly any is missed.
    assert codes.count(-signal.SIGKILL) >= changes - 3


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_killed_at_every_step_of_a_run_on_remote_storage(tmp_path: Path) -> None:
    from pyarrow import fs

    def attempt(at: int) -> int:
        case = Case("sync", "dict", "driver", "after", at)
        return start(case, tmp_path / str(at), REMOTE_DRIVER, steps=2)

    assert attempt(0) == 0
    changes = int((tmp_path / "0" / "count").read_text())
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(attempt, range(1, changes + 1)))
    assert codes.count(-signal.SIGKILL) >= changes - 3
    restored = 0
    for at in range(1, changes + 1):
        disk = fs.SubTreeFileSystem(str(tmp_path / str(at) / "results"), fs.LocalFileSystem())
        try:
            check_remote(Result.from_path("root/run", disk))
        except FileNotFoundError:  # killed before its first word was there
            continue
        if at % 2:
            continue  # every other one is restored
        restored += 1
        result = DataParallelTrainer.restore("root/run", disk, run_config=KEEP_ONE).fit()
        check_remote(result)
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["step"] == 1
        left = [path.name for path in Path(disk.base_path, result.path).glob("checkpoint_*")]
        assert left == [Path(str(result.checkpoint.path)).name]
    assert restored > changes // 4


def check_remote(result: Result) -> None:
    """What is there is whole; its row is there, too, though later ones may be missing."""
    rows = [] if result.metrics_dataframe.empty else result.metrics_dataframe["step"].tolist()
    for checkpoint, metrics in result.best_checkpoints:
        data = checkpoint.to_dict()
        assert (data["step"], data["text"]) == (metrics["step"], "x" * 100)
        assert data["step"] in rows
