"""A state in memory on its way from one driver to the next."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.retention import CheckpointRecord
from lockstep.run_layout import METADATA_FILE, state_data, state_index
from lockstep.state.memory import checksum, create_memory
from lockstep.train import RunConfig
from lockstep.train.driver import reloading
from lockstep.train.driver.reloading import Reloading
from lockstep.train.protocol import MemoryPart
from lockstep.train.record.run import Run
from lockstep.warm.reload_session import MAX_DESCRIPTORS, MESSAGE_SIZE, ReloadSession

CONTENT = b"weights!" * 100


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run.create("Trainer", RunConfig(storage_path=str(tmp_path)), {})
    yield made
    made.close()


@pytest.fixture
def part() -> Iterator[MemoryPart]:
    descriptor, name = create_memory(len(CONTENT))
    os.pwrite(descriptor, CONTENT, 0)
    sums = checksum(CONTENT, len(CONTENT))
    yield MemoryPart(0, b"{}", os.getpid(), descriptor, name, len(CONTENT), sums)
    os.close(descriptor)


class Above:
    """The process above the scripts: what it keeps, and a session of the next script."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.files: list[int] = []
        self._sockets: list[socket.socket] = []

    def session(self) -> ReloadSession:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets += [ours, theirs]
        first = {"runs": (), "changed": None, "memory": self.number}
        socket.send_fds(ours, [json.dumps(first).encode()], self.files)
        return ReloadSession(theirs)

    def read(self) -> None:
        data, files, _, _ = socket.recv_fds(self._sockets[-2], MESSAGE_SIZE, MAX_DESCRIPTORS)
        self._close_files()
        self.number, self.files = json.loads(data)["memory"], files

    def _close_files(self) -> None:
        for file in self.files:
            os.close(file)

    def close(self) -> None:
        self._close_files()
        for sock in self._sockets:
            sock.close()


@pytest.fixture
def above() -> Iterator[Above]:
    made = Above()
    yield made
    made.close()


def record(number: int) -> CheckpointRecord:
    name = f"checkpoint_{number:06d}"
    return CheckpointRecord(number, name, number + 1, None, {"loss": 1.0}, 0, iteration=number + 1)


def test_the_next_driver_starts_from_it(run: Run, part: MemoryPart, above: Above) -> None:
    first = Reloading(above.session(), 3, run)
    assert first.taken is None
    assert first.give(record(4), [part], {})
    above.read()
    assert above.number == 3
    run.restored = True  # the next script's run is the same one
    session = above.session()
    assert Reloading(session, 2, run).taken is None, "another call of fit()"
    second = Reloading(session, 3, run)
    assert second.taken is not None
    assert run.pending == second.taken.record == record(4)
    (taken,) = second.taken.parts
    assert os.pread(taken.descriptor, len(CONTENT), 0) == CONTENT
    assert second.taken.save().in_memory
    second.taken.close()
    second.stored()
    second.stored()  # told once
    above.read()
    assert not above.files


def test_what_is_on_storage_is_not_started_from(run: Run, part: MemoryPart, above: Above) -> None:
    assert Reloading(above.session(), 0, run).give(record(1), [part], {})
    above.read()
    run.restored = True
    run.checkpoints.append(record(1))
    assert Reloading(above.session(), 0, run).taken is None
    assert run.pending is None


def test_another_run_does_not_start_from_it(run: Run, part: MemoryPart, above: Above) -> None:
    """The run of the state was deleted, to start over."""
    assert Reloading(above.session(), 0, run).give(record(1), [part], {})
    above.read()
    assert Reloading(above.session(), 0, run).taken is None
    assert run.pending is None
    above.read()
    assert not above.files, "nobody needs it any more"


def test_a_script_whose_process_above_is_gone_runs_on(above: Above) -> None:
    session = above.session()
    above.close()
    above.files = []
    for _ in range(2):
        assert session.look() is None


def test_it_is_written_where_no_driver_takes_it(
    run: Run, part: MemoryPart, above: Above, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Reloading(above.session(), 0, run).give(record(1), [part], {"owner": "me"})
    above.read()
    run.end("preempted")
    run.close()
    for _ in range(2):  # the second time it is there
        files = [str(os.dup(file)) for file in above.files]
        monkeypatch.setattr(sys, "argv", ["-c", run.storage.uri, *files])
        reloading.main()
        os.close(int(files[1]))
    found = run.result().checkpoint
    assert found is not None
    place = Path(str(found.path))
    assert place.name == "checkpoint_000001"
    assert (place / state_data(0)).read_bytes() == CONTENT
    assert (place / state_index(0)).read_bytes() == b"{}"
    assert json.loads((place / METADATA_FILE).read_text()) == {"owner": "me"}


def test_nobody_takes_it(run: Run, part: MemoryPart, above: Above) -> None:
    driver = Reloading(above.session(), 0, run)
    assert not driver.give(record(1), [], {})
    assert not driver.give(record(1), [part] * MAX_DESCRIPTORS, {})
    above.close()
    above.files = []
    assert not driver.give(record(1), [part], {})
