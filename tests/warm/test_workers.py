"""Workers from a warm server, of a script of ``lockstep run`` and of a plain ``python``."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine import warm_server
from lockstep.engine.base import GroupSpec
from lockstep.engine.servers import ServerPool
from lockstep.settings import child_environment
from lockstep.warm import caller
from lockstep.warm.messages import receive, send
from lockstep.warm.place import Place
from tests.repository import SRC
from tests.warm.warm_runs import LIMIT_S, Warm

SCRIPT = """
import os, sys, time
from lockstep import train
WARM = "lockstep.engine.warm_server"
def function(config):
    with open(os.path.join(config["out"], f"worker-{os.getpid()}"), "w") as file:
        file.write(os.environ.get("OF_THE_DRIVER", "") + f" {WARM in sys.modules}")
    print("from a worker", flush=True)
    for step in range(config["steps"]):
        train.report({"step": step})
        time.sleep(0.01)
train.DataParallelTrainer(
    function,
    train_loop_config={"out": sys.argv[1], "steps": int(sys.argv[2])},
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=sys.argv[1] + "/runs"),
).fit()
print("fitted", WARM in sys.modules)
"""


def workers(directory: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in directory.glob("worker-*")]


def test_workers_are_forked_from_the_warm_server(running: Warm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {**running.environment, "OF_THE_DRIVER": "here"}
    for command, is_warm in (
        ([sys.executable], False),  # the script imports for itself
        (running.command("run"), True),
    ):
        done = subprocess.run(
            [*command, "train.py", str(tmp_path), "2"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"fitted {is_warm}\n")
        assert "from a worker" in done.stdout + done.stderr
        found = list(tmp_path.glob("worker-*"))
        assert [path.read_text() for path in found] == ["here True", "here True"]
        running.wait_until(
            lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers(tmp_path))
        )
        for path in found:
            path.unlink()


def test_a_killed_server_harms_no_run_and_a_killed_driver_leaves_nothing(
    warm: Warm, tmp_path: Path
) -> None:
    server = warm.start()
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py", str(tmp_path), "1000000"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=warm.environment, stdout=subprocess.DEVNULL
    ) as driver:
        warm.wait_until(lambda: len(workers(tmp_path)) == 2)
        os.kill(server, signal.SIGKILL)
        warm.wait_until(lambda: not warm.is_locked())
        assert all(Path(f"/proc/{pid}").exists() for pid in workers(tmp_path))
        assert driver.poll() is None
        driver.kill()
    warm.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers(tmp_path)))


# As Lightning's module of this name: its import decides which rank this process is.
RANK_ZERO = """
import os
def _get_rank():
    rank = os.environ.get("RANK")
    return None if rank is None else int(rank)
def rank_zero_only(function):
    return function
rank_zero_only.rank = _get_rank() or 0
"""
RANKS = """
import os, sys
import lightning_fabric.utilities.rank_zero
from lockstep import train
def function(config):
    os.environ["RANK"] = str(train.get_context().get_world_rank())
    from lightning_fabric.utilities.rank_zero import rank_zero_only
    warm = "lockstep.engine.warm_server" in sys.modules
    train.report({"warm": warm, "rank": rank_zero_only.rank})
result = train.DataParallelTrainer(
    function,
    scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(storage_path=sys.argv[1], verbose=0),
).fit()
print([(metrics["warm"], metrics["rank"]) for metrics in result.metrics_by_rank])
"""


def test_a_preloaded_library_does_not_decide_the_rank(tmp_path: Path) -> None:
    part = tmp_path / "site-packages" / "lightning_fabric" / "utilities"
    part.mkdir(parents=True)
    (part.parent / "__init__.py").write_text("")
    (part / "__init__.py").write_text("")
    (part / "rank_zero.py").write_text(RANK_ZERO)
    (tmp_path / "train.py").write_text(RANKS)
    warm = Warm(tmp_path / "runtime", PYTHONPATH=f"{SRC}:{tmp_path / 'site-packages'}")

    def ranks(*command: str) -> str:
        done = subprocess.run(
            [*command, "train.py", str(tmp_path / "runs")],
            cwd=tmp_path,
            env=warm.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        return done.stdout

    try:
        assert ranks(*warm.command("run")) == "[(False, 0), (False, 1)]\n"
        warm.wait_until(lambda: any("lightning_fabric" in one["packages"] for one in warm.status()))
        assert ranks(*warm.command("run")) == "[(True, 0), (True, 1)]\n"
        (part / "rank_zero.py").write_text(RANK_ZERO + "# edited\n")
        assert ranks(sys.executable) == "[(False, 0), (False, 1)]\n"
    finally:
        warm.stop()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where this process looks for a warm server."""
    monkeypatch.delenv("LOCKSTEP_WARM", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    place = Place.of(child_environment({}), create=True)
    directory = os.open(place.directory, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(f"/proc/self/fd/{directory}/{os.path.basename(place.socket)}")
        os.close(directory)
        found.listen()
        yield found


@pytest.mark.parametrize("step", ["accepted", "asked", "refused", "ready", "refused late", "never"])
def test_where_the_warm_server_gives_no_process_a_new_interpreter_is_started(
    listener: socket.socket, step: str
) -> None:
    def serve() -> None:
        # The driver may have done without it by then.
        with contextlib.suppress(BrokenPipeError), listener.accept()[0] as client:
            if step == "accepted":
                return
            asked = receive(client)
            assert asked is not None
            assert asked[0] == "workers"
            if step == "refused":
                send(client, "refused", reason="it is of another environment")
            if step in ("ready", "refused late", "never"):
                send(client, "ready")
                begun = receive(client)
                assert begun is not None
                for file in begun[2]:
                    os.close(file)
            if step == "refused late":
                send(client, "refused", reason="a library has changed")
            if step == "never":
                assert receive(client) is None

    server = threading.Thread(target=serve)
    server.start()
    pool, spec = ServerPool(), GroupSpec(1, "tests.engine.workers:echo", b"")
    try:
        pool.prepare(spec)
        pool.prepare(spec)
        assert len(pool.servers) == 1
        if step != "never":
            found = pool.acquire(spec)
            assert found.running()
            assert found.pid > 0
            found.open_session().close()
            pool.release(found)
    finally:
        pool.close()
        server.join()


def test_a_server_that_does_not_say_whether_it_may_be_used_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warm_server, "ANSWER_S", 0.01)
    verdict, answering = os.pipe()
    try:
        assert "has not looked at its libraries" in warm_server._read_verdict(verdict)
    finally:
        os.close(answering)


def test_a_system_that_does_not_tell_its_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nSigIgn:\t0000000000001000\n")
    monkeypatch.setattr("builtins.open", lambda path, mode: io.FileIO(status))
    with pytest.raises(OSError, match="has no Umask"):
        caller._umask_and_ignored()
