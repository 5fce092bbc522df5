"""The displays of an experiment: a table on a terminal, a bounded number of lines elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.console.experiment import ExperimentStatus, TrialLine, make_experiment_display
from tests.console.pseudo_terminal import on_terminal

SCRIPT = """
from lockstep.console.experiment import ExperimentStatus, TrialLine, make_experiment_display

def experiment(state="running", n=3, **more):
    running = tuple(
        TrialLine(f"4913f_{i:05}", "RUNNING", {"lr": 0.1 * i}, {"loss": 1 / (i + 1)}, i)
        for i in range(n)
    )
    values = dict(
        attempt=1, elapsed_s=61.0, reports=7, metrics={}, checkpoint=None, num_workers=1,
        name="search", path="/results/search", running=running,
        counts={"RUNNING": n, "TERMINATED": 5, "ERROR": 1, "PENDING": 2}, total=64,
        best=TrialLine("4913f_00042", "TERMINATED", {"lr": 0.25}, {"loss": 0.125}, 9),
        objective="min loss", budget_s=3600.0, resources="2/2 CPUs", note="ASHA: 3 rungs",
    )
    return ExperimentStatus(state=state, **{**values, **more})
"""


def test_the_table_on_a_terminal() -> None:
    script = f"""
    import textwrap
    exec({SCRIPT!r})
    display = make_experiment_display(1)
    display.start(experiment())
    display.labelled("[4913f_00001]", "a worker prints")
    display.refresh()
    pause()
    display.finish(experiment("finished", n=0, elapsed_s=75.0))
    """
    with on_terminal(script) as terminal:
        terminal.wait_for("a worker prints")
        terminal.wait_for("╰")
        text = terminal.text
        assert "● running · 6/64 trials · 3 running · 2 pending · 1 failed" in text
        assert "1:01 of 1:00:00" in text
        assert "2/2 CPUs" in text
        assert "4913f_00002" in text
        assert "lr=0.2" in text
        assert "0.33333" in text
        assert "best (min loss)  4913f_00042 loss=0.125 (lr=0.25)" in text
        assert "ASHA: 3 rungs" in text
        assert "[4913f_00001] a worker prints" in text
        terminal.resume()
        assert terminal.wait() == 0
    assert "✓ finished · 6/64 trials" in terminal.text
    assert "experiment  /results/search" in terminal.text
    assert terminal.text.count("╭") == 1


def test_more_trials_than_lines_are_counted() -> None:
    script = f"""
    exec({SCRIPT!r})
    display = make_experiment_display(1)
    display.start(experiment(n=60))
    pause()
    display.finish(experiment("finished", n=0))
    """
    with on_terminal(script) as terminal:
        terminal.wait_for("more")
        assert "… and " in terminal.text
        terminal.resume()
        assert terminal.wait() == 0


def status(state: str = "running", **changes: Any) -> ExperimentStatus:
    values: dict[str, Any] = {
        "attempt": 1,
        "elapsed_s": 1.0,
        "reports": 0,
        "metrics": {},
        "checkpoint": None,
        "num_workers": 1,
        "name": "search",
        "path": "/results/search",
    }
    return ExperimentStatus(state=state, **{**values, **changes})


def test_plain_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_experiment_display(1)
    display.start(status())
    best = TrialLine("4913f_00001", "RUNNING", {"lr": 0.5}, {"loss": 0.25}, 3)
    for n in range(1000):
        display.update(
            status(reports=n, counts={"TERMINATED": n}, total=None, best=best, objective="min loss")
        )
        display.refresh()
    display.finish(status("finished", reports=1000, counts={"TERMINATED": 1000}))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 4
    assert lines[0] == "[lockstep] search: experiment directory /results/search"
    assert lines[1].startswith("[lockstep] running · ")
    assert "best (min loss): 4913f_00001 loss=0.25 (lr=0.5)" in lines[1]
    assert lines[-1].startswith("[lockstep] finished · 1,000 trials · 1.0s")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_experiment_display(0)
    display.start(status())
    display.labelled("[4913f_00001]", "a worker prints")
    display.message("look out", "warning")
    display.finish(status("finished"))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "look out\n"
