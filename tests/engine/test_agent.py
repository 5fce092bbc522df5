"""What an agent on a node tells the driver."""

from __future__ import annotations

import os
import subprocess
import sys

import lockstep
from lockstep.engine.agent import version_difference, versions
from tests.repository import SRC


def test_versions_have_python_and_lockstep() -> None:
    found = versions()
    assert found["Python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found["lockstep"] == lockstep.__version__
    assert version_difference("10.0.0.2", found, found) == ""


def test_another_version_is_one_sentence() -> None:
    text = version_difference("10.0.0.2", {"torch": "2.4"}, {"torch": "2.13"})
    assert text.startswith("node 10.0.0.2 has torch 2.4, and the driver has torch 2.13;")


def test_what_is_missing_is_one_sentence() -> None:
    text = version_difference("10.0.0.2", {}, {"torch": "2.13"})
    assert text.startswith("node 10.0.0.2 has no torch, and the driver has torch 2.13;")


def test_what_only_the_node_has_does_not_matter() -> None:
    assert version_difference("10.0.0.2", {"torch": "2.13"}, {}) == ""


# As Ray starts an agent: as a child of the raylet, with a lower priority.
AGENT = """
import os, sys, threading
sys.path.insert(0, sys.argv[1])
go = threading.Event()
found = []
os.nice(3)
thread = threading.Thread(
    target=lambda: (go.wait(), found.append(os.getpriority(os.PRIO_PROCESS, 0)))
)
thread.start()
from lockstep.engine.agent import _undo_ray
_undo_ray()
go.set()
thread.join()
print(os.getpriority(os.PRIO_PROCESS, 0), *found)
"""
RAYLET = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def test_workers_have_the_priority_of_their_node() -> None:
    agent = [sys.executable, "-c", AGENT, str(SRC)]
    found = {}
    for name, variables in (("", {}), ("set", {"RAY_worker_niceness": "3"})):
        done = subprocess.run(
            [sys.executable, "-c", RAYLET, *agent],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        found[name] = {int(word) for word in done.stdout.split()}
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    low = {min(19, mine + 3)}
    assert found[""] == ({mine} if _may_raise() else low)
    assert found["set"] == low  # the node's owner wants it


def _may_raise() -> bool:
    """Only root may raise a priority, and not in every container."""
    code = "import os; os.nice(1); os.nice(-1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.returncode == 0
