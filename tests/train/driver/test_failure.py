from __future__ import annotations

import signal
from typing import Any

import pytest

from lockstep.error_record import pack_error
from lockstep.errors import (
    CheckpointError,
    HangError,
    InsufficientResourcesError,
    MismatchedReportsError,
    PreemptedError,
    StorageError,
    WorkerDiedError,
)
from lockstep.train.driver import events as e
from lockstep.train.driver.failure import (
    FailurePolicy,
    WorkerFailure,
    describe,
    died,
    first_cause,
    lost_connection,
    name_ranks,
)
from lockstep.train.driver.state import RunState, transition


def raised(rank: int, error: BaseException) -> WorkerFailure:
    return WorkerFailure(rank, pack_error(error))


def gloo(rank: int) -> WorkerFailure:
    return raised(
        rank,
        RuntimeError(
            "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer "
            "[127.0.0.1]:4242"
        ),
    )


class DistBackendError(RuntimeError):
    """Named as torch's."""


# ---------------------------------------------------------------------------------- one sentence


@pytest.mark.parametrize(
    ("failure", "size", "text"),
    [
        (
            raised(1, ValueError("bad input")),
            2,
            "Rank 1 of 2 failed with ValueError: bad input.",
        ),
        (raised(0, ValueError("bad input.")), 1, "Rank 0 failed with ValueError: bad input."),
        (raised(1, KeyError()), 4, "Rank 1 of 4 failed with KeyError."),
        (
            raised(1, RuntimeError("first line\nsecond line")),
            2,
            "Rank 1 of 2 failed with RuntimeError: first line.",
        ),
        (raised(1, MemoryError()), 2, "Rank 1 of 2 failed with MemoryError."),
        (
            raised(1, WorkerDiedError("the training function called sys.exit(3).", 3)),
            2,
            "Rank 1 of 2 failed: the training function called sys.exit(3).",
        ),
        (died(1, 3, ""), 2, "Rank 1 of 2 exited with code 3 before its function returned."),
        (died(1, None, ""), 2, "Rank 1 of 2 was lost."),
        (
            died(1, None, "the fork server is gone"),
            2,
            "Rank 1 of 2 was lost (the fork server is gone).",
        ),
        (died(1, -signal.SIGKILL, ""), 2, "Rank 1 of 2 was killed by SIGKILL."),
        (died(1, -signal.SIGTERM, ""), 2, "Rank 1 of 2 was killed by SIGTERM."),
        (died(1, -63, ""), 2, "Rank 1 of 2 was killed by signal 63."),
        (
            died(1, -signal.SIGSEGV, ""),
            2,
            "Rank 1 of 2 crashed (segmentation fault, SIGSEGV).",
        ),
        (died(1, -signal.SIGABRT, ""), 2, "Rank 1 of 2 crashed (aborted, SIGABRT)."),
        (died(1, -signal.SIGBUS, ""), 2, "Rank 1 of 2 crashed (bus error, SIGBUS)."),
        (died(1, -signal.SIGILL, ""), 2, "Rank 1 of 2 crashed (illegal instruction, SIGILL)."),
        (died(1, -signal.SIGFPE, ""), 2, "Rank 1 of 2 crashed (arithmetic error, SIGFPE)."),
    ],
)
def test_one_sentence(failure: WorkerFailure, size: int, text: str) -> None:
    assert describe((failure,), 1, size) == text


@pytest.mark.parametrize(
    "kind",
    [
        CheckpointError,
        HangError,
        InsufficientResourcesError,
        MismatchedReportsError,
        PreemptedError,
        StorageError,
    ],
)
def test_lockstep_errors_speak_for_themselves(kind: type[Exception]) -> None:
    failure = raised(0, kind("rank 1 did that; do this."))
    assert describe((failure,), 1, 2) == "Rank 1 did that; do this."


def test_the_attempt_is_named_when_it_is_not_the_first() -> None:
    assert describe((died(1, -9, ""),), 3, 2) == "Rank 1 of 2 was killed by SIGKILL (in attempt 3)."
    both = (raised(1, ValueError("bad")), raised(0, ValueError("bad")))
    assert describe(both, 2, 2) == (
        "Rank 1 of 2 failed with ValueError: bad (in attempt 2; rank 0 failed, too)."
    )


def test_another_error_of_another_rank_is_shown() -> None:
    cause = raised(1, ValueError("bad"))
    both = (cause, raised(0, KeyError("k")))
    assert describe(both, 1, 2) == (
        "Rank 1 of 2 failed with ValueError: bad (rank 0 failed, too, with KeyError: 'k')."
    )
    full = [raised(rank, OSError("full.")) for rank in (0, 2)]
    alike = (cause, *full, raised(3, ValueError("bad")))
    assert describe(alike, 1, 4) == (
        "Rank 1 of 4 failed with ValueError: bad "
        "(rank 3 failed, too; ranks 0 and 2 failed, too, with OSError: full)."
    )
    dead = (died(0, -9, ""), died(1, -signal.SIGSEGV, ""))
    assert describe(dead, 1, 2) == (
        "Rank 0 of 2 was killed by SIGKILL "
        "(rank 1 failed, too: crashed (segmentation fault, SIGSEGV))."
    )


def test_many_different_errors_are_bounded() -> None:
    failures = [raised(rank, ValueError(f"rank {rank}: {'x' * 9999}")) for rank in range(64)]
    text = describe(tuple(failures), 1, 64)
    assert text.count("failed, too, with") == 3
    assert "52 more failed in other ways" in text
    assert len(text) < 4000


