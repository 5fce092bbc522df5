"""A bounded soak: about a hundred random faults. ``benchmarks/soak.py`` runs for longer."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.integration.failures.soak import KINDS, check, hit_driver, hit_workers

MODES = ["sync", "async"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_workers_killed_at_random_instants(mode: str, tmp_path: Path) -> None:
    rng = random.Random(f"workers-{mode}")
    hits = resumed = number = 0
    # How many are hit in time depends on the machine; that they hold does not.
    while (hits < 40 or resumed < 5) and number < 150:
        number += 1
        storage, notes = tmp_path / f"{number}", tmp_path / f"{number}-notes"
        result, more = hit_workers(storage, notes, rng, mode)
        check(storage, notes, result)
        hits += more
        resumed += any(attempt["time_before"] > 0 for attempt in result.attempts)
    assert hits >= 40
    assert resumed >= 5  # not all of them were hit before their first checkpoint


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", MODES)
def test_drivers_killed_at_random_instants(mode: str, tmp_path: Path) -> None:
    rng = random.Random(f"drivers-{mode}")
    for number in range(12):
        storage, notes = tmp_path / f"{number}", tmp_path / f"{number}-notes"
        check(storage, notes, hit_driver(storage, notes, rng, mode))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "workers" not in kind])
def test_other_faults_at_random_instants(kind: str, tmp_path: Path) -> None:
    if kind in ("a file change failed", "the clock jumped") and shutil.which("cc") is None:
        pytest.skip("there is no C compiler, which makes the library that fails file changes")
    rng = random.Random(kind)
    for number in range(4):
        storage, notes = tmp_path / f"{number}", tmp_path / f"{number}-notes"
        check(storage, notes, KINDS[kind](storage, notes, rng, rng.choice(MODES)))
