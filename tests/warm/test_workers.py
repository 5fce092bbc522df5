"""Workers from a warm server, of a script of ``lockstep run`` and of a plain ``python``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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
