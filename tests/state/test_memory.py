"""Memory that processes share, and its checksums."""

from __future__ import annotations

import os

import pytest

from lockstep.state import memory
from lockstep.state.memory import checksum


def test_several_threads_find_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHUNK", 64)
    content = os.urandom(5 * 64 + 13)
    sums = checksum(content, len(content))
    assert len(sums) == 6
    assert checksum(content, len(content), threads=3) == sums
    assert checksum(content[:64], 64, threads=3) == sums[:1]
    changed = bytes([content[0] ^ 1]) + content[1:]
    assert checksum(changed, len(changed), threads=3) != sums
