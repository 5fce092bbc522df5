"""Out of memory is named as such: the kernel's counters, and a real kill where one can be had."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.engine.base import OUT_OF_MEMORY
from lockstep.engine.processes import describe_memory, oom_kills
from lockstep.train.driver.failure import describe, died
from tests.repository import SRC

LIMIT = 400 << 20


def system(root: Path, **files: str) -> str:
    """A machine whose proc and sys hold just these files; ``__`` stands for a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("events", "memory.events")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_the_machines_counter(tmp_path: Path) -> None:
    root = system(tmp_path, proc__vmstat="nr_free_pages 17\noom_kill 5\nzswpin 0\n")
    assert oom_kills(root) == 5


def test_the_cgroup_is_asked_before_the_machine(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        proc__vmstat="oom_kill 5\n",
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__events="low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\n",
        sys__fs__cgroup__events="oom_kill 7\n",
    )
    assert oom_kills(root) == 2


def test_a_container_sees_its_cgroup_as_the_root(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        proc__vmstat="oom_kill 5\n",
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__events="oom 3\noom_kill 7\n",
    )
    assert oom_kills(root) == 7


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    root = system(
        tmp_path,
        proc__vmstat="oom_kill 5\n",
        proc__self__cgroup="5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n",
    )
    assert oom_kills(root) == 5
    group = tmp_path / "sys/fs/cgroup/memory/x"
    group.mkdir(parents=True)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert oom_kills(root) == 1


@pytest.mark.parametrize("text", ["", "oom_kill\n", "oom_kill many\n", "no_counter 1\n"])
def test_a_counter_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    assert oom_kills(str(tmp_path)) == 0
    assert oom_kills(system(tmp_path, proc__vmstat=text)) == 0


def test_this_machine_can_be_asked() -> None:
    assert oom_kills() >= 0


MEMORY = "its memory peaked at 1.5 GB; its cgroup may use 2 GB"


def test_the_peak_of_memory_beside_what_there_is(tmp_path: Path) -> None:
    assert describe_memory(1_500_000_000, str(tmp_path)) == "its memory peaked at 1.5 GB"
    root = system(tmp_path, proc__meminfo="MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    assert describe_memory(12_345_678, root) == (
        "its memory peaked at 12.3 MB; this machine has 16.4 GB"
    )
    system(tmp_path, proc__self__cgroup="0::/a\n", sys__fs__cgroup__a__events="")
    limit = tmp_path / "sys/fs/cgroup/a/memory.max"
    limit.write_text("max\n")
    assert describe_memory(1_500_000_000, root).endswith("this machine has 16.4 GB")
    limit.write_text("2000000000\n")
    assert describe_memory(1_500_000_000, root) == MEMORY
    assert describe((died(1, -9, f"{OUT_OF_MEMORY}; {MEMORY}"),), 1, 2) == (
        f"Rank 1 of 2 was killed because the machine ran out of memory ({MEMORY}); use fewer "
        "workers or smaller batches."
    )
    assert (
        describe((died(1, -9, MEMORY),), 1, 2) == f"Rank 1 of 2 was killed by SIGKILL ({MEMORY})."
    )


def test_the_sentence_says_what_to_do() -> None:
    failure = died(1, -9, OUT_OF_MEMORY)
    assert describe((failure,), 1, 2) == (
        "Rank 1 of 2 was killed because the machine ran out of memory; use fewer workers or "
        "smaller batches."
    )


@contextlib.contextmanager
def small_memory() -> Iterator[Path]:
    """A cgroup in this process's own one, which may use little memory."""
    entries = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    place = next((path for _, names, path in entries if "memory" in names.split(",")), None)
    mount, limit = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"
    if place is None:
        place = next((path for number, _, path in entries if number == "0"), "/")
        mount, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = mount / place.lstrip("/") / f"lockstep-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        try:
            (group / limit).write_text(str(LIMIT))
            for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
                if (group / swap).exists():
                    (group / swap).write_text(str(LIMIT) if "memsw" in swap else "0")
        except OSError as error:
            pytest.skip(f"this machine's cgroups limit no memory: {error}")
        yield group
    finally:
        remove(group)


def remove(group: Path) -> None:
    deadline = time.monotonic() + 120
    while True:
        try:
            group.rmdir()
        except OSError:  # the last process is on its way out
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


SCRIPT = """
import json, os, sys
import lockstep
from lockstep import train

def eat():
    if train.get_context().get_world_rank() == 1:
        print("about to load everything")
        held = [bytearray(os.urandom(1 << 16) * 64) for _ in range(1000)]
    train.report({"a": 1})

def killed():
    if train.get_context().get_world_rank() == 1:
        os.kill(os.getpid(), 9)
    train.report({"a": 1})

texts = []
for function in (eat, killed):
    try:
        train.DataParallelTrainer(
            function,
            scaling_config=train.ScalingConfig(num_workers=2),
            run_config=train.RunConfig(verbose=0),
        ).fit()
    except lockstep.train.TrainingFailedError as error:
        texts.append([str(error), error.__cause__.exitcode])
print(json.dumps(texts))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
def test_a_worker_that_the_kernel_kills_for_its_memory(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    with small_memory() as group:
        done = subprocess.run(
            ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', group, sys.executable, script],
            env={**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_STORAGE": str(tmp_path / "out")},
            capture_output=True,
            text=True,
            timeout=150,
        )
    if "cgroup.procs" in done.stderr:
        pytest.skip(f"no process can be put into a cgroup here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    (starved, starved_code), (killed, killed_code) = json.loads(done.stdout)
    assert starved_code == killed_code == -9
    ran_out = "Rank 1 of 2 was killed because the machine ran out of memory (its memory peaked at "
    assert starved.startswith(ran_out)
    assert "about to load everything" in starved
    # A kill after that is not the kernel's.
    assert killed.startswith("Rank 1 of 2 was killed by SIGKILL (its memory peaked at ")
