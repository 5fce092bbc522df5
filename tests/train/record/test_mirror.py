"""The copy of a run's small files on remote storage, without a run."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyarrow import fs

from lockstep.errors import StorageError
from lockstep.jobs import JobThread
from lockstep.storage import Storage, open_storage
from lockstep.train.record.mirror import Mirror


def test_a_copy_that_was_abandoned_and_continues_copies_to_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "remote").mkdir()
    tree = fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())
    storage = open_storage("runs/run", tree)
    mirror = Mirror(storage, "journal", "lockstep-test-", leased=False)
    for name in ("journal", "a", "b", "c"):
        Path(mirror.directory, name).write_text(name)
    put, stuck, answered = Storage.put, threading.Event(), threading.Event()
    copied: list[str] = []

    def slow_put(self: Storage, name: str, path: str) -> None:
        stuck.set()
        answered.wait(120)
        copied.append(name)
        put(self, name, path)

    monkeypatch.setattr(type(storage), "put", slow_put)
    job = JobThread("lockstep-test").submit(mirror.finish)
    assert stuck.wait(120)
    mirror.abandon(StorageError("no answer."))
    with pytest.raises(StorageError, match="records are kept in") as raised:
        mirror.finish()
    assert mirror.directory in str(raised.value)
    mirror.close()
    answered.set()
    job.result(120)
    assert sorted(copied) == ["a", "b", "c"]
    assert Path(mirror.directory, "journal").read_text() == "journal"  # kept
    mirror._keep = False
    mirror.close()
