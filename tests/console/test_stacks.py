from __future__ import annotations

import faulthandler
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable

import pytest

from lockstep.console.stacks import (
    HOLD_S,
    Frame,
    StackCollector,
    first_dump,
    is_complete,
    parse_stacks,
    tidy_stacks,
)

PACKAGE = "/site-packages/lockstep"
THREADING = """\
  File "/lib/python3.11/threading.py", line 982 in run
  File "/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/lib/python3.11/threading.py", line 1002 in _bootstrap

"""
USERS_THREAD = f"""\
Thread 0x00007f0cfb2c96c0 (most recent call first):
  File "/home/me/load.py", line 5 in prefetch
{THREADING}"""
IDLE_POOL = f"""\
Thread 0x00007f0cfb2c96c1 (most recent call first):
  File "/lib/python3.11/concurrent/futures/thread.py", line 81 in _worker
{THREADING}"""
OUR_THREAD = f"""\
Thread 0x00007f0cfbb306c0 (most recent call first):
  File "{PACKAGE}/engine/wire.py", line 259 in _io_thread
{THREADING}"""
MAIN_HEADER = "Current thread 0x00007f0cfce2fb80 (most recent call first):\n"
USERS_FRAMES = """\
  File "/home/me/train.py", line 8 in step
  File "/home/me/train.py", line 12 in train_func
"""
OUTER = f"""\
  File "{PACKAGE}/train/worker.py", line 108 in _run
  File "{PACKAGE}/train/worker.py", line 62 in main
  File "{PACKAGE}/engine/forkserver.py", line 283 in _run_worker
  File "{PACKAGE}/engine/forkserver.py", line 106 in main
  File "<string>", line 1 in <module>
"""
DUMP = USERS_THREAD + OUR_THREAD + IDLE_POOL + MAIN_HEADER + USERS_FRAMES + OUTER
TIDY = [
    "Stack (most recent call last):",
    '  File "/home/me/train.py", line 12, in train_func',
    '  File "/home/me/train.py", line 8, in step',
    "Another thread (most recent call last):",
    '  File "/home/me/load.py", line 5, in prefetch',
]


def tidy(dump: str) -> list[str]:
    return tidy_stacks(parse_stacks(dump.splitlines()))


# ---------------------------------------------------------------------------------------- tidying


def test_the_users_frames_of_the_main_thread_come_first() -> None:
    assert tidy(DUMP) == TIDY


def test_source_lines_are_shown_where_they_are_known() -> None:
    sources = {("/home/me/train.py", 8): "    loss.backward()  # here\n"}
    stacks = parse_stacks((MAIN_HEADER + USERS_FRAMES + OUTER).splitlines())
    assert tidy_stacks(stacks, lambda file, line: sources.get((file, line), "")) == [
        "Stack (most recent call last):",
        '  File "/home/me/train.py", line 12, in train_func',
        '  File "/home/me/train.py", line 8, in step',
        "    loss.backward()  # here",
    ]


def test_of_locksteps_inner_frames_the_one_that_was_called_is_shown() -> None:
    inner = f"""\
  File "{PACKAGE}/engine/wire.py", line 59 in _receive_exactly
  File "{PACKAGE}/train/session.py", line 95 in report
  File "{PACKAGE}/train/api.py", line 90 in report
"""
    assert tidy(MAIN_HEADER + inner + USERS_FRAMES + OUTER) == [
        *TIDY[:3],
        f'  File "{PACKAGE}/train/api.py", line 90, in report',
    ]


def test_a_rank_in_a_collective_is_in_torch() -> None:
    inner = f"""\
  File "{PACKAGE}/train/torch/collectives.py", line 69 in wait
  File "/torch/distributed/distributed_c10d.py", line 3001 in all_reduce
"""
    assert tidy(MAIN_HEADER + inner + USERS_FRAMES + OUTER) == [
        *TIDY[:3],
        '  File "/torch/distributed/distributed_c10d.py", line 3001, in all_reduce',
    ]


def test_a_callback_from_lockstep_into_user_code_keeps_the_frames_between() -> None:
    frames = f"""\
  File "/home/me/faults.py", line 3 in hang
  File "{PACKAGE}/train/session.py", line 95 in report
  File "{PACKAGE}/train/api.py", line 90 in report
"""
    shown = tidy(MAIN_HEADER + frames + USERS_FRAMES + OUTER)
    assert shown[-1] == '  File "/home/me/faults.py", line 3, in hang'
    assert len(shown) == 6


def test_a_worker_outside_the_training_function_is_somewhere() -> None:
    assert tidy(MAIN_HEADER + OUTER) == [
        "Stack (most recent call last):",
        f'  File "{PACKAGE}/train/worker.py", line 108, in _run',
    ]


def test_a_repeated_call_is_counted() -> None:
    def recursion(times: int) -> list[str]:
        call = '  File "/home/me/train.py", line 7 in again\n'
        return tidy(MAIN_HEADER + call * times + USERS_FRAMES + OUTER)[3:]

    call = '  File "/home/me/train.py", line 7, in again'
    assert recursion(3) == [call] * 3
    assert recursion(4) == [call] * 3 + ["  [Previous line repeated 1 more time]"]
    assert recursion(9) == [call] * 3 + ["  [Previous line repeated 6 more times]"]


