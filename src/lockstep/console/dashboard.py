"""How a run's display leads to the dashboard, which is a process of its own: ``lockstep ui``.

A dashboard that runs leaves its address in a file that only its user can read. A notebook's panel
links to it. A terminal's panel shows the command.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from lockstep import settings
from lockstep.storage.local import open_private

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
    with suppress(OSError), open(path, "w", encoding="utf-8", opener=open_private) as file:
        json.dump({"address": address, "roots": list(roots), "pid": os.getpid()}, file)
    try:
        yield
    finally:
        with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
            mine = json.load(file).get("pid") == os.getpid()
            if mine:
                os.unlink(path)


def dashboard_address(path: str) -> str | None:
    """The address of a running dashboard that shows the run at ``path``; None if there is none."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        file = _file()
        status = os.lstat(file)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
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
