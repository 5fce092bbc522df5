"""What every test gets: its own storage and temporary files, and a check that it leaks nothing."""

from __future__ import annotations

import gc
import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.s3 import serve

with suppress(ImportError):  # the environments of single frameworks do not have it
    import hypothesis

    # The same examples in every run, without a database of earlier failures on disk.
    hypothesis.settings.register_profile(
        "lockstep", derandomize=True, database=None, deadline=None, max_examples=100
    )
    hypothesis.settings.load_profile("lockstep")

# Comet changes MLflow and others when it is imported, unless it is told not to; whichever test
# imports it first. Nothing is sent to its makers.
os.environ["COMET_DISABLE_AUTO_LOGGING"] = "1"
os.environ["COMET_ERROR_TRACKING_ENABLE"] = "false"

# Processes that may outlive a test: they are started once and serve the whole session.
# A fork server is the child of its keeper; both have the same words in their titles.
FORK_SERVER = ("lockstep fork server", "lockstep.engine.forkserver")
KEPT_PROCESSES = (*FORK_SERVER, "multiprocessing.resource_tracker")
# Set by pytest for each phase, or by a library when it is first imported.
UNOWNED_VARIABLES = {
    "CRC32C_SW_MODE",
    "PYTEST_CURRENT_TEST",
    "KMP_DUPLICATE_LIB_OK",
    "KMP_INIT_AT_FORK",
    "PYTORCH_NVML_BASED_CUDA_CHECK",
    "TORCHINDUCTOR_CACHE_DIR",
}
# What a module opens on first use and keeps: Arrow for S3 and to notice Ctrl-C, Jupyter for its
# event loop, torch for the first store.
LAZY_FILES = {
    "pyarrow._s3fs": ("eventpoll", "eventfd"),
    "jupyter_core.utils": ("eventpoll", "socket", "socket"),
    "torch.distributed": ("pipe", "pipe"),
    "pyarrow._csv": ("pipe", "pipe"),
}
# The devices of NVIDIA's driver, which CUDA opens on first use and keeps until the process ends.
CUDA_FILES = "/dev/nvidia"
SETTLE_SECONDS = 120.0
LOAD_OF_THE_SUITE = 1.5
"""The load per processor that the suite itself makes, about."""

_lazy_files: dict[str, dict[int, str]] = {}


def child_processes() -> tuple[set[int], dict[int, str]]:
    """The direct children that may outlive a test; pid → command line of all others below."""
    kept: set[int] = set()
    found: dict[int, str] = {}
    for pid in _children(os.getpid()):
        command = _command(pid)
        if any(name in command for name in KEPT_PROCESSES):
            kept.add(pid)
        else:
            found[pid] = command
    pending = [*kept, *found]
    while pending:
        parent = pending.pop()
        for pid in _children(parent):
            pending.append(pid)
            command = _command(pid)
            if not (parent in kept and any(name in command for name in FORK_SERVER)):
                found[pid] = command
    return kept, found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{task}/children").split())
    except OSError:
        pass  # it ended meanwhile, or this system has no /proc
    return found


def _command(pid: int) -> str:
    try:
        text = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode().strip()
    except OSError:
        text = ""
    return text or "(a zombie: nobody waited for it)"


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def open_files() -> dict[int, str]:
    """File descriptor → what it is open on."""
    found: dict[int, str] = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        with suppress(OSError):  # the descriptor that listed the directory is gone
            target = os.readlink(f"/proc/self/fd/{name}")
            found[int(name)] = target
    for lazy in _lazy_files.values():  # one that was closed may be another file's by now
        for fd in [fd for fd, target in lazy.items() if found.get(fd) != target]:
            del lazy[fd]
    return _without_lazy(found)


def _without_lazy(files: dict[int, str]) -> dict[int, str]:
    lazy = {fd for known in _lazy_files.values() for fd in known}
    return {fd: target for fd, target in files.items() if fd not in lazy}


def _pick(files: dict[int, str], kinds: tuple[str, ...]) -> set[int]:
    """One descriptor of each kind; empty unless all are there."""
    wanted = list(kinds)
    picked = set()
    for fd, target in files.items():
        kind = target.removeprefix("anon_inode:").partition(":")[0].strip("[]")
        if kind in wanted:
            wanted.remove(kind)
            picked.add(fd)
    return set() if wanted else picked


def own_threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.daemon or thread.name.startswith("lockstep-")
    }


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in UNOWNED_VARIABLES}


def working_directory() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "(deleted)"


def temporary_directories() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("lockstep-")}


