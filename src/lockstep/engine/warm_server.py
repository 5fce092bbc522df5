"""The warm server: has libraries imported, and forks processes for scripts and for workers.

One for each environment of a user (``warm/place.py``). It runs nobody's code but the libraries'
imports, has no second thread and no GPU, so a fork of it is safe. What it forks does not need it:
a script's keeper, and the keeper of a fork server, continue when the server is gone.

    LOADING ── all imported ──▶ READY ── a file of a library changed, idle, stop ──▶ ended
       └─ a library started a thread, opened a file, … ─▶ noted; the server starts again without it

    server ─▶ script's keeper ─▶ script              the keeper reports to the client how it ends
    server ─▶ fork server's keeper ─▶ fork server    as if the driver had started them itself
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import marshal
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterable
from typing import Any, NoReturn

from lockstep import settings
from lockstep.engine import forkserver
from lockstep.engine.processes import children
from lockstep.engine.resources import BlasThreads
from lockstep.engine.titles import set_title
from lockstep.engine.wakeup import Wakeup
from lockstep.engine.warm_libraries import Libraries
from lockstep.warm import modules
from lockstep.warm.caller import adopt, open_streams, reset_signals
from lockstep.warm.client import ANSWER_S, FORWARDED, peer
from lockstep.warm.messages import receive, send
from lockstep.warm.place import Place
from lockstep.warm.program import CODE, SCRIPT, Program, run_program
from lockstep.warm.program_text import variables_set_by
from lockstep.warm.variables import READ_LATER, matters_at_import

__all__ = ["WARM_TITLE", "main"]

WARM_TITLE = "lockstep warm server"
HELLO_S = 5.0
"""How long a client may take to say what it wants, which it does as soon as it is connected."""
LOOKED_S = 1.0
"""How long a look at the libraries' files counts, for the workers of the same script."""
CHECK_S = 5.0
"""How often to look whether the socket is still there: a logout removes its directory."""


def main(
    lock_fd: int,
    others_fd: int,
    directory: str,
    identity: list[Any],
    variables: dict[str, str],
    idle_s: float,
) -> NoReturn:
    """Load, then serve until nobody needs it.

    Args:
        lock_fd: the lock of the place, held.
        others_fd: where the caller's other variables can be read; -1: nowhere.
        directory, identity, variables: of the place.
        idle_s: how long to stay unused.
    """
    os.set_inheritable(lock_fd, False)
    if others_fd >= 0:
        os.set_inheritable(others_fd, False)
    os.umask(0o077)
    path = list(sys.path)
    os.chdir("/")
    reset_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    set_title(WARM_TITLE, "lockstep-warm")
    place = Place(directory, identity, variables)
    libraries = Libraries(place, lock_fd, others_fd, idle_s)
    libraries.load()
    libraries.complete_variables()
    known = Place(directory, identity, libraries.variables(), libraries.reads)
    if known.lock != place.lock:
        # Clients look for the server under the values of all variables that matter.
        own_lock = known.take_lock()
        if own_lock is None:
            os._exit(0)  # there is one already
        os.dup2(own_lock, lock_fd, inheritable=False)
        os.close(own_lock)
        libraries.moved(known)
        with contextlib.suppress(OSError):
            os.unlink(place.socket)  # of the server that this one replaces: it ends then
    libraries.publish()
    _Server(known, lock_fd, path, libraries, idle_s).run()


def _path(program: tuple[str, str, Any], directory_fd: int) -> str:
    """The script's file; of other programs the working directory."""
    directory = os.readlink(f"/proc/self/fd/{directory_fd}")
    kind, target, _ = program
    if kind != SCRIPT or target == "-":
        return directory
    return os.path.realpath(os.path.join(directory, target))


def _entry(program: tuple[str, str, Any], directory_fd: int) -> str:
    """Where the program's own modules are: what ``python`` puts first into ``sys.path``."""
    path = _path(program, directory_fd)
    return path if os.path.isdir(path) else os.path.dirname(path)


