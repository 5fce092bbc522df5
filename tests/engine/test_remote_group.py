"""What a driver needs for the workers of a cluster."""

from __future__ import annotations

import subprocess
import sys

from tests.repository import SRC

CODE = """
import resource, sys
sys.path.insert(0, sys.argv[1])
from lockstep.engine.remote_group import allow_files
from lockstep.errors import EngineError

resource.setrlimit(resource.RLIMIT_NOFILE, (600, 2000))
allow_files(50)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_files(1000)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
allow_files(1800)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
try:
    allow_files(2000)
except EngineError as error:
    print(error)
"""


def test_a_driver_may_open_a_connection_to_each_worker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(SRC)], capture_output=True, text=True, check=True
    )
    same, raised, all_there_is, refused = done.stdout.splitlines()
    assert same == "600"
    assert int(raised) == 1512
    assert int(all_there_is) == 2000
    assert "needs 2000 connections to workers and nodes, and may open only 2000 files" in refused
    assert "ulimit -Hn 2512" in refused
