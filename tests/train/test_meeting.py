"""Rank 0 and the others find each other, and nobody else gets in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError

import pytest

from lockstep.train.meeting import Meeting, join


def test_a_stranger_is_not_let_in() -> None:
    meeting = Meeting("127.0.0.1")

    def visit() -> str:
        with pytest.raises(AuthenticationError):
            join(meeting.place._replace(secret="00" * 32), 1)
        with join(meeting.place, 1) as connection:
            return str(connection.recv())

    with ThreadPoolExecutor() as pool:
        answer = pool.submit(visit)
        joined = meeting.wait_for(1)
        assert list(joined) == [1]
        with joined[1] as connection:
            connection.send("welcome")
        assert answer.result() == "welcome"
