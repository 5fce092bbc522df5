"""A warm server of a test's own: its runtime directory, its environment, its end."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.repository import SRC

LIMIT_S = 150.0
"""When something that must happen has not. It says nothing about how fast anything is."""


class Warm:
    """The user's side: starts scripts, waits for the server, looks at it, ends it."""

    def __init__(self, runtime: Path, **variables: str) -> None:
        self.runtime = runtime
        runtime.mkdir(mode=0o700, exist_ok=True)
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("PYTHON") and name != "LOCKSTEP_WARM"
            },
            "XDG_RUNTIME_DIR": str(runtime),
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_WARM_IDLE_S": "300",
            **variables,
        }

    def command(self, *arguments: str, flags: Sequence[str] = ()) -> list[str]:
        return [sys.executable, *flags, "-m", "lockstep", *arguments]

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """``lockstep run`` to its end."""
        options = {"capture_output": True, "text": True, "env": self.environment, **options}
        return subprocess.run(self.command("run", *arguments), timeout=LIMIT_S, **options)

    def popen(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        options = {"text": True, "env": self.environment, **options}
        return subprocess.Popen(self.command("run", *arguments), **options)

    def start(self) -> int:
        """Have a server that listens; its process."""
        self.run("-c", "pass")
        self.wait_until(lambda: bool(self.status()))
        return int(self.status()[0]["pid"])

    def status(self) -> list[dict[str, Any]]:
        done = subprocess.run(
            self.command("warm", "--json"),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def sockets(self) -> list[Path]:
        return sorted(self.runtime.glob("lockstep/*/*.socket"))

    def is_locked(self) -> bool:
        """Whether a server runs, or is being started."""
        # Twice: a server that has just learnt its name takes that lock, then releases its first.
        again = (path for _ in range(2) for path in [*self.runtime.glob("lockstep/*/*.lock")])
        for path in again:
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return True
        return False

    def wait_until(self, condition: Any) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"never happened: {self.logs()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.runtime.glob("lockstep/*/*.log"))

    def stop(self) -> None:
        """End every server, also one that is still being started."""

        def ended() -> bool:
            if self.sockets():
                subprocess.run(
                    self.command("warm", "--stop"),
                    env=self.environment,
                    capture_output=True,
                    timeout=LIMIT_S,
                )
            return not self.is_locked()

        self.wait_until(ended)
