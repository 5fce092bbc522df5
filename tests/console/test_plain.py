from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest

from lockstep.console.display import SilentDisplay, make_display
from lockstep.console.plain import PlainDisplay
from tests.console.statuses import Clock, status
from tests.repository import SRC


def test_a_short_run_is_three_lines(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = PlainDisplay(clock=clock)
    display.start(status("starting"))
    display.update(status(reports=1, metrics={"loss": 0.5}, checkpoint="checkpoint_000000"))
    display.refresh()
    display.refresh()
    clock.now += 3
    display.finish(status("finished", reports=4, elapsed_s=3.21, metrics={"loss": 0.25}))
    assert capsys.readouterr().out.splitlines() == [
        "[lockstep] my_run: starting, run directory /results/exp/my_run",
        "[lockstep] running · 0:00 · 1 report · 2 workers · loss=0.5 · checkpoint_000000",
        "[lockstep] finished · 3.2s · 4 reports · 2 workers · loss=0.25",
    ]


def lines_of_a_run(seconds: int, capsys: pytest.CaptureFixture[str]) -> list[str]:
    clock = Clock()
    display = PlainDisplay(clock=clock)
    display.start(status("starting"))
    for second in range(seconds):
        clock.now += 1
        display.update(status(reports=second + 1, elapsed_s=second + 1.0))
        display.refresh()
    display.finish(status("finished", elapsed_s=float(seconds)))
    return capsys.readouterr().out.splitlines()


def test_progress_lines_are_at_least_five_seconds_apart(capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of_a_run(50, capsys)
    assert 8 <= len(lines) <= 13


def test_a_day_of_training_is_a_bounded_log(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(lines_of_a_run(24 * 3600, capsys)) < 1600


def test_nothing_new_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = PlainDisplay(clock=clock)
    display.start(status("running"))
    capsys.readouterr()
    for _ in range(100):
        clock.now += 10
        display.refresh()
    assert capsys.readouterr().out == ""


def test_a_restart_is_shown_at_once_and_saving_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = PlainDisplay(clock=clock)
    display.start(status("starting"))
    display.update(status(reports=1))
    display.refresh()
    capsys.readouterr()
    for state, attempt in (("saving", 1), ("running", 1), ("restarting", 1), ("running", 2)):
        clock.now += 0.5
        display.update(status(state, attempt=attempt, reports=1))
        display.refresh()
    first, second = capsys.readouterr().out.splitlines()
    assert "restarting" in first
    assert "running · attempt 2" in second


def test_output_has_its_ranks_and_is_otherwise_unchanged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = PlainDisplay()
    display.output((0,), 2, "[bold]x[/bold] \x1b[31mred\x1b[0m  ")
    display.output((0, 1), 2, "")
    display.output((1,), 2, "\x1b[A\x1b[2K 50%|###  |\x1b[?25l")  # a progress bar above another
    assert capsys.readouterr().out == (
        "[rank 0] [bold]x[/bold] \x1b[31mred\x1b[0m  \n[all ranks] \n[rank 1]  50%|###  |\n"
    )


def test_warnings_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.message("for your information")
    display.message("look out", "warning")
    captured = capsys.readouterr()
    assert captured.out == "[lockstep] for your information\n"
    assert captured.err == "[lockstep] look out\n"


@pytest.mark.parametrize(("verbose", "lines"), [(1, 0), (2, 9)])
def test_every_report_is_a_line_with_verbose_2_only(
    verbose: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    display = make_display(verbose)
    assert isinstance(display, PlainDisplay)
    display._clock = Clock()
    display.start(status())
    for index in range(5000):
        display.report(index, {"loss": 0.5})
    display.finish(status("finished"))
    out = capsys.readouterr().out
    reports = [line for line in out.splitlines() if line.startswith("[lockstep] report ")]
    assert len(reports) == lines
    assert ("not shown" in out) == (verbose == 2)


def test_a_second_finish_and_late_lines_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.update(status())
    display.refresh()
    display.start(status())
    display.finish(status("failed"))
    display.finish(status("failed"))
    display.update(status())
    display.refresh()
    display.output((0,), 1, "late")
    out = capsys.readouterr().out
    assert out.count("[lockstep] failed · ") == 1
    assert out.endswith("[rank 0] late\n")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(0)
    assert isinstance(display, SilentDisplay)
    assert display.interval_s is None
    display.start(status())
    display.update(status(reports=1))
    display.refresh()
    display.output((0,), 1, "line")
    display.report(0, {"loss": 1})
    display.message("hello")
    display.message("careful", "warning")
    display.message("broken", "error")
    display.finish(status("finished"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "careful\nbroken\n"


def test_text_that_stdout_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    display = make_display(1)
    display.start(status(path="/grüße/\udcff"))
    display.output((0,), 2, "日本")
    display.finish(status("finished"))
    lines = raw.getvalue().decode("ascii").splitlines()
    assert lines[0].endswith(r"/gr\xfc\xdfe/\udcff")
    assert lines[1] == r"[rank 0] \u65e5\u672c"


def test_a_reader_that_went_away_does_not_end_the_run() -> None:
    script = """
import sys
from lockstep.console import RunStatus, make_display
status = RunStatus("running", 1, 0.0, 0, {}, None, 2, "n", "/p")
display = make_display(1)
display.start(status)
sys.stdin.read()
for _ in range(10):
    display.output((0,), 2, "into the void")
display.finish(status)
print("still here", file=sys.stderr)
"""
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"run directory /p" in process.stdout.readline()
        process.stdout.close()
        process.stdin.close()
        assert b"still here" in process.stderr.read()


def test_no_stdout_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    display = make_display(1)
    assert isinstance(display, PlainDisplay)
    display.start(status())
    display.finish(status("finished"))


def test_the_best_value_and_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    display = PlainDisplay(clock=clock)
    display.start(status("starting", total_reports=100))
    clock.now += 10
    best = ("loss", 0.125, 7)
    display.update(status(reports=20, elapsed_s=10.0, total_reports=100, best_value=best))
    display.refresh()
    display.finish(status("finished", reports=100, elapsed_s=50.0, best_value=best))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "[lockstep] running · 0:10, ~0:40 left · 20 reports, 2/s · 2 workers"
        " · best loss 0.125 (report 7)",
        "[lockstep] finished · 50.0s · 100 reports · 2 workers · best loss 0.125 (report 7)",
    ]
