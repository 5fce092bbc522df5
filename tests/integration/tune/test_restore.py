"""An experiment survives: the driver is killed at any instant, interrupted, told to go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.errors import LockstepError, StorageError
from lockstep.journal.records import RunRecords
from lockstep.storage import open_storage
from lockstep.train import Checkpoint, RunConfig
from lockstep.tune import ResultGrid, TuneConfig, Tuner
from lockstep.tune.schedulers import TrialScheduler
from lockstep.tune.search import Searcher
from tests.engine.driving import wait_until
from tests.integration.tune.tuning import fit, note, notes
from tests.repository import SRC

ROOT = SRC.parent

# Each trial notes when it begins and ends; the driver is killed at its n-th write to any journal.
DRIVER = """
    import os, signal, sys
    from lockstep import tune
    from lockstep.journal import Journal
    from lockstep.train import Checkpoint, RunConfig
    from lockstep.tune import TuneConfig, Tuner

    here, when, after = os.getcwd(), int(sys.argv[1]), sys.argv[2] == "after"

    def trial(config):
        def note(text):
            with open(os.path.join(here, "notes"), "a") as file:
                file.write(f"{config['x']} {text}\\n")
        note("begin")
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
        for i in range(start, 2):
            tune.report({"i": i, "x": config["x"]}, checkpoint=Checkpoint.from_dict({"i": i}))
        note("end")

    count = 0
    write = Journal._write

    def writes(self, line):
        global count
        count += 1
        if count == when and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        write(self, line)
        if count == when:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal._write = writes
"""

GRID = """
    Tuner(
        trial,
        param_space={"x": tune.grid_search([0, 1, 2, 3, 4])},
        tune_config=TuneConfig(max_concurrent_trials=2),
        run_config=RunConfig(name="killed", storage_path=here, verbose=0),
    ).fit()
