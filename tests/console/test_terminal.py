from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.console.pseudo_terminal import on_terminal
from tests.repository import SRC


def test_the_panel_is_redrawn_in_place_and_stays() -> None:
    script = """
    display = make_display(1)
    print(type(display).__name__)
    display.start(status("starting"))
    for n in range(1, 30):
        display.update(status(reports=n, metrics={"loss": 1 / n, "val": {"f1": 0.5}}, elapsed_s=n,
                              checkpoint=f"checkpoint_{n:06}"))
        display.refresh()
    pause()
    display.finish(status("finished", reports=30, metrics={"loss": 0.03125}, elapsed_s=30.04,
                          checkpoint="checkpoint_000030", attempt=2))
    print("the prompt")
    """
    with on_terminal(script) as terminal:
        terminal.wait_for_pause()
        assert "checkpoint_000029" in terminal.text
        assert "● running" in terminal.text
        assert "29 reports" in terminal.text
        assert "0.034483" in terminal.text
        assert "val/f1" in terminal.text
        assert "/results/exp/my_run" in terminal.text
        assert "attempt" not in terminal.text
        terminal.resume()
        assert terminal.wait() == 0
    lines = terminal.text.splitlines()
    assert lines[0] == "TerminalDisplay"
    assert lines[1].startswith("╭─ my_run ─")
    assert lines[2].startswith("│  ✓ finished  ·  attempt 2  ·  30.0s  ·  30 reports  ·  2 workers")
    assert lines[-2].startswith("╰")
    assert lines[-1] == "the prompt"
    assert terminal.text.count("╭") == 1
    assert terminal.cursor_shown


def test_lines_scroll_by_above_the_panel() -> None:
    long = "x" * 150
    script = f"""
    import threading
    display = make_display(1)
    display.start(status())
    display.output((0, 1), 2, "[bold]hello[/bold] :smile: 42")
    display.output((1,), 2, "\\x1bc\\x1b[2J\\x1b[31mred\\x1b[0m and\\ttabs")
    display.output((0,), 2, "{long}")
    display.refresh()
    thread = threading.Thread(target=display.message, args=("from a thread", "warning"))
    thread.start()
    thread.join()
    print("a callback prints", end="")
    display.finish(status("finished"))
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 0
    lines = terminal.text.splitlines()
    assert lines[:5] == [
        "[all ranks] [bold]hello[/bold] :smile: 42",
        "[rank 1] red and        tabs",
        "[rank 0] " + "x" * 91,
        "x" * 59,
        "from a thread",
    ]
    assert lines[5] == "a callback prints"
    assert lines[6].startswith("╭")
    assert terminal.text.count("╭") == 1
    assert b"\x1bc" not in terminal.raw
    assert b"\x1b[31mred" in terminal.raw


def test_messages_have_the_colour_of_their_level() -> None:
    script = """
    display = make_display(1)
    display.start(status())
    display.message("a word")
    display.message("look out", "warning")
    display.message("it broke", "error")
    display.finish(status("finished"))
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 0
    assert terminal.text.splitlines()[:3] == ["a word", "look out", "it broke"]
    assert b"\x1b[33mlook out\x1b[0m" in terminal.raw
    assert b"\x1b[31mit broke\x1b[0m" in terminal.raw
    assert b"ma word" not in terminal.raw


def test_many_lines_from_threads_are_all_shown_in_order() -> None:
    script = """
    import threading
    display = make_display(1)
    display.start(status())
    def chat(rank):
        for n in range(700):
            display.output((rank,), 4, f"line {n}")
    threads = [threading.Thread(target=chat, args=(rank,)) for rank in range(4)]
    for thread in threads: thread.start()
    while any(thread.is_alive() for thread in threads):
        display.update(status(reports=1))
        display.refresh()
    for thread in threads: thread.join()
    display.finish(status("finished"))
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 0
    lines = terminal.text.splitlines()
    for rank in range(4):
        assert [line for line in lines if line.startswith(f"[rank {rank}]")] == [
            f"[rank {rank}] line {n}" for n in range(700)
        ]
    assert terminal.text.count("╭") == 1


def test_every_report_with_verbose_2() -> None:
    script = """
    display = make_display(2)
    display._clock = lambda: 0.0
    display.start(status())
    for n in range(1000):
        display.report(n, {"loss": n})
    display.finish(status("finished", reports=1000))
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 0
    lines = terminal.text.splitlines()
    assert lines[:2] == ["report 0  loss=0", "report 1  loss=1"]
    assert sum(line.startswith("report") for line in lines) == 9
    assert "more reports not shown)" in terminal.text


