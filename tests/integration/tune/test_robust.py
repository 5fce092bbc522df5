"""What must not go wrong with trials: names, pauses, takeovers, user functions that raise."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from lockstep import train, tune
from lockstep.errors import LockstepError, StopConditionError
from lockstep.storage import open_storage
from lockstep.storage.local import LocalStorage
from lockstep.train import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    DataParallelTrainer,
    Result,
    ScalingConfig,
)
from lockstep.train.driver.hangs import HangWatch, Stalled
from lockstep.train.driver.state import RunState
from lockstep.train.driver.storage_queue import StorageQueue
from lockstep.train.record.run import Run
from lockstep.tune import Callback, RunConfig
from lockstep.tune.execution.donor import copy_donor_checkpoint
from lockstep.tune.execution.running_trial import RunningTrial
from lockstep.tune.integration.ray_train import TuneReportCallback
from lockstep.tune.logger import LoggerCallback
from lockstep.tune.schedulers import FIFOScheduler
from lockstep.tune.search import Searcher
from lockstep.tune.stopper import Stopper
from tests.integration.runs import fit as fit_run
from tests.integration.runs import run_script
from tests.integration.tune.tuning import fit, note, notes, tuner


def one_report(config: dict[str, Any]) -> None:
    tune.report({"x": config.get("x", 0)})


def statuses(directory: Path) -> dict[str, list[str]]:
    """Trial id → what the journal of an experiment says of it, in order."""
    found: dict[str, list[str]] = {}
    for line in (directory / "experiment.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["event"] == "status":
            found.setdefault(record["trial_id"], []).append(record["status"])
    return found


# ------------------------------------------------------------------------- directories and names


def test_a_trial_s_output_is_in_its_log_and_silence_makes_no_file() -> None:
    def trial(config: dict[str, Any]) -> None:
        if config["x"]:
            print("printed", config["x"])
        tune.report({"x": config["x"]})

    silent, printing = fit(trial, {"x": tune.grid_search([0, 1])})
    assert Path(printing.path, "logs", "rank_0.log").read_text() == "printed 1\n"
    assert not Path(silent.path, "logs").exists()


def test_two_experiments_of_one_name_share_no_directory(tmp_path: Path) -> None:
    def run(x: int) -> Any:
        return fit(
            one_report,
            {"x": x},
            trial_dirname_creator=lambda trial: f"trial_{trial.index}",
            run={"storage_path": tmp_path, "name": "e"},
        )

    first, second = run(1), run(2)
    assert first[0].path != second[0].path
    assert (first[0].metrics["x"], second[0].metrics["x"]) == (1, 2)
    assert len(first[0].metrics_dataframe) == len(second[0].metrics_dataframe) == 1


def test_a_restarted_trial_has_a_directory_of_its_own_each_time(tmp_path: Path) -> None:
    def fails(config: dict[str, Any]) -> None:
        tune.report({"a": 1})
        raise ValueError("on purpose")

    grid = fit(fails, trial_dirname_creator=lambda trial: "t", run={"storage_path": tmp_path})
    paths = {grid[0].path}
    for _ in range(3):
        grid = tune.Tuner.restore(grid.experiment_path, restart_errored=True).fit()
        paths.add(grid[0].path)
        assert len(grid[0].metrics_dataframe) == 1
    assert len(paths) == 4


def test_a_name_creator_that_raises_fails_its_trial_only() -> None:
    def name(trial: Any) -> str:
        return str(1 // (trial.config["x"]))

    grid = fit(one_report, {"x": tune.grid_search([0, 1])}, trial_name_creator=name)
    assert grid.num_errors == grid.num_terminated == 1
    assert isinstance(grid[0].error, LockstepError)
    assert "trial_name_creator=…) raised ZeroDivisionError" in str(grid[0].error)


class Unhelpful(FIFOScheduler):
    """Raises where it is told to."""

    def __init__(self, where: str, after: int = 0) -> None:
        super().__init__()
        self.where = where
        self.left = after

    def _maybe_raise(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left < 0:
                raise KeyError("on purpose")

    def complete_config(self, config: dict[str, Any]) -> dict[str, Any]:
        self._maybe_raise("complete_config")
        return config

    def debug_string(self) -> str:
        self._maybe_raise("debug_string")
        return ""


@pytest.mark.parametrize("where", ["complete_config", "debug_string", "trial_dirname_creator"])
def test_user_code_that_raises_ends_the_experiment_and_nothing_is_lost(
    where: str, tmp_path: Path
) -> None:
    asked = Unhelpful(where, after=1)

    def directory(trial: Any) -> str:
        asked._maybe_raise("trial_dirname_creator")
        return f"t{trial.index}"

    failing = tuner(
        one_report,
        {"x": tune.grid_search([1, 2, 3])},
        scheduler=asked,
        trial_dirname_creator=directory,
        max_concurrent_trials=1,
        run={"storage_path": tmp_path, "name": "e", "verbose": 1 if where[0] == "d" else 0},
    )
    if where == "debug_string":
        asked.left = 0
    with pytest.raises(LockstepError, match=r"raised (KeyError|LockstepError).*Tuner.restore"):
        failing.fit()
    grid = tune.Tuner.restore(tmp_path / "e", tune_config=tune.TuneConfig()).fit()
    assert sorted(result.metrics["x"] for result in grid) == [1, 2, 3]
    assert sorted(result.config["x"] for result in grid) == [1, 2, 3]


class RaisesAtStopAll(Stopper):
    """A broken one."""

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        raise OSError("on purpose")


def test_a_stopper_that_raises_is_named() -> None:
    with pytest.raises(LockstepError, match="the stop condition raised OSError: on purpose"):
        fit(one_report, run={"stop": RaisesAtStopAll()})


class RaisesAtStopAllLater(RaisesAtStopAll):
    """Broken from the first report on."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen += 1
        return False

    def stop_all(self) -> bool:
        return super().stop_all() if self.seen else False


