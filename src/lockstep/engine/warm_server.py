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
import importlib
import marshal
import os
import selectors
import signal
import socket
import stat
import sys
import threading
import time
from importlib.machinery import PathFinder
from typing import Any, NoReturn

from lockstep import settings
from lockstep.engine import forkserver
from lockstep.engine.processes import children
from lockstep.engine.resources import BlasThreads
from lockstep.engine.titles import set_title
from lockstep.engine.wakeup import Wakeup
from lockstep.warm import modules
from lockstep.warm.caller import adopt, open_streams, reset_signals
from lockstep.warm.client import FORWARDED, peer
from lockstep.warm.identity import variables_that_matter
from lockstep.warm.messages import receive, send
from lockstep.warm.place import Place
from lockstep.warm.program import SCRIPT, Program, run_program
from lockstep.warm.variables import recorded_reads

__all__ = ["WARM_TITLE", "main"]

WARM_TITLE = "lockstep warm server"
HELLO_S = 5.0
"""How long a client may take to say what it wants, which it does as soon as it is connected."""
CHECK_S = 5.0
"""How often to look whether the socket is still there: a logout removes its directory."""

_ALWAYS = ("lockstep.engine.local", "lockstep.train.worker.main")
_NEVER = {"grpc", "horovod", "jax", "jaxlib", "mpi4py", "ray", "tensorflow", "torch_xla"}
"""Packages that cannot be forked, whatever can be seen of them."""
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")
_SAFE_THREADS = {"jemalloc_bg_thd"}
"""Threads of libraries that are made to be forked: Arrow's allocator."""


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
        others_fd: where the caller's other variables can be read, see ``_Others``; -1: nowhere.
        directory, identity, variables: of the place.
        idle_s: how long to stay unused.
    """
    os.set_inheritable(lock_fd, False)
    others = _Others(others_fd, lock_fd) if others_fd >= 0 else None
    os.umask(0o077)
    path = list(sys.path)
    os.chdir("/")
    reset_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    set_title(WARM_TITLE, "lockstep-warm")
    place = Place(directory, identity, variables)
    libraries = _Libraries(place, lock_fd, idle_s)
    libraries.load()
    if others is not None:
        libraries.add_variables(others.values(libraries.reads))
    known = Place(directory, identity, libraries.variables())
    if known.lock != place.lock:
        # Clients look for the server under the values of all variables that matter.
        own_lock = known.take_lock()
        if own_lock is None:
            os._exit(0)  # there is one already
        os.dup2(own_lock, lock_fd, inheritable=False)
        os.close(own_lock)
        libraries.moved(known)
    libraries.publish()
    _Server(known, lock_fd, path, libraries, idle_s).run()


class _Libraries:
    """What is imported, in which state of the installation, and with which variables."""

    def __init__(self, place: Place, lock_fd: int, idle_s: float) -> None:
        self._place = place
        self._lock_fd = lock_fd
        self._idle_s = idle_s
        self._before = settings.environment()
        self._reads = place.known_reads()
        self._open: set[tuple[int, str]] = set()
        self._children: set[int] = set()
        self._files: dict[str, Any] = {}
        self.made: dict[str, str] = {}
        """The variables that imports have set."""
        self.names: set[str] = set()
        """All modules that are loaded."""

    def load(self) -> None:
        """Import everything that is learnt. If that makes forks unsafe: start again without it."""
        self._open, self._children = self._descriptors(), set(children(os.getpid()))
        self._watch(modules.library_directories())
        learnt = self._place.learnt()
        roots = _NEVER | learnt["unsafe"].keys()
        with recorded_reads() as reads:
            for name in (*_ALWAYS, *learnt["modules"]):
                root = name.partition(".")[0]
                if name in sys.modules or root in roots:
                    continue
                count = len(sys.modules)
                try:
                    importlib.import_module(name)
                except Exception:  # the script will see it where it imports the module
                    continue
                if len(sys.modules) != count and (problem := self._problem()):
                    print(f"{root} is not imported ahead: {problem}", flush=True)
                    learnt["unsafe"][root] = problem
                    self._place.write_learnt(learnt)
                    self.start_again()
        self._reads |= reads
        now = settings.environment()
        self.made = {name: now[name] for name in now if self._before.get(name) != now[name]}
        self.names = set(sys.modules)
        self._watch(
            module.__spec__.origin  # type: ignore[union-attr]
            for module in list(sys.modules.values())
            if getattr(getattr(module, "__spec__", None), "has_location", False)
        )
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.collect()
        gc.freeze()  # a collection in a forked process would write to these pages, and so copy them
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)

    @property
    def reads(self) -> set[str]:
        """The variables that the imports have read."""
        return self._reads

    def add_variables(self, values: dict[str, str]) -> None:
        """Start again with variables that the imports would have found in the caller."""
        if values:
            self._before.update(values)
            self._place.write_variables(self._reads, self.made)
            self.start_again()

    def variables(self) -> dict[str, str]:
        """The variables that may have changed the imports, now that all reads are known."""
        own = dict(self._before)
        if "OPENBLAS_NUM_THREADS" not in self._place.variables:
            own.pop("OPENBLAS_NUM_THREADS", None)  # no caller's: the server was given it
        return variables_that_matter(own, self._reads, self.made)

    def publish(self) -> None:
        """Tell clients which variables matter: their values are in the name of the socket."""
        self._place.write_variables(self._reads, self.made)

    def _watch(self, paths: Any) -> None:
        for path in paths:
            if isinstance(path, str) and path not in self._files:
                self._files[path] = _state(path)

    def changed(self) -> str | None:
        """A file or directory of the installation that is not as it was when it was imported."""
        return next((path for path, state in self._files.items() if _state(path) != state), None)

    def _problem(self) -> str | None:
        """What makes a fork unsafe now."""
        threads = [name for name in _threads() if name not in _SAFE_THREADS]
        if len(threads) > 1:
            return f"it starts threads ({', '.join(threads[1:])})"
        opened = self._descriptors() - self._open
        if opened:
            return f"it opens files ({', '.join(sorted(name for _, name in opened))})"
        if not self._children.issuperset(children(os.getpid())):
            return "it starts processes"
        never = _NEVER & {name.partition(".")[0] for name in sys.modules}
        if never:
            return f"it imports {', '.join(sorted(never))}"
        return None

    @staticmethod
    def _descriptors() -> set[tuple[int, str]]:
        found = set()
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
        return {(fd, target) for fd, target in found if not target.endswith("/fd")}

    def moved(self, place: Place) -> None:
        """The server is found at another place from now on, and has that place's lock."""
        self._place = place

    def start_again(self) -> NoReturn:
        """Become a new server, in the same process and with the same lock."""
        import subprocess

        place = self._place
        setup = marshal.dumps((place.directory, place.identity, place.variables, self._idle_s))
        os.set_inheritable(self._lock_fd, True)
        # Not on the command line, which every user of the machine can read.
        setup_fd = os.memfd_create("setup", 0)
        os.write(setup_fd, setup)
        os.lseek(setup_fd, 0, os.SEEK_SET)
        code = (
            "import marshal, sys; "
            "sys.path[:1] = [] if sys.path[:1] == [''] else sys.path[:1]; "
            "from lockstep.engine.warm_server import main; "
            f"file = open({setup_fd}, 'rb'); setup = marshal.loads(file.read()); file.close(); "
            f"main({self._lock_fd}, -1, *setup)"
        )
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        os.chdir(self._place.identity[8] or "/")
        os.execve(sys.executable, [sys.executable, *flags, "-c", code], self._before)