def test_a_stack_that_was_too_deep_is_marked() -> None:
    dump = OUR_THREAD + MAIN_HEADER + USERS_FRAMES + "  ...\n"
    assert is_complete(dump.splitlines())
    assert tidy(dump)[:2] == [
        "Stack (most recent call last):",
        "  … (earlier calls are left out)",
    ]


def test_a_named_thread_keeps_its_name() -> None:
    header = "Thread 0x00007f0cfb2c96c0 [prefetch] (most recent call first):"
    dump = USERS_THREAD.replace(USERS_THREAD.splitlines()[0], header)
    assert "Thread prefetch (most recent call last):" in tidy(dump + MAIN_HEADER + OUTER)


def test_frames_without_a_line_number() -> None:
    (stack,) = parse_stacks([MAIN_HEADER.rstrip(), '  File "a.py", line ??? in f'])
    assert stack.frames == (Frame("a.py", 0, "f"),)
    assert tidy_stacks([stack])[-1] == '  File "a.py", line ?, in f'


def test_nothing_is_made_of_nothing() -> None:
    assert tidy("") == []
    assert first_dump([]) == []
    assert not is_complete([])


def test_a_dump_is_found_in_other_output() -> None:
    lines = ["before", *DUMP.splitlines(), "after", *DUMP.splitlines()]
    assert first_dump(lines) == DUMP.splitlines()
    torn = DUMP.splitlines()
    torn.insert(3, "another thread's print")
    assert tidy_stacks(parse_stacks(first_dump(torn))) == TIDY


@pytest.mark.parametrize("count", range(len(DUMP.splitlines())))
def test_a_part_of_a_dump_is_not_complete(count: int) -> None:
    assert not is_complete(DUMP.splitlines()[:count])


def test_what_faulthandler_writes_here_is_understood() -> None:
    go_on = threading.Event()
    ready = threading.Event()

    def other() -> None:
        ready.set()
        go_on.wait()

    thread = threading.Thread(target=other)
    thread.start()
    ready.wait()
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        lines = file.read().splitlines()
    go_on.set()
    thread.join()
    main, *others = parse_stacks(lines)
    assert main.is_main
    here = sys._getframe()
    assert main.frames[-1][::2] == (__file__, here.f_code.co_name)
    assert any(frame.function == "other" for stack in others for frame in stack.frames)


# -------------------------------------------------------------------------------------- collecting


def feed(collector: StackCollector, text: str, now: float = 0.0) -> list[list[str]]:
    return [shown for line in text.splitlines() if (shown := collector.feed(line, now))]


def expecting(dumps: int = 1) -> StackCollector:
    collector = StackCollector()
    for _ in range(dumps):
        collector.expect()
    return collector


def test_a_dump_that_nobody_requested_stays_as_it_came() -> None:
    collector = StackCollector(lambda file, line: pytest.fail(f"{file} was read"))
    assert feed(collector, DUMP) == [[line] for line in DUMP.splitlines()]
    assert collector.deadline() is None


def test_one_request_is_one_dump() -> None:
    assert feed(expecting(), DUMP + DUMP)[1:] == [[line] for line in DUMP.splitlines()]


def test_a_long_line_takes_no_long_time() -> None:
    line = "Thread 0x1 " * 100_000 + "(most recent call first):"
    assert expecting().feed(line, 0.0) == [line]


def test_a_dump_comes_out_in_one_piece() -> None:
    collector = expecting()
    assert feed(collector, "before\n" + DUMP + "after\n") == [["before"], TIDY, ["after"]]
    assert collector.deadline() is None
    assert collector.flush() == []


def test_two_dumps_in_a_row() -> None:
    assert feed(expecting(2), DUMP + DUMP) == [TIDY, TIDY]


def test_a_progress_bar_before_a_dump_is_a_line_of_its_own() -> None:
    assert feed(expecting(), "epoch 3:  40%|████    |" + DUMP) == [
        ["epoch 3:  40%|████    |"],
        TIDY,
    ]


def test_a_dump_that_stops_half_way_is_shown_as_it_came() -> None:
    half = USERS_THREAD.splitlines()
    collector = expecting()
    assert feed(collector, USERS_THREAD, now=5.0) == []
    assert collector.deadline() == 5.0 + HOLD_S
    assert collector.flush() == half
    assert feed(collector, USERS_THREAD) == []
    assert feed(collector, "something else") == [[*half, "something else"]]


@pytest.mark.parametrize(
    "first", ["Fatal Python error: Segmentation fault\n", "Timeout (0:00:05)!\n"]
)
def test_other_dumps_of_faulthandler_stay_as_they_are(first: str) -> None:
    text = first + "\n" + DUMP
    assert feed(expecting(), text) == [[line] for line in text.splitlines()]


def lines_of(collect: Callable[[str], list[str]], text: str) -> list[str]:
    return list(itertools.chain.from_iterable(map(collect, text.splitlines())))


def test_nothing_is_lost_of_what_only_looks_like_a_dump() -> None:
    text = "Thread 0xff (most recent call first):\nloss 1\nThread pool\n  File x\n...\n\n"
    collector = expecting()
    assert lines_of(lambda line: collector.feed(line, 0.0), text) == text.splitlines()