def test_a_stopper_that_raises_at_a_report_fails_the_trial() -> None:
    grid = fit(one_report, run={"stop": RaisesAtStopAllLater()})
    assert isinstance(grid[0].error, StopConditionError)
    assert str(grid[0].error) == "RunConfig(stop=…) raised OSError: on purpose."


class ChangesResults(FIFOScheduler):
    """Writes into what it is given."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        result["of_the_scheduler"] = result.pop("x")
        return self.CONTINUE


def test_a_scheduler_that_changes_a_result_changes_nothing_else() -> None:
    grid = fit(one_report, {"x": 1}, scheduler=ChangesResults())
    header = Path(grid[0].path, "progress.csv").read_text().splitlines()[0].split(",")
    assert "x" in header
    assert "of_the_scheduler" not in header


# --------------------------------------------------------------------------------- what is returned


def test_a_function_that_returns_a_number() -> None:
    grid = fit(lambda config: config["x"] * 2.0, {"x": tune.grid_search([1, 2])})
    assert [result.metrics["_metric"] for result in grid] == [2.0, 4.0]
    assert grid.get_best_result("_metric", "max").config == {"x": 2}


def test_a_function_that_returns_something_else() -> None:
    grid = fit(lambda config: "done")
    assert isinstance(grid[0].error, TypeError)
    assert "returned 'done'; return a dict of metrics, a number" in str(grid[0].error)


# ------------------------------------------------------------------------------------ interruptions


def test_a_function_that_raises_keyboard_interrupt_fails_like_any_other() -> None:
    def interrupts(config: dict[str, Any]) -> None:
        tune.report({"a": 1})
        if config["x"] == 1:
            raise KeyboardInterrupt

    ended: list[tuple[str, str]] = []

    class Ends(Callback):
        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ended.append(("error", trial.status))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            ended.append(("complete", trial.status))

    grid = fit(
        interrupts,
        {"x": tune.grid_search([0, 1, 2])},
        max_concurrent_trials=1,
        run={"callbacks": [Ends()]},
    )
    assert (grid.num_terminated, grid.num_errors) == (2, 1)
    assert "KeyboardInterrupt" in str(grid[1].error)
    assert grid[1].state == "failed"
    assert ended == [("complete", "TERMINATED"), ("error", "ERROR"), ("complete", "TERMINATED")]


class PausesOnce(FIFOScheduler):
    """Pauses the first trial at its first report."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: Any = None

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        if self.paused is None:
            self.paused = trial
            return self.PAUSE
        return self.CONTINUE