def _entry(program: tuple[str, str, Any], directory_fd: int) -> str:
    """Where the program's own modules are: what ``python`` puts first into ``sys.path``."""
    directory = os.readlink(f"/proc/self/fd/{directory_fd}")
    kind, target, _ = program
    if kind != SCRIPT or target == "-":
        return directory
    path = os.path.realpath(os.path.join(directory, target))
    return path if os.path.isdir(path) else os.path.dirname(path)


def _hidden(entries: list[str], own: list[str]) -> str | None:
    """Why an import of the program would find a library that is imported here, and not its own.

    Args:
        entries: the program's ``sys.path``, or what comes first in it.
        own: the server's, with which the libraries were found.
    """
    importlib.invalidate_caches()
    for entry in entries:
        if entry in own:
            return None  # from here on both look in the same order
        with contextlib.suppress(OSError):
            names = {name.partition(".")[0] for name in os.listdir(entry or ".")}
            for name in sorted(names & sys.modules.keys() - {"__main__", "__pycache__"}):
                spec = PathFinder.find_spec(name, [entry])
                imported = getattr(sys.modules[name], "__spec__", None)
                if spec and spec.origin and spec.origin != getattr(imported, "origin", None):
                    return f"{entry} has a {name!r} of its own, and the server a library"
    return None


