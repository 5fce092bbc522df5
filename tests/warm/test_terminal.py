"""A warm script in a terminal, under a shell with job control."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.warm.warm_runs import LIMIT_S, Warm

SCRIPT = """
import os, signal, sys
print("terminal", sys.stdin.isatty(), sys.stdout.isatty(), os.get_terminal_size().columns)
signal.signal(signal.SIGCONT, lambda *_: os.write(1, b"continued\\n"))
try:
    while True:
        line = sys.stdin.readline()
        if not line:
            break
        print("read", line.strip(), flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(3)
"""


class Terminal:
    """A shell in a terminal of its own, typed to and read from."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        environment = {**environment, "PS1": "$ ", "TERM": "dumb", "COLUMNS": "", "HISTFILE": ""}
        del environment["COLUMNS"]
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        os.close(slave)
        self._text = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, words: str) -> str:
        """What the terminal shows up to these words, from where the last call ended."""
        deadline = time.monotonic() + LIMIT_S
        while words not in self._text:
            left = deadline - time.monotonic()
            assert left > 0, f"{words!r} never came: {self._text!r}"
            if select.select([self._master], [], [], left)[0]:
                self._text += os.read(self._master, 4096).decode(errors="replace")
        seen, _, self._text = self._text.partition(words)
        return seen

    def close(self) -> None:
        self.shell.kill()
        self.shell.wait()
        os.close(self._master)


@pytest.fixture
def terminal(running: Warm) -> Iterator[Terminal]:
    terminal = Terminal(running.environment)
    terminal.expect("$ ")
    yield terminal
    terminal.close()


def command(script: str) -> str:
    return f"{sys.executable} -m lockstep run -v -c {shlex.quote(script)}\n"


def test_ctrl_c_ctrl_z_and_typing(terminal: Terminal) -> None:
    terminal.type("stty cols 77 -echo\n")
    terminal.expect("$ ")
    terminal.type(command(SCRIPT))
    terminal.expect("warm start")
    terminal.expect("terminal True True 77")
    terminal.type("first\n")
    terminal.expect("read first")
    terminal.type("\x1a")  # Ctrl-Z
    terminal.expect("Stopped")
    terminal.expect("$ ")
    terminal.type("jobs; echo shell $((1 + 1))\n")
    terminal.expect("Stopped")
    terminal.expect("shell 2")
    terminal.type("fg\n")
    terminal.expect("continued")
    terminal.type("second\n")
    terminal.expect("read second")
    terminal.type("\x03")  # Ctrl-C
    terminal.expect("interrupted")
    terminal.expect("$ ")
    terminal.type("echo code $?\n")
    terminal.expect("code 3")


def test_in_the_background_a_script_is_started_cold(terminal: Terminal) -> None:
    """It must stop when it reads from the terminal, which only the terminal's own processes do."""
    terminal.type(command("import sys; sys.stdin.readline()").strip() + " &\n")
    terminal.expect("in the background of its terminal")
    terminal.type("wait\n")
    terminal.expect("Stopped")
    terminal.type("kill -9 %1\n")
    terminal.expect("$ ")
