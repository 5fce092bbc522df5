from __future__ import annotations

import math

import pytest

from lockstep.console import make_display
from lockstep.console.report_lines import ReportLines
from lockstep.console.status import Progress
from lockstep.console.text import (
    clean,
    clean_lines,
    format_elapsed,
    format_metrics,
    format_rate,
    format_value,
    metrics_line,
    ranks_label,
    without_controls,
)
from tests.console.statuses import Clock, status


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456789, "0.12346"),
        (1e-7, "1e-07"),
        (123456.789, "1.2346e+05"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (1_000_000, "1000000"),
        (True, "True"),
        (None, "None"),
        ("two\nlines", "two lines"),
        ("\ud800", "?"),
        ("x" * 100, "x" * 23 + "…"),
    ],
)
def test_values_are_short(value: object, text: str) -> None:
    assert format_value(value) == text


def test_a_huge_value_is_short_too() -> None:
    assert len(format_value(list(range(1_000_000)))) <= 24


def test_metrics_are_flat_and_bounded() -> None:
    assert format_metrics({"a": 1, "b": {"c": 2.5, "d": {}}}) == (
        [("a", "1"), ("b/c", "2.5"), ("b/d", "{}")],
        0,
    )
    shown, left = format_metrics({f"m{i}": i for i in range(100)})
    assert (len(shown), left) == (12, 88)
    shown, left = format_metrics({f"m{i}": i for i in range(13)})
    assert (len(shown), left) == (13, 0)


def test_the_metrics_line_is_bounded_and_counts_what_it_leaves_out() -> None:
    assert metrics_line({"loss": 0.5, "epoch": 1}) == "loss=0.5 epoch=1"
    line = metrics_line({f"a_rather_long_name_{i}": "x" * 30 for i in range(50)})
    assert len(line) < 200
    shown = line.count("=")
    assert line.endswith(f"(+{50 - shown} more)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(7, "0:07"), (754, "12:34"), (3723, "1:02:03"), (183845, "2d 03:04:05")],
)
def test_elapsed(seconds: float, text: str) -> None:
    assert format_elapsed(seconds) == text


def test_short_runs_are_shown_in_tenths() -> None:
    assert format_elapsed(3.21, tenths=True) == "3.2s"
    assert format_elapsed(83.2, tenths=True) == "1:23"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(5012.3, "5,012/s"), (31.4, "31/s"), (1.23, "1.2/s"), (0.07, "4.2/min"), (0.001, "3.6/h")],
)
def test_rates_are_in_the_unit_that_reads_best(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("ranks", "world_size", "label"),
    [
        ((0,), 1, "[rank 0]"),
        ((3,), 4, "[rank 3]"),
        ((0, 1), 2, "[all ranks]"),
        ((0, 1, 2, 3), 8, "[ranks 0-3]"),
        ((0, 2), 4, "[ranks 0,2]"),
        ((0, 1, 2, 5, 7), 8, "[ranks 0-2,5,7]"),
    ],
)
def test_ranks(ranks: tuple[int, ...], world_size: int, label: str) -> None:
    assert ranks_label(ranks, world_size) == label


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[2J\x1b[?25l\x1b[3Aup", "up"),
        ("\x1bcreset\x1b(B", "reset"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x9b2Jbell\x07\ttab", "2Jbell\ttab"),
        ("cut off \x1b[1", "cut off "),
        ("\x1b", ""),
    ],
)
def test_only_colours_are_left_of_escape_sequences(line: str, kept: str) -> None:
    assert without_controls(line) == kept


def test_clean_text_is_one_printable_line() -> None:
    assert clean("a\r\nb\x1b[0m\u2028c") == "a  b [0m c"
    assert clean("grüße") == "grüße"


def test_reports_are_lines_up_to_ten_a_second() -> None:
    lines = ReportLines()
    out = [line for i in range(500) for line in lines.feed(i, {"loss": i}, i / 1000)]
    assert out[0] == "report 0  loss=0"
    assert len(out) <= 10
    shown = len(out)
    assert lines.flush(0.9) == []
    assert lines.flush(1.0) == [f"({500 - shown} more reports not shown)"]
    assert lines.flush(9.0) == []


def test_slow_reports_are_all_shown() -> None:
    lines = ReportLines()
    out = [line for i in range(50) for line in lines.feed(i, {}, i / 8)]
    assert out == [f"report {i}" for i in range(50)]


def test_no_second_shows_more_than_about_ten_lines() -> None:
    lines = ReportLines()
    times = [i / 5000 for i in range(50_000) for _ in lines.feed(i, {"loss": 0.1}, i / 5000)]
    assert max(sum(t <= other < t + 1 for other in times) for t in times) <= 20
    assert len(times) <= 101
    assert lines.flush(math.inf)[0].endswith("not shown)")


def test_the_clock_runs_between_updates_and_stops_at_the_end() -> None:
    clock = Clock()
    progress = Progress(status(elapsed_s=5.0), clock)
    clock.now += 3
    assert progress.elapsed() == 8.0
    progress.status = status("finished", elapsed_s=7.5)
    assert progress.elapsed() == 7.5


def test_the_rate_is_that_of_the_last_ten_seconds() -> None:
    clock = Clock()
    progress = Progress(status(), clock)
    assert progress.rate() is None
    reports = 0
    for second in range(60):
        clock.now += 1
        reports += 100 if second < 30 else 2
        progress.status = status(reports=reports)
        rate = progress.rate()
        if second == 29:
            assert rate == pytest.approx(100)
    assert rate == pytest.approx(2)


def test_clean_text_has_nothing_that_a_terminal_obeys() -> None:
    assert clean("a\x1b[2J\x9bb\x07\u202ec\u2066\ud800") == "a [2J b  c ?"
    assert clean_lines("a\x1b\nb\r\nc") == "a \nb \nc"


@pytest.mark.parametrize("verbose", [0, 1])
def test_messages_have_nothing_that_a_terminal_obeys(
    verbose: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make_display(verbose).message("ValueError: \x1b]0;title\x07 \u202e evil\nmore", "warning")
    text = capsys.readouterr().err
    assert text.endswith("evil\nmore\n")
    assert text.replace("\n", "").isprintable()
