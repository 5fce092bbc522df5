from __future__ import annotations

import itertools
import math
import random

import pytest

from lockstep.console.logs import Line, LineCollapser, LineSplitter


def split(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.close()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"a\nb\n", ["a", "b"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\r\n", ["a"]),
        (b"\r 10%\r 20%\r 30%\ndone\n", [" 30%", "done"]),
        (b"\r 10%\r 20%", [" 20%"]),
        (b" 10%\r      \rdone\n", ["done"]),
        (b"last\r", ["last"]),
        (b"\r\r", []),
        ("grüße\n日本\n".encode(), ["grüße", "日本"]),
        (b"\xff\xfe\n", ["��"]),
        ("one line\u2028and\x0bstill\n".encode(), ["one line\u2028and\x0bstill"]),
    ],
)
def test_lines_are_the_same_wherever_the_chunks_are_cut(data: bytes, lines: list[str]) -> None:
    assert split(data) == lines
    assert split(*(data[i : i + 1] for i in range(len(data)))) == lines
    for cut in range(len(data)):
        assert split(data[:cut], data[cut:]) == lines


def test_random_chunks_of_random_output_give_the_same_lines() -> None:
    rng = random.Random(0)
    for _ in range(300):
        data = bytes(rng.choices(b"ab\r\n\xc3\xa9\xe2", k=rng.randrange(40)))
        cuts = sorted(rng.choices(range(len(data) + 1), k=4))
        edges = itertools.pairwise([0, *cuts, len(data)])
        assert split(*(data[a:b] for a, b in edges)) == split(data)


def test_a_line_comes_out_as_soon_as_it_ends() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"a") == []
    assert splitter.feed(b"b\nc") == ["ab"]
    assert splitter.close() == ["c"]
    assert splitter.close() == []


@pytest.mark.parametrize("character", ["x", "é", "日", "🙂"])
def test_long_lines_are_cut_and_the_next_one_is_complete(character: str) -> None:
    exact = character * 10_000
    lines = split((exact + "\n" + exact + "y\n").encode(), b"next\r\n")
    assert lines == [exact, character * 9_999 + "…", "next"]


def test_an_endless_line_is_held_in_bounded_memory() -> None:
    import tracemalloc

    splitter, chunk = LineSplitter(), b"x" * 65536
    tracemalloc.start()
    try:
        for _ in range(200):
            assert splitter.feed(chunk) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000
    assert splitter.feed(b"\n") == ["x" * 9_999 + "…"]


def test_a_line_of_all_ranks_comes_out_once_and_at_once() -> None:
    collapser = LineCollapser(3)
    assert collapser.feed(2, "hello", 0.0) == []
    assert collapser.feed(0, "hello", 0.01) == []
    assert collapser.feed(1, "hello", 0.02) == [Line((0, 1, 2), "hello")]
    assert collapser.deadline() is None


def test_a_line_of_some_ranks_waits_for_the_window_and_no_longer() -> None:
    collapser = LineCollapser(4)
    collapser.feed(0, "hello", 5.0)
    collapser.feed(3, "hello", 5.09)
    deadline = collapser.deadline()
    assert deadline == pytest.approx(5.1)
    assert deadline is not None
    assert collapser.flush(deadline - 1e-6) == []
    assert collapser.flush(deadline) == [Line((0, 3), "hello")]
    assert collapser.feed(1, "hello", 5.2) == []


def test_a_line_after_the_window_is_a_new_one() -> None:
    collapser = LineCollapser(2)
    collapser.feed(0, "hello", 0.0)
    assert collapser.feed(1, "hello", 0.2) == [Line((0,), "hello")]
    assert collapser.flush(math.inf) == [Line((1,), "hello")]


def test_a_rank_that_repeats_itself_is_shown_as_often() -> None:
    collapser = LineCollapser(2)
    for _ in range(3):
        assert collapser.feed(0, "step", 0.0) == []
    assert collapser.feed(1, "step", 0.0) == [Line((0, 1), "step")]
    assert collapser.flush(math.inf) == [Line((0,), "step")] * 2


def test_one_worker_never_waits() -> None:
    collapser = LineCollapser(1)
    assert collapser.feed(0, "a", 0.0) == [Line((0,), "a")]
    assert collapser.feed(0, "a", 0.0) == [Line((0,), "a")]
    assert collapser.deadline() is None


