"""A journal on remote storage: what a reader finds of it, whenever the writer was killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from lockstep.errors import StorageError
from lockstep.jobs import JobThread
from lockstep.journal.segments import list_segments, read_journal, segment_name
from lockstep.storage import Storage, open_storage
from lockstep.train.record import mirror as mirrors
from lockstep.train.record.mirror import Mirror

JOURNAL = "journal.jsonl"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    (tmp_path / "remote").mkdir()
    return open_storage("run", fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem()))


@pytest.fixture
def mirror(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setattr(mirrors, "SMALL_JOURNAL", 20)
    monkeypatch.setattr(mirrors, "MANY_SEGMENTS", 8)
    mirror = Mirror(storage, JOURNAL, "lockstep-test-", leased=False)
    yield mirror
    mirror._keep = False
    mirror.close()


def append(mirror: Mirror, text: str) -> bytes:
    path = Path(mirror.directory, JOURNAL)
    with path.open("a") as file:
        file.write(text)
    return path.read_bytes()


def test_every_copy_can_be_read_and_few_bytes_are_written(
    storage: Storage, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: Counter[str] = Counter()
    write = type(storage).write

    def counted(self: Storage, name: str, data: bytes) -> None:
        written["bytes"] += len(data)
        written[name] += 1
        write(self, name, data)

    monkeypatch.setattr(type(storage), "write", counted)
    whole = b""
    for number in range(300):
        whole = append(mirror, f"line {number}\n")
        mirror.sync_journal()
        mirror.sync_journal()  # nothing is new
        assert read_journal(storage, JOURNAL) == whole
        assert len(list_segments(storage, JOURNAL)) <= 9
    assert written[JOURNAL] < 50
    mirror.finish()
    assert storage.read(JOURNAL) == whole
    assert storage.walk_files() == {JOURNAL: len(whole)}


def test_half_a_line_waits(storage: Storage, mirror: Mirror) -> None:
    whole = append(mirror, "a line that is long enough\n")
    append(mirror, "half")
    mirror.sync_journal()
    assert read_journal(storage, JOURNAL) == whole
    whole = append(mirror, " and half\n")
    mirror.sync_journal()
    assert read_journal(storage, JOURNAL) == whole


def killed_between(storage: Storage, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    def fail(self: Storage, *args: Any) -> None:
        raise StorageError("killed.")

    monkeypatch.setattr(type(storage), operation, fail)


def test_segments_that_were_not_deleted_do_no_harm(
    storage: Storage, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = append(mirror, "the first line, which is long\n")
    mirror.sync_journal()
    whole = append(mirror, "two\n")
    mirror.sync_journal()
    assert len(list_segments(storage, JOURNAL)) == 1
    with monkeypatch.context() as patch:
        killed_between(storage, patch, "delete")
        whole = append(mirror, "a line that makes the journal twice as long\n")
        with pytest.raises(StorageError):
            mirror.sync_journal()
    assert len(list_segments(storage, JOURNAL)) == 1
    assert read_journal(storage, JOURNAL) == whole
    again = Mirror(storage, JOURNAL, "lockstep-test-", leased=False)
    again.fetch([JOURNAL])
    whole = append(again, "the next driver's line\n")
    again.sync_journal()
    assert read_journal(storage, JOURNAL) == whole
    again.finish()
    assert storage.walk_files() == {JOURNAL: len(whole)}
    again.close()


def test_a_complete_copy_that_was_abandoned_and_arrives_late_loses_nothing(
    storage: Storage, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, stuck, answered = type(storage).write, threading.Event(), threading.Event()

    def slow(self: Storage, name: str, data: bytes) -> None:
        if threading.current_thread() is not threading.main_thread():
            stuck.set()
            answered.wait(120)
        write(self, name, data)

    monkeypatch.setattr(type(storage), "write", slow)
    append(mirror, "one, the first line, which is long\n")
    late = JobThread("lockstep-test").submit(mirror.sync_journal)
    assert stuck.wait(120)
    for number in range(20):
        whole = append(mirror, f"line {number}\n")
        mirror.sync_journal()
    assert read_journal(storage, JOURNAL) == whole
    answered.set()
    late.result(120)
    assert read_journal(storage, JOURNAL) == whole
    mirror.finish()
    assert storage.walk_files() == {JOURNAL: len(whole)}


def test_a_reader_and_a_writer_at_the_same_time(
    storage: Storage, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object catches up, and the segments go, after the reader has listed them."""
    append(mirror, "the first line, which is long\n")
    mirror.sync_journal()
    whole = append(mirror, "two\n")
    mirror.sync_journal()
    read = type(storage).read
    caught_up: list[str] = []

    def late(self: Storage, name: str) -> bytes:
        data = read(self, name)
        if name == JOURNAL and not caught_up:
            caught_up.append(name)
            mirror._copy_whole()
        return data

    monkeypatch.setattr(type(storage), "read", late)
    assert read_journal(storage, JOURNAL) == whole


def test_a_gap_ends_what_is_read(storage: Storage) -> None:
    storage.write(JOURNAL, b"a\n")
    storage.write(segment_name(JOURNAL, 2, 4), b"b\n")
    storage.write(segment_name(JOURNAL, 9, 11), b"d\n")
    storage.write(segment_name(JOURNAL, 0, 2), b"a\n")
    assert read_journal(storage, JOURNAL) == b"a\nb\n"