def test_the_elapsed_time_grows_without_reports() -> None:
    script = """
    from lockstep.console.terminal import TerminalDisplay
    now = 0.0
    display = TerminalDisplay(clock=lambda: now)
    display.start(status("running"))
    for second in range(1, 76):
        now = float(second)
        display.refresh()
    pause()
    display.finish(status("finished"))
    """
    with on_terminal(script) as terminal:
        terminal.wait_for_pause()
        assert "1:15" in terminal.text
        terminal.resume()
        assert terminal.wait() == 0


@pytest.mark.parametrize("handled", [True, False])
def test_an_exception_leaves_the_terminal_right(handled: bool) -> None:
    script = f"""
    display = make_display(1)
    display.start(status())
    display.output((0,), 2, "last words")
    try:
        raise RuntimeError("broken")
    except RuntimeError:
        if {handled}:
            display.finish(status("failed"))
        raise
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 1
    assert terminal.cursor_shown
    assert terminal.screen.cursor.x == 0
    assert "last words" in terminal.text
    assert "RuntimeError: broken" in terminal.text
    assert terminal.text.count("╭") == terminal.text.count("╰") == 1


def test_ctrl_c_leaves_the_terminal_right() -> None:
    script = """
    display = make_display(1)
    display.start(status())
    try:
        pause()
    except KeyboardInterrupt:
        display.finish(status("interrupted"))
        print("the prompt")
    """
    with on_terminal(script) as terminal:
        terminal.wait_for_pause()
        terminal.press_ctrl_c()
        assert terminal.wait() == 0
    assert terminal.cursor_shown
    assert "■ interrupted" in terminal.text
    assert terminal.text.count("╭") == 1
    assert terminal.text.splitlines()[-1] == "the prompt"


def test_a_killed_driver_leaves_the_cursor_shown_below_the_panel() -> None:
    script = """
    display = make_display(1)
    display.start(status())
    display.update(status(reports=7))
    display.refresh()
    pause()
    """
    with on_terminal(script) as terminal:
        terminal.wait_for_pause()
        assert "7 reports" in terminal.text
        terminal.kill()
        terminal.wait()
    assert terminal.cursor_shown
    assert terminal.screen.cursor.x == 0
    assert terminal.screen.cursor.y == len(terminal.text.splitlines())


@pytest.mark.parametrize(("columns", "lines"), [(30, 12), (44, 16), (80, 24), (200, 50)])
def test_the_panel_fits_the_terminal(columns: int, lines: int) -> None:
    script = """
    many = {"bad\\n\\x1b[2J": "\\ud800"}
    many |= {f"a_metric_with_a_long_name_{i}": i / 7 for i in range(40)}
    path = "/somewhere" * 9
    display = make_display(1)
    display.start(status(path=path))
    for n in range(5):
        display.update(status(reports=n, metrics=many, path=path))
        display.refresh()
    display.update(status("saving", reports=12, metrics=many, path=path))
    display.refresh()
    pause()
    display.finish(status("finished", metrics=many, path=path))
    """
    with on_terminal(script, columns=columns, lines=lines) as terminal:
        terminal.wait_for_pause()
        assert "saving" in terminal.text
        assert ("╰" if lines > 12 else "checkpoint") in terminal.text
        assert "and " in terminal.text or columns == 200
        terminal.resume()
        assert terminal.wait() == 0
    assert terminal.text.count("╭") == 1
    assert terminal.text.count("✓ finished") == 1
    assert max(map(len, terminal.text.splitlines())) <= columns
    assert "/somewhere" * 9 in terminal.raw.decode()  # unbroken: it can be copied


def test_a_narrower_window_shows_one_panel() -> None:
    script = """
    display = make_display(1)
    display.start(status())
    display.update(status(reports=3, metrics={"loss": 0.5}))
    display.refresh()
    pause()
    display.update(status(reports=4, metrics={"loss": 0.25}))
    display.refresh()
    display.finish(status("finished", reports=4, metrics={"loss": 0.25}))
    """
    with on_terminal(script, columns=100, lines=30) as terminal:
        terminal.wait_for_pause()
        assert "3 reports" in terminal.text
        terminal.resize(50, 30)
        terminal.resume()
        assert terminal.wait() == 0
    assert terminal.text.count("╭") == 1
    assert terminal.text.count("╰") == 1
    assert "✓ finished" in terminal.text
    assert "3 reports" not in terminal.text


def test_a_second_run_beside_it_writes_plain_lines() -> None:
    script = """
    first, second = make_display(1), make_display(2)
    first.start(status())
    second.start(status("starting", name="other", path="/results/other"))
    second.output((0,), 2, "a line of the other")
    second.update(status(name="other", reports=1))
    second.refresh()
    second.report(1, {"loss": 0.5})
    second.message("a word about the other")
    first.finish(status("finished", reports=7))
    second.finish(status("finished", name="other", reports=2))
    third = make_display(1)
    third.start(status(name="third"))
    third.finish(status("preempted", name="third"))
    print("the prompt", sys.stdout is sys.__stdout__)
    """
    with on_terminal(script) as terminal:
        assert terminal.wait() == 0
    lines = terminal.text.splitlines()
    assert lines[:4] == [
        "[lockstep] other: starting, run directory /results/other",
        "[rank 0] a line of the other",
        "[lockstep] report 1  loss=0.5",
        "[lockstep] a word about the other",
    ]
    assert lines[4].startswith("╭─ my_run ─")
    below = lines.index(next(line for line in lines if line.startswith("╰"))) + 1
    assert lines[below].startswith("[lockstep] finished · ")
    assert lines[below + 1].startswith("╭─ third ─")
    assert lines[below + 2].startswith("│  ■ preempted  ·  0.0s")
    assert lines[-1] == "the prompt True"
    assert terminal.text.count("╭") == 2


def test_errors_sent_to_a_file_go_there(tmp_path: Path) -> None:
    script = """
    display = make_display(1)
    display.start(status())
    print("an error", file=sys.stderr)
    display.finish(status("finished"))
    """
    errors = tmp_path / "errors.txt"
    with on_terminal(script, stderr=errors) as terminal:
        assert terminal.wait() == 0
    assert errors.read_text() == "an error\n"
    assert "an error" not in terminal.text


def test_a_terminal_that_was_closed_does_not_end_the_run(tmp_path: Path) -> None:
    script = f"""
    import signal
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    display = make_display(1)
    display.start(status())
    pause()
    for n in range(3):
        display.output((0,), 2, "into the void")
        display.update(status(reports=n))
        display.refresh()
        display.message("this is not shown")
    display.finish(status("finished"))
    open({str(tmp_path / "survived")!r}, "w").close()
    os._exit(0)
    """
    with on_terminal(script) as terminal:
        terminal.wait_for_pause()
        terminal.hang_up()
        terminal.resume()
        assert terminal.process.wait() == 0
    assert (tmp_path / "survived").exists()


@pytest.mark.parametrize(
    ("call", "environment", "kind"),
    [
        ("make_display(1)", {}, "TerminalDisplay"),
        ("make_display(2)", {}, "TerminalDisplay"),
        ("make_display(0)", {}, "SilentDisplay"),
        ("make_display(1, interactive_function=True)", {}, "PlainDisplay"),
        ("make_display(1)", {"TERM": "dumb"}, "PlainDisplay"),
        ("make_display(1)", {"PYTHONUTF8": "0", "PYTHONIOENCODING": "latin-1"}, "PlainDisplay"),
    ],
)
def test_the_display_suits_the_terminal(call: str, environment: dict[str, str], kind: str) -> None:
    with on_terminal(f"print(type({call}).__name__)", environment=environment) as terminal:
        assert terminal.wait() == 0
    assert terminal.text == kind


def test_a_breakpoint_works_in_an_interactive_function() -> None:
    script = """
    display = make_display(1, interactive_function=True)
    display.start(status(num_workers=0))
    answer = 42
    breakpoint()
    display.finish(status("finished", num_workers=0))
    """
    with on_terminal(script) as terminal:
        terminal.wait_for("(Pdb)")
        terminal.type_line("p 'answer', answer")
        terminal.wait_for("('answer', 42)")
        terminal.type_line("c")
        assert terminal.wait() == 0
    assert "finished" in terminal.text


def test_rich_is_loaded_only_when_a_display_starts() -> None:
    script = (
        "import sys, lockstep.console, lockstep.console.terminal, lockstep.console.panel\n"
        "lockstep.console.make_display(1)\n"
        "assert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(SRC)}, check=True)
