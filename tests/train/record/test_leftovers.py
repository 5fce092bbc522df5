"""What killed processes have left: removed by the next run, unless it is somebody's or the last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from pyarrow import fs

from lockstep import train
from lockstep.journal import Journal
from lockstep.journal.records import RunRecords
from lockstep.run_layout import (
    EXPERIMENT_SPOOL_PREFIX,
    JOURNAL_FILE,
    scratch_owner,
    scratch_prefix,
    spool_prefix,
)
from lockstep.storage import open_storage
from lockstep.train import DataParallelTrainer, Result
from lockstep.train.record import leftovers
from lockstep.train.record.leftovers import clear_leftovers
from lockstep.train.record.mirror import Mirror
from tests.integration.runs import fit, run_script


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    yield tmp_path / "tmp"
    shutil.rmtree(tmp_path / "tmp")


@pytest.fixture
def dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def make(temporary: Path, name: str, **files: str) -> Path:
    directory = temporary / name
    directory.mkdir()
    for file, text in files.items():
        (directory / file.replace("__", ".")).write_text(text)
    return directory


def test_scratch_of_processes_that_are_gone(temporary: Path, dead_process: int) -> None:
    prefix = scratch_prefix("checkpoint")
    assert scratch_owner(f"{prefix}abc") == os.getpid()
    assert scratch_owner("lockstep-mine") is None
    gone = prefix.replace(f"-{os.getpid()}-", f"-{dead_process}-")
    make(temporary, f"{gone}abc", weights="x")
    stays = {
        f"{prefix}abc",
        "lockstep-trainable-abc",
        f"lockstep-checkpoint-00000000-{dead_process}-abc",  # another machine's
        # Of a container with the same host name, whose processes cannot be seen from here.
        f"lockstep-checkpoint-{crc32(os.uname().nodename.encode()):08x}-{dead_process}-abc",
        "mine",
    }
    for name in stays:
        make(temporary, name)
    clear_leftovers()
    assert set(os.listdir(temporary)) == stays


@pytest.mark.parametrize("kind", ["lockstep-run-", EXPERIMENT_SPOOL_PREFIX])
def test_spools_of_drivers_that_are_gone(temporary: Path, kind: str) -> None:
    name = JOURNAL_FILE if kind == "lockstep-run-" else "experiment_2.jsonl"
    prefix = spool_prefix(kind)
    lines = '{"event":"run"}\n'
    for spool, copied in (("copied", len(lines)), ("lacks", 3), ("driven", len(lines))):
        make(temporary, prefix + spool, __copied=str(copied), **{name.replace(".", "__"): lines})
        (temporary / (prefix + spool) / ".snapshot-x").mkdir()
    make(temporary, f"{prefix}kept", __copied="99", __kept="", **{name.replace(".", "__"): lines})
    journal = Journal(str(temporary / f"{prefix}driven" / name))
    clear_leftovers()
    journal.close()
    assert set(os.listdir(temporary)) == {prefix + spool for spool in ("lacks", "driven", "kept")}
    assert not (temporary / f"{prefix}lacks" / ".snapshot-x").exists()
    assert (temporary / f"{prefix}driven" / ".snapshot-x").exists()


def test_a_spool_that_nobody_wants_goes_after_a_week(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(temporary, f"{spool_prefix()}lacks", __copied="3", journal__jsonl="12345\n")
    # Killed before anything was copied.
    make(temporary, f"{spool_prefix()}new", journal__jsonl="12345\n")
    clear_leftovers()
    assert len(os.listdir(temporary)) == 2
    monkeypatch.setattr(leftovers, "KEEP_S", -1.0)
    clear_leftovers()
    assert os.listdir(temporary) == []


def test_a_spool_that_is_being_prepared_stays(temporary: Path, tmp_path: Path) -> None:
    lines = b'{"event":"run"}\n', b'{"event":"attempt"}\n'
    (tmp_path / "remote").mkdir()
    tree = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    storage = open_storage("run", tree)
    storage.write(JOURNAL_FILE, lines[0])
    make(temporary, f"{spool_prefix()}dead", journal__jsonl=b"".join(lines).decode())
    mirror = Mirror(storage, JOURNAL_FILE, spool_prefix(), leased=False)
    mirror.fetch([JOURNAL_FILE])
    assert mirror.found_spool
    assert storage.read(JOURNAL_FILE) == b"".join(lines)
    clear_leftovers()  # of another run that starts now
    assert os.listdir(temporary) == [os.path.basename(mirror.directory)]
    mirror.close()


def test_the_next_run_clears_them(temporary: Path, dead_process: int) -> None:
    prefix = scratch_prefix("checkpoint").replace(f"-{os.getpid()}-", f"-{dead_process}-")
    make(temporary, f"{prefix}abc")
    fit(lambda: train.report({}), workers=1)
    assert os.listdir(temporary) == []


KILLED = """
    import os, signal
    from pyarrow import fs
    from lockstep import train
    from lockstep.train import DataParallelTrainer, FailureConfig, RunConfig
    from lockstep.train.record.mirror import Mirror

    driver = os.getpid()
    tree = fs.SubTreeFileSystem(os.path.abspath("remote"), fs.LocalFileSystem())

    def train_func():
        attempt = train.get_context().attempt
        train.report({"attempt": attempt})
        if attempt == 1:
            raise RuntimeError("once more")
        for row in range(20):
            train.report({"row": row})
        os.kill(driver, signal.SIGKILL)
        train.report({})

    sync = Mirror.sync_journal
    count = []

    def only_the_first(self):  # as if the next interval never came
        if not count:
            count.append(sync(self))

    Mirror.sync_journal = only_the_first
    config = RunConfig(
        name="named", storage_path="runs", storage_filesystem=tree, verbose=0,
        failure_config=FailureConfig(max_failures=1),
    )
    DataParallelTrainer(train_func, run_config=config).fit()
"""


@pytest.mark.parametrize("spool_is_lost", [False, True])
def test_a_restore_finds_the_lines_that_were_not_copied(
    temporary: Path, tmp_path: Path, spool_is_lost: bool
) -> None:
    (tmp_path / "remote").mkdir()
    environment = {"TMPDIR": str(temporary), "LOCKSTEP_SYNC_S": "60"}
    done = run_script(tmp_path, KILLED, environment=environment, check=False)
    assert done.returncode == -9, done.stderr
    (spool,) = temporary.glob("lockstep-run-*")
    if spool_is_lost:
        shutil.rmtree(spool)
    tree: Any = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    before = Result.from_path("runs/named", tree)
    assert before.state == "unfinished"

    def again() -> None:
        train.report({"attempt": train.get_context().attempt})

    trainer = DataParallelTrainer.restore("runs/named", tree, train_loop_per_worker=again)
    result = trainer.fit()
    assert os.listdir(temporary) == []
    rows = result.metrics_dataframe
    attempts = list(RunRecords(open_storage(result.path, tree)).attempts)
    assert len(set(attempts)) == len(attempts)
    if spool_is_lost:
        assert len(rows) < 22
        assert result.metrics["attempt"] >= 2
    else:
        assert rows["row"].dropna().tolist() == list(range(20))
        assert len(rows) == 1 + 1 + 20 + 1
        assert result.metrics["attempt"] == 3
