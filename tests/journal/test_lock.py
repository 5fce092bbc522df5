"""The lock beside a journal: one holder, nobody else's, gone with the process."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.errors import StorageError
from lockstep.journal import Journal
from lockstep.journal.lock import Lock, is_locked
from lockstep.run_layout import lock_path


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.jsonl")


def test_one_holder_at_a_time(path: str) -> None:
    assert is_locked(path) is False
    lock = Lock(path)
    assert is_locked(path) is True
    with pytest.raises(StorageError, match="still being driven by another process"):
        Lock(path)
    lock.release()
    lock.release()
    assert is_locked(path) is False
    Lock(path).release()


def test_the_file_is_its_owner_s_and_goes_with_the_lock(path: str) -> None:
    old = os.umask(0)
    try:
        lock = Lock(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(lock_path(path)).st_mode) == 0o600
    lock.release()
    assert not os.path.exists(lock_path(path))


def test_who_reads_the_journal_cannot_lock_it(path: str) -> None:
    import fcntl

    Journal(path).close()
    with open(path, "rb") as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        Journal(path).close()


def test_a_forked_child_does_not_keep_it(path: str) -> None:
    """The child of a driver that was killed: the run can be restored while the child lives."""
    script = f"""
import os, sys
from lockstep.journal import Journal
journal = Journal({path!r})
if os.fork():
    os._exit(0)
sys.stdout.write("up\\n"); sys.stdout.flush()
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        assert parent.wait(120) == 0
        assert is_locked(path) is False
        Journal(path).close()


def test_the_lock_of_a_killed_process_is_free(path: str) -> None:
    script = (
        "import os; from lockstep.journal.lock import Lock\n"
        f"Lock({path!r}); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert os.path.exists(lock_path(path))
    assert is_locked(path) is False
    Lock(path).release()


def test_a_lock_whose_file_was_deleted_is_taken_again(path: str) -> None:
    lock = Lock(path)
    os.unlink(lock_path(path))
    other = Lock(path)  # the file that the first one holds locks nothing any more
    lock.release()
    assert is_locked(path) is True
    other.release()


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_pipe_or_a_link_in_its_place_is_not_opened(path: str, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(lock_path(path))
    else:
        os.symlink("/dev/null", lock_path(path))
    with pytest.raises(StorageError, match="could not lock the journal"):
        Lock(path)