def test_a_novel_of_a_message_is_cut() -> None:
    text = describe((raised(0, ValueError("x" * 100_000)),), 1, 1)
    assert len(text) < 3000
    assert text.endswith("x….")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([2, 0], "ranks 0 and 2"),
        ([3, 0, 2], "ranks 0, 2 and 3"),
        (range(9), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8"),
        (range(100), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 92 more"),
    ],
)
def test_ranks_are_listed_like_words(ranks: Any, text: str) -> None:
    assert name_ranks(ranks) == text


# -------------------------------------------------------------------------------- the root cause


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../third_party/gloo/transport/tcp/pair.cc:534] Connection closed by peer"),
        RuntimeError("Read error [127.0.0.1]:22: Connection reset by peer"),
        RuntimeError("Broken pipe"),
        RuntimeError("Socket closed"),
        RuntimeError("[gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
        DistBackendError("NCCL error in: ProcessGroupNCCL.cpp:1970"),
        RuntimeError("NCCL communicator was aborted on rank 0."),
        ConnectionResetError(104, "Connection reset by peer"),
        ConnectionError("peer is gone"),
    ],
)
def test_broken_connections_are_consequences(error: Exception) -> None:
    consequence = raised(0, error)
    assert lost_connection(consequence)
    cause = raised(1, ValueError("bad input"))
    for failures in ((cause, consequence), (consequence, cause)):
        assert first_cause(failures) is cause
        assert describe(failures, 1, 2) == (
            "Rank 1 of 2 failed with ValueError: bad input (rank 0 lost its connection to it)."
        )


def test_a_wrapped_broken_connection_is_one_too() -> None:
    explicit, implicit = ValueError("the step failed"), ValueError("the step failed")
    explicit.__cause__ = RuntimeError("Connection closed by peer")
    implicit.__context__ = RuntimeError("Connection closed by peer")
    assert lost_connection(raised(0, explicit))
    assert lost_connection(raised(0, implicit))


def test_a_long_message_full_of_a_library_s_name_takes_no_time() -> None:
    # Quadratic time would take more than the test's minute here.
    long = "NCCL INFO ring\n" * 8000
    assert not lost_connection(raised(0, RuntimeError(long)))
    assert lost_connection(raised(0, RuntimeError(f"{long[:80_000]}NCCL error: remote process")))


@pytest.mark.parametrize(
    "error", [ValueError("bad peer"), RuntimeError("CUDA error"), OSError("No such file")]
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not lost_connection(raised(0, error))


def test_a_death_is_never_a_consequence_of_its_words() -> None:
    assert not lost_connection(died(0, None, "connection lost"))


def test_consequences_are_collapsed_and_failures_of_their_own_are_not() -> None:
    failures = (gloo(3), gloo(0), died(1, -9, ""), gloo(2), raised(4, KeyError("k")))
    assert describe(failures, 1, 5) == (
        "Rank 1 of 5 was killed by SIGKILL "
        "(rank 4 failed, too, with KeyError: 'k'; ranks 0, 2 and 3 lost their connection to it)."
    )


def test_where_every_rank_lost_its_connection_the_first_is_named() -> None:
    failures = (gloo(1), gloo(0))  # alike
    assert first_cause(failures) is failures[0]
    text = describe(failures, 1, 2)
    assert text.startswith("Rank 1 of 2 failed with RuntimeError: [/pytorch")
    assert text.endswith("(rank 0 failed, too).")


def test_a_death_goes_before_an_error_that_came_earlier() -> None:
    death = died(1, -9, "")
    assert first_cause((raised(0, ValueError("the peer is away")), death)) is death


def test_an_abort_is_named_only_if_nothing_came_before_it() -> None:
    abort, error = died(0, -signal.SIGABRT, ""), raised(1, ValueError("bad"))
    assert first_cause((error, abort)) is error
    assert first_cause((abort, error)) is abort
    assert first_cause((gloo(1), abort)) is abort


def test_a_preemption_too_many_is_the_verdict() -> None:
    failures = (died(1, -9, ""), raised(1, PreemptedError("rank 1 was preempted.")))
    assert describe(failures, 1, 2) == "Rank 1 was preempted."


# ---------------------------------------------------------------- how long the machine waits for it


def running(size: int) -> RunState:
    state, _ = RunState.new(size, FailurePolicy())
    return state._replace(phase=e.Phase.RUNNING)


def test_a_broken_connection_leaves_the_culprit_more_time() -> None:
    state, actions = transition(running(3), e.Raised(0, gloo(0).error))
    assert actions == [e.SetTimer("cause")]
    state, actions = transition(state, e.Raised(2, gloo(2).error))
    assert actions == []
    state, actions = transition(state, e.Raised(1, pack_error(ValueError("late"))))
    assert actions == [e.KillWorkers()]  # everyone has spoken
    assert first_cause(state.failures).rank == 1


def test_the_culprits_error_leaves_the_others_as_long_as_ever() -> None:
    state, _ = transition(running(3), e.Raised(0, gloo(0).error))
    state, actions = transition(state, e.Raised(1, pack_error(ValueError("late"))))
    assert actions == [e.SetTimer("collect")]
    state, actions = transition(state, e.TimerFired("collect", 1))
    assert actions == [e.KillWorkers()]
    assert transition(state, e.TimerFired("cause", 1))[1] == []