def _key(program: tuple[str, str, Any], directory_fd: int) -> str:
    """What a program is remembered by, until it is edited."""
    kind, target, _ = program
    if kind != SCRIPT:
        return f"{kind} {zlib.crc32(os.fsencode(target))}"
    path = _path(program, directory_fd)
    with contextlib.suppress(OSError):
        return f"{path} {os.stat(path).st_mtime_ns}"
    return path


class _Server:
    def __init__(
        self,
        place: Place,
        lock_fd: int,
        path: list[str],
        libraries: Libraries,
        idle_s: float,
    ) -> None:
        self._place = place
        self._lock_fd = lock_fd
        self._path = path
        self._libraries = libraries
        self._blas_threads = BlasThreads()
        self._streams = tuple(
            (stream.encoding, stream.errors or "strict")
            for stream in (sys.stdin, sys.stdout, sys.stderr)
        )
        self._idle_s = idle_s
        self._since = time.monotonic()
        self._used = time.monotonic()
        self._served = 0
        self._running: set[int] = set()
        self._looked: dict[int, float] = {}
        """The keepers of scripts → when the libraries' files were looked at for them."""
        self._successor = 0
        self._listener = self._listen()
        self._inode = os.stat(place.socket).st_ino
        self._wakeup = Wakeup()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._reap)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.signal_fd, warn_on_full_buffer=False)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self._place.directory, os.O_PATH | os.O_DIRECTORY)
        try:
            own = f"{os.path.basename(self._place.socket)}.{os.getpid()}"
            listener.bind(f"/proc/self/fd/{directory}/{own}")
            listener.listen(1024)
            # In one step: there may be one of a server that was killed, or that this one replaces.
            os.rename(own, self._place.socket, src_dir_fd=directory)
        finally:
            os.close(directory)
        return listener

    def run(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select(min(CHECK_S, self._idle_s)):
                key.data()
            if self._is_gone():
                os._exit(0)
            if self._running - {self._successor}:
                self._used = time.monotonic()
            elif time.monotonic() - self._used >= self._idle_s:
                self._end()

    def _is_gone(self) -> bool:
        try:
            return os.stat(self._place.socket).st_ino != self._inode
        except OSError:
            return True

    def _end(self) -> NoReturn:
        """End, and let a client that starts now find no server rather than a silent one."""
        self._withdraw()
        os._exit(0)

    def _withdraw(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._place.socket)
        if self._successor in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._successor, signal.SIGKILL)

    def _reap(self) -> None:
        self._wakeup.drain()
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._running.discard(pid)
                self._looked.pop(pid, None)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(HELLO_S)
            # A client that is gone, slow or of another version starts cold.
            with contextlib.suppress(OSError, ValueError, TypeError, EOFError, KeyError):
                if peer(client)[1] == os.getuid() and (message := receive(client)):
                    try:
                        self._answer(client, *message)
                    finally:
                        for fd in message[2]:
                            os.close(fd)

    def _answer(
        self, client: socket.socket, kind: str, values: dict[str, Any], files: list[int]
    ) -> None:
        if kind in ("run", "workers"):
            self._fork(client, kind, values)
        elif kind == "learn":
            self._start_successor(*files[:1])
        elif kind == "status":
            send(client, "status", **self._status())
        elif kind == "stop":
            send(client, "stopping", pid=os.getpid())
            self._end()

    def _start_successor(self, others_fd: int = -1) -> None:
        """Have another server import what was learnt. It replaces the socket when it is ready.

        Until then this server answers, with what it has: nobody waits for imports, or asks without
        the variables that the new libraries read. What is learnt too late for the successor is
        asked of it by the next script that imports it.

        Args:
            others_fd: where the other variables of the caller can be read, by nobody but the
                process that looks for those which the new libraries read.
        """
        if self._successor in self._running or not self._libraries.is_behind():
            return
        with contextlib.suppress(OSError):
            self._successor = os.fork()
            if self._successor == 0:
                try:
                    self._libraries.start_again(others_fd)
                finally:
                    os._exit(1)
            self._running.add(self._successor)

    def _status(self) -> dict[str, Any]:
        learnt = self._place.learnt()
        return {
            "pid": os.getpid(),
            "python": sys.executable,
            "seconds": time.monotonic() - self._since,
            "idle": time.monotonic() - self._used,
            "ends_after": self._idle_s,
            "served": self._served,
            "running": len(self._running - {self._successor}),
            "packages": self._libraries.packages(),
            "modules": len(self._libraries.names),
            "unsafe": learnt["unsafe"],
            "memory": _pss(),
        }

    def _fork(self, client: socket.socket, kind: str, values: dict[str, Any]) -> None:
        problem = self._refusal(values)
        if problem:
            send(client, "refused", reason=problem)
            return
        self._used = time.monotonic()
        if kind == "run":
            self._blas_threads.follow(self._place.variables)
        else:
            self._blas_threads.follow({"OPENBLAS_NUM_THREADS": "1", **self._place.variables})
        verdict, answering = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(verdict)
            os.close(answering)
            send(client, "refused", reason=f"the warm server could not fork: {error.strerror}")
            return
        if pid:
            self._running.add(pid)
            self._served += 1
            os.close(verdict)
            if kind == "run":
                self._looked[pid] = time.monotonic()
            self._judge(answering, known=kind == "workers" and self._has_just_looked(client))
            return
        os.close(answering)
        code = 1
        try:
            code = self._serve(client, kind, verdict)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # to the server's log
        finally:
            os._exit(code)

    def _has_just_looked(self, client: socket.socket) -> bool:
        """Whether a script asks that was started a moment ago: it has the same libraries itself."""
        asks, since = peer(client)[0], time.monotonic() - LOOKED_S
        return any(at > since and asks in children(pid) for pid, at in self._looked.items())

    def _judge(self, answering: int, *, known: bool) -> None:
        """Look whether the libraries are as they were imported, and tell the forked process.

        There are thousands of files. The process prepares itself meanwhile, and nothing of the
        user's runs before it has the answer. ``known``: they are.
        """
        changed = None if known else self._libraries.changed()
        reason = ""
        if changed:
            # Gone before the client knows: the client may start the next server at once.
            self._withdraw()
            os.close(self._lock_fd)
            reason = f"{changed} has changed since the warm server imported it"
        with contextlib.suppress(OSError), open(answering, "wb") as file:  # it may be gone
            file.write(marshal.dumps(reason))
        if changed:
            os._exit(0)

    def _refusal(self, values: dict[str, Any]) -> str | None:
        if values["identity"] != self._place.identity:
            return "the warm server is of another environment"
        if values["variables"] != self._place.variables:
            return "the warm server has other variables"
        if not self._libraries.reads.issubset(values["reads"]):
            self._libraries.publish()
            return "the warm server's libraries read variables that were not compared"
        return None

    # In the forked process.

    def _serve(self, client: socket.socket, kind: str, verdict: int) -> int:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._wakeup.close()
        self._listener.close()
        os.close(self._lock_fd)
        os.setsid()
        send(client, "ready")
        client.settimeout(None)
        message = receive(client)
        if message is None or message[0] != "go":
            return 0  # the client has started cold
        _, values, files = message
        if kind == "run":
            return self._keep_script(client, values, files, verdict)
        return self._become_fork_server(client, values, files, verdict)

    def _become_fork_server(
        self, client: socket.socket, values: dict[str, Any], files: list[int], verdict: int
    ) -> int:
        reason = self._libraries.hides(values["sys_path"], self._path)
        if reason := reason or _read_verdict(verdict):
            send(client, "refused", reason=reason)
            return 1
        driver = peer(client)[0]
        handle = os.pidfd_open(os.getpid())
        send(client, "started", [handle], pid=os.getpid())
        adopt(values, files)  # closes every other file
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(null, True)
        os.close(null)
        open_streams(self._streams)
        sys.path[:] = values["sys_path"]
        os.set_inheritable(values["control"], False)
        self._libraries.preloaded.expose(settings.environment(), sys.path)
        wanted = values["preload"], values["later"]
        reads = self._libraries.reads
        forkserver.main(values["control"], driver, *wanted, is_child=False, reads=reads)
        return 0

    def _keep_script(
        self, client: socket.socket, values: dict[str, Any], files: list[int], verdict: int
    ) -> int:
        program = values["program"]
        reason = self._libraries.hides([_entry(program, files[0])], self._path)
        if reason := reason or self._sets_variable(program, files[0]):
            send(client, "refused", reason=reason)
            return 1
        wakeup = Wakeup()
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.signal_fd, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        release, start = os.pipe()
        keeper = os.getpid()
        # What arrives before the script runs waits for it.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        try:
            script = os.fork()
        except OSError as error:
            send(client, "refused", reason=f"the warm server could not fork: {error.strerror}")
            return 1
        if script == 0:
            signal.set_wakeup_fd(-1)
            _die_with_parent(keeper)
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            os.close(start)
            self._run_script(values, files, release)
        with contextlib.suppress(OSError):
            os.setpgid(script, script)
        os.close(release)
        for fd in files:
            os.close(fd)
        set_title(f"lockstep run: keeper of process {script}", "lockstep-keeper")
        handle = os.pidfd_open(script)
        try:
            if reason := _read_verdict(verdict):
                send(client, "refused", reason=reason)
                return 1  # and the script ends where it waits
            send(client, "started", [handle], pid=script)
            with contextlib.suppress(BrokenPipeError):  # it has ended, which is reported below
                os.write(start, b"x")
        finally:
            os.close(start)
            os.close(handle)
        return _watch_script(client, script, wakeup)

    def _sets_variable(self, program: tuple[str, str, Any], directory_fd: int) -> str | None:
        """Why the libraries would be other ones if the program had imported them itself."""
        kind, target, _ = program
        source = os.fsencode(target) if kind == CODE else b""
        if kind == SCRIPT and target != "-":
            path = _path(program, directory_fd)
            if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
                return "the script is no regular file, and can be read but once"
            with contextlib.suppress(OSError), open(path, "rb") as file:
                source = file.read()
        reads = self._libraries.reads
        for name in sorted(variables_set_by(source) - READ_LATER):
            if matters_at_import(name, reads):
                return f"the program sets {name}, which libraries read when they are imported"
        stale = self._place.stale(_key(program, directory_fd))
        return f"the program sets {stale} before it imports a library" if stale else None

    def _run_script(self, values: dict[str, Any], files: list[int], release: int) -> NoReturn:
        """Become the client's process; run the script once ``release`` says so."""
        program = values["program"]
        key, first = _key(program, files[0]), _entry(program, files[0])
        release = adopt(values, files, release)
        streams = (sys.stdout, sys.stderr)  # which libraries may have kept
        open_streams(self._streams, unbuffered=values["unbuffered"])
        sys.path[:] = self._path
        sys.orig_argv[:] = values["orig_argv"]
        set_title(" ".join(values["orig_argv"]), os.path.basename(sys.executable))
        kind, target, arguments = program
        environment = {os.fsdecode(n): os.fsdecode(v) for n, v in values["environ"].items()}
        modules.expect(self._place, self._libraries.names, environment)
        libraries = self._libraries

        def stale(variable: str, library: str) -> None:
            print(
                f"lockstep run: the program has set {variable}, but {library} was preloaded, "
                "without it. The next start of this program is an ordinary one.",
                file=sys.stderr,
            )
            with contextlib.suppress(OSError):
                self._place.note_stale(key, variable)

        first = "" if kind == CODE or target == "-" else first
        libraries.preloaded.expose(environment, [first, *sys.path], stale)
        code: Any = None
        interrupted = False
        if os.read(release, 1) != b"x":
            os._exit(1)
        os.close(release)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, values["blocked"])
            code = run_program(Program(kind, target, tuple(arguments)))
        except KeyboardInterrupt:
            interrupted = True
        _finish(code, interrupted, libraries.names, streams)


