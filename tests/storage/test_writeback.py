"""Large files are flushed while they are written, and an error of the disk is told."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.errors import StorageError
from lockstep.storage import open_storage, writeback

PIECE = 100
WRITE, WAIT = 2, 7


class Kernel:
    """Notes what is asked of the disk, and fails with ``code`` where that is given."""

    def __init__(self, code: int = 0, only: int | None = None) -> None:
        self.code = code
        self.only = only
        self.asked: list[tuple[int, int, int]] = []

    def __call__(self, descriptor: int, start: int, size: int, flags: int) -> int:
        self.asked.append((start, size, flags))
        return self.code if self.only in (None, flags) else 0


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Kernel | None], None]:
    def use(kernel: Kernel | None) -> None:
        monkeypatch.setattr(writeback, "_PIECE", PIECE)
        monkeypatch.setattr(writeback, "_sync_file_range", lambda: kernel)

    return use


def test_the_disk_writes_a_piece_while_the_next_one_is_written(
    tmp_path: Path, use: Callable[[Kernel | None], None]
) -> None:
    kernel = Kernel()
    use(kernel)
    storage = open_storage(tmp_path)
    storage.put_stream("a", [b"x" * 60, b"y" * 60, b"z" * 130, b"end"])
    assert kernel.asked == [(0, 120, WRITE), (120, 130, WRITE), (0, 120, WAIT)]
    assert storage.read("a") == b"x" * 60 + b"y" * 60 + b"z" * 130 + b"end"
    kernel.asked.clear()
    storage.put_stream("b", [b"x" * 1000], flush=False)  # nobody waits for the disk
    storage.put_bytes("c", b"small")
    assert kernel.asked == []
    storage.put("copied", str(tmp_path / "a"))
    assert kernel.asked == [(0, 253, WRITE)]
    assert storage.read("copied") == storage.read("a")


@pytest.mark.parametrize("kernel", [None, Kernel(errno.ENOSYS), Kernel(errno.EINVAL)])
def test_a_system_that_cannot(
    kernel: Kernel | None, tmp_path: Path, use: Callable[[Kernel | None], None]
) -> None:
    use(kernel)
    storage = open_storage(tmp_path)
    storage.put_stream("a", [b"x" * 150] * 3)
    assert storage.read("a") == b"x" * 450
    assert kernel is None or len(kernel.asked) == 1  # and it is not asked again


def test_an_error_of_the_disk_is_not_lost(
    tmp_path: Path, use: Callable[[Kernel | None], None]
) -> None:
    use(Kernel(errno.EIO))
    storage = open_storage(tmp_path)
    with pytest.raises(StorageError, match=r"write .*/a': Input/output error"):
        storage.put_stream("a", [b"x" * 150])
    assert not (tmp_path / "a").exists()


def test_an_error_that_comes_with_waiting_is_not_lost(
    tmp_path: Path, use: Callable[[Kernel | None], None]
) -> None:
    """Some file systems pass on what their server says: there it is no word on the call itself."""
    use(Kernel(errno.EPERM, only=WAIT))
    with pytest.raises(StorageError, match="Operation not permitted"):
        open_storage(tmp_path).put_stream("a", [b"x" * 150] * 3)


def test_the_real_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writeback, "_PIECE", PIECE)
    storage = open_storage(tmp_path)
    storage.put_stream("a", [bytes([number]) * 150 for number in range(5)])
    assert storage.read("a") == b"".join(bytes([number]) * 150 for number in range(5))
