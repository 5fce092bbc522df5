"""Jobs on a thread of their own: in order, bounded, and nobody has to wait for a stuck one."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from lockstep.jobs import JobThread


def test_jobs_run_in_order_and_errors_are_their_own() -> None:
    jobs = JobThread("test-jobs")
    seen: list[int] = []
    first = jobs.submit(seen.append, 1)
    wrong = jobs.submit(int, "x")
    last = jobs.submit(max, seen)
    assert last.result(120) == 1
    assert first.result() is None
    with pytest.raises(ValueError, match="invalid literal"):
        wrong.result()
    jobs.close(30)


def test_the_thread_lives_only_while_there_is_something_to_do() -> None:
    jobs = JobThread("test-jobs")
    for _ in range(3):
        jobs.submit(int).result(120)
        jobs.close(30)
        assert all(thread.name != "test-jobs" for thread in threading.enumerate())


def test_a_job_that_does_not_end_is_not_waited_for() -> None:
    jobs = JobThread("test-jobs")
    begun, go_on = threading.Event(), threading.Event()

    def stall() -> bool:
        begun.set()
        return go_on.wait(120)

    stalled = jobs.submit(stall)
    never = jobs.submit(pytest.fail, "it had been forgotten")
    assert begun.wait(120)
    jobs.close(0.01)
    assert not stalled.done()
    go_on.set()
    assert stalled.result(120) is True
    jobs.close(30)
    assert not never.done()


@pytest.fixture
def errors() -> list[BaseException]:
    return []


@pytest.fixture
def bounded(errors: list[BaseException]) -> Iterator[JobThread]:
    jobs = JobThread("test-jobs", max_pending=2, on_error=errors.append)
    yield jobs
    jobs.drain()


def test_drain_waits_for_every_job(bounded: JobThread) -> None:
    done: list[int] = []
    for round_ in range(2):
        for number in range(20):
            bounded.submit(done.append, number)
        assert bounded.drain()
        assert done == list(range(20)) * (round_ + 1)


def test_too_many_pending_make_submit_wait(bounded: JobThread) -> None:
    gate = threading.Event()
    for _ in range(2):
        bounded.submit(gate.wait)
    third = threading.Thread(target=bounded.submit, args=(int,))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    gate.set()
    third.join(120)
    assert not third.is_alive()


def test_nothing_follows_a_failed_job(bounded: JobThread, errors: list[BaseException]) -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("full")

    for job in (lambda: done.append("first"), fail, lambda: done.append("third")):
        bounded.submit(job)
    assert not bounded.drain()
    assert done == ["first"]
    assert [str(error) for error in errors] == ["full"]