def _read_verdict(verdict: int) -> str:
    """Why this process must not be used; empty: it may. See ``_Server._judge``."""
    with open(verdict, "rb") as file:
        # A file system that does not answer must not keep the client, which waits for no signal.
        if not select.select([verdict], [], [], ANSWER_S)[0]:
            return f"the warm server has not looked at its libraries' files within {ANSWER_S:g} s"
        data = file.read()
    reason: str = marshal.loads(data) if data else "the warm server has ended"
    return reason


def _watch_script(client: socket.socket, script: int, wakeup: Wakeup) -> int:
    """Report to the client what becomes of the script. Without a client the script is killed."""
    selector = selectors.DefaultSelector()
    selector.register(wakeup, selectors.EVENT_READ)
    selector.register(client, selectors.EVENT_READ)
    while True:
        wakeup.drain()
        found = os.waitid(os.P_PID, script, os.WEXITED | os.WSTOPPED | os.WNOHANG)
        if found is None:
            ready = [key.fileobj for key, _ in selector.select()]
            if client in ready:  # it never sends: it is gone
                os.kill(script, signal.SIGKILL)
                selector.unregister(client)
            continue
        with contextlib.suppress(OSError):
            if found.si_code == os.CLD_STOPPED:
                send(client, "stopped", signal=found.si_status)
                continue
            exited = found.si_code == os.CLD_EXITED
            send(client, "ended", code=found.si_status if exited else -found.si_status)
        if found.si_code != os.CLD_STOPPED:
            return 0


