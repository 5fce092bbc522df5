"""Meeting: what rank 0 and each other rank say to each other while a backend sets up.

Rank 0 opens the meeting when it announces itself, so it is there before any other rank knows its
place: nobody connects too early, and nobody has to try again. Every user of the machine can
connect; only the ranks know the secret.
"""

from __future__ import annotations

import secrets
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener

from lockstep.train.backend import Place

__all__ = ["Meeting", "join"]

_WAITING = 1024
"""How many ranks may wait to be let in."""


class Meeting:
    """Rank 0's side. ``place`` is what it announces."""

    def __init__(self, address: str) -> None:
        secret = secrets.token_bytes(32)
        self._listener = Listener((address, 0), backlog=_WAITING, authkey=secret)
        self.place = Place(address, self._listener.address[1], secret=secret.hex())

    def wait_for(self, others: int) -> dict[int, Connection]:
        """Wait until all ``others`` have joined, stop listening, return each rank's connection."""
        joined: dict[int, Connection] = {}
        while len(joined) < others:
            try:
                connection = self._listener.accept()
                joined[connection.recv()] = connection
            except (AuthenticationError, ConnectionError, EOFError):
                continue  # not one of the ranks
        self.close()
        return joined

    def close(self) -> None:
        """Let nobody in any more."""
        self._listener.close()


def join(place: Place, rank: int) -> Connection:
    """Join rank 0, which announced ``place``."""
    assert place.port is not None
    assert place.secret is not None
    connection = Client((place.address, place.port), authkey=bytes.fromhex(place.secret))
    connection.send(rank)
    return connection
