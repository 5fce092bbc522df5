"""``lockstep doctor``: checks this machine; each line is ok, or says what to do."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
import tempfile
import time
import uuid
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from lockstep import settings
from lockstep.cli.command import Command
from lockstep.cli.output import print_json
from lockstep.console.text import clean
from lockstep.engine.resources import visible_gpus
from lockstep.errors import LockstepError
from lockstep.journal.environment import installed, machine
from lockstep.journal.lock import Lock, is_locked
from lockstep.journal.records import RunRecords
from lockstep.run_layout import TEMPORARY
from lockstep.storage import open_storage

__all__ = ["COMMAND"]

_MIN_SHARED_MEMORY = 1 << 30
_MIN_FILES = 1024
_MAX_CLOCK_S = 2.0
_SLOW_START_S = 5.0
_SLOW_REPORTS = 200.0
_REPORTS = 300


class _Advice(Exception):
    """Something is wrong: the text says what, and what to do."""


Check = Callable[[], str]
"""Returns what is good; raises _Advice."""


class _Line(NamedTuple):
    """The outcome of one check."""

    check: str
    ok: bool
    text: str


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "storage",
        metavar="PATH",
        nargs="?",
        default=settings.results_root(),
        help="the directory or URI to check; by default the results root "
        f"({settings.results_root()})",
    )
    parser.add_argument(
        "--no-run", action="store_true", help="do not start a run to measure the speed"
    )


def _doctor(options: Namespace) -> int:
    lines = []
    for line in _lines(options):
        lines.append(line)
        if not options.json:
            print(f"{'ok' if line.ok else 'BAD':<5}{line.check:<15}{clean(line.text)}", flush=True)
    if options.json:
        print_json([line._asdict() for line in lines])
    return 0 if all(line.ok for line in lines) else 1


def _lines(options: Namespace) -> Iterator[_Line]:
    checks: dict[str, Check] = {
        "installation": _installation,
        "GPUs": _gpus,
        "ports": _ports,
        "shared memory": _shared_memory,
        "open files": _open_files,
        "storage": partial(_storage, options.storage),
        "locks": partial(_locks, options.storage),
        "clock": partial(_clock, options.storage),
    }
    if not options.no_run:
        checks["speed"] = _speed
    for name, check in checks.items():
        try:
            yield _Line(name, True, check())
        except (_Advice, LockstepError, OSError, ValueError) as error:
            yield _Line(name, False, str(error))


def _installation() -> str:
    versions = ", ".join(f"{name} {version}" for name, version in installed().items())
    return f"Python {sys.version.split()[0]}, {versions}"


def _gpus() -> str:
    found = visible_gpus()
    if not found:
        return "none; workers train on CPUs"
    names = ", ".join(sorted(set(machine()["gpus"]))) or "unknown model"
    if "torch" not in installed():
        return f"{len(found)} ({names}); PyTorch is not installed"
    import torch

    if not torch.cuda.is_available():
        raise _Advice(
            f"there are {len(found)} GPUs ({names}), but PyTorch {torch.__version__} cannot use "
            "them: install a PyTorch that is built for the driver's CUDA version (see nvidia-smi)."
        )
    return f"{len(found)} ({names}), PyTorch uses CUDA {torch.version.cuda}"


def _ports() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        address = server.getsockname()
        try:
            with socket.create_connection(address, 5), server.accept()[0]:
                pass
        except OSError as error:
            raise _Advice(
                f"a connection to 127.0.0.1 fails ({error}): allow loopback connections in the "
                "firewall."
            ) from error
    return "workers can connect on 127.0.0.1"


def _shared_memory() -> str:
    if not os.path.isdir("/dev/shm"):
        return "this system has no /dev/shm"
    size = shutil.disk_usage("/dev/shm")
    text = f"{size.free / (1 << 30):.1f} of {size.total / (1 << 30):.1f} GiB are free in /dev/shm"
    if size.free < _MIN_SHARED_MEMORY:
        raise _Advice(
            f"only {text}; data loaders and NCCL need more: start the container with "
            "--shm-size=8g, or delete what fills it."
        )
    return text


def _open_files() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _MIN_FILES:
        raise _Advice(
            f"a process may open {soft} files; raise it with 'ulimit -n {min(hard, 65536)}'."
        )
    return f"a process may open {soft}"


def _storage(where: str) -> str:
    """A file and a publication, as runs make them; everything is deleted again."""
    root = open_storage(where)
    place = root.child(f"{TEMPORARY}doctor-{uuid.uuid4().hex[:8]}")
    try:
        place.make_directory()
        place.write("file", b"old")
        place.write("file", b"new")
        place.put_bytes(f"{place.stage('published')}/part", b"x")
        if place.is_published("published"):
            raise _Advice(f"{root.uri} shows files before they are complete; use another storage.")
        place.publish("published", b"{}")
        if place.read("file") != b"new" or place.read("published/part") != b"x":
            raise _Advice(f"{root.uri} does not return what was written; use another storage.")
    finally:
        if place.is_directory():
            if place.is_local:
                shutil.rmtree(place.root, ignore_errors=True)
            else:
                place.filesystem.delete_dir(place.root)
    free = f", {shutil.disk_usage(root.root).free / 1e9:,.0f} GB free" if root.is_local else ""
    return f"{root.uri} can be written, and publishes in one step{free}"


def _locks(where: str) -> str:
    root = open_storage(where)
    folder = root.root if root.is_local else tempfile.gettempdir()
    with tempfile.TemporaryDirectory(prefix=f"{TEMPORARY}doctor-", dir=folder) as directory:
        journal = os.path.join(directory, "x")
        lock = Lock(journal)
        try:
            held = is_locked(journal)
        finally:
            lock.release()
    if not held:
        raise _Advice(
            f"{folder} has no file locks, so two drivers could write one run: mount it with locks "
            "(NFS: without nolock), or store runs elsewhere."
        )
    return f"{folder} has file locks"


def _clock(where: str) -> str:
    """The clock of this machine beside the one that dates files."""
    root = open_storage(where)
    folder = root.root if root.is_local else tempfile.gettempdir()
    with tempfile.NamedTemporaryFile(prefix=f"{TEMPORARY}doctor-", dir=folder) as file:
        file.write(b"x")
        file.flush()
        off = os.stat(file.name).st_mtime - time.time()
    if abs(off) > _MAX_CLOCK_S:
        raise _Advice(
            f"the clock of {folder} is {off:+.1f} s off: synchronise both machines with NTP."
        )
    return f"it is {time.strftime('%Y-%m-%d %H:%M:%S %Z')}, and files in {folder} agree"


def _speed() -> str:
    from lockstep import train

    begun = time.time()

    def function() -> None:
        train.report({"up": time.time() - begun})
        started = time.perf_counter()
        for _ in range(_REPORTS):
            train.report({"seconds": time.perf_counter() - started})

    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as directory:
        run_config = train.RunConfig(name="doctor", storage_path=directory, verbose=0)
        result = train.DataParallelTrainer(function, run_config=run_config).fit()
        first = float(next(RunRecords(open_storage(result.path)).reports())["ranks"][0]["up"])
        rate = _REPORTS / max(float(result.metrics["seconds"]), 1e-9)
    text = f"a worker is up after {first:.2f} s and makes {rate:,.0f} reports a second"
    if first > _SLOW_START_S or rate < _SLOW_REPORTS:
        raise _Advice(
            f"{text}, which is slow: look for other load (top), or a slow disk under {directory}."
        )
    return text


COMMAND = Command(
    "doctor",
    "check this machine and its storage; each line is ok, or says what to do",
    (
        "lockstep doctor                      exit code 1 if something is wrong",
        "lockstep doctor s3://bucket/results  check another storage",
        "lockstep doctor --no-run --json      without the run that measures the speed",
    ),
    _arguments,
    _doctor,
)