def _die_with_parent(parent: int) -> None:
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _finish(code: Any, interrupted: bool, loaded: set[str], streams: Iterable[Any]) -> NoReturn:
    """End as the interpreter does, but leave the preloaded modules alone.

    Destroying them would copy all of their memory, and take longer than the start.

    Args:
        code: of the program; ``interrupted`` says that Ctrl-C has ended it.
        loaded: the preloaded modules.
        streams: the server's own, into which libraries may have printed.
    """
    modules.learn()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    written = _flush_standard_streams()
    _flush(streams)
    # Objects of the script's own modules may write when they are destroyed: an open file does.
    mains = ("__main__", "__mp_main__")
    names = [name for name in sys.modules if name not in loaded or name in mains]
    own = [sys.modules.pop(name, None) for name in names]
    sys.last_traceback = sys.last_value = None
    gc.collect()
    # As the interpreter does: what is collected in a cycle is a file that closes unwritten.
    for module in reversed(own):
        values = getattr(module, "__dict__", {})
        for private in (True, False):
            for name in [n for n in values if n != "__builtins__"]:
                if not private or (name[:1] == "_" and name[1:2] != "_"):
                    values[name] = None
    gc.collect()
    _flush((sys.stdout, sys.stderr, *streams))
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    if not written:
        os._exit(120)
    os._exit(0 if code is None else int(code) & 0xFF if -(1 << 63) <= code < 1 << 63 else 255)


def _flush_standard_streams() -> bool:
    """As the interpreter does at its end; whether all could be written. If not, its code is 120."""
    written = True
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except Exception as error:
            written = False
            if stream is sys.stdout and sys.stderr is not None:
                with contextlib.suppress(Exception):
                    text = f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n"
                    sys.stderr.write(text)
    return written


def _flush(streams: Iterable[Any]) -> None:
    for stream in streams:
        with contextlib.suppress(Exception):
            stream.flush()


def _pss() -> int:
    """This process's proportional share of memory, in bytes; 0 where that is not known."""
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