def test_a_trainer_inside_a_trial_that_is_paused(tmp_path: Path) -> None:
    def inner(config: dict[str, Any]) -> None:
        for i in range(2):
            train.report({"a": i})

    def outer(config: dict[str, Any]) -> None:
        note(config["notes"], "starts")
        DataParallelTrainer(
            inner,
            scaling_config=ScalingConfig(num_workers=1),
            run_config=RunConfig(
                storage_path=config["notes"], verbose=0, callbacks=[TuneReportCallback()]
            ),
        ).fit()

    grid = fit(outer, {"notes": str(tmp_path)}, scheduler=PausesOnce())
    assert (grid.num_terminated, grid.num_errors) == (1, 0)
    assert len(notes(tmp_path, "starts")) == 2


# -------------------------------------------------------------------------------- pauses, takeovers


class PausesAgain(FIFOScheduler):
    """Pauses each trial at its first reports."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left = pauses

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        self.left -= 1
        return self.PAUSE if self.left >= 0 else self.CONTINUE


@pytest.mark.parametrize("saves", [False, True])
def test_a_trial_that_only_repeats_itself_gives_a_warning(
    saves: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    def trial(config: dict[str, Any]) -> None:
        tune.report({"a": 1}, checkpoint=Checkpoint.from_dict({"a": 1}) if saves else None)

    grid = fit(trial, {}, scheduler=PausesAgain(3), run={"verbose": 1})
    assert grid.num_terminated == 1
    shown = " ".join("".join(capfd.readouterr()).split())
    warned = "paused again by the scheduler PausesAgain without a new checkpoint" in shown
    assert warned == (not saves)


class StopsThePaused(PausesOnce):
    """Ends the paused trial at the first report of another."""

    def __init__(self, stopped: threading.Event) -> None:
        super().__init__()
        self.stopped = stopped

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("an event cannot be copied")

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        if self.paused not in (None, trial):
            tune_controller.stop_trial(self.paused)
            self.stopped.set()
        return super().on_trial_result(tune_controller, trial, result)


def test_a_trial_that_is_stopped_while_its_pause_is_uploaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    stopped = threading.Event()
    flush_and_close = RunningTrial.flush_and_close

    def held_up(self: RunningTrial) -> str | None:
        assert not self.pausing or stopped.wait(120)
        return flush_and_close(self)

    monkeypatch.setattr(RunningTrial, "flush_and_close", held_up)
    remote = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    grid = fit(
        one_report,
        {"x": tune.grid_search([0, 1])},
        scheduler=StopsThePaused(stopped),
        max_concurrent_trials=1,
        run={"storage_path": "r", "name": "e", "storage_filesystem": remote},
    )
    assert grid.num_terminated == 2
    assert grid[0].state == "finished"
    first, _ = statuses(tmp_path / "r" / "e").values()
    assert first == ["RUNNING", "PAUSED", "TERMINATED"]


class TakesOver(PausesOnce):
    """At its second report the other trial becomes the donor of the paused one."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        if self.paused not in (None, trial) and result["training_iteration"] == 2:
            config = {**self.paused.config, "resumed": True}
            tune_controller.exploit(self.paused, config, trial.checkpoint)
            note(config["notes"], "taken", str(result["i"] - 1))
        return super().on_trial_result(tune_controller, trial, result)


