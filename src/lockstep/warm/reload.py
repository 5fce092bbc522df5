"""``lockstep run --reload``: starts a script again whenever its code changes.

    this process                    the script, started as without --reload
    start ────────────────────────▶ fit() ── its run's path ─────▶ noted
    a file is saved ── stop ──────▶ the run stops at its next report; the script ends
    kept ◀── its state in memory ──
    start ── the runs so far, ────▶ fit() continues the run from its last state
             and the memory

Where no script takes the memory, it is written to the run's directory. A script that ends with an
error leaves everything as it is until a file is saved again.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.util import cache_from_source
from typing import Any

from lockstep import settings
from lockstep.warm.reload_session import MAX_DESCRIPTORS, MESSAGE_SIZE, is_own

__all__ = ["imported_files", "supervise"]

_LOOK_S = 0.1
"""How often files are looked at."""
_SETTLE_S = 0.02
"""Editors write a file in steps: it is complete when it has not changed for this long."""
_FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}
_FROM_KERNEL = 0x80  # SI_KERNEL: typed on the terminal, so the script has got it, too
_MAX_FILES = 2000
_WRITE = "from lockstep.train.driver.reloading import main; main()"


def supervise(kind: str, target: str, command: Sequence[str]) -> int:
    """Run the command until it ends well; start it again when its code changes.

    Args:
        kind, target: the script or the module (``-m``) that the command runs.
        command: starts it once.

    Returns:
        What to pass to ``sys.exit``.

    Raises:
        ValueError: there is no such file to watch.
    """
    roots = [os.path.dirname(os.path.realpath(target)) if kind == "script" else os.getcwd()]
    roots += [entry for entry in sys.path if entry and is_own(os.path.join(entry, "x.py"))]
    start = os.path.abspath(target) if kind == "script" else next(_module(target, roots), "")
    if not (start.endswith(".py") and os.path.isfile(start)):
        raise ValueError(f"--reload watches a file or a module; there is none for {target!r}.")
    signals = _FORWARDED | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        return _Supervisor(_Watch(start, roots), command, signals, before).run()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Watch:
    """The user's own files that a script consists of, and which of them have changed."""

    def __init__(self, start: str, roots: list[str]) -> None:
        self._start = start
        self._roots = roots
        self._told: set[str] = set()
        """What the script itself has imported."""
        self._known: dict[str, Any] = {}
        self._add(imported_files(start, roots))

    def add(self, files: Iterable[str]) -> None:
        """Watch these files, too."""
        self._told.update(files)
        self._add(files)

    def _add(self, files: Iterable[str]) -> None:
        for path in files:
            self._known.setdefault(path, _stamp(path))

    def changed(self) -> list[str]:
        """The files that were saved since the last look."""
        if not self._different():
            return []
        stamps = None
        while stamps != (stamps := {path: _stamp(path) for path in self._known}):
            time.sleep(_SETTLE_S)
        # A file that is gone for a moment is being replaced.
        found = [path for path in self._different() if stamps[path] is not None]
        for path in found:
            self._known[path] = stamps[path]
            # By its second and its size alone Python would take the old code for the new one's.
            with contextlib.suppress(OSError):
                os.remove(cache_from_source(path))
        if found:
            self._add(imported_files(self._start, self._roots))
        return found

    def _different(self) -> list[str]:
        return [path for path, stamp in self._known.items() if _stamp(path) != stamp]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


