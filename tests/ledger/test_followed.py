"""A journal that is followed adds up to what reading it whole does, whatever happened in it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lockstep.journal.records import RunRecords
from lockstep.ledger import read_ledger
from lockstep.ledger.followed import FollowedLedger
from lockstep.storage import open_storage
from tests.ledger.journals import Simulation


def followed(directory: Path) -> tuple[dict[str, float], float]:
    ledger: FollowedLedger | None = None
    state, saved = "unfinished", 0
    for line in (directory / "journal.jsonl").read_bytes().splitlines():
        record: dict[str, Any] = json.loads(line)
        event = record["event"]
        if event == "run":
            ledger = FollowedLedger(record["time"])
        assert ledger is not None
        if event == "report":
            ledger.report(record)
        else:
            ledger.event(event, record)
        if event == "checkpoint":
            saved = record["iteration"]
        state = record["state"] if event == "end" else "unfinished"
    assert ledger is not None
    return ledger.shares(saved if state == "failed" else None)


def random_run(directory: Path, chance: random.Random) -> None:
    run = Simulation(directory, size=chance.choice([1, 2, 5]))

    def seconds() -> float:
        return chance.choice([0.0, 0.25, 1.0, 2.5])

    for attempt in range(chance.randint(1, 4)):
        if attempt and chance.random() < 0.3:
            run.restore(seconds())
        run.start(seconds(), chance.choice([None, 1, 3]))
        for _ in range(chance.randint(0, 40)):
            busy = [seconds() for _ in range(run.size)]
            waits = [{"data": b / 4, "ranks": b / 8, "communication": b / 8} for b in busy]
            run.report(
                busy,
                waits if chance.random() < 0.5 else None,
                overhead=seconds(),
                checkpoint=chance.random() < 0.3,
            )
        if chance.random() < 0.6:
            run.fail(seconds(), retry=True)
    if chance.random() < 0.8:
        returned = chance.random() < 0.7
        busy = [seconds() for _ in range(run.size)] if returned else []
        run.end(busy, seconds(), chance.choice(["finished", "failed", "interrupted"]))
    run.close()


@pytest.mark.parametrize("seed", range(25))
def test_following_and_reading_agree(tmp_path: Path, seed: int) -> None:
    random_run(tmp_path, random.Random(seed))
    goodput = read_ledger(RunRecords(open_storage(str(tmp_path)))).goodput
    shares, wall_s = followed(tmp_path)
    assert shares == pytest.approx(dict(goodput), abs=1e-9)
    assert wall_s == pytest.approx(goodput.wall_s)


def test_the_memory_does_not_grow_with_the_checkpoints(tmp_path: Path) -> None:
    run = Simulation(tmp_path, size=1)
    run.start()
    for _ in range(200):
        run.report([1.0], checkpoint=True)
    run.report([1.0])
    run.fail(1.0)
    run.start()
    run.end([1.0])
    run.close()
    shares, wall_s = followed(tmp_path)
    assert shares["lost"] * wall_s == pytest.approx(2.0)
    assert shares["restarting"] * wall_s == pytest.approx(1.0)
