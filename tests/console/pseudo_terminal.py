"""A real terminal for tests: runs a program on a pty and keeps the screen, as pyte sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

import pyte

from tests.repository import SRC

PRELUDE = """
import os, select, sys
os.close(os.open(os.ttyname(1), os.O_RDWR))  # a session leader's first terminal controls it
from lockstep.console.display import make_display
from lockstep.console.status import RunStatus

def status(state="running", **more):
    values = dict(attempt=1, elapsed_s=0.0, reports=0, metrics={}, checkpoint=None,
                  num_workers=2, name="my_run", path="/results/exp/my_run")
    return RunStatus(state=state, **{**values, **more})

def pause():
    os.write(1, b"\\x1b]2;paused\\x07")  # the window's title: nothing is drawn
    # A signal just before a blocking read would not wake it, so the read polls.
    while not select.select([0], [], [], 0.05)[0]:
        pass
    sys.stdin.readline()
"""


class Terminal:
    """The output of a program on a terminal, and the screen that a user would see."""

    def __init__(
        self, process: subprocess.Popen[bytes], master: BinaryIO, screen: pyte.HistoryScreen
    ) -> None:
        self.process = process
        self.master = master
        self.screen = screen
        self.raw = b""
        self._stream = pyte.ByteStream(screen)

    @property
    def text(self) -> str:
        """The screen, and the lines that scrolled out at its top."""
        history = [
            "".join(line[column].data for column in range(self.screen.columns)).rstrip()
            for line in self.screen.history.top
        ]
        shown = [line.rstrip() for line in self.screen.display]
        return "\n".join(history + shown).rstrip()

    @property
    def cursor_shown(self) -> bool:
        return not self.screen.cursor.hidden

    def wait_for(self, text: str) -> None:
        """Read until ``text`` is on the screen; the test's timeout is the limit."""
        while text not in self.text:
            assert self._read(), f"{text!r} never came:\n{self.text}"

    def wait_for_pause(self) -> None:
        """Read until the program waits in ``pause()``: then all it drew has been read."""
        while self.screen.title != "paused":
            assert self._read(), f"it never paused:\n{self.text}"

    def resume(self) -> None:
        """Let a program that waits in ``pause()`` continue."""
        self.type_line("")

    def resize(self, columns: int, lines: int) -> None:
        """Change the size of the window. Lines are not wrapped again, as in xterm."""
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.master.fileno(), termios.TIOCSWINSZ, size)
        self.screen.resize(lines, columns)

    def press_ctrl_c(self) -> None:
        os.write(self.master.fileno(), b"\x03")

    def type_line(self, text: str) -> None:
        """Type on the program's stdin: a pipe, where nothing is echoed, or the terminal."""
        if self.process.stdin is None:
            os.write(self.master.fileno(), text.encode() + b"\n")
            return
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def hang_up(self) -> None:
        """Close the terminal's side, like a user who closes the window."""
        self.master.close()

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Read to the end; return the exit code."""
        while self._read():
            pass
        return self.process.wait()

    def _read(self) -> bool:
        try:
            data = os.read(self.master.fileno(), 65536)
        except OSError:  # how Linux reports the end, once the program has closed its side
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)


@contextlib.contextmanager
def on_terminal(
    script: str,
    *,
    columns: int = 100,
    lines: int = 40,
    environment: Mapping[str, str] | None = None,
    stderr: Path | None = None,
    types: bool = False,
) -> Iterator[Terminal]:
    """Run ``script`` with stdout (and stderr, unless it goes to a file) on a terminal.

    ``types``: the user types on the terminal, too; else stdin is a pipe.
    """
    inherited = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    env = {key: value for key, value in os.environ.items() if key not in inherited}
    env |= {"TERM": "xterm-256color", "PYTHONPATH": str(SRC), "PYTHONUTF8": "1"}
    env |= environment or {}
    with contextlib.ExitStack() as stack:
        own_side, slave = pty.openpty()
        master = stack.enter_context(open(own_side, "r+b", buffering=0))
        with contextlib.ExitStack() as handed_over:
            handed_over.callback(os.close, slave)
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(script)],
                    stdin=slave if types else subprocess.PIPE,
                    stdout=slave,
                    stderr=handed_over.enter_context(stderr.open("wb")) if stderr else slave,
                    env=env,
                    start_new_session=True,
                )
            )
        stack.callback(process.kill)
        yield Terminal(process, master, pyte.HistoryScreen(columns, lines, history=10_000))