def test_a_donors_checkpoint_stays_until_it_is_taken(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] if checkpoint else 0
        if config.get("resumed"):
            note(config["notes"], "resumed", str(start))
        for i in range(start + 1, start + 6):
            kept = Checkpoint.from_dict({"i": i})
            tune.report({"i": i}, checkpoint=kept, checkpoint_dir_name=f"at_{config['x']}_{i}")

    grid = fit(
        trial,
        {"x": tune.grid_search([0, 1]), "notes": str(tmp_path)},
        scheduler=TakesOver(),
        max_concurrent_trials=1,
        run={"checkpoint_config": CheckpointConfig(num_to_keep=1)},
    )
    assert grid.errors == []
    assert notes(tmp_path, "resumed") == notes(tmp_path, "taken") == ["1"]
    for result in grid:
        assert len(result.best_checkpoints) == 1
        assert len(list(Path(result.path).glob("at_*"))) == 1


@pytest.mark.parametrize("where", ["elsewhere", "run", "experiment"])
def test_a_donors_checkpoint_that_was_never_uploaded(tmp_path: Path, where: str) -> None:
    def trial(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        if config.get("resumed"):
            assert checkpoint is not None
            note(config["notes"], "resumed", Path(str(checkpoint.path), "i").read_text())
        for i in range(1, 4):
            run = Path(tune.get_context().get_trial_dir())
            parent = {"elsewhere": tmp_path, "run": run, "experiment": run.parent / "shared"}[where]
            place = parent / f"kept_{config['x']}_{i}"
            place.mkdir(exist_ok=True, parents=True)
            (place / "i").write_text(str(i))
            mode = CheckpointUploadMode.NO_UPLOAD
            tune.report({"i": i}, checkpoint=Checkpoint(place), checkpoint_upload_mode=mode)

    space = {"x": tune.grid_search([0, 1]), "notes": str(tmp_path)}
    keep_one = {"checkpoint_config": CheckpointConfig(num_to_keep=1)}
    grid = fit(trial, space, scheduler=TakesOver(), max_concurrent_trials=1, run=keep_one)
    assert grid.errors == []
    assert notes(tmp_path, "resumed") == notes(tmp_path, "taken") == ["1"]


def test_a_checkpoint_in_the_directory_of_a_donor_that_has_ended(tmp_path: Path) -> None:
    def donor() -> None:
        place = Path(train.get_context().get_trial_dir(), "mine")
        place.mkdir()
        mode = CheckpointUploadMode.NO_UPLOAD
        train.report({}, checkpoint=Checkpoint(place), checkpoint_upload_mode=mode)

    options: dict[str, Any] = {"workers": 1, "storage_path": tmp_path, "name": "both"}
    first = fit_run(donor, **options)
    second = fit_run(lambda: train.report({}), **options)
    run = Run.reopen(open_storage(second.path), RunConfig(), {})
    try:
        copy_donor_checkpoint(run, open_storage(tmp_path / "both"), f"{first.log_dir.name}/mine")
    finally:
        run.close()
    taken = Result.from_path(second.path).checkpoint
    assert taken is not None
    assert taken.path == f"{first.path}/mine"


# ---------------------------------------------------------------------------- callbacks, stoppers


def test_at_the_end_callbacks_see_all_that_was_reported() -> None:
    seen: list[dict[str, Any]] = []

    class AtTheEnd(Callback):
        def on_experiment_end(self, trials: Any, **info: Any) -> None:
            seen.extend(trial.last_result for trial in trials)
            assert trials[0] == next(iter(trials))

    def trial(config: dict[str, Any]) -> None:
        tune.report({"loss": config["x"], "other": {"deep": 7}})

    space = {"x": tune.grid_search([1, 2])}
    fit(trial, space, metric="loss", mode="min", run={"callbacks": [AtTheEnd()]})
    assert [row["loss"] for row in seen] == [1, 2]
    assert all(row["other"] == {"deep": 7} and row["training_iteration"] == 1 for row in seen)


class AfterThree(Stopper):
    """Ends everything after three reports of the whole experiment."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.seen += 1
        return False

    def stop_all(self) -> bool:
        return self.seen >= 3


def test_a_stopper_starts_fresh_with_each_fit() -> None:
    def trial(config: dict[str, Any]) -> None:
        for i in range(5):
            tune.report({"i": i})

    twice = tuner(trial, run={"stop": AfterThree()})
    assert [len(twice.fit()[0].metrics_dataframe) for _ in range(2)] == [3, 3]


# ------------------------------------------------------------------------------------- ported code


class WithoutSuper(FIFOScheduler):
    """As many are written."""

    def __init__(self, n: int) -> None:
        self.n = n


class SearcherWithoutSuper(Searcher):
    """As many are written."""

    def __init__(self) -> None:
        self.n = 0

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.n += 1
        return {"x": self.n}


def test_schedulers_and_searchers_that_do_not_call_super() -> None:
    grid = fit(
        one_report,
        scheduler=WithoutSuper(3),
        search_alg=SearcherWithoutSuper(),
        num_samples=2,
        metric="x",
        mode="max",
    )
    assert [result.metrics["x"] for result in grid] == [1, 2]


class Stepper(tune.Trainable):
    """Counts."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x = 0

    def step(self) -> dict[str, Any]:
        self.x += 1
        return {"x": self.x}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"saved": self.x}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.x = checkpoint["saved"]


