"""Restoring experiments that lost something: journals that were not copied, damaged, or large."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.errors import LockstepError, StorageError
from lockstep.journal.records import RunRecords
from lockstep.train import Checkpoint, RunConfig
from lockstep.tune import Tuner
from lockstep.tune.schedulers import FIFOScheduler
from lockstep.tune.search import BasicVariantGenerator, Searcher
from tests.integration.tune.tuning import fit, note, notes, tuner


def noted(config: dict[str, Any]) -> None:
    note(config["notes"], "began", str(config["x"]))
    tune.report({"x": config["x"]}, checkpoint=Checkpoint.from_dict({"x": config["x"]}))


def events(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def keep_events(journal: Path, kept: list[dict[str, Any]]) -> None:
    journal.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in kept))


def test_trials_that_only_their_runs_tell_of(tmp_path: Path) -> None:
    """The driver was killed before the journal of the experiment was copied a second time."""
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    remote = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    grid = fit(
        noted,
        {"x": tune.grid_search([10, 11, 12, 13]), "notes": str(tmp_path)},
        max_concurrent_trials=1,
        run={"storage_path": "r", "name": "e", "storage_filesystem": remote},
    )
    here = tmp_path / "r" / "e"
    keep_events(here / "experiment.jsonl", events(here / "experiment.jsonl")[:1])
    # The second run had nothing on storage yet, the third had not ended.
    second, third = (Path(tmp_path, grid[index].path) for index in (1, 2))
    second.rename(tmp_path / "gone")
    keep_events(third / "journal.jsonl", events(third / "journal.jsonl")[:-1])
    for _ in range(2):
        again = Tuner.restore("r/e", storage_filesystem=remote).fit()
        assert sorted(result.config["x"] for result in again) == [10, 11, 12, 13]
        assert again.num_terminated == 4
    assert notes(tmp_path, "began") == ["10", "11", "12", "13", "12", "11"]
    added = [e["trial_id"] for e in events(here / "experiment.jsonl") if e["event"] == "trial"]
    assert len(added) == len(set(added)) == 4
    assert len(Tuner.restore("r/e", storage_filesystem=remote).get_results()) == 4


def test_a_damaged_journal_is_named_and_nothing_is_run_again(tmp_path: Path) -> None:
    space = {"x": tune.grid_search([0, 1]), "notes": str(tmp_path)}
    grid = fit(noted, space, run={"storage_path": tmp_path, "name": "e"})
    journal = Path(grid[1].path) / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:2], "{broken\n", *lines[3:]]))
    with pytest.raises(StorageError, match=f"line 3 of {journal} .*damaged"):
        Tuner.restore(tmp_path / "e").fit()
    with pytest.raises(StorageError, match="damaged"):
        Tuner.restore(tmp_path / "e").get_results()
    assert len(notes(tmp_path, "began")) == 2
    journal.write_text("".join(lines))
    assert Tuner.restore(tmp_path / "e").fit().num_terminated == 2


class Counts(tune.Callback):
    """Counts the trials that ended, across drivers."""

    def __init__(self) -> None:
        self.ended = 0
        self.given: list[int] = []

    def setup(self, *args: Any, **info: Any) -> None:
        self.given.append(-1)

    def on_trial_complete(self, *args: Any, **info: Any) -> None:
        self.ended += 1

    def get_state(self) -> dict[str, Any]:
        return {"ended": self.ended}

    def set_state(self, state: dict[str, Any]) -> None:
        self.ended = state["ended"]
        self.given.append(self.ended)


@pytest.mark.parametrize("where", ["here", "far"])
def test_the_state_of_callbacks_survives(where: str, tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    far = SubTreeFileSystem(str(tmp_path), LocalFileSystem()) if where == "far" else None
    path = "r" if where == "far" else tmp_path / "r"
    place = {"storage_path": path, "name": "e", "storage_filesystem": far}
    space = {"x": tune.grid_search([1, 2]), "notes": str(tmp_path)}
    first = Counts()
    fit(noted, space, run={**place, "callbacks": [first]})
    assert (first.ended, first.given) == (2, [-1])
    # Another experiment of the same name has callbacks of its own, and states of their own.
    second = Counts()
    fit(noted, space, num_samples=2, run={**place, "callbacks": [second]})
    assert (second.ended, second.given) == (4, [-1])
    third = Counts()
    again = Tuner.restore(
        "r/e" if where == "far" else tmp_path / "r" / "e",
        storage_filesystem=far,
        run_config=RunConfig(callbacks=[third], verbose=0),
        tune_config=tune.TuneConfig(num_samples=3),
    )
    assert again.fit().num_terminated == 6
    assert (third.ended, third.given) == (6, [-1, 4])


class GivesUp(FIFOScheduler):
    """Raises at the second trial's report."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        if trial.index == 1:
            raise RuntimeError("on purpose")
        return self.CONTINUE


def test_what_is_not_gone_on_with_stays_over(tmp_path: Path) -> None:
    failing = tuner(
        noted,
        {"x": tune.grid_search([0, 1, 2]), "notes": str(tmp_path)},
        scheduler=GivesUp(),
        max_concurrent_trials=1,
        run={"storage_path": tmp_path, "name": "e"},
    )
    with pytest.raises(LockstepError, match="GivesUp raised"):
        failing.fit()
    options = {"tune_config": tune.TuneConfig()}
    skipped = Tuner.restore(tmp_path / "e", resume_unfinished=False, **options)  # type: ignore[arg-type]
    assert skipped.fit().num_terminated == 3
    assert Tuner.restore(tmp_path / "e").get_results().num_terminated == 3
    assert Tuner.restore(tmp_path / "e", **options).fit().num_terminated == 3  # type: ignore[arg-type]
    assert notes(tmp_path, "began") == ["0", "1", "2"]


class CountsJournals(BasicVariantGenerator):
    """Notes how many journals in ``within`` are in memory while it is told what had happened.

    Those of other tests' results may be, too. An attribute of the class would not do for
    ``within``: a class that is sent by value comes back with what it had then.
    """

    most = 0

    def __init__(self, within: str) -> None:
        super().__init__(random_state=1)
        self._within = within

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        journals = [thing for thing in gc.get_objects() if type(thing) is RunRecords]
        alive = sum(journal._path.startswith(self._within) for journal in journals)
        CountsJournals.most = max(CountsJournals.most, alive)


def test_restoring_holds_the_journals_of_few_trials(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        for i in range(3):
            tune.report({"i": i})

    searcher: Searcher = CountsJournals(str(tmp_path))
    run = {"storage_path": tmp_path, "name": "e"}
    fit(trial, search_alg=searcher, num_samples=12, max_concurrent_trials=1, run=run)
    CountsJournals.most = 0
    grid = Tuner.restore(tmp_path / "e").fit()
    assert grid.num_terminated == 12
    assert 1 <= CountsJournals.most <= 3
