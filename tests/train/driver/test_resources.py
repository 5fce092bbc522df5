"""Samples of what each rank uses, beside the journal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from lockstep import train
from lockstep.engine.base import Sampled
from lockstep.run_layout import RESOURCES_FILE
from lockstep.train.driver.resources import append_sample, sample_interval
from tests.integration.runs import fit


def until_sampled(config: dict[str, str]) -> None:
    """Busy until the driver has written a sample."""
    rank = train.get_context().get_world_rank()
    file = None
    for _ in range(60_000):
        file = next(Path(config["root"]).glob(f"*/*/{RESOURCES_FILE}"), None)
        if file is not None:
            break
        sum(range(10_000))
        time.sleep(0.001)
    train.report({"found": file is not None, "rank": rank})


def test_a_run_is_sampled(tmp_path: Path) -> None:
    result = fit(
        until_sampled, config={"root": str(tmp_path)}, storage_path=str(tmp_path), workers=2
    )
    assert result.metrics["found"]
    sample = json.loads((Path(result.path) / RESOURCES_FILE).read_text().splitlines()[0])
    assert sample["attempt"] == 1
    assert sample["host"] == os.uname().nodename
    assert sample["ranks"] == [0, 1]
    assert all(memory > 1 << 20 for memory in sample["memory"])
    assert all(seconds >= 0 for seconds in sample["cpu"])


def test_where_nothing_can_be_written_there_is_no_sample(tmp_path: Path) -> None:
    sampled = Sampled("a", (0,), (1.5,), (1 << 20,), ((97, None, None),))
    append_sample(str(tmp_path), 1, sampled, 1.0)
    append_sample(str(tmp_path), 1, Sampled("a", (), (), ()), 2.0)
    append_sample(str(tmp_path / "nowhere"), 1, sampled, 3.0)
    (line,) = (tmp_path / RESOURCES_FILE).read_text().splitlines()
    assert json.loads(line) == {
        "time": 1.0,
        "attempt": 1,
        "host": "a",
        "ranks": [0],
        "cpu": [1.5],
        "memory": [1 << 20],
        "gpu": [[97, None, None]],
    }


def test_a_long_run_has_a_bounded_number_of_samples() -> None:
    assert sample_interval(3600) == 5.0
    samples, elapsed = 0, 0.0
    while elapsed < 30 * 86400:
        elapsed += sample_interval(elapsed)
        samples += 1
    assert samples < 50_000