class _Supervisor:
    def __init__(
        self,
        watch: _Watch,
        command: Sequence[str],
        signals: set[signal.Signals],
        mask: Iterable[int],
    ) -> None:
        self._watch = watch
        self._command = command
        self._signals = signals
        self._mask = set(mask)
        self._runs: list[tuple[str, bool] | None] = []
        self._memory: tuple[int | None, list[int]] = None, []
        """The call of fit() whose state is in memory only, and the descriptors of that."""
        self._changed: str | None = None
        self._stopped = False
        """The script has ended because of the change."""

    def run(self) -> int:
        while True:
            code, ended = self._run_once()
            if ended or (code == 0 and not self._stopped):
                self._write_memory("it is lost")
                return _end(code)
            if not self._stopped and self._changed is None:
                self._write_memory("it is still in memory, for the next start")
                print(
                    "lockstep run: paused, because the script has failed. Save a changed file to "
                    "try again; Ctrl-C ends it.",
                    file=sys.stderr,
                )
                if not self._wait_for_change():
                    return _end(-signal.SIGINT)

    def _run_once(self) -> tuple[int, bool]:
        """Run the script until it ends: how, and whether a signal has ended it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            number, files = self._memory
            first = {"runs": self._runs, "changed": self._changed, "memory": number}
            socket.send_fds(ours, [json.dumps(first).encode()], files)
            ours.setblocking(False)
            self._changed, self._stopped = None, False
            child = subprocess.Popen(
                self._command,
                env=settings.environment() | settings.reload_environment(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                # Nothing runs beside this thread that a fork could catch in the middle.
                preexec_fn=self._unblock,
            )
            theirs.close()
            ended = False
            while (code := child.poll()) is None:
                ended |= self._take_signal(child)
                self._read(ours)
                if self._changed is None and (found := self._watch.changed()):
                    self._changed = os.path.basename(found[0])
                    with contextlib.suppress(OSError):  # it is ending
                        ours.send(json.dumps({"stop": self._changed}).encode())
            self._read(ours)
        return code, ended

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _write_memory(self, otherwise: str) -> None:
        """No script has taken the last state: write it, so that it outlives this process.

        Args:
            otherwise: what is said if that fails.
        """
        number, files = self._memory
        run = None if number is None else self._runs[number]
        if run is None:
            return
        done = subprocess.run(
            [sys.executable, "-c", _WRITE, run[0], *map(str, files)],
            pass_fds=files,
            preexec_fn=self._unblock,  # Ctrl-C ends it
        )
        if done.returncode:
            print(
                f"lockstep run: the last state could not be written to {run[0]}; {otherwise}.",
                file=sys.stderr,
            )
        else:
            self._keep(None, [])

    def _keep(self, number: int | None, files: list[int]) -> None:
        for file in self._memory[1]:
            os.close(file)
        self._memory = number, files

    def _take_signal(self, child: subprocess.Popen[bytes]) -> bool:
        found = signal.sigtimedwait(self._signals, _LOOK_S)
        if found is None or found.si_signo == signal.SIGCHLD:
            return False
        if found.si_code != _FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(found.si_signo)
        return True

    def _read(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                data, files, _, _ = socket.recv_fds(sock, MESSAGE_SIZE, MAX_DESCRIPTORS)
                if not data:
                    return
                message = json.loads(data)
                if "memory" in message:
                    self._keep(message["memory"], files)
                self._watch.add(message.get("files", ()))
                self._stopped |= "stopped" in message
                if "fit" in message:
                    number = message["fit"]
                    self._runs += [None] * (number + 1 - len(self._runs))
                    run = self._runs[number]
                    uri = message.get("run") or (run[0] if run else "")
                    self._runs[number] = uri, "finished" in message

    def _wait_for_change(self) -> bool:
        """Wait until a file is saved; False if a signal came first."""
        while not (found := self._watch.changed()):
            taken = signal.sigtimedwait(self._signals, _LOOK_S)
            if taken is not None and taken.si_signo != signal.SIGCHLD:
                return False
        self._changed = os.path.basename(found[0])
        return True


def _end(code: int) -> int:
    """End as the script did; returns its exit code where no signal has ended it."""
    if code >= 0:
        return code
    sys.stderr.flush()
    with contextlib.suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    return 128 - code


def imported_files(start: str, roots: Sequence[str]) -> set[str]:
    """A script's own files: itself, and what it imports at any place, as far as its text shows.

    Also of code that does not run: a file that cannot be imported is one to watch.
    """
    found: set[str] = set()
    waiting = [start]
    while waiting and len(found) < _MAX_FILES:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting += _imports(path, roots)
    return found


def _imports(path: str, roots: Sequence[str]) -> list[str]:
    files: list[str] = []
    for level, name in _imported_names(path, _stamp(path)):
        folder = path
        for _ in range(level):
            folder = os.path.dirname(folder)
        files += _module(name, [folder] if level else roots)
    return files


@lru_cache(maxsize=_MAX_FILES)
def _imported_names(path: str, stamp: object) -> list[tuple[int, str]]:
    """Each import in a file: how many folders up it begins (0: an absolute one), and the name."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    names: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            inside = f"{node.module}." if node.module else ""
            names += [(node.level, f"{inside}{alias.name}") for alias in node.names]
    return names


def _module(name: str, roots: Sequence[str]) -> Iterator[str]:
    """The user's own files that importing a module executes; the module's own is the first."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        inner = os.path.join(*parts[:length])
        for root in roots:
            endings = (".py", f"{os.sep}__main__.py", f"{os.sep}__init__.py")
            places = [os.path.abspath(os.path.join(root, inner + ending)) for ending in endings]
            found = [place for place in places if os.path.isfile(place)]
            yield from filter(is_own, found)
            if found:
                break  # as Python looks: the first place that has it
