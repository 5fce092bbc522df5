"""How a run's display leads to the dashboard, which is a process of its own: ``lockstep ui``.

A dashboard that runs leaves its address in a file that only its user can read. A notebook's panel
links to it. A terminal's panel shows the command.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lockstep import settings

__all__ = ["announce", "dashboard_address", "dashboard_command"]


def dashboard_command(path: str) -> str:
    """The command that shows the run at ``path``."""
    if path.startswith(os.path.join(settings.results_root(), "")):
        return "lockstep ui"
    place = path.partition("?")[0].rstrip("/")
    return f"lockstep ui {shlex.quote(place)}"


@contextmanager
def announce(address: str, roots: Sequence[str]) -> Iterator[None]:
    """Leave the address of a dashboard for the displays of runs, as long as it runs."""
    path = _file()
    with suppress(OSError):
        _leave({"address": address, "roots": list(roots), "pid": os.getpid()}, path)
    try:
        yield
    finally:
        with suppress(OSError, ValueError, AttributeError):
            if _is_own(path):
                with open(path, encoding="utf-8") as file:
                    mine = json.load(file).get("pid") == os.getpid()
                if mine:
                    os.unlink(path)


def _leave(content: dict[str, object], path: str) -> None:
    """Write a new file, then give it its name: another user may have put something there."""
    handle, new = tempfile.mkstemp(prefix="lockstep-ui-", dir=os.path.dirname(path))
    try:
        with open(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(new, path)
    except OSError:
        os.unlink(new)
        raise


def _is_own(path: str) -> bool:
    """Whether a file is this user's, and nobody else can read it."""
    status = os.lstat(path)
    private = stat.S_ISREG(status.st_mode) and not status.st_mode & 0o077
    return private and status.st_uid == os.getuid()


def dashboard_address(path: str) -> str | None:
    """The address of a running dashboard that shows the run at ``path``; None if there is none."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        file = _file()
        if not _is_own(file):
            return None
        with open(file, encoding="utf-8") as opened:
            found = json.load(opened)
        os.kill(int(found["pid"]), 0)  # a dashboard that was killed has left its file
        real = os.path.realpath(path)
        if any(real.startswith(os.path.join(root, "")) for root in found["roots"]):
            return str(found["address"])
    return None


def _file() -> str:
    return os.path.join(tempfile.gettempdir(), f"lockstep-ui-{os.getuid()}.json")
