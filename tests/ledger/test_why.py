"""The sentences of ``lockstep why``, and the warning about a straggler while the run runs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep import cli, train
from lockstep.ledger.live import LiveTimes
from lockstep.ledger.why import Reason, duration, reasons
from tests.integration.runs import fit
from tests.ledger.journals import Simulation


def by_account(run: Simulation) -> dict[str, Reason]:
    return {reason.account: reason for reason in reasons(run.ledger())}


def test_the_most_expensive_comes_first(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 1.0], overhead=4.0, checkpoint=True)
    run.report([1.0, 9.0])
    run.report([1.0, 9.0], [{"data": 1.0}, {"data": 2.0}])
    run.end([0.0, 0.0], exiting=2.0)
    found = reasons(run.ledger())
    assert [reason.account for reason in found] == ["ranks", "starting", "data", "idle"]
    costs = [max(reason.seconds, reason.saved_s) for reason in found]
    assert costs == sorted(costs, reverse=True)
    assert all(reason.text.endswith(".") and reason.advice for reason in found)


def test_a_slow_rank_and_its_machine(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=4)
    run.start(1.0)
    for _ in range(24):
        run.report([1.0, 1.0, 1.0, 1.25])
    run.report([1.0, 1.0, 1.5, 1.0])
    run.end([0.0] * 4)
    reason = by_account(run)["ranks"]
    assert reason.text == (
        "Rank 3 arrives last at 96% of reports, 250 ms after the others; if it were as fast as "
        "they are, the run would take 18% less time (6 s of 32.5 s). Its compute is slow: 233 ms "
        "more than the others a report."
    )
    assert "host-3" in reason.advice
    assert reason.saved_s == pytest.approx(6.0)


def test_a_rank_whose_data_is_late(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    for _ in range(10):
        run.report([1.0, 2.0], [{"data": 0.25}, {"data": 1.25}])
    run.end()
    found = by_account(run)
    assert "It waits 1 s longer for data than the others" in found["ranks"].text
    assert "(rank 1 the most, 60%)" in found["data"].text
    assert found["data"].saved_s == pytest.approx(12.5)


def test_a_rank_that_writes_the_files_of_checkpoints(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    for step in range(10):
        run.report([2.0 if step % 2 == 0 else 1.0, 1.0], checkpoint=step % 2 == 0)
        run.report([1.01, 1.0])  # a little later, without a checkpoint
    run.end()
    reason = by_account(run)["ranks"]
    assert "It is late before reports with a checkpoint, and not before the others" in reason.text
    assert "Report a train.State" in reason.advice


def test_a_rank_that_is_late_before_every_checkpoint_may_be_slow(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    for _ in range(10):
        run.report([2.0, 1.0], checkpoint=True)
    run.end()
    reason = by_account(run)["ranks"]
    assert "Its compute is slow" in reason.text
    assert reason.advice.endswith("rank 0 does, such as writing the files of each checkpoint.")


def test_one_checkpoint_cannot_be_halved(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 1.0], overhead=1.0, checkpoint=True)
    run.report([1.0, 1.0], overhead=1.0)
    run.end()
    assert by_account(run)["checkpoint"].text == "Saving the state took 1 s."


def test_no_rank_is_always_the_last(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    for step in range(10):
        run.report([1.0, 2.0] if step % 2 else [2.0, 1.0])
    run.end()
    assert "no rank is always the last" in by_account(run)["ranks"].text


def test_failures_say_how_often_to_save(tmp_path: Path) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 1.0])
    run.report([1.0, 1.0], overhead=0.5, checkpoint=True)
    for _ in range(20):
        run.report([1.0, 1.0])
    run.fail(0.5)
    run.start(2.0)
    run.report([1.0, 1.0])
    run.end()
    found = by_account(run)
    assert found["lost"].text == (
        "Attempt 1 lost 20.5 s of work, 20 reports after its last checkpoint: "
        "Rank 1 of 2 failed with ValueError: no."
    )
    # The square root of 2 · 0.5 s · 27 s.
    assert "one every 5.2 s costs the least" in found["lost"].advice
    assert "started again once, in 2 s" in found["restarting"].text


def test_durations() -> None:
    assert [duration(s) for s in (0.0123, 0.18, 7.2, 99.94, 125, 9000)] == [
        "12.3 ms",
        "180 ms",
        "7.2 s",
        "99.9 s",
        "2.08 min",
        "2.5 h",
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Simulation(tmp_path)
    run.start(1.0)
    run.report([1.0, 2.0])
    run.report([1.0, 2.0])
    run.end()
    run.ledger()
    assert cli.main(["why", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "simulated T_a_00000: 5 s on 2 ranks, 1 attempt." in shown
    assert "compute        60.0%  ████" in shown
    assert "1. Rank 1 arrives last at 100% of reports, 1 s after the others" in shown
    assert "A DataLoader's waits are measured if prepare_data_loader()" in " ".join(shown.split())
    assert cli.main(["why", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["goodput"].values()) == pytest.approx(1)
    assert sum(found["attempts"][0]["ranks"][1].values()) == pytest.approx(1)
    assert [reason["account"] for reason in found["reasons"]] == ["ranks", "starting"]
    assert cli.main(["show", str(tmp_path)]) == 0
    assert "5 s: 60% compute, 20% ranks, 20% starting" in capsys.readouterr().out


def test_a_run_without_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Simulation(tmp_path)
    run.end(state="failed")
    run.ledger()
    assert cli.main(["why", str(tmp_path)]) == 0
    assert "no worker was ever up" in capsys.readouterr().out


def live(steps: int, busy: list[float], waits: Any = None) -> LiveTimes:
    times = LiveTimes(len(busy))
    for _ in range(steps):
        times.add(busy, waits, max(busy) + 0.01)
    return times


def test_a_straggler_is_told_when_it_costs_enough() -> None:
    times = live(30, [1.0, 1.0, 1.1])
    assert times.straggler == 2
    note = times.take_note()
    assert "Rank 2 arrives last at 100% of 30 reports, 100 ms after the others" in note
    assert "costs 9% of the time so far" in note
    times.add([1.0, 1.0, 1.1], None, 1.1)
    assert times.straggler is None


@pytest.mark.parametrize(
    ("steps", "busy", "waits"),
    [
        pytest.param(19, [1.0, 2.0], None, id="too few reports"),
        pytest.param(30, [1.0, 1.03], None, id="too cheap"),
        pytest.param(30, [0.01, 0.02], None, id="too short"),
        pytest.param(30, [1.0], None, id="one rank"),
        pytest.param(30, [2.0, 2.0], [{"ranks": 0.1}, {"ranks": 0.1}], id="equal ranks"),
    ],
)
def test_no_straggler(steps: int, busy: list[float], waits: Any) -> None:
    assert live(steps, busy, waits).straggler is None


def test_a_rank_that_others_wait_for_in_collectives() -> None:
    assert live(30, [2.0, 2.0], [{"ranks": 1.0}, {}]).straggler == 1


def test_live_times_are_those_of_the_ledger(tmp_path: Path) -> None:
    run, times = Simulation(tmp_path), LiveTimes(2)
    run.start(1.0)
    for step in range(10):
        busy, waits = [1.0, 2.0 + step], [{"data": 0.5}, {"ranks": 0.25}]
        run.report(busy, waits)
        times.add(busy, waits, max(busy))
    goodput = run.ledger().goodput
    for account, mean in (("compute", times.computed), ("data", times.data)):
        assert goodput.seconds[account] / 2 == pytest.approx(mean)
    assert goodput.seconds["ranks"] / 2 == pytest.approx(times.ranks)


def test_a_straggler_is_told_once_during_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.ledger.live.STRAGGLER_S", 0.2)

    def train_func() -> None:
        for step in range(30):
            if train.get_context().get_world_rank() == 1:
                time.sleep(0.1)
            train.report({"step": step})

    fit(train_func, storage_path=str(tmp_path))
    shown = capsys.readouterr().err
    assert shown.count("arrives last") == 1
    assert "Rank 1 arrives last" in shown
