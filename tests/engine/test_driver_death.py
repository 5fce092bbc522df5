"""However the driver ends, nothing that it started outlives it. Looked at from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.driving import lives, members, wait_until
from tests.repository import ROOT

DRIVER = """
import contextlib, json, os, sys, time
from lockstep.engine.local import LocalEngine
from tests.engine.driving import driven

ending, worker, forks = sys.argv[1:]
engine = LocalEngine()
with contextlib.ExitStack() as stack:
    run = stack.enter_context(driven(engine, "family", size=2, payload=worker.encode()))
    run.until_told()
    told = [messages[0] for messages in run.messages]
    child = None
    if forks == "fork":
        child = os.fork()
        if child == 0:
            os.close(1)
            time.sleep(3600)
            os._exit(0)
    pids = [pid for t in told for pid in t["pids"]]
    servers = {name: told[0][name] for name in ("server", "keeper")}
    print(json.dumps({**servers, "pids": pids, "child": child}), flush=True)
    if ending == "sys.exit":
        sys.exit(3)
    if ending == "os._exit":
        os._exit(3)
    if ending == "error":
        raise RuntimeError("the driver fails")
    while True:
        time.sleep(3600)
"""


@contextlib.contextmanager
def script(text: str, *arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        **options,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("ending", "worker", "forks"),
    [
        ("SIGKILL", "plain", "no"),
        ("SIGTERM", "plain", "no"),
        ("SIGINT", "plain", "no"),
        ("sys.exit", "plain", "no"),
        ("os._exit", "plain", "no"),
        ("error", "plain", "no"),
        ("SIGKILL", "gil", "no"),
        ("SIGKILL", "deaf", "no"),
        ("os._exit", "deaf", "no"),
        ("SIGKILL", "plain", "fork"),
        ("sys.exit", "gil", "fork"),
    ],
)
def test_nothing_outlives_the_driver(ending: str, worker: str, forks: str) -> None:
    with script(DRIVER, ending, worker, forks) as driver:
        assert driver.stdout is not None
        line = driver.stdout.readline()
        assert line, driver.communicate()[1]
        told = json.loads(line)
        try:
            assert len(told["pids"]) == 8
            if ending.startswith("SIG"):
                driver.send_signal(signal.Signals[ending])
            driver.wait(timeout=150)
            wait_until(lambda: not any(map(lives, [*told["pids"], told["server"]])))
            wait_until(lambda: members(told["keeper"]) == [])
        finally:
            if told["child"] is not None:
                os.kill(told["child"], signal.SIGKILL)
            for pid in told["pids"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("worker", "others"),
    [
        ("plain", ["server"]),
        ("gil", ["server"]),
        ("gil", ["keeper"]),
        ("plain", ["server", "keeper"]),
    ],
)
def test_others_are_killed_together_with_the_driver(worker: str, others: list[str]) -> None:
    with script(DRIVER, "SIGKILL", worker, "no") as driver:
        assert driver.stdout is not None
        told = json.loads(driver.stdout.readline())
        for name in others:
            os.kill(told[name], signal.SIGKILL)
        driver.kill()
        driver.wait()
        try:
            wait_until(lambda: not any(map(lives, [*told["pids"], *members(told["keeper"])])))
        finally:
            for pid in told["pids"]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


FITS = """
import os, sys
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig, report

def train():
    report({"pid": os.getpid()})

def fit():
    trainer = DataParallelTrainer(
        train, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(verbose=0)
    )
    return trainer.fit().metrics["pid"]
"""


def run_to_end(text: str, storage: Path, **options: Any) -> str:
    with script(
        f"import os; os.environ['LOCKSTEP_STORAGE'] = {str(storage)!r}\n{text}", **options
    ) as process:
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert err == ""
    return out


def test_a_fork_of_the_driver_can_fit(tmp_path: Path) -> None:
    text = FITS + (
        "import warnings\n"
        "first = fit()\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"  # of forks, since Python 3.12
        "child = os.fork()\n"
        "second = fit()\n"
        "assert second != first\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "third = fit()\n"
        "print('done')\n"
    )
    assert run_to_end(text, tmp_path) == "done\n"


def test_a_driver_without_standard_streams(tmp_path: Path) -> None:
    text = FITS + f"fit()\nopen({str(tmp_path / 'done')!r}, 'w').close()\n"
    code = (
        "import os, sys; [os.close(fd) for fd in (0, 1, 2)]; os.execv(sys.executable, sys.argv[1:])"
    )
    inner = [sys.executable, "-c", text]
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    subprocess.run(
        [sys.executable, "-c", code, *inner],
        check=True,
        timeout=150,
        env={**os.environ, "PYTHONPATH": path, "LOCKSTEP_STORAGE": str(tmp_path)},
    )
    assert (tmp_path / "done").exists()


def test_the_runtime_environment_is_there_before_user_imports(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nVALUE = os.environ.get('MINE')\n")
    text = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import lockstep\n"
        "from lockstep.train import DataParallelTrainer, RunConfig, report\n"
        "def train():\n"
        "    import mine\n"
        "    report({'value': mine.VALUE})\n"
        "for value in ('one', 'two'):\n"
        "    lockstep.init(runtime_env={'env_vars': {'MINE': value}})\n"
        "    print(DataParallelTrainer(train, run_config=RunConfig(verbose=0)).fit()"
        ".metrics['value'])\n"
    )
    assert run_to_end(text, tmp_path / "results") == "one\ntwo\n"


def test_importing_starts_nothing() -> None:
    text = (
        "import os, threading, lockstep, lockstep.train, lockstep.engine.local\n"
        "print(threading.active_count(), open(f'/proc/self/task/{os.getpid()}/children').read())"
    )
    with script(text) as process:
        out, err = process.communicate(timeout=150)
    assert (out.split(), err) == (["1"], "")