def test_the_last_checkpoint_of_a_stopped_class_has_its_metrics() -> None:
    kept = CheckpointConfig(
        num_to_keep=1,
        checkpoint_score_attribute="x",
        checkpoint_frequency=2,
        checkpoint_at_end=True,
    )
    grid = fit(Stepper, run={"stop": {"training_iteration": 5}, "checkpoint_config": kept})
    [(checkpoint, metrics)] = grid[0].best_checkpoints
    assert checkpoint.to_dict()["saved"] == 5 == metrics["x"] == metrics["training_iteration"]


# ------------------------------------------------------------------------------------------ storage


def test_storage_that_is_full(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, resource, signal
        from lockstep import tune
        from lockstep.train import RunConfig

        def trial(config):
            for _ in range(100):
                tune.report({"text": "x" * 1000})

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
        tune.Tuner(trial, run_config=RunConfig(name="e", verbose=1)).fit()
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "StorageError: could not write the run's journal" in done.stderr
    shown = [line for line in (done.stdout + done.stderr).splitlines() if "/1 trials" in line]
    assert shown[-1].startswith("[lockstep] failed")
    journal = next((tmp_path / "results" / "e").glob("trial_*/journal.jsonl"))
    assert journal.stat().st_size <= 30_000
    assert tune.Tuner.restore(tmp_path / "results" / "e").fit().num_terminated == 1


# --------------------------------------------------------------- what users have written for others


def test_a_publish_that_arrives_late_does_not_block_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trials publish in a thread, which cannot be cancelled: it may end in the next attempt."""
    publish, stalled, abandon = LocalStorage.publish, HangWatch.stalled, StorageQueue.abandon
    stuck, timed_out, arrived = threading.Event(), threading.Event(), threading.Event()

    def publish_late(self: LocalStorage, name: str, *args: Any) -> None:
        if not stuck.is_set():
            stuck.set()
            timed_out.wait(120)
            try:
                publish(self, name, *args)
            finally:
                arrived.set()
        else:
            arrived.wait(120)
            publish(self, name, *args)

    clock = 0.0

    def stalled_now(self: HangWatch, state: RunState, now: float) -> Stalled | None:
        nonlocal clock  # stands still, unless the publish is stuck
        if stuck.is_set() and not timed_out.is_set():
            clock += 3600
        return stalled(self, state, clock)

    def abandon_and_end_the_stall(self: StorageQueue) -> None:
        abandon(self)
        timed_out.set()

    monkeypatch.setattr(LocalStorage, "publish", publish_late)
    monkeypatch.setattr(HangWatch, "stalled", stalled_now)
    monkeypatch.setattr(StorageQueue, "abandon", abandon_and_end_the_stall)

    def trial(config: dict[str, Any]) -> None:
        attempt = {"attempt": train.get_context().attempt}
        tune.report(attempt, checkpoint=Checkpoint.from_dict(attempt), checkpoint_dir_name="best")

    limits = {"storage_timeout_s": 3600, "hang_warning_s": 0.1}
    (result,) = fit(trial, max_failures=1, run=limits)
    assert result.error is None
    assert result.checkpoint is not None
    assert str(result.checkpoint.path).endswith("/best_attempt_2")
    assert result.checkpoint.to_dict()["attempt"] == 2


class RayShapedSearcher(Searcher):
    """Signatures as in Ray's docstrings, and as scripts have them."""

    def __init__(self, notes: str) -> None:
        super().__init__()
        self.notes = notes

    def set_search_properties(self, metric: Any, mode: Any, config: Any) -> bool:  # type: ignore[override]
        self._metric, self._mode, self.space = metric, mode, dict(config)
        return True

    def suggest(self, trial_id: str) -> Any:
        return dict(self.space)

    def on_trial_result(self, tid: str, reported: Any) -> None:
        note(self.notes, "results", str(reported["x"]))

    def on_trial_complete(self, trial_id: str, result: Any, **kwargs: Any) -> None:  # type: ignore[override]
        note(self.notes, "completed", str((result["x"], kwargs)))


class OldScheduler(FIFOScheduler):
    """The first argument had another name once."""

    def on_trial_result(self, trial_runner: Any, trial: Any, result: Any) -> Any:
        assert len(trial_runner.get_trials()) >= 1
        return super().on_trial_result(trial_runner, trial, result)

    def on_trial_complete(self, trial_runner: Any, trial: Any, *_: Any) -> None:
        trial_runner.get_live_trials()


class FewArguments(LoggerCallback):
    """Takes only what it uses."""

    def __init__(self, notes: str) -> None:
        self.notes = notes

    def setup(self) -> None:  # type: ignore[override]
        note(self.notes, "callback", "setup")

    def on_experiment_end(self, all_trials: Any) -> None:  # type: ignore[override]
        note(self.notes, "callback", f"{len(all_trials)} trial(s)")

    def log_trial_end(self, trial: Any) -> None:  # type: ignore[override]
        note(self.notes, "callback", "end")


@pytest.mark.parametrize("limited", [False, True])
def test_hooks_with_signatures_of_their_own(tmp_path: Path, limited: bool) -> None:
    searcher: Searcher = RayShapedSearcher(str(tmp_path))
    if limited:
        searcher = tune.search.ConcurrencyLimiter(searcher, 1)
    options: dict[str, Any] = {"storage_path": tmp_path, "name": "e"}
    callbacks = [FewArguments(str(tmp_path))]
    grid = fit(
        one_report,
        {"x": 3},
        search_alg=searcher,
        scheduler=OldScheduler(),
        run={**options, "callbacks": callbacks},
    )
    assert grid.num_terminated == 1
    assert notes(tmp_path, "results") == ["3"]
    assert notes(tmp_path, "completed") == ["(3, {'error': False})"]
    assert notes(tmp_path, "callback") == ["setup", "end", "1 trial(s)"]
    tune.Tuner.restore(tmp_path / "e").fit()
    assert notes(tmp_path, "completed") == ["(3, {'error': False})"] * 2