"""

POPULATION = """
    from lockstep.train import CheckpointConfig
    from lockstep.tune.schedulers import PopulationBasedTraining

    def member(config):
        checkpoint = tune.get_checkpoint()
        state = checkpoint.to_dict() if checkpoint else {"i": 0, "sum": 0.0}
        while state["i"] < 6:
            state = {"i": state["i"] + 1, "sum": state["sum"] + config["x"]}
            tune.report(state, checkpoint=Checkpoint.from_dict(state))

    Tuner(
        member,
        param_space={"x": tune.grid_search([0.1, 0.2, 0.8, 0.9])},
        tune_config=TuneConfig(
            metric="sum",
            mode="max",
            max_concurrent_trials=2,
            scheduler=PopulationBasedTraining(
                perturbation_interval=2,
                hyperparam_mutations={"x": tune.uniform(0, 1)},
                quantile_fraction=0.5,
                seed=1,
            ),
        ),
        run_config=RunConfig(
            name="killed",
            storage_path=here,
            verbose=0,
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
"""


def start_driver(directory: Path, source: str, *arguments: str) -> subprocess.Popen[str]:
    script = directory / "script.py"
    script.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, str(script), *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def driver(directory: Path, source: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = start_driver(directory, source, *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished_runs(experiment: Path) -> set[int]:
    found = set()
    for run in experiment.iterdir() if experiment.exists() else ():
        if (run / "journal.jsonl").exists():
            try:
                records = RunRecords(open_storage(run))
            except FileNotFoundError:
                continue
            if records.state == "finished":
                found.add(records.run["config"]["x"])
    return found


@pytest.mark.parametrize("when", [1, 2, 4, 7, 11, 16, 24, 33, 41])
@pytest.mark.parametrize("instant", ["before", "after"])
def test_a_driver_killed_at_any_instant_restores(tmp_path: Path, when: int, instant: str) -> None:
    with driver(tmp_path, DRIVER + GRID, str(when), instant) as process:
        out, err = process.communicate(timeout=150)
        assert process.returncode == -signal.SIGKILL, out + err
    path = tmp_path / "killed"
    before = finished_runs(path)
    begun = notes(tmp_path, "notes")
    if not Tuner.can_restore(path):
        assert not begun
        return
    restored = Tuner.restore(path)
    assert len(restored.get_results()) <= 5
    grid = restored.fit()
    assert grid.num_terminated == 5
    assert sorted(result.metrics["x"] for result in grid) == [0, 1, 2, 3, 4]
    assert [result.metrics["training_iteration"] for result in grid] == [2] * 5
    after = notes(tmp_path, "notes")
    for x in before:  # each finished trial ran once
        assert [line for line in after if line.startswith(f"{x} ")] == [f"{x} begin", f"{x} end"]
    assert [Tuner.restore(path).fit().num_terminated, notes(tmp_path, "notes")] == [5, after]


@pytest.mark.parametrize("when", [12, 23, 34, 45, 56])
def test_a_population_whose_driver_is_killed_at_any_instant(tmp_path: Path, when: int) -> None:
    with driver(tmp_path, DRIVER + POPULATION, str(when), "after") as process:
        out, err = process.communicate(timeout=150)
        assert process.returncode == -signal.SIGKILL, out + err
    path = tmp_path / "killed"
    so_far = Tuner.restore(path).get_results()
    before = {r.path: r.metrics["pid"] for r in so_far if r.state == "finished"}
    grid = Tuner.restore(path).fit()
    assert (grid.num_terminated, grid.num_errors) == (4, 0)
    after = {r.path: r.metrics["pid"] for r in grid}
    assert after | before == after  # what had finished was not run again
    for result in grid:
        assert result.checkpoint is not None
        assert result.checkpoint.to_dict()["i"] == 6


INTERRUPTED = """
    import os, time
    from lockstep import tune
    from lockstep.train import Checkpoint, RunConfig
    from lockstep.tune import TuneConfig, Tuner

    here = os.getcwd()

    def trial(config):
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
        for i in range(start, 4):
            with open(os.path.join(here, f"trial_{config['x']}"), "a") as file:
                file.write(f"{i}\\n")
            tune.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
            while i == 1 and not os.path.exists(os.path.join(here, "go")):
                time.sleep(0.01)

    Tuner(
        trial,
        param_space={"x": tune.grid_search([0, 1, 2])},
        tune_config=TuneConfig(max_concurrent_trials=2),
        run_config=RunConfig(name="stopped", storage_path=here, verbose=1),
    ).fit()
"""


def wait_for(directory: Path, count: int) -> None:
    wait_until(lambda: sum(len(notes(directory, f"trial_{x}")) for x in range(3)) >= count)


def test_ctrl_c_stops_all_trials_and_says_how_to_go_on(tmp_path: Path) -> None:
    with driver(tmp_path, INTERRUPTED) as process:
        wait_for(tmp_path, 4)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=150)
    assert process.returncode == -signal.SIGINT
    path = str(tmp_path / "stopped")
    assert f"Interrupted: 0 trial(s) are done, in {path}." in err
    assert f"To resume: Tuner.restore({path!r}, trainable=" in err
    assert "Traceback" not in err
    (tmp_path / "go").touch()
    grid = Tuner.restore(path).fit()
    assert grid.num_terminated == 3
    for x in range(3):
        assert sorted(set(notes(tmp_path, f"trial_{x}"))) == ["0", "1", "2", "3"]


def test_sigterm_lets_every_trial_save_and_restores(tmp_path: Path) -> None:
    with driver(tmp_path, INTERRUPTED) as process:
        wait_for(tmp_path, 4)
        process.send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=150)
    assert process.returncode == 143, out + err
    assert "Preempted: 0 trial(s) are done" in err
    grid = Tuner.restore(tmp_path / "stopped").fit()
    assert grid.num_terminated == 3
    for x in range(3):
        assert sorted(set(notes(tmp_path, f"trial_{x}"))) == ["0", "1", "2", "3"]


def test_errored_trials_resume_or_restart(tmp_path: Path) -> None:
    marker = tmp_path / "fixed"

    def trial(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = checkpoint.to_dict()["i"] + 1 if checkpoint else 0
        for i in range(start, 3):
            note(tmp_path, f"trial_{config['x']}", str(i))
            tune.report({"i": i}, checkpoint=Checkpoint.from_dict({"i": i}))
            if i == 1 and config["x"] == 1 and not marker.exists():
                raise ValueError("not yet")

    space = {"x": tune.grid_search([0, 1])}
    first = fit(trial, space, run={"name": "resume"})
    second = fit(trial, space, run={"name": "restart"})
    assert first.num_errors == second.num_errors == 1
    done = notes(tmp_path, "trial_0")
    assert Tuner.restore(first.experiment_path).fit().num_errors == 1
    marker.touch()
    (tmp_path / "trial_1").unlink()
    grid = Tuner.restore(first.experiment_path, resume_errored=True).fit()
    assert (grid.num_errors, grid.num_terminated) == (0, 2)
    assert notes(tmp_path, "trial_1") == ["2"]
    (tmp_path / "trial_1").unlink()
    again = Tuner.restore(second.experiment_path, trainable=trial, restart_errored=True).fit()
    assert (again.num_errors, len(again), notes(tmp_path, "trial_1")) == (0, 2, ["0", "1", "2"])
    assert again[1].metrics["training_iteration"] == 3
    assert notes(tmp_path, "trial_0") == done
    with pytest.raises(ValueError, match="give one of them"):
        Tuner.restore(first.experiment_path, resume_errored=True, restart_errored=True)


class Teller(Searcher):
    """Suggests how much it has been told, so that forgetting anything shows."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, ...]] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        self.told.append(("suggest", trial_id[-5:]))
        return {"x": len(self.told)}

    def recall(self, trial_id: str, config: Any) -> None:
        self.suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: Any) -> None:
        self.told.append(("result", trial_id[-5:], str(result["x"])))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.told.append(("complete", trial_id[-5:], str(error)))


class Seen(TrialScheduler):
    """Keeps the results it gets; stops everything after a number of them."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, str]] = []

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        self.events.append(("add", trial.trial_id[-5:]))

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        assert trial in tune_controller.get_live_trials()
        self.events.append(("result", trial.trial_id[-5:]))
        return self.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: Any) -> None:
        self.events.append(("complete", trial.trial_id[-5:]))


def test_past_events_are_replayed_to_searcher_and_scheduler(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        tune.report({"x": config["x"]})
        note(tmp_path, "ran", str(config["x"]))
        if len(notes(tmp_path, "ran")) == 3:
            raise ValueError("the third")

    def settings(samples: int) -> TuneConfig:
        return TuneConfig(
            num_samples=samples, search_alg=Teller(), scheduler=Seen(), max_concurrent_trials=1
        )

    whole = Tuner(trial, tune_config=settings(6), run_config=RunConfig(verbose=0)).fit()
    (tmp_path / "ran").unlink()
    half = Tuner(trial, tune_config=settings(3), run_config=RunConfig(verbose=0)).fit()
    config = settings(6)
    rest = Tuner.restore(half.experiment_path, tune_config=config).fit()
    assert [r.config for r in rest] == [r.config for r in whole]
    assert isinstance(config.scheduler, Seen)
    kinds = [kind for kind, _ in config.scheduler.events]
    assert kinds == ["add", "result", "complete"] * 2 + ["add", "result"] + kinds[8:]
    assert len(kinds) == 17


def test_the_same_name_again_is_another_experiment_beside_the_first() -> None:
    first = fit(lambda config: {"x": 1}, run={"name": "again"})
    second = fit(lambda config: {"x": 2}, run={"name": "again"}, num_samples=2)
    assert first.experiment_path == second.experiment_path
    assert [r.metrics["x"] for r in first] == [1]
    assert [r.metrics["x"] for r in second] == [2, 2]
    assert len(Tuner.restore(first.experiment_path).get_results()) == 2


def test_resume_auto_continues_the_experiment(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        note(tmp_path, "ran", str(config["x"]))
        tune.report({"x": config["x"]})
        if config["x"] == 2 and not (tmp_path / "fixed").exists():
            raise ValueError("stop here")

    options: dict[str, Any] = {"run": {"name": "auto", "resume": "auto"}, "fail_fast": "raise"}
    space = {"x": tune.grid_search([1, 2, 3])}
    with pytest.raises(ValueError, match="stop here"):
        fit(trial, space, max_concurrent_trials=1, **options)
    (tmp_path / "fixed").touch()
    grid = fit(trial, space, **options)
    assert [r.metrics["x"] for r in grid] == [1, 2, 3]
    assert notes(tmp_path, "ran").count("1") == 1
    with pytest.raises(FileNotFoundError, match="only one that has finished"):
        fit(trial, space, run={"name": "auto", "resume": "must"})


def test_what_could_not_be_kept_has_to_be_given() -> None:
    import threading

    lock = threading.Lock()

    def stop(trial_id: str, row: dict[str, Any]) -> bool:
        return lock.locked()

    grid = fit(lambda config: {"x": 1}, run={"name": "unkept", "stop": stop})
    with pytest.raises(ValueError, match="run_config could not be stored"):
        Tuner.restore(grid.experiment_path)
    restored = Tuner.restore(grid.experiment_path, run_config=RunConfig(verbose=0)).fit()
    assert len(restored) == 1


def test_there_is_nothing_to_restore(tmp_path: Path) -> None:
    assert not Tuner.can_restore(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"experiment\.jsonl"):
        Tuner.restore(tmp_path)


def test_two_drivers_do_not_drive_one_experiment(tmp_path: Path) -> None:
    with driver(tmp_path, INTERRUPTED) as process:
        wait_for(tmp_path, 2)
        with pytest.raises(LockstepError, match="still being driven"):
            Tuner.restore(tmp_path / "stopped").fit()
        process.kill()
        process.communicate()


def test_a_finished_experiment_is_read_without_running_anything() -> None:
    grid = fit(
        lambda config: {"x": config["x"]}, {"x": tune.grid_search([1, 2])}, metric="x", mode="max"
    )
    read = Tuner.restore(grid.experiment_path).get_results()
    assert isinstance(read, ResultGrid)
    assert read.get_best_result().metrics["x"] == 2


class RestoresMeanwhile(Searcher):
    """While its experiment is being restored, another driver restores the same one."""

    def __init__(self, experiment: str) -> None:
        super().__init__()
        self.experiment = experiment
        self.refused: list[str] = []

    def set_search_properties(self, *properties: Any, **spec: Any) -> bool:
        try:
            Tuner.restore(self.experiment).fit()
        except StorageError as error:
            self.refused.append(str(error))
        return True

    def suggest(self, trial_id: str) -> Any:
        return self.FINISHED


def test_an_experiment_is_read_under_its_lock(tmp_path: Path) -> None:
    """Two drivers restore one experiment: trials that one of them finishes never run again."""

    class EndsEarly(Searcher):
        def suggest(self, trial_id: str) -> Any:
            if trial_id.endswith("1"):
                raise RuntimeError("on purpose")
            return {"notes": str(tmp_path)}

    def trial(config: dict[str, Any]) -> None:
        note(config["notes"], "runs")
        tune.report({"x": 1})

    options: dict[str, Any] = {"num_samples": 2, "max_concurrent_trials": 1}
    with pytest.raises(LockstepError, match="on purpose"):
        fit(trial, search_alg=EndsEarly(), **options, run={"storage_path": tmp_path, "name": "e"})
    searcher = RestoresMeanwhile(str(tmp_path / "e"))
    config = TuneConfig(search_alg=searcher, **options)
    grid = Tuner.restore(tmp_path / "e", trial, tune_config=config).fit()
    assert len(searcher.refused) == 1
    assert "still being driven by another process" in searcher.refused[0]
    assert len(grid) == 1


class Steps(tune.Trainable):
    def step(self) -> dict[str, Any]:
        return {"x": 1, "done": True}


def test_a_restore_with_something_else_is_refused(tmp_path: Path) -> None:
    def trial(config: dict[str, Any]) -> None:
        tune.report({"x": config["x"]})

    def other(config: dict[str, Any]) -> None:
        tune.report({"y": 1})

    run = {"storage_path": tmp_path, "name": "e"}
    space = {"x": tune.grid_search([1, 2])}
    fit(trial, space, run=run)
    where = tmp_path / "e"
    for wrong, what in ((other, "function other"), (Steps, "class Steps")):
        with pytest.raises(ValueError, match=f"is the {what}, but .* ran the function trial"):
            Tuner.restore(where, wrong)
    with pytest.raises(ValueError, match=r"'x' was grid_search\(\[1, 2\]\) and is grid_search"):
        Tuner.restore(where, param_space={"x": tune.grid_search([1, 2, 3])})
    journal = where / "experiment.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-1]))  # unfinished
    with pytest.raises(ValueError, match=r"resume='auto'\): the trainable is the function other"):
        fit(other, space, run={**run, "resume": "auto"})
    assert len(fit(trial, space, run={**run, "resume": "auto"})) == 2
    assert len(Tuner.restore(where, trial, param_space=space).fit()) == 2


EDITED = """
import sys
from lockstep import tune
from lockstep.train import RunConfig
from lockstep.tune import Tuner


def helper(x):
    return x / 0


def trial(config):
    tune.report({"x": helper(config["x"])})


class Class(tune.Trainable):
    def step(self):
        return {"done": True, "x": helper(self.config["x"])}


if __name__ == "__main__":
    which, *path = sys.argv[1:]
    trainable = {"trial": trial, "Class": Class}[which]
    if path:
        grid = Tuner.restore(path[0], resume_errored=True).fit()
    else:
        config = RunConfig(name=which, verbose=0)
        grid = Tuner(trainable, param_space={"x": 1}, run_config=config).fit()
    print("PATH", grid.experiment_path)
    import traceback
    traceback.print_exception(grid.errors[0])
"""


@pytest.mark.parametrize("trainable", ["trial", "Class"])
def test_a_script_that_was_fixed_since(trainable: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    environment = {**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_STORAGE": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), trainable, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
        )

    script.write_text(EDITED)
    first = run()
    assert f'File "{script}", line 9, in helper\n    return x / 0' in first.stderr
    path = first.stdout.split("PATH ")[1].strip()
    script.write_text("# another line\n" + EDITED.replace("x / 0", "x / 1"))
    again = run(path)
    told = " ".join(again.stderr.split())
    assert "The code has changed since this run was started (helper)." in told
    assert f"Tuner.restore({path!r}, trainable={trainable}).fit()" in told
    assert f'File "{script} (as it was then)", line 9, in helper\n    return x / 0' in again.stderr
