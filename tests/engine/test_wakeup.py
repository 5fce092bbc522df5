from __future__ import annotations

import os
import select

from lockstep.engine.wakeup import Wakeup


def is_awake(wakeup: Wakeup) -> bool:
    return bool(select.select([wakeup], [], [], 0)[0])


def test_wake_lasts_until_drain() -> None:
    wakeup = Wakeup()
    assert not is_awake(wakeup)
    wakeup.wake()
    wakeup.wake()
    assert is_awake(wakeup)
    wakeup.drain()
    assert not is_awake(wakeup)
    wakeup.drain()  # with nothing to drain it does not wait
    wakeup.close()


def test_a_full_pipe_does_not_block() -> None:
    wakeup = Wakeup()
    for _ in range(100_000):
        wakeup.wake()
    wakeup.drain()
    assert not is_awake(wakeup)
    wakeup.close()


def test_after_close_wake_does_not_reach_the_next_file() -> None:
    wakeup = Wakeup()
    wakeup.close()
    wakeup.close()
    read_end, write_end = os.pipe()
    wakeup.wake()
    assert not select.select([read_end], [], [], 0)[0]
    os.close(read_end)
    os.close(write_end)
