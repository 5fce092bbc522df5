"""The driver can always end: whatever is stopped or stalls, it notices, or Ctrl-C twice ends it."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

import lockstep
from lockstep import train, tune
from lockstep.engine.processes import children, process_state
from lockstep.engine.servers import ForkServer
from lockstep.errors import StorageError, TrainingInterrupted, WorkerDiedError
from lockstep.train import Checkpoint
from lockstep.train.driver.drive import Impatience
from lockstep.train.record.run import Run
from tests.engine.driving import lives, wait_until
from tests.integration.runs import failure, fit, hang_when


@pytest.fixture(autouse=True)
def _no_stopped_server() -> Iterator[None]:
    yield
    lockstep.shutdown()


@contextmanager
def two_interrupts(
    when: Callable[[], bool], raises: type[BaseException] = TrainingInterrupted
) -> Iterator[None]:
    """Ctrl-C twice once ``when()``; what is inside has to raise an error, and not stay for ever."""
    main = threading.get_ident()
    over = threading.Event()
    seen: list[Impatience] = []  # no event, which a handler must not set
    raised: list[BaseException] = []

    def press() -> None:
        wait_until(when)
        signal.pthread_kill(main, signal.SIGINT)
        # Two signals are one to Python if it has not looked in between. Once may be enough, too.
        limit = time.monotonic() + 10
        while not (seen or over.wait(0.01)) and time.monotonic() < limit:
            pass
        if not over.wait(0.05):
            signal.pthread_kill(main, signal.SIGINT)

    def note(self: Impatience) -> None:
        pressed(self)
        seen.append(self)

    pressed = Impatience.press
    user = threading.Thread(target=press)
    user.start()
    try:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Impatience, "press", note)
                yield
        except raises as error:
            raised.append(error)
        finally:
            over.set()
            user.join()
    except KeyboardInterrupt:  # once was enough, and twice met what follows the end
        user.join()
    else:
        assert raised


def sit(config: dict[str, Any]) -> None:
    """Every rank leaves its pid and sits there; who is named in the config is stopped."""
    place, rank = Path(config["place"]), train.get_context().get_world_rank()
    (place / f"pid {os.getpid()}").touch()
    while len(list(place.glob("pid *"))) < 2:
        time.sleep(0.005)
    if rank == 0 and config["stopped"] == "server":
        os.kill(os.getppid(), signal.SIGSTOP)
        while process_state(os.getppid()) != "stopped":  # where the machine is busy, not at once
            time.sleep(0.005)
    if rank == 0 and config.get("dies"):
        os.kill(os.getpid(), signal.SIGKILL)
    (place / f"up {rank}").touch()
    if config["stopped"] == "workers":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        try:
            time.sleep(1000)
        except KeyboardInterrupt:
            continue


def up(place: Path) -> Callable[[], bool]:
    return lambda: len(list(place.glob("up *"))) == 2


def pids(place: Path) -> list[int]:
    return [int(path.name.split()[1]) for path in place.glob("pid *")]


@pytest.mark.parametrize("stopped", ["server", "workers", "nobody"])
def test_whoever_is_stopped(tmp_path: Path, stopped: str) -> None:
    with two_interrupts(up(tmp_path)):
        fit(sit, config={"place": str(tmp_path), "stopped": stopped})
    wait_until(lambda: not any(map(lives, pids(tmp_path))))


def test_trials_whose_workers_are_stopped(tmp_path: Path) -> None:
    tuner = tune.Tuner(
        train.DataParallelTrainer(
            sit,
            train_loop_config={"place": str(tmp_path), "stopped": "server"},
            scaling_config=train.ScalingConfig(num_workers=2),
        ),
        run_config=train.RunConfig(verbose=0),
    )
    with two_interrupts(up(tmp_path)):
        tuner.fit()
    wait_until(lambda: not any(map(lives, pids(tmp_path))))


def test_a_worker_dies_while_the_server_is_stopped(tmp_path: Path) -> None:
    error = failure(sit, config={"place": str(tmp_path), "stopped": "server", "dies": True})
    assert isinstance(error.__cause__, WorkerDiedError)
    assert "rank 0 was lost (the fork server did not report how: the fork server is stopped" in str(
        error.__cause__
    )
    wait_until(lambda: not any(map(lives, pids(tmp_path))))
    assert fit(lambda: train.report({"a": 1})).metrics["a"] == 1  # on another server


def test_workers_hang_while_the_server_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = hang_when(monkeypatch, lambda _: up(tmp_path)())
    error = failure(sit, config={"place": str(tmp_path), "stopped": "server"}, **options)
    assert "the fork server is stopped; kill -CONT" in str(error.__cause__)
    wait_until(lambda: not any(map(lives, pids(tmp_path))))


@pytest.fixture
def stops_before_workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The server is stopped when it is about to get its first order."""
    stopped: list[int] = []
    opens = ForkServer.open_session

    def open_session(server: ForkServer) -> Any:
        wait_until(lambda: bool(children(server._process.pid)))
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(server.stopped)
        stopped.append(server.pid)
        return opens(server)

    monkeypatch.setattr(ForkServer, "open_session", open_session)
    return stopped


def test_a_server_that_is_stopped_before_the_workers_start(
    stops_before_workers: list[int], capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []

    def warned() -> bool:
        told.append(capfd.readouterr().err)
        return "not started" in "".join(told)

    with two_interrupts(warned):
        fit(lambda: None, hang_warning_s=0.2)
    pid = stops_before_workers[0]
    assert "Ranks 0 and 1 have not started for 0." in "".join(told)
    assert f"(the fork server is stopped; kill -CONT {pid} continues it)." in "".join(told)


def test_workers_that_never_start(
    stops_before_workers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_START_TIMEOUT_S", "0.5")
    error = failure(lambda: None, hang_warning_s=None)
    assert "ranks 0 and 1 have not started within" in str(error.__cause__)


@pytest.fixture
def stalled() -> Iterator[threading.Event]:
    """Set when something has stalled, which it does until the end of the test."""
    yield threading.Event()
    release.set()


release = threading.Event()


@pytest.fixture(autouse=True)
def _stall_again() -> None:
    release.clear()


@pytest.mark.parametrize("storage", ["local", "remote"])
def test_storage_that_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalled: threading.Event, storage: str
) -> None:
    def publish(run: Run, record: Any, stage: int | None = None) -> None:
        stalled.set()
        release.wait()

    monkeypatch.setattr(Run, "publish", publish)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where its records are kept
    options: dict[str, Any] = {"storage_path": str(tmp_path)}
    if storage == "remote":
        filesystem = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
        options = {"storage_path": "runs", "storage_filesystem": filesystem}
    raises = StorageError if storage == "remote" else TrainingInterrupted
    with two_interrupts(stalled.is_set, raises):
        fit(lambda: train.report({}, checkpoint=Checkpoint.from_dict({"a": 1})), **options)


def test_a_callback_that_stalls(stalled: threading.Event) -> None:
    class Stalls(tune.Callback):
        def on_trial_result(self, *args: Any, **info: Any) -> None:
            stalled.set()
            release.wait()

    def train_func() -> None:
        train.report({})
        time.sleep(1000)

    with two_interrupts(stalled.is_set):
        fit(train_func, callbacks=[Stalls()])
