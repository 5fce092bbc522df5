"""What a warm server preloads: learnt from what scripts import before they train."""

from __future__ import annotations

import contextlib
import marshal
import os
import sys
from collections.abc import Collection, Mapping
from types import ModuleType

from lockstep import settings
from lockstep.warm.identity import environment_identity, interpreter_flags
from lockstep.warm.place import Place, Unavailable
from lockstep.warm.variables import matters_at_import

__all__ = [
    "expect",
    "learn",
    "library_directories",
    "loaded_libraries",
    "note_workers",
    "start_server",
]

_LIBRARIES = ("site-packages", "dist-packages")
_ORDINARY = {
    "HOME",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TEMP",
    "TMP",
    "TMPDIR",
    "USER",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
}
"""Variables of the first caller that a server has besides those that matter at import. The server
has no other: what one caller has in its environment, another must not be able to read."""


class _Lesson:
    """What this process will report when it trains, or ends."""

    def __init__(
        self, place: Place, known: Collection[str], environment: Mapping[str, str]
    ) -> None:
        self.place = place
        self.known = known
        self.environment = environment
        self.of_workers: tuple[str, ...] = ()


_lesson: _Lesson | None = None


def expect(place: Place, known: Collection[str], environment: Mapping[str, str]) -> None:
    """From now on ``learn`` has an effect in this process.

    Args:
        place: of the server to teach, or to start.
        known: the modules that the server has already.
        environment: the variables that this process was started with.
    """
    global _lesson
    _lesson = _Lesson(place, known, environment)


def note_workers(names: tuple[str, ...]) -> bool:
    """Workers of this process import these modules; whether ``learn`` has an effect."""
    if _lesson is not None:
        _lesson.of_workers = names
    return _lesson is not None


def learn() -> None:
    """Note the libraries that this process has imported, once; start the server if there is none.

    Nothing here may disturb the script: whatever fails is left.
    """
    global _lesson
    lesson, _lesson = _lesson, None
    if lesson is None:
        return
    with contextlib.suppress(OSError, ValueError, Unavailable):
        found = [*loaded_libraries(lesson.known), *lesson.of_workers]
        found = [name for name in found if name not in lesson.known]
        if lesson.known and not found:
            return
        learnt = lesson.place.learnt()
        old = set(learnt["modules"])
        new = [name for name in dict.fromkeys(found) if name not in old]
        if new:
            learnt["modules"] += new
            lesson.place.write_learnt(learnt)
        if not lesson.known:
            start_server(lesson.place, lesson.environment)
        else:
            _teach(lesson.place, lesson.environment)


def _teach(place: Place, environment: Mapping[str, str]) -> None:
    """Have the server look at what is learnt. Whether that is new, the server knows."""
    from lockstep.warm.client import connect
    from lockstep.warm.messages import send

    others = os.memfd_create("others", os.MFD_CLOEXEC)
    try:
        _, rest = _divided(place, environment)
        _write_others(others, rest)
        os.lseek(others, 0, os.SEEK_SET)
        with connect(place.socket) as sock:
            send(sock, "learn", [others])
    finally:
        os.close(others)


def _divided(place: Place, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that a server is started with, and the others."""
    names = place.known_reads() | _ORDINARY
    kept = {name: value for name, value in environment.items() if matters_at_import(name, names)}
    return kept, {name: value for name, value in environment.items() if name not in kept}


def _write_others(fd: int, rest: dict[str, str]) -> None:
    """See ``Libraries.complete_variables``, which reads them."""
    with open(fd, "wb", closefd=False) as file:
        file.write(marshal.dumps(rest))


def library_directories() -> list[str]:
    """Where packages are installed."""
    entries = (entry.rstrip(os.sep) for entry in sys.path if isinstance(entry, str))
    return [entry for entry in entries if os.path.basename(entry) in _LIBRARIES]


def loaded_libraries(
    known: Collection[str] = (), loaded: Mapping[str, ModuleType] | None = None
) -> list[str]:
    """The modules of installed packages, and lockstep's, in the order of their import.

    Args:
        known: those that are left out.
        loaded: all modules; None: those of this process.
    """
    roots = tuple(directory + os.sep for directory in library_directories())
    found = []
    for name, module in list((sys.modules if loaded is None else loaded).items()):
        if name in known:
            continue
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        own = name == "lockstep" or name.startswith("lockstep.")
        inside = own or (isinstance(origin, str) and origin.startswith(roots))
        if inside and getattr(spec, "name", None) == name and not name.endswith("__main__"):
            found.append(name)
    return found


def start_server(place: Place, environment: Mapping[str, str]) -> bool:
    """Start the server of a place in the background, unless there is one; whether it was started.

    The server is no child of this process, and has no more of it than its environment needs.
    """
    import subprocess

    if environment_identity(environment) != place.identity:
        return False  # the script has changed this process: its limits, its CPUs
    lock = place.take_lock()
    if lock is None:
        return False
    kept, rest = _divided(place, environment)
    if settings.user_thread_setting(kept) is None:
        kept["OPENBLAS_NUM_THREADS"] = "1"  # the server computes nothing
    idle_s = settings.warm_idle_seconds()
    setup = marshal.dumps((place.directory, place.identity, place.variables, idle_s))
    # Not a pipe: it holds little, and this process must not wait until the server reads.
    setup_fd = os.memfd_create("setup", 0)
    code = (
        "import marshal, os, sys\n"
        "if os.fork(): os._exit(0)\n"
        f"setup = marshal.loads(os.read({setup_fd}, {len(setup)}))\n"
        "sys.path[:1] = [] if sys.path[:1] == [''] else sys.path[:1]\n"
        "from lockstep.engine.warm_server import main\n"
        f"main({lock}, {setup_fd}, *setup)"
    )
    flags = interpreter_flags()
    directory = place.identity[8] or "/"
    try:
        with open(setup_fd, "wb", closefd=False) as file:
            file.write(setup)
        _write_others(setup_fd, rest)
        os.lseek(setup_fd, 0, os.SEEK_SET)
        with open(place.log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, *flags, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory,
                env=kept,
                pass_fds=[lock, setup_fd],
                start_new_session=True,
            )
        process.wait()
    finally:
        os.close(lock)
        os.close(setup_fd)
    return True
