"""A lease: one driver at a time writes to a directory on an object store, where there are no locks.

Each driver has an object of its own, which it writes again before the lease's term is over::

    take      write the own object, then list all: is another one alive, withdraw and refuse
    renew     list all: is the own one gone, or a later one there, the lease is lost; else write
    release   delete the own object

A store shows an object in every listing once it is written. So of two drivers at least one sees the
other, and they never both have the lease. A lease ends when it was not renewed for its term, by the
store's own clock, or at once if its driver was a process of this machine that is gone. The driver
that takes it then deletes the object: the earlier driver, if it lives, learns that at its next
renewal and writes nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
import time
import uuid
from typing import Any, NamedTuple

from lockstep.errors import StorageError
from lockstep.storage.base import Storage
from lockstep.storage.remote import RemoteStorage

__all__ = ["Lease"]

TERM_S = 30.0
"""How long a lease lasts after it was renewed; it is renewed three times as often."""
_TRIES = 4
"""How often two drivers that begin at the same moment may withdraw."""


class Lease:
    """Held from its creation until ``release``. A thread renews it.

    Args:
        storage: a directory on a store for which ``is_possible``.
        name: of several leases in a directory.

    Raises:
        StorageError: another driver has it; names the driver.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        assert isinstance(storage, RemoteStorage)
        self._storage = storage
        # A dot in front, as other files of lockstep: not a checkpoint, not a user's file.
        self._prefix = f".lease-{name}-"
        self._own = ""
        self._generation = 0
        self._lost: StorageError | None = None
        self._released = threading.Event()
        self._writing = threading.Lock()
        self._take()
        self._renewed = _clock()
        threading.Thread(target=self._keep, name="lockstep-lease", daemon=True).start()

    @staticmethod
    def is_possible(storage: Storage) -> bool:
        """Whether the store shows every object in its listings at once, as this needs."""
        return isinstance(storage, RemoteStorage) and storage.lists_at_once

    def check(self) -> None:
        """Raise if the lease is lost. To be called before each write.

        Raises:
            StorageError: another driver has taken it, or it could not be renewed for its term.
        """
        if self._lost is None and _clock() - self._renewed > TERM_S:
            self._renew()  # the thread was late, or the process was stopped
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Let others take it. Idempotent."""
        if self._released.is_set():
            return
        self._released.set()
        # A renewal under way would write the object again. If storage does not answer, the lease
        # ends by itself.
        if self._lost is None and self._writing.acquire(timeout=TERM_S / 3):
            with contextlib.suppress(StorageError):
                self._storage.delete(self._own)
            self._writing.release()

    def abandon(self) -> None:
        """Storage does not answer: renew no more, so that the lease ends by itself."""
        self._released.set()

    def _take(self) -> None:
        for _ in range(_TRIES):
            found = self._entries()
            self._generation = max((entry.generation for entry in found), default=0) + 1
            self._own = f"{self._prefix}{self._generation:09d}-{uuid.uuid4().hex}"
            self._write()
            found = self._entries()
            # The store's own time for the object just written: this machine's clock may be wrong.
            now = next((entry.written for entry in found if entry.name == self._own), time.time())
            others = [entry for entry in found if entry.name != self._own]
            alive = [owner for other in others if (owner := self._living_owner(other, now))]
            if not alive:
                for other in others:
                    self._storage.delete(other.name)
                return
            self._storage.delete(self._own)
            # Two drivers that began together both withdraw. A random pause lets one of them be
            # first.
            time.sleep(random.uniform(0.05, 0.3))
        raise StorageError(
            f"{self._storage.uri} is being written by another driver, {_described(alive[0], now)}; "
            "wait for it, or end it first."
        )

    def _living_owner(self, entry: _Entry, now: float) -> dict[str, Any] | None:
        """Who has the lease of an entry, with its end; None if it has ended."""
        owner: dict[str, Any] = {"host": "an unknown host", "pid": 0, "term_s": TERM_S}
        try:
            owner.update(json.loads(self._storage.read(entry.name)))
            owner["pid"], ends = int(owner["pid"]), entry.written + float(owner["term_s"])
        except FileNotFoundError:
            return None
        except (TypeError, ValueError):  # another program's; it counts for a term
            owner["pid"], ends = 0, entry.written + TERM_S
        if now > ends:
            return None
        # Another process that this one can look for.
        if owner.get("machine") == _machine() and owner.get("started") != _started(owner["pid"]):
            return None
        return {**owner, "ends": ends}

    def _keep(self) -> None:
        while not self._released.wait(TERM_S / 3) and self._lost is None:
            with contextlib.suppress(StorageError):  # tried again until the term is over
                self._renew()

    def _renew(self) -> None:
        with self._writing:
            if not self._released.is_set():
                self._look_and_write()

    def _look_and_write(self) -> None:
        began = _clock()
        found = self._entries()
        later = any(entry.generation > self._generation for entry in found)
        # Look before writing: writing would bring back an object that another driver has deleted.
        if later or all(entry.name != self._own for entry in found):
            self._lost = StorageError(
                f"another driver has taken over {self._storage.uri}, because this one could not "
                f"renew its lease for {TERM_S:g} s; this driver writes nothing more."
            )
            return
        self._write()
        # The time before the request: the store's term may have begun that early.
        self._renewed = began

    def _write(self) -> None:
        owner = {
            "host": os.uname().nodename,
            "machine": _machine(),
            "pid": os.getpid(),
            "started": _started(os.getpid()),
            "term_s": TERM_S,
        }
        self._storage.write(self._own, json.dumps(owner).encode())

    def _entries(self) -> list[_Entry]:
        pattern = re.compile(re.escape(self._prefix) + r"(\d{9})-[0-9a-f]{32}")
        return [
            _Entry(name, int(match[1]), written)
            for name, written in self._storage.modified().items()
            if (match := pattern.fullmatch(name))
        ]


class _Entry(NamedTuple):
    name: str
    generation: int
    written: float
    """By the store's clock."""


def _described(owner: dict[str, Any], now: float) -> str:
    left = max(owner["ends"] - now, 0)
    return f"process {owner['pid']} on {owner['host']}, whose lease ends in {left:.0f} s"


def _clock() -> float:
    """Seconds, also those in which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _machine() -> str:
    """The same in all processes that can see each other's ids."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process of this machine began; None if there is none, or that is not known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            # Field 22 of the line. The name in parentheses before may contain anything, spaces too.
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