@dataclass
class Snapshot:
    """What a process holds at one moment."""

    children: tuple[set[int], dict[int, str]] = field(default_factory=child_processes)
    threads: set[threading.Thread] = field(default_factory=own_threads)
    files: dict[int, str] = field(default_factory=open_files)
    environment: dict[str, str] = field(default_factory=environment)
    directory: str = field(default_factory=working_directory)
    temporary: set[str] = field(default_factory=temporary_directories)

    @property
    def kept(self) -> set[int]:
        return self.children[0]

    @property
    def processes(self) -> dict[int, str]:
        return self.children[1]

    def leaks_since(self, before: Snapshot) -> list[str]:
        """One line for each thing held now that was not held before."""
        leaks = [
            f"process {pid}: {command}"
            for pid, command in self.processes.items()
            if pid not in before.processes
        ]
        leaks += [f"thread {thread.name!r}" for thread in self.threads - before.threads]
        leaks += [f"open file: {target}" for target in self._new_files(before)]
        leaks += [f"temporary directory {name}" for name in self.temporary - before.temporary]
        leaks += [
            f"environment variable {key} changed"
            for key in sorted(self.environment.keys() | before.environment.keys())
            if self.environment.get(key) != before.environment.get(key)
        ]
        if self.directory != before.directory:
            leaks.append(f"working directory changed to {self.directory}")
        return leaks

    def _new_files(self, before: Snapshot) -> list[str]:
        new = {fd: name for fd, name in self.files.items() if before.files.get(fd) != name}
        if any(name.startswith(CUDA_FILES) for name in new.values()):
            # The pipes and events that CUDA opens with them it keeps as well.
            new = {fd: name for fd, name in new.items() if name.startswith("/")}
            new = {fd: name for fd, name in new.items() if not name.startswith(CUDA_FILES)}
        for module, kinds in LAZY_FILES.items():
            # Jupyter makes another event loop after a test has called asyncio.run().
            due = module not in _lazy_files or module == "jupyter_core.utils"
            if module in sys.modules and due and (fds := _pick(new, kinds)):
                _lazy_files.setdefault(module, {}).update({fd: new[fd] for fd in fds})
                new = _without_lazy(new)
        if self.kept - before.kept or "ray" in sys.modules:
            # The connection to a kept process; in later tests it is there before they start. And
            # what Ray has opened, its logs too, it keeps for the life of the process.
            new = {fd: name for fd, name in new.items() if name.startswith("/")}
            new = {fd: name for fd, name in new.items() if "/ray/session_" not in name}
        gone = sum(1 for fd in before.files if fd not in self.files)
        return list(new.values()) if len(new) > gone else []


def settled_leaks(before: Snapshot) -> list[str]:
    """Leaks since ``before`` that stay: what is on its way out gets a moment to go."""
    leaks = Snapshot().leaks_since(before)
    if not leaks:
        return leaks
    gc.collect()
    deadline = time.monotonic() + SETTLE_SECONDS
    while (leaks := Snapshot().leaks_since(before)) and time.monotonic() < deadline:
        # A process that multiprocessing has terminated is waited for when it starts the next one.
        multiprocessing.active_children()
        time.sleep(0.01)
    return leaks


@pytest.fixture(scope="session", autouse=True)
def session_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is written to the home directory, and nothing of the user's settings is read."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
            patch.delenv(name)
        patch.setenv("LOCKSTEP_STORAGE", str(tmp_path_factory.mktemp("storage")))
        temporary = str(tmp_path_factory.mktemp("tmp"))
        patch.setenv("TMPDIR", temporary)
        patch.setattr(tempfile, "tempdir", temporary)
        # No warm server is used, or left behind. A test that wants one has a directory for it.
        patch.setenv("LOCKSTEP_WARM", "0")
        patch.setenv("XDG_RUNTIME_DIR", temporary)
        # Trials are forked with the libraries that the driver has loaded. In this process these are
        # more with each test, and every time a new fork server would import them, for seconds.
        patch.setattr("lockstep.tune.execution.launch._LIBRARIES", ())
        before = Snapshot()
        yield
        if "lockstep.engine" in sys.modules:
            import lockstep

            lockstep.shutdown()
        leaks = settled_leaks(before)
        kept, _ = child_processes()
        forkservers = [pid for pid in kept if any(name in _command(pid) for name in FORK_SERVER)]
    assert not leaks, "left at the end of the session: " + "; ".join(leaks)
    assert not forkservers, f"lockstep.shutdown() left fork servers: {forkservers}"


@pytest.fixture(scope="session")
def s3_port(session_environment: None) -> Iterator[int]:
    """The port of an S3 server, which takes seconds to start: one for all tests of a process."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("moto is not installed")
    with serve() as port:
        yield port


@pytest.fixture(autouse=True)
def no_leaks(session_environment: None) -> Iterator[None]:
    """Fails a test that leaves a process, thread, file, variable or directory behind."""
    before = Snapshot()
    yield
    leaks = settled_leaks(before)
    if leaks:  # the next test starts clean
        os.chdir(before.directory)
        for key in environment().keys() - before.environment.keys():
            del os.environ[key]
        os.environ.update(before.environment)
    assert not leaks, "this test left behind: " + "; ".join(leaks)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--environment",
        default="main",
        help="which environment this is: run the tests marked for it, in main those without a mark",
    )


def pytest_configure() -> None:
    """Ctrl-C works in tests, also where pytest was started in the background, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In an environment of its own, a module that says nothing of it may not be importable."""
    name = config.getoption("--environment")
    if name == "main" or collection_path.suffix != ".py" or collection_path.name == "conftest.py":
        return None
    return None if f'environment("{name}")' in collection_path.read_text() else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = config.getoption("--environment")
    elsewhere = [item for item in items if here not in _environments(item)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if here in _environments(item)]
    if Path("/dev/nvidiactl").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU on this machine"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Give a test more time on a machine that is busy with other things, or slow to get memory.

    The limit is for tests that hang. It says nothing about how fast anything is.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    if busy > LOAD_OF_THE_SUITE:
        mark = item.get_closest_marker("timeout")
        limit = mark.args[0] if mark and mark.args else float(item.config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit * min(busy, 5.0)), append=False)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test modules without collecting garbage, which would take a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave the modules' objects, most of a million, out of every garbage collection of a test."""
    gc.collect()
    gc.freeze()


def _environments(item: pytest.Item) -> tuple[str, ...]:
    """Where a test runs: its nearest mark's names, or the main environment."""
    mark = item.get_closest_marker("environment")
    return mark.args if mark else ("main",)