class _Others:
    """The variables of the first caller that the server must not know, in a process of their own.

    Which of them the imports read is known only afterwards. These few are asked for then; the
    others have never been in the server's memory, nor in that of what it forks.
    """

    def __init__(self, source: int, lock_fd: int) -> None:
        asking, self._question = os.pipe()
        self._answer, answering = os.pipe()
        if os.fork() == 0:
            for fd in (self._question, self._answer, lock_fd):
                os.close(fd)
            with open(source, "rb") as file, open(asking, "rb") as questions:
                names, values = questions.read(), marshal.loads(file.read())
            found = {name: values[name] for name in names.decode().split("\0") if name in values}
            with open(answering, "wb") as file:
                file.write(marshal.dumps(found))
            os._exit(0)
        for fd in (source, asking, answering):
            os.close(fd)

    def values(self, names: set[str]) -> dict[str, str]:
        """Those of the variables that the caller has. Once: the process ends then."""
        with open(self._question, "wb") as file:
            file.write("\0".join(sorted(names)).encode())
        with open(self._answer, "rb") as file:
            found: dict[str, str] = marshal.loads(file.read())
        os.wait()
        return found


def _state(path: str) -> Any:
    """What changes when a file is edited, or a package is installed into a directory."""
    try:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            return found.st_mtime_ns, found.st_size
        # Not the directory's own date, which changes when bytecode is written.
        with os.scandir(path) as entries:
            return {
                entry.name: entry.stat().st_mtime_ns if entry.name.endswith(_INSTALLED) else 0
                for entry in entries
                if entry.name != "__pycache__"
            }
    except OSError:
        return None


def _threads() -> list[str]:
    """The names of this process's threads; the main thread's is the first."""
    found = []
    for task in sorted(map(int, os.listdir("/proc/self/task"))):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
            found.append(file.read().strip())
    return found


