"""Calls on a thread of their own: in order, and nobody has to wait for one that never ends."""

from __future__ import annotations

import threading

import pytest

from lockstep.train.driver.background import Background


def test_calls_come_in_order_and_errors_are_their_own() -> None:
    background = Background("test-background")
    seen: list[int] = []
    first = background.submit(seen.append, 1)
    wrong = background.submit(int, "x")
    last = background.submit(max, seen)
    assert last.result(30) == 1
    assert first.result() is None
    with pytest.raises(ValueError, match="invalid literal"):
        wrong.result()
    background.close(30)


def test_the_thread_lives_only_while_there_is_something_to_do() -> None:
    background = Background("test-background")
    for _ in range(3):
        background.submit(int).result(30)
        background.close(30)
        assert all(thread.name != "test-background" for thread in threading.enumerate())


def test_a_call_that_does_not_end_is_not_waited_for() -> None:
    background = Background("test-background")
    begun, go_on = threading.Event(), threading.Event()

    def stall() -> bool:
        begun.set()
        return go_on.wait(30)

    stalled = background.submit(stall)
    never = background.submit(pytest.fail, "it had been forgotten")
    assert begun.wait(30)
    background.close(0.01)
    assert not stalled.done()
    go_on.set()
    assert stalled.result(30) is True
    background.close(30)
    assert not never.done()