def test_ranks_agree_again_after_lines_of_their_own() -> None:
    collapser = LineCollapser(2)
    out: list[Line] = []
    for rank in (0, 1):
        for text in (f"I am {rank}", "epoch 1", "epoch 2"):
            out += collapser.feed(rank, text, 0.0)
    assert out == [
        Line((0,), "I am 0"),
        Line((1,), "I am 1"),
        Line((0, 1), "epoch 1"),
        Line((0, 1), "epoch 2"),
    ]


def test_ranks_that_disagree_on_the_order_keep_their_own() -> None:
    collapser = LineCollapser(2)
    out: list[Line] = []
    for rank, text in ((0, "a"), (0, "b"), (1, "b"), (1, "a")):
        out += collapser.feed(rank, text, 0.0)
    out += collapser.flush(math.inf)
    assert out == [Line((0,), "a"), Line((0, 1), "b"), Line((1,), "a")]


def test_a_line_whose_ranks_were_all_shown_separately_is_not_shown_again() -> None:
    collapser = LineCollapser(4)
    written = [(2, "X"), (0, "W"), (0, "X"), (1, "V"), (1, "W"), (0, "V"), (2, "V")]
    shown = [line for rank, text in written for line in collapser.feed(rank, text, 0.0)]
    shown += collapser.flush(math.inf)
    assert all(line.ranks for line in shown)
    for rank in range(3):
        own = [text for of, text in written if of == rank]
        assert [line.text for line in shown if rank in line.ranks] == own


@pytest.mark.parametrize("seed", range(100))
def test_nothing_is_lost_reordered_or_late(seed: int) -> None:
    rng = random.Random(seed)
    world_size = rng.randint(2, 5)
    collapser = LineCollapser(world_size)
    written: dict[int, list[str]] = {rank: [] for rank in range(world_size)}
    shown: dict[int, list[str]] = {rank: [] for rank in range(world_size)}
    said_at: dict[int, list[float]] = {rank: [] for rank in range(world_size)}
    now = 0.0

    def show(lines: list[Line]) -> None:
        for line in lines:
            assert list(line.ranks) == sorted(set(line.ranks))
            for rank in line.ranks:
                assert now <= said_at[rank][len(shown[rank])] + 0.1 + 1e-9
                shown[rank].append(line.text)

    for _ in range(200):
        later = now + rng.choice([0.0, 0.001, 0.03, 0.2])
        while (deadline := collapser.deadline()) is not None and deadline <= later:
            now = deadline
            released = collapser.flush(now)
            assert released
            show(released)
        now = later
        rank, text = rng.randrange(world_size), rng.choice("abcd")
        written[rank].append(text)
        said_at[rank].append(now)
        show(collapser.feed(rank, text, now))
    show(collapser.flush(math.inf))
    assert shown == written


@pytest.mark.parametrize("length", [10, 9_000])
def test_a_flood_is_held_in_a_bounded_number_of_lines(length: int) -> None:
    collapser = LineCollapser(2)
    out: list[Line] = []
    lines = [f"line {number:<{length - 5}}" for number in range(12_000)]
    for line in lines:
        out += collapser.feed(0, line, 0.0)
    assert len(lines) - len(out) <= min(8_192, 1_000_000 // length)
    out += collapser.flush(math.inf)
    assert [line.text for line in out] == lines


@pytest.mark.parametrize("world_size", [2, 4])
def test_as_much_as_is_read_at_once_is_collapsed(world_size: int) -> None:
    collapser = LineCollapser(world_size)
    out: list[Line] = []
    everyone = tuple(range(world_size))
    for chunk in range(3):
        for rank in everyone:
            for number in range(5_000):
                out += collapser.feed(rank, f"line {chunk} {number}", 0.01 * chunk)
    assert out == [
        Line(everyone, f"line {chunk} {number}") for chunk in range(3) for number in range(5_000)
    ]


def test_a_rank_that_repeats_itself_without_end_is_held_briefly() -> None:
    collapser = LineCollapser(2)
    out: list[Line] = []
    for _ in range(1_000):
        out += collapser.feed(0, "again", 0.0)
    assert len(out) > 900
    out += collapser.feed(1, "again", 0.0)
    assert out.count(Line((0, 1), "again")) == 1
    out += collapser.flush(math.inf)
    assert len(out) == 1_000


def test_a_line_of_many_ranks_is_compared_once_with_each() -> None:
    class Rank(int):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Rank.compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    size = 300
    collapser = LineCollapser(size)
    shown = [line for rank in map(Rank, range(size)) for line in collapser.feed(rank, "same", 0.0)]
    assert shown == [Line(tuple(range(size)), "same")]
    assert Rank.compared < 5 * size