class _Server:
    def __init__(
        self,
        place: Place,
        lock_fd: int,
        path: list[str],
        libraries: _Libraries,
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
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._place.socket)  # of a server that was killed: this one has the lock
            listener.bind(f"/proc/self/fd/{directory}/{os.path.basename(self._place.socket)}")
            listener.listen(1024)
        finally:
            os.close(directory)
        return listener

    def run(self) -> NoReturn:
        while True:
            for key, _ in self._selector.select(min(CHECK_S, self._idle_s)):
                key.data()
            if self._is_gone():
                os._exit(0)
            if self._running:
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
        with contextlib.suppress(OSError):
            os.unlink(self._place.socket)
        os._exit(0)

    def _reap(self) -> None:
        self._wakeup.drain()
        with contextlib.suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._running.discard(pid)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(HELLO_S)
            # A client that is gone, slow or of another version starts cold.
            with contextlib.suppress(OSError, ValueError, TypeError, EOFError, KeyError):
                if peer(client)[1] == os.getuid() and (message := receive(client)):
                    self._answer(client, message[0], message[1])

    def _answer(self, client: socket.socket, kind: str, values: dict[str, Any]) -> None:
        if kind in ("run", "workers"):
            self._fork(client, kind, values)
        elif kind == "learn":
            self._libraries.load()
            self._blas_threads = BlasThreads()
            if self._libraries.variables() != self._place.variables:
                with contextlib.suppress(OSError):
                    os.unlink(self._place.socket)
                self._libraries.start_again()
            self._libraries.publish()
        elif kind == "status":
            send(client, "status", **self._status())
        elif kind == "stop":
            send(client, "stopping", pid=os.getpid())
            self._end()

    def _status(self) -> dict[str, Any]:
        learnt = self._place.learnt()
        roots = {name.partition(".")[0] for name in modules.loaded_libraries()}
        return {
            "pid": os.getpid(),
            "python": sys.executable,
            "seconds": time.monotonic() - self._since,
            "idle": time.monotonic() - self._used,
            "ends_after": self._idle_s,
            "served": self._served,
            "running": len(self._running),
            "packages": sorted(roots),
            "modules": len(sys.modules),
            "unsafe": learnt["unsafe"],
            "memory": _pss(),
        }

    def _fork(self, client: socket.socket, kind: str, values: dict[str, Any]) -> None:
        changed = self._libraries.changed()
        if changed:
            # Gone before the client knows: the client may start the next server at once.
            with contextlib.suppress(OSError):
                os.unlink(self._place.socket)
            os.close(self._lock_fd)
            reason = f"{changed} has changed since the warm server imported it"
            send(client, "refused", reason=reason)
            os._exit(0)
        problem = self._refusal(values)
        if problem:
            send(client, "refused", reason=problem)
            return
        self._used = time.monotonic()
        if kind == "run":
            self._blas_threads.follow(self._place.variables)
        else:
            self._blas_threads.follow({"OPENBLAS_NUM_THREADS": "1", **self._place.variables})
        try:
            pid = os.fork()
        except OSError as error:
            send(client, "refused", reason=f"the warm server could not fork: {error.strerror}")
            return
        if pid:
            self._running.add(pid)
            self._served += 1
            return
        code = 1
        try:
            code = self._serve(client, kind)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # to the server's log
        finally:
            os._exit(code)

    def _refusal(self, values: dict[str, Any]) -> str | None:
        if values["identity"] != self._place.identity:
            return "the warm server is of another environment"
        if values["variables"] != self._place.variables:
            return "the warm server has other variables"
        return None

    # In the forked process.

    def _serve(self, client: socket.socket, kind: str) -> int:
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
            return self._keep_script(client, values, files)
        return self._become_fork_server(client, values, files)

    def _become_fork_server(
        self, client: socket.socket, values: dict[str, Any], files: list[int]
    ) -> int:
        if reason := _hidden(values["sys_path"], self._path):
            send(client, "refused", reason=reason)
            return 1
        driver = peer(client)[0]
        handle = os.pidfd_open(os.getpid())
        send(client, "started", [handle], pid=os.getpid())
        adopt(values, files, self._libraries.made)  # closes every other file
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(null, True)
        os.close(null)
        open_streams(self._streams)
        sys.path[:] = values["sys_path"]
        os.set_inheritable(values["control"], False)
        wanted = values["preload"], values["later"]
        forkserver.main(values["control"], driver, *wanted, is_child=False)
        return 0

    def _keep_script(self, client: socket.socket, values: dict[str, Any], files: list[int]) -> int:
        if reason := _hidden([_entry(values["program"], files[0])], self._path):
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
            if os.read(release, 1) != b"x":
                os._exit(1)
            self._run_script(values, files)
        with contextlib.suppress(OSError):
            os.setpgid(script, script)
        os.close(release)
        for fd in files:
            os.close(fd)
        set_title(f"lockstep run: keeper of process {script}", "lockstep-keeper")
        handle = os.pidfd_open(script)
        try:
            send(client, "started", [handle], pid=script)
            os.write(start, b"x")
        finally:
            os.close(start)
            os.close(handle)
        return _watch_script(client, script, wakeup)

    def _run_script(self, values: dict[str, Any], files: list[int]) -> NoReturn:
        adopt(values, files, self._libraries.made)
        open_streams(self._streams, unbuffered=values["unbuffered"])
        sys.path[:] = self._path
        sys.orig_argv[:] = values["orig_argv"]
        set_title(" ".join(values["orig_argv"]), os.path.basename(sys.executable))
        kind, target, arguments = values["program"]
        environment = {os.fsdecode(n): os.fsdecode(v) for n, v in values["environ"].items()}
        modules.expect(self._place, self._libraries.names, environment)
        loaded = set(sys.modules)
        code: Any = None
        interrupted = False
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, values["blocked"])
            code = run_program(Program(kind, target, tuple(arguments)))
        except KeyboardInterrupt:
            interrupted = True
        _finish(code, interrupted, loaded)


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


def _finish(code: Any, interrupted: bool, loaded: set[str]) -> NoReturn:
    """End as the interpreter does, but leave the preloaded modules alone.

    Destroying them would copy all of their memory, and take longer than the start.
    """
    modules.learn()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    # Objects of the script's own modules may write when they are destroyed: an open file does.
    for name in [name for name in sys.modules if name not in loaded or name == "__main__"]:
        sys.modules.pop(name, None)
    sys.last_traceback = sys.last_value = None
    gc.collect()
    _flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(0 if code is None else int(code) & 0xFF if -(1 << 63) <= code < 1 << 63 else 255)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _pss() -> int:
    """This process's proportional share of memory, in bytes; 0 where that is not known."""
    with contextlib.suppress(OSError), open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
