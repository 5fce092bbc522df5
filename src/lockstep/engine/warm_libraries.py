"""What a warm server has imported: which libraries, in which state, and whether a fork is safe."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import linecache
import locale
import marshal
import os
import re
import signal
import stat
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, NoReturn

from lockstep import settings
from lockstep.engine.forkserver import skip_library_finalizers
from lockstep.engine.processes import children
from lockstep.warm import modules
from lockstep.warm.identity import interpreter_flags, variables_that_matter
from lockstep.warm.place import Place
from lockstep.warm.preloaded import Preloaded, package_of

__all__ = ["Libraries"]

_ALWAYS = ("lockstep.engine.local", "lockstep.train.worker.main")
_NEVER = {"grpc", "horovod", "jax", "jaxlib", "mpi4py", "ray", "tensorflow", "torch_xla"}
"""Packages that cannot be forked, whatever can be seen of them."""
_INSTALLED = (".dist-info", ".egg-info", ".egg-link", ".pth")
_SAFE_THREADS = {"jemalloc_bg_thd"}
"""Threads of libraries that are made to be forked: Arrow's allocator."""
_NO_FILES = ("/dev/", "/proc/", "/sys/", "/tmp/")
_DENSE = 0.95
"""How much of a huge page must be in use: the rest is memory that nobody needs."""
_FIRST = ("pathlib", "shutil", "tempfile", "tokenize", "zipfile", "multiprocessing", "subprocess")
"""Modules of Python's own that keep functions which are replaced while libraries are imported."""


