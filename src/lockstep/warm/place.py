"""Where warm servers are found: a directory of the user's own, and the names in it.

<runtime directory>/                mode 0700, the user's own
    <environment>/                  one for each interpreter and kind of process
        learnt                      modules that runs imported; those that must not be
        variables                   the variables that preloaded modules read and set
        stale                       programs that set such a variable themselves
        <variables' values>.lock    held by the server as long as it runs
        <variables' values>.socket  where the server listens
        <variables' values>.log     what the server printed
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import stat
import zlib
from collections.abc import Collection, Mapping

from lockstep import settings
from lockstep.warm.identity import environment_identity, variables_that_matter

TYPE_CHECKING = False  # see lockstep/__init__.py
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Place", "Unavailable", "forget_learnt", "places", "runtime_directory"]

_LEARNT, _VARIABLES, _STALE = "learnt", "variables", "stale"
_LOCK, _SOCKET, _LOG = ".lock", ".socket", ".log"


class Unavailable(Exception):
    """There is no warm start; the text says why, without a full stop."""


def runtime_directory(*, create: bool = False) -> str:
    """The user's own directory for sockets.

    Raises:
        Unavailable: there is none, or other users could write to it.
    """
    path = settings.warm_directory()
    if create:
        with contextlib.suppress(FileExistsError):
            os.makedirs(path, 0o700)
    try:
        found = os.lstat(path)
    except OSError as error:
        raise Unavailable("no warm server runs yet") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Unavailable(f"{path} is not a directory of this user alone (mode 0700)")
    return path


def _name(value: Any) -> str:
    # Two environments with the same number are told apart by the server, which has the values.
    data = marshal.dumps(value, 2)
    return f"{zlib.crc32(data):08x}{zlib.adler32(data):08x}"


class Place:
    """Where the server of one environment is, or would be.

    Args:
        directory: of the interpreter and the kind of process.
        identity: what these are, see ``environment_identity``.
        variables: those that may have changed an import, with their values.
        reads: the names of the variables that Python code has read while it was imported.
    """

    def __init__(
        self,
        directory: str,
        identity: list[Any],
        variables: dict[str, str],
        reads: Collection[str] = (),
    ) -> None:
        self.directory = directory
        self.identity = identity
        self.variables = variables
        self.reads = reads
        self._base = os.path.join(directory, _name(sorted(variables.items())))

    @classmethod
    def of(cls, environment: Mapping[str, str], *, create: bool = False) -> Place:
        """The place for a process like this one that has these variables.

        Raises:
            Unavailable: nothing was ever started there, or other users could write to it.
        """
        parent = runtime_directory(create=create)
        identity = environment_identity(environment)
        directory = os.path.join(parent, _name(identity))
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
        reads, made = _read(directory, _VARIABLES) or ((), {})
        variables = variables_that_matter(environment, reads, made)
        return cls(directory, identity, variables, reads)

    @property
    def socket(self) -> str:
        """The server's address."""
        return self._base + _SOCKET

    @property
    def log(self) -> str:
        """The file that the server prints to."""
        return self._base + _LOG

    @property
    def lock(self) -> str:
        """The file that the server holds locked."""
        return self._base + _LOCK

    def take_lock(self) -> int | None:
        """A descriptor that holds the lock; None if a server holds it, or is about to."""
        fd = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return fd

    def learnt(self) -> dict[str, Any]:
        """``modules``: what runs have imported; ``unsafe``: package → why it is not preloaded."""
        return _read(self.directory, _LEARNT) or {"modules": [], "unsafe": {}}

    def write_learnt(self, learnt: dict[str, Any]) -> None:
        """Replace what is learnt, in one step."""
        self._write(_LEARNT, learnt)

    def known_reads(self) -> set[str]:
        """The variables that preloaded modules have read."""
        return set((_read(self.directory, _VARIABLES) or ((), {}))[0])

    def write_variables(self, reads: set[str], made: dict[str, str]) -> None:
        """Keep which variables preloaded modules have read, and which they have set."""
        old_reads, old_made = _read(self.directory, _VARIABLES) or ((), {})  # other servers' too
        self._write(_VARIABLES, (sorted(reads.union(old_reads)), {**old_made, **made}))

    def stale(self, program: str) -> str | None:
        """The variable that a program has set for a module that was imported without it.

        Args:
            program: its kind and its path, or name.
        """
        found: str | None = (_read(self.directory, _STALE) or {}).get(program)
        return found

    def note_stale(self, program: str, variable: str) -> None:
        """Remember what ``stale`` says."""
        self._write(_STALE, {**(_read(self.directory, _STALE) or {}), program: variable})

    def _write(self, name: str, value: Any) -> None:
        path = os.path.join(self.directory, name)
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(marshal.dumps(value))
        os.replace(file.name, path)


def _read(directory: str, name: str) -> Any:
    try:
        with open(os.path.join(directory, name), "rb") as file:
            return marshal.loads(file.read())
    except (OSError, ValueError, EOFError, TypeError):
        return None


def forget_learnt() -> None:
    """Forget what runs have imported, in every environment of this user."""
    with contextlib.suppress(Unavailable, OSError):
        top = runtime_directory()
        for name in os.listdir(top):
            for file in (_LEARNT, _STALE):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(top, name, file))


def places() -> list[str]:
    """The sockets of all servers of this user, also of those that have ended."""
    found = []
    with contextlib.suppress(Unavailable, OSError):
        top = runtime_directory()
        for name in sorted(os.listdir(top)):
            with contextlib.suppress(OSError):
                directory = os.path.join(top, name)
                names = sorted(os.listdir(directory))
                found += [os.path.join(directory, n) for n in names if n.endswith(_SOCKET)]
    return found
