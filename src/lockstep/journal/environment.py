"""What a run was started with: versions, the git commit, the command line, the hardware.

Written beside the run's journal by a thread of its own: ``git status`` may take seconds, and the
first line of ``fit()`` does not wait for it. No variable of the environment is recorded.
"""

from __future__ import annotations

import glob
import json
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from lockstep.redact import redact
from lockstep.run_layout import ENVIRONMENT_FILE
from lockstep.storage.local import open_private

__all__ = ["EnvironmentRecorder", "hidden_secrets", "installed", "machine"]

PACKAGES = (
    "torch",
    "numpy",
    "pandas",
    "pyarrow",
    "lightning",
    "transformers",
    "accelerate",
    "tensorflow",
    "horovod",
    "optuna",
)
_DELAY_S = 0.25
"""How long after the start of a run, so that the workers start first."""
_CLOSE_S = 0.5
"""How long the end of a run waits for git, where the run was shorter than that."""
_MAX_TEXT = 256 << 10
"""How much of git's answer is kept."""
_LEFT_OUT = "\n… (the rest is left out)"
_SECRET = re.compile(r"secret|token|passw|key|credential|signature", re.I)
_OPTION = re.compile(r"(--?[^=]*)(=)?", re.S)


class EnvironmentRecorder:
    """Writes the environment of this process into ``directory``, in the background."""

    def __init__(self, directory: str) -> None:
        self._git: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._begin = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._write,
            args=(directory, _working_directory()),
            name="lockstep-environment",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Wait for a moment, then do without what git has not answered. Idempotent."""
        self._begin.set()
        self._thread.join(_CLOSE_S)
        with self._lock:
            self._closing = True
            if self._git is not None:
                self._git.kill()
        self._thread.join()

    def _write(self, directory: str, here: str | None) -> None:
        self._begin.wait(_DELAY_S)
        # A run does not fail because its environment cannot be recorded.
        with suppress(Exception):
            facts = {
                "time": time.time(),
                "command": hidden_secrets([sys.executable, *sys.argv]),
                "directory": here,
                "python": platform.python_version(),
                "packages": installed(),
                **machine(),
                "git": here and self._git_facts(_script_directory(here)),
            }
            path = os.path.join(directory, ENVIRONMENT_FILE)
            # A file that is being written has this ending until it is complete.
            with open(f"{path}.tmp", "w", encoding="utf-8", opener=open_private) as file:
                json.dump(facts, file)
            os.replace(f"{path}.tmp", path)

    def _git_facts(self, where: str) -> dict[str, Any] | None:
        """The commit of the script's repository, and whether tracked files differ from it."""
        text = self._ask(where, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
        if text is None:
            unknown = {"commit": None, "dirty": None, "diff": None}
            return unknown if self._closing else None
        lines = text.splitlines()
        commit = next((line.split()[2] for line in lines if line.startswith("# branch.oid ")), None)
        dirty = any(not line.startswith("#") for line in lines)
        # Without programs that a repository's settings name for this.
        diff = self._ask(where, "diff", "--no-ext-diff", "--no-textconv", "HEAD") if dirty else ""
        return {"commit": commit, "dirty": dirty, "diff": redact(f"{diff}\n") if diff else diff}

    def _ask(self, where: str, *arguments: str) -> str | None:
        # Without what a repository's own settings would start.
        command = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-C", where)
        with self._lock:
            if self._closing:
                return None
            try:
                self._git = subprocess.Popen(
                    (*command, *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                return None
        with self._git as git:
            # Not more than is kept: a diff of generated files may have gigabytes.
            assert git.stdout is not None
            text = git.stdout.read(_MAX_TEXT).decode("utf-8", "replace").strip("\n")
            if git.stdout.read(1):
                git.kill()
                text += _LEFT_OUT
        with self._lock:
            self._git = None
        return text if git.returncode == 0 or text.endswith(_LEFT_OUT) else None


def _working_directory() -> str | None:
    with suppress(OSError):
        return os.getcwd()
    return None  # somebody has deleted it


def _script_directory(directory: str) -> str:
    """Where the program's own code is: the script's directory, else the working directory."""
    script = os.path.join(directory, sys.argv[0]) if sys.argv and sys.argv[0] else ""
    is_tool = script.startswith((sys.prefix, sys.base_prefix)) or not os.path.isfile(script)
    return directory if is_tool else os.path.dirname(script)


def hidden_secrets(command: Iterable[str]) -> list[str]:
    """A command line without passwords in URIs and without the values of options like --api-key."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        option = _OPTION.match(word)
        if hide_next and not option:
            shown.append("…")
            hide_next = False
            continue
        hide_next = False
        if option and _SECRET.search(option[1]):
            hide_next = option[2] is None
            shown.append(option[1] if hide_next else f"{option[1]}=…")
        else:
            shown.append(redact(word))
    return shown


@cache
def installed() -> dict[str, str]:
    """The versions of the packages that matter, without importing them."""
    from lockstep import __version__  # not at import: lockstep itself is being imported then

    found = {"lockstep": __version__}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@cache
def machine() -> dict[str, Any]:
    """Host, system, CPUs, memory and GPUs of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "hostname": socket.gethostname(),
        "system": platform.platform(),
        "cpus": os.cpu_count(),
        "memory_gib": round(memory / (1 << 30), 1),
        "gpus": [
            _model(path) for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information"))
        ],
    }


def _model(path: str) -> str:
    with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return "unknown"