class Libraries:
    """What is imported, in which state of the installation, and with which variables."""

    def __init__(self, place: Place, lock_fd: int, others_fd: int, idle_s: float) -> None:
        self._place = place
        self._lock_fd = lock_fd
        self._others_fd = others_fd
        self._idle_s = idle_s
        self._before = settings.environment()
        self._reads = place.known_reads() | _read_at_start()
        self._open: set[tuple[int, str]] = set()
        self._children: set[int] = set()
        self._process: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._packed_files = b""
        self._lessons: list[str] = []
        self.preloaded: Preloaded
        """The modules, which a forked process sees when it imports them."""
        self.names: set[str] = set()
        """All modules that are loaded."""

    def load(self) -> None:
        """Import everything that is learnt. If that makes forks unsafe: start again without it."""
        for name in _FIRST:
            importlib.import_module(name)
        os.chdir(self._place.directory)  # where no library looks for a file
        self._open, self._children = self._descriptors(), set(children(os.getpid()))
        self._process = _process_state()
        self._watch(modules.library_directories())
        learnt = self._place.learnt()
        self._lessons = learnt["modules"]
        excluded = _NEVER | learnt["unsafe"].keys()
        self.preloaded = Preloaded()
        with self.preloaded.recording():
            for name in (*_ALWAYS, *learnt["modules"]):
                if name in sys.modules or package_of(name) in excluded:
                    continue
                count = len(sys.modules)
                try:
                    self.preloaded.load(name)
                except Exception:  # the script will see it where it imports the module
                    continue
                if len(sys.modules) != count and (problem := self._problem()):
                    self._exclude({package_of(name): problem})
        if self.preloaded.problems:
            self._exclude(self.preloaded.problems)
        if self.is_behind():
            self.start_again()  # scripts have taught more meanwhile
        self._reads |= self.preloaded.reads
        self.names = set(sys.modules)
        self._watch(
            module.__spec__.origin  # type: ignore[union-attr]
            for module in list(sys.modules.values())
            if getattr(getattr(module, "__spec__", None), "has_location", False)
        )
        own = (sys.prefix, sys.base_prefix, *modules.library_directories(), *_NO_FILES)
        looked_up = (path for path in self.preloaded.looked_up if not path.startswith(own))
        self._watch(path for path in looked_up if not os.path.isdir(path))
        self._packed_files = marshal.dumps(self._files)
        self._files.clear()
        skip_library_finalizers()
        self.preloaded.hide()
        os.chdir("/")
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # One for each directory that was looked at. Forked processes would touch all of them, and
        # so copy their pages; a new process has none, either.
        sys.path_importer_cache.clear()
        gc.collect()
        gc.freeze()  # a collection in a forked process would write to these pages, and so copy them
        linecache.clearcache()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError, ValueError):
            _unmap_clean_pages()
        with contextlib.suppress(OSError, ValueError):
            _join_pages()

    def _exclude(self, problems: Mapping[str, str]) -> NoReturn:
        learnt = self._place.learnt()  # scripts may have taught more meanwhile
        for package, problem in problems.items():
            print(f"{package} is not preloaded: {problem}", flush=True)
            learnt["unsafe"][package] = problem
        self._place.write_learnt(learnt)
        self.start_again()

    def is_behind(self) -> bool:
        """Whether scripts have taught more since the imports began."""
        learnt: list[str] = self._place.learnt()["modules"]
        return learnt != self._lessons

    @property
    def reads(self) -> set[str]:
        """The variables that the imports have read."""
        return self._reads

    def complete_variables(self) -> None:
        """Start again with those variables of the first caller that the imports would have read.

        A process of its own reads them: the server, and what it forks, must never have had the
        others in memory.
        """
        if self._others_fd < 0:
            return
        answer, answering = os.pipe()
        child = os.fork()
        if child == 0:
            with open(self._others_fd, "rb") as file:
                values = marshal.loads(file.read())
            found = {name: values[name] for name in self._reads & values.keys()}
            with open(answering, "wb") as file:
                file.write(marshal.dumps(found))
            os._exit(0)
        os.close(answering)
        os.close(self._others_fd)
        self._others_fd = -1
        with open(answer, "rb") as file:
            wanted: dict[str, str] = marshal.loads(file.read())
        os.waitpid(child, 0)
        if wanted:
            self._before.update(wanted)
            self.publish()
            self.start_again()

    def variables(self) -> dict[str, str]:
        """The variables that may have changed the imports, now that all reads are known."""
        own = dict(self._before)
        if "OPENBLAS_NUM_THREADS" not in self._place.variables:
            own.pop("OPENBLAS_NUM_THREADS", None)  # no caller's: the server was given it
        return variables_that_matter(own, self._reads, self.preloaded.variables)

    def publish(self) -> None:
        """Tell clients which variables matter: their values are in the name of the socket."""
        self._place.write_variables(self._reads, self.preloaded.variables)

    def packages(self) -> list[str]:
        """The installed packages that are imported, and lockstep."""
        loaded = {**sys.modules, **self.preloaded.modules}
        return sorted({n.partition(".")[0] for n in modules.loaded_libraries((), loaded)})

    def _watch(self, paths: Iterable[str | None]) -> None:
        for path in paths:
            if isinstance(path, str) and path not in self._files:
                self._files[path] = _state(path)

    def changed(self) -> str | None:
        """A file or directory of the installation that is not as it was when it was imported."""
        look = os.stat
        # Packed, so that these are new objects each time: counting references to the old ones
        # would copy their pages, which forked processes share.
        for path, state in marshal.loads(self._packed_files).items():
            if type(state) is tuple:  # a file, as nearly all of some thousand are
                try:
                    found = look(path)
                except OSError:
                    return str(path)
                if (found.st_mtime_ns, found.st_size) != state:
                    return str(path)
            elif _state(path) != state:
                return str(path)
        return None

    def hides(self, entries: list[str], own: list[str]) -> str | None:
        """Why an import of a program would find a library that is imported here, not its own.

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
                for name in sorted(names & self.names - {"__main__", "__pycache__"}):
                    spec = PathFinder.find_spec(name, [entry])
                    imported = getattr(self._module(name), "__spec__", None)
                    if spec and spec.origin and spec.origin != getattr(imported, "origin", None):
                        return f"{entry} has a {name!r} of its own, and the server a library"
        return None

    def _module(self, name: str) -> ModuleType | None:
        return sys.modules.get(name) or self.preloaded.modules.get(name)

    def _problem(self) -> str | None:
        """What makes a fork unsafe now, or different from a new process."""
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
        state = _process_state()
        return next((f"it changes {n}" for n in state if state[n] != self._process[n]), None)

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

    def start_again(self, others_fd: int = -1) -> NoReturn:
        """Become a new server, in the same process and with the same lock.

        Args:
            others_fd: the other variables of whoever has taught something new.
        """
        self._others_fd = max(self._others_fd, others_fd)

        place = self._place
        setup = marshal.dumps((place.directory, place.identity, place.variables, self._idle_s))
        os.set_inheritable(self._lock_fd, True)
        if self._others_fd >= 0:
            os.set_inheritable(self._others_fd, True)
        # Not on the command line, which every user of the machine can read.
        setup_fd = os.memfd_create("setup", 0)
        os.write(setup_fd, setup)
        os.lseek(setup_fd, 0, os.SEEK_SET)
        code = (
            "import marshal, sys; "
            "sys.path[:1] = [] if sys.path[:1] == [''] else sys.path[:1]; "
            "from lockstep.engine.warm_server import main; "
            f"file = open({setup_fd}, 'rb'); setup = marshal.loads(file.read()); file.close(); "
            f"main({self._lock_fd}, {self._others_fd}, *setup)"
        )
        flags = interpreter_flags()
        os.chdir(self._place.identity[8] or "/")
        os.execve(sys.executable, [sys.executable, *flags, "-c", code], self._before)


def _unmap_clean_pages() -> None:
    """Give back the pages of shared libraries that were needed for the imports only.

    They stay in the kernel's cache of files. A fork inherits none of them in any case: where a
    script needs one, the kernel maps it again.
    """
    drop = 4  # MADV_DONTNEED
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    begin = end = 0
    with open("/proc/self/smaps") as file:
        for line in file.readlines():
            name, _, rest = line.partition(" ")
            if not name.endswith(":"):
                of_file = rest.startswith(("r-xp", "r--p")) and " /" in rest
                begin, end = (int(part, 16) for part in name.split("-")) if of_file else (0, 0)
            elif name == "Anonymous:" and rest.split() == ["0", "kB"] and end:
                # Nothing in it was written: the file has it all.
                advise(begin, end - begin, drop)


def _join_pages() -> None:
    """Have the kernel keep this memory in huge pages, where nearly all of one is in use.

    A fork copies the table of pages, which has a hundred entries then, not fifty thousand. What a
    forked process writes to, the kernel divides again. Linux can do this from 6.1 on.
    """
    collapse = 25  # MADV_COLLAPSE
    page = os.sysconf("SC_PAGE_SIZE")
    with open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size") as file:
        huge = int(file.read())
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with open("/proc/self/maps") as file, open("/proc/self/pagemap", "rb", 0) as pages:
        for line in file.readlines():
            place, mode, _, _, inode, *name = line.split()
            if mode != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
                continue
            begin, end = (int(part, 16) for part in place.split("-"))
            for start in range(-(-begin // huge) * huge, end - huge + 1, huge):
                table = os.pread(pages.fileno(), huge // page * 8, start // page * 8)
                used = sum(byte >> 7 for byte in table[7::8])  # the bit "present" of each
                if used * page >= huge * _DENSE:
                    advise(start, huge, collapse)


def _process_state() -> dict[str, Any]:
    """What a library rarely changes; one that does is left to the scripts that import it."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return {
        "what is printed": [os.fstat(fd).st_size for fd in (1, 2)],
        "standard streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr)),
        "signal handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "the fault handler": faulthandler.is_enabled(),
        "the recursion limit": sys.getrecursionlimit(),
        "the switch interval": sys.getswitchinterval(),
        "garbage collection": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.callbacks),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the working directory": os.readlink("/proc/self/cwd"),
    }


def _read_at_start() -> set[str]:
    """Variables that code of installed packages reads when an interpreter starts."""
    found: set[str] = set()
    for directory in modules.library_directories():
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                if name.endswith(".pth"):
                    with open(os.path.join(directory, name), errors="replace") as file:
                        code = "".join(line for line in file if line.startswith("import"))
                    found.update(re.findall(r"""['"]([A-Z][A-Z0-9_]+)['"]""", code))
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
