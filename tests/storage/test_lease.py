"""Leases on S3: one driver at a time, and what becomes of one that is dead, slow or too late."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.config import RunConfig
from lockstep.errors import StorageError
from lockstep.storage import Lease, RemoteStorage, Storage, lease, open_storage
from lockstep.train import Checkpoint, DataParallelTrainer, Result
from lockstep.train.record.run import Run
from tests.engine.driving import wait_until
from tests.integration.runs import failure, fit
from tests.s3 import new_bucket, s3_filesystem, s3_uri


@pytest.fixture
def storage(s3_port: int) -> Iterator[RemoteStorage]:
    storage = open_storage(f"{new_bucket()}/run", s3_filesystem(s3_port))
    assert isinstance(storage, RemoteStorage)
    yield storage
    storage._remote._filesystem = None


def objects(storage: Storage) -> list[str]:
    return [name for name in storage.listdir() if name.startswith(".lease-")]


def test_a_second_driver_is_refused_until_the_first_is_done(storage: Storage) -> None:
    first = Lease(storage, "journal")
    first.check()
    with pytest.raises(StorageError, match=r"another driver, process \d+ on .*ends in \d+ s; wait"):
        Lease(storage, "journal")
    other = Lease(storage, "another name")
    first.check()
    first.release()
    first.release()
    Lease(storage, "journal").release()
    other.release()
    assert objects(storage) == []


def test_the_lease_of_a_process_that_is_gone_ends_at_once(storage: Storage) -> None:
    first = Lease(storage, "journal")
    (name,) = objects(storage)
    owner = json.loads(storage.read(name))
    first.release()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    storage.write(name, json.dumps({**owner, "pid": dead.pid}).encode())
    second = Lease(storage, "journal")
    assert name not in objects(storage)
    second.release()


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"term_s": "x"}', b'{"pid": "../1"}'])
def test_an_object_that_is_no_lease_counts_for_a_term(
    storage: Storage, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_TRIES", 1)
    storage.write(f".lease-journal-000000001-{32 * '0'}", content)
    with pytest.raises(StorageError, match="process 0 on an unknown host, whose lease ends in"):
        Lease(storage, "journal")


def test_a_lease_that_was_not_renewed_is_taken_and_the_driver_learns_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "TERM_S", 3600.0)  # no lease ends while the test runs
    listed = Lease._entries
    aged: set[str] = set()

    def entries(self: Lease) -> list[Any]:
        """As the store lists them, and some as if they were last written long ago."""
        return [
            entry._replace(written=entry.written - 7200) if entry.name in aged else entry
            for entry in listed(self)
        ]

    monkeypatch.setattr(Lease, "_entries", entries)
    with monkeypatch.context() as patch:  # a process that this one cannot look for
        patch.setattr(lease, "_machine", lambda: "elsewhere")
        first = Lease(storage, "journal")
    with pytest.raises(StorageError, match="another driver"):
        Lease(storage, "journal")
    aged.update(objects(storage))
    second = Lease(storage, "journal")
    first.check()  # it does not know yet
    first._renew()
    with pytest.raises(StorageError, match="another driver has taken over"):
        first.check()
    second.check()
    first.release()
    assert len(objects(storage)) == 1
    second.release()


def test_a_lease_is_renewed(storage: RemoteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "TERM_S", 1.5)
    first = Lease(storage, "journal")
    (name,) = objects(storage)
    before = storage.modified()[name]
    wait_until(lambda: storage.modified()[name] > before + 1)
    first.check()
    first.release()


def test_of_drivers_that_begin_at_the_same_moment_one_at_most_gets_it(storage: Storage) -> None:
    barrier = threading.Barrier(4)

    def take(_: int) -> Lease | None:
        barrier.wait()
        try:
            return Lease(storage, "journal")
        except StorageError:
            return None

    with ThreadPoolExecutor(4) as threads:
        taken = [one for one in threads.map(take, range(4)) if one is not None]
    assert len(taken) <= 1
    for one in taken:
        one.release()


def test_a_run_is_driven_once(s3_port: int) -> None:
    uri = s3_uri(s3_port, new_bucket())

    def train_func() -> None:
        experiment = open_storage(uri).child("named")
        (name,) = experiment.listdir()
        try:
            Run.reopen(experiment.child(name), RunConfig(), {})
        except StorageError as error:
            train.report({"refused": str(error)}, checkpoint=Checkpoint.from_dict({}))
        raise RuntimeError("to be resumed")

    error = failure(train_func, workers=1, name="named", storage_path=uri)
    assert error.result is not None
    assert "another driver, process" in error.result.metrics["refused"]
    run = uri.replace("prefix?", "prefix/named?")
    again = DataParallelTrainer.restore(run, train_loop_per_worker=lambda: None).fit()
    assert again.state == "finished"
    assert not [
        name for name in open_storage(again.path, again.filesystem).listdir() if "lease" in name
    ]


def test_a_driver_that_lost_its_lease_publishes_nothing(
    s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3_uri(s3_port, new_bucket())

    def train_func() -> None:
        train.report({"n": 0}, checkpoint=Checkpoint.from_dict({"n": 0}))
        # As another driver does it that finds the lease at its end.
        (name,) = (experiment := open_storage(uri).child("named")).listdir()
        run = experiment.child(name)
        for entry in objects(run):
            head, generation, _ = entry.rsplit("-", 2)
            run.write(f"{head}-{int(generation) + 1:09d}-{32 * '0'}", b"{}")
            run.delete(entry)
        while True:
            train.report({"n": 1}, checkpoint=Checkpoint.from_dict({"n": 1}))

    monkeypatch.setattr(lease, "TERM_S", 1.5)
    with pytest.raises(StorageError, match=r"taken over.*are kept in '(.*)'\.$") as caught:
        fit(train_func, workers=1, name="named", storage_path=uri)
    kept = str(caught.value).rpartition("kept in '")[2].rstrip("'.")
    assert Result.from_path(kept).state == "failed"
    shutil.rmtree(kept)


def test_stores_without_a_lease(tmp_path: Path) -> None:
    from pyarrow import fs

    tree: Any = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    assert not Lease.is_possible(open_storage("a", tree))
    assert not Lease.is_possible(open_storage(tmp_path))
