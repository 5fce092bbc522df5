"""The threads that a training function leaves: a process exits when they have ended."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time

__all__ = ["threads_left"]

LATE_S = 2.0
"""How long threads may take to end before the user is warned."""

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


def threads_left() -> tuple[tuple[str, str], ...]:
    """Wait a moment for the threads that keep this process alive; the names and places of the rest.

    Daemon threads do not count: the interpreter does not wait for them.
    """
    deadline = time.monotonic() + LATE_S
    main = threading.main_thread()
    left = [thread for thread in threading.enumerate() if not thread.daemon and thread is not main]
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    return tuple((thread.name, _place(thread)) for thread in left if thread.is_alive())


def _place(thread: threading.Thread) -> str:
    """The innermost line of the thread's stack, if possible outside the standard library."""
    frame = innermost = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_filename.startswith(_STANDARD_LIBRARY):
        if "site-packages" in frame.f_code.co_filename:
            break
        frame = frame.f_back
    frame = frame or innermost
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}, in {frame.f_code.co_name}"
