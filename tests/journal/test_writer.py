"""The journal: what is appended is there, whole lines only."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.errors import StorageError
from lockstep.journal import Journal, check_version, parse_line, read_lines
from lockstep.journal.lock import is_locked
from lockstep.journal.records import RunRecords
from lockstep.run_layout import FORMAT_VERSION
from lockstep.storage import LocalStorage
from lockstep.tune.experiment.records import ExperimentRecords


def events(path: Path) -> list[dict[str, object]]:
    return [parse_line(line) for line in read_lines(path.read_bytes())]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_an_event_is_on_disk_when_append_returns(path: Path) -> None:
    journal = Journal(str(path))
    record = journal.append("run", name="ü\n", nested={"a": [1, None]})
    assert events(path) == [record] == [{"event": "run", "name": "ü\n", "nested": {"a": [1, None]}}]
    journal.append("end")
    assert [event["event"] for event in events(path)] == ["run", "end"]
    journal.flush()
    journal.close()
    journal.close()


def test_not_a_number_and_infinity_survive(path: Path) -> None:
    journal = Journal(str(path))
    journal.append("report", ranks=[{"a": math.nan, "b": -math.inf}])
    journal.close()
    (event,) = events(path)
    assert str(event["ranks"]) == "[{'a': nan, 'b': -inf}]"


def test_what_json_cannot_hold_is_kept_as_text(path: Path) -> None:
    journal = Journal(str(path))
    journal.append("run", config={"path": Path("x")})
    journal.close()
    assert events(path) == [{"event": "run", "config": {"path": "PosixPath('x')"}}]


def test_what_json_refuses_is_one_sentence(path: Path) -> None:
    journal = Journal(str(path))
    journal.append("run")
    with pytest.raises(StorageError, match=r"could not write 'trial' to the run's journal .*JSON"):
        journal.append("trial", config={"n": 10**5000})
    journal.append("end")
    journal.close()
    assert [event["event"] for event in events(path)] == ["run", "end"]


def test_log_rows_are_one_line(path: Path) -> None:
    journal = Journal(str(path))
    journal.append_logs(1, 2, [json.dumps({"step": step}) for step in (0, 1)])
    journal.append_logs(0, 2, [])
    journal.close()
    assert events(path) == [
        {"event": "log", "rank": 1, "attempt": 2, "rows": [{"step": 0}, {"step": 1}]},
        {"event": "log", "rank": 0, "attempt": 2, "rows": []},
    ]


@pytest.mark.parametrize("tail", [b'{"event":"rep', b"x", b'{"event":"end"}'])
def test_a_half_line_is_ignored_and_cut_off(path: Path, tail: bytes) -> None:
    path.write_bytes(b'{"event":"run"}\n' + tail)
    assert events(path) == [{"event": "run"}]
    journal = Journal(str(path))
    journal.append("end")
    journal.close()
    assert path.read_bytes() == b'{"event":"run"}\n{"event":"end"}\n'


def test_only_a_half_line(path: Path) -> None:
    path.write_bytes(b'{"eve')
    Journal(str(path)).close()
    assert path.read_bytes() == b""


def test_one_writer_at_a_time_and_the_next_appends(path: Path) -> None:
    first = Journal(str(path))
    first.append("run")
    with pytest.raises(StorageError, match="still being driven by another process"):
        Journal(str(path))
    first.append("attempt")
    first.close()
    second = Journal(str(path))
    second.append("end")
    second.close()
    assert [event["event"] for event in events(path)] == ["run", "attempt", "end"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_sentence(path: Path) -> None:
    journal = Journal(str(path))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._fd)
    os.close(full)
    with pytest.raises(StorageError, match=r"journal .*journal\.jsonl: No space left"):
        journal.append("run")
    journal.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_journal_that_cannot_be_flushed_is_one_sentence(path: Path) -> None:
    journal = Journal(str(path))
    reader, writer = os.pipe()  # a pipe cannot be flushed
    os.dup2(writer, journal._fd)
    with pytest.raises(StorageError, match=r"could not flush the run's journal .*: Invalid"):
        journal.flush()
    journal.close()
    os.close(reader)
    os.close(writer)


def test_a_journal_that_cannot_be_repaired_is_one_sentence_and_leaks_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.write_bytes(b'{"event":"run"}\n{"ev')

    def full(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "ftruncate", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StorageError, match=r"could not open the run's journal .*: Input/output"):
        Journal(str(path))
    assert os.listdir("/proc/self/fd") == before
    assert is_locked(str(path)) is False
    monkeypatch.undo()
    Journal(str(path)).close()


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_only_a_regular_file_is_a_journal(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("/dev/null")
    else:
        path.mkdir()
    with pytest.raises(StorageError, match="could not open the run's journal"):
        Journal(str(path))


@pytest.mark.parametrize(
    ("file", "event", "reader"),
    [("journal.jsonl", "run", RunRecords), ("experiment.jsonl", "experiment", ExperimentRecords)],
)
def test_a_newer_format_is_refused(
    tmp_path: Path, file: str, event: str, reader: Callable[[LocalStorage], object]
) -> None:
    journal = Journal(str(tmp_path / file))
    journal.append(event, version=FORMAT_VERSION + 1)
    journal.close()
    said = f"{file} has format version {FORMAT_VERSION + 1}, .* up to {FORMAT_VERSION}; read it"
    with pytest.raises(StorageError, match=said):
        reader(LocalStorage(str(tmp_path)))


def test_this_format_is_read() -> None:
    check_version({"version": FORMAT_VERSION}, "journal.jsonl")
