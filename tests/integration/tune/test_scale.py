"""Many trials, and trials on remote storage."""

from __future__ import annotations

import gc
import itertools
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.storage import open_storage
from lockstep.train import Checkpoint, RunConfig
from lockstep.train.driver.controller import Controller
from lockstep.train.record.run import Run
from lockstep.tune import TuneConfig, Tuner
from lockstep.tune.schedulers import TrialScheduler
from tests.integration.tune.tuning import fit


class Census(TrialScheduler):
    """Counts, at the end of every twentieth trial, what the driver holds."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, int]] = []
        self.ended = 0

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        self.ended += 1
        if self.ended % 20 == 0:
            gc.collect()
            kinds = [type(thing) for thing in gc.get_objects()]
            self.seen.append(
                {
                    "controllers": kinds.count(Controller),
                    "runs": kinds.count(Run),
                    "files": len(os.listdir("/proc/self/fd")),
                    "threads": threading.active_count(),
                    "row": len(tune_controller.get_trials()[0].last_result),
                }
            )


def test_nothing_but_small_facts_stays_of_a_trial() -> None:
    census = Census()
    grid = fit(
        lambda config: {"loss": config["x"]},
        {"x": tune.uniform(0, 1)},
        num_samples=120,
        max_concurrent_trials=2,
        metric="loss",
        mode="min",
        scheduler=census,
    )
    assert grid.num_terminated == 120
    first, last = census.seen[0], census.seen[-1]
    assert len(census.seen) == 6
    # Between the two are a hundred trials; what other tests have left is in both.
    for kind in ("controllers", "runs", "files", "threads"):
        assert last[kind] <= first[kind] + 12, kind
    assert last["row"] <= 3
    best = grid.get_best_result()
    assert best.metrics["loss"] == min(result.metrics["loss"] for result in grid)


class Reads(TrialScheduler):
    """Reads the experiment's own files at the end of each trial."""

    def __init__(self) -> None:
        super().__init__()
        self.journals: list[tuple[int, bytes]] = []
        self.tuners: set[tuple[int, int]] = set()

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        journal = Path(trial.path).parent / "experiment.jsonl"
        self.journals.append((journal.stat().st_ino, journal.read_bytes()))
        kept = journal.with_name("tuner.pkl").stat()
        self.tuners.add((kept.st_ino, kept.st_mtime_ns))


def test_state_is_appended_and_never_rewritten() -> None:
    reads = Reads()
    grid = fit(counting, {"x": tune.grid_search([1, 2, 3, 4, 5])}, scheduler=reads)
    whole = Path(grid.experiment_path, "experiment.jsonl")
    journals = [*reads.journals, (whole.stat().st_ino, whole.read_bytes())]
    assert len(journals) == 6
    for (file, earlier), (same, later) in itertools.pairwise(journals):
        assert file == same
        assert later.startswith(earlier)
        assert len(later) > len(earlier)
    assert len(reads.tuners) == 1
    assert all(isinstance(json.loads(line), dict) for line in journals[-1][1].splitlines())


def counting(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
    for i in range(start, 3):
        tune.report({"i": i, "x": config["x"]}, checkpoint=Checkpoint.from_dict({"i": i}))


@pytest.fixture
def remote(tmp_path: Path) -> Any:
    from pyarrow import fs

    (tmp_path / "remote").mkdir()
    return fs.SubTreeFileSystem(str(tmp_path / "remote"), fs.LocalFileSystem())


def remote_tuner(filesystem: Any, **tune_config: Any) -> Tuner:
    return Tuner(
        counting,
        param_space={"x": tune.grid_search([1, 2, 3])},
        tune_config=TuneConfig(**tune_config),
        run_config=RunConfig(
            name="far", storage_path="bucket", storage_filesystem=filesystem, verbose=0
        ),
    )


def test_an_experiment_on_remote_storage(remote: Any, tmp_path: Path) -> None:
    grid = remote_tuner(remote, metric="x", mode="max").fit()
    assert grid.num_terminated == 3
    assert grid.get_best_result().metrics["i"] == 2
    directory = tmp_path / "remote" / "bucket" / "far"
    assert (directory / "experiment.jsonl").exists()
    for result in grid:
        files = set(os.listdir(directory / Path(result.path).name))
        assert {"journal.jsonl", "progress.csv", "result.json", "checkpoint_000002"} <= files
    read = Tuner.restore("bucket/far", storage_filesystem=remote)
    assert [result.metrics["x"] for result in read.get_results()] == [1, 2, 3]


def test_trials_that_the_copied_journal_does_not_know_are_found(
    remote: Any, tmp_path: Path
) -> None:
    grid = remote_tuner(remote).fit()
    journal = tmp_path / "remote" / "bucket" / "far" / "experiment.jsonl"
    header = journal.read_text().splitlines(keepends=True)[0]
    journal.write_text(header)  # as if the driver had been killed soon after it began
    ran = {result.path: result.metrics["pid"] for result in grid}
    again = Tuner.restore("bucket/far", storage_filesystem=remote).fit()
    assert {result.path: result.metrics["pid"] for result in again} == ran


def test_a_paused_trial_on_remote_storage_resumes(remote: Any) -> None:
    class PauseAtOne(TrialScheduler):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
            return self.PAUSE if result["i"] == 0 else self.CONTINUE

    grid = remote_tuner(remote, scheduler=PauseAtOne()).fit()
    assert [len(result.metrics_dataframe) for result in grid] == [3, 3, 3]
    assert [len(result.attempts) for result in grid] == [2, 2, 2]
    storage = open_storage("bucket/far", remote)
    for result in grid:
        lines = storage.read(f"{Path(result.path).name}/progress.csv").splitlines()
        assert len(lines) == 4
