"""Trainable classes: by hand, and as trials in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.config import CheckpointConfig, FailureConfig, RunConfig
from lockstep.train import DataParallelTrainer
from lockstep.tune.schedulers import (
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from tests.tune.trainables import Counter, Filed, Whereabouts, note, notes


def fit(
    trainable: Any,
    config: dict[str, Any],
    tmp_path: Path,
    *,
    scheduler: TrialScheduler | None = None,
    num_samples: int = 1,
    max_concurrent_trials: int | None = None,
    **run: Any,
) -> tune.ResultGrid:
    run.setdefault("checkpoint_config", CheckpointConfig())
    return tune.Tuner(
        trainable,
        param_space=config,
        tune_config=tune.TuneConfig(
            metric="total",
            mode="max",
            scheduler=scheduler,
            num_samples=num_samples,
            max_concurrent_trials=max_concurrent_trials,
        ),
        run_config=RunConfig(storage_path=tmp_path, verbose=0, **run),
    ).fit()


@pytest.mark.parametrize("cls", [Counter, Filed])
def test_by_hand(cls: type[Counter], tmp_path: Path) -> None:
    one = cls({"by": 2})
    assert one.train()["total"] == 2
    result = one.train()
    assert result["training_iteration"] == one.iteration == 2
    assert result["done"] is False
    assert result["time_total_s"] >= result["time_this_iter_s"] >= 0
    one.save(str(tmp_path / "saved"))
    other = cls({"by": 5})
    other.restore(str(tmp_path / "saved"))
    assert other.iteration == other.training_iteration == 2
    assert other.train()["total"] == 9
    assert (other.trial_id, other.logdir, other.trial_resources) == ("default", "", {})
    assert other.get_config() == {"by": 5}
    assert not other.reset({"by": 1})
    other.stop()


def test_resetting_where_the_class_can() -> None:
    class Resettable(Counter):
        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.by, self.total = new_config["by"], 0.0
            return True

    one = Resettable({"by": 2})
    one.train()
    assert one.reset({"by": 7})
    assert one.train()["total"] == 7
    assert one.iteration == 1
    assert one.config == {"by": 7}


def test_exporting_and_deleting(tmp_path: Path) -> None:
    class Exports(Counter):
        def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
            return {name: f"{export_dir}/model.{name}" for name in export_formats}

    one = Exports({})
    assert one.export_model("onnx", "d") == {"onnx": "d/model.onnx"}
    one.save(str(tmp_path / "saved"))
    one.delete_checkpoint(str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()
    with pytest.raises(NotImplementedError, match="Counter has to implement _export_model"):
        Counter({}).export_model(["onnx"])


@pytest.mark.parametrize("method", ["step", "save_checkpoint", "load_checkpoint"])
def test_what_a_class_has_to_implement(method: str) -> None:
    one = tune.Trainable({})
    with pytest.raises(NotImplementedError, match=f"Trainable has to implement {method}"):
        getattr(one, method)(*(() if method == "step" else ("x",)))


def test_a_step_that_returns_no_dict() -> None:
    class Wrong(tune.Trainable):
        def step(self) -> Any:
            return 3

    with pytest.raises(TypeError, match=r"Wrong.step\(\) returned 3"):
        Wrong().train()


def test_a_checkpoint_outside_its_directory(tmp_path: Path) -> None:
    class Wrong(tune.Trainable):
        def save_checkpoint(self, checkpoint_dir: str) -> str:
            return "/somewhere/else"

    with pytest.raises(ValueError, match="'/somewhere/else', which is outside"):
        Wrong().save(str(tmp_path))


def test_a_trial_runs_until_it_is_done(tmp_path: Path) -> None:
    log = tmp_path / "notes"
    (result,) = fit(Counter, {"by": 3, "notes": str(log)}, tmp_path)
    assert result.metrics["total"] == 18
    assert result.metrics["training_iteration"] == 6
    assert result.metrics["done"] is True
    assert result.checkpoint is None
    assert notes({"notes": log}) == ["setup 3", "cleanup"]


def test_a_trial_knows_where_it_is(tmp_path: Path) -> None:
    (result,) = fit(Whereabouts, {}, tmp_path)
    assert result.metrics["id"] == result.metrics["trial_id"]
    assert result.metrics["directory"] == result.path
    assert result.metrics["name"].startswith("Whereabouts_")


@pytest.mark.parametrize("cls", [Counter, Filed])
def test_a_trial_saves_as_often_as_configured(cls: type[Counter], tmp_path: Path) -> None:
    (result,) = fit(
        cls,
        {"by": 1, "until": 5},
        tmp_path,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
    )
    saved = [metrics["total"] for _, metrics in result.best_checkpoints]
    assert saved == [2, 4, 5]
    assert result.checkpoint is not None
    other = cls()
    other.restore(result.checkpoint)
    assert (other.total, other.iteration) == (5, 5)


@pytest.mark.parametrize("saved", ["weights", "plain"])
def test_a_trial_loads_exactly_what_it_saved(saved: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(Counter):
        def setup(self, config: dict[str, Any], offset: int = 0) -> None:
            super().setup(config, offset)
            self.net = torch.nn.Linear(2, 1)

        def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
            weights: dict[str, Any] = self.net.state_dict()
            return weights if saved == "weights" else {"_timestamp": 5, "at": self.iteration}

        def load_checkpoint(self, checkpoint: Any) -> None:
            if saved == "weights":
                self.net.load_state_dict(checkpoint)
            else:
                assert checkpoint == {"_timestamp": 5, "at": self.iteration}
            note(self.config, f"loaded at {self.iteration}")

    log = tmp_path / "notes"
    (result,) = fit(
        Net,
        {"fail_at": 3, "notes": str(log)},
        tmp_path,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        failure_config=FailureConfig(max_failures=1),
    )
    assert result.error is None
    assert "loaded at 2" in notes({"notes": log})
    assert result.checkpoint is not None
    if saved == "weights":
        Net().net.load_state_dict(result.checkpoint.to_dict())


def test_a_trial_that_is_stopped_saves_at_its_end(tmp_path: Path) -> None:
    log = tmp_path / "notes"
    (result,) = fit(
        Counter,
        {"until": 99, "notes": str(log)},
        tmp_path,
        stop={"training_iteration": 3},
        checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
    )
    assert result.metrics["total"] == 3
    assert notes({"notes": log}) == ["setup 1", "save 3", "cleanup"]
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["total"] == 3


def test_a_trial_that_fails_resumes_from_its_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "notes"
    (result,) = fit(
        Counter,
        {"notes": str(log), "fail_at": 4},
        tmp_path,
        failure_config=FailureConfig(max_failures=1),
        checkpoint_config=CheckpointConfig(checkpoint_frequency=3),
    )
    assert result.error is None
    assert result.metrics["total"] == 6
    assert result.metrics["training_iteration"] == 6
    seen = notes({"notes": log})
    assert seen[:4] == ["setup 1", "save 3", "failing", "cleanup"]
    assert seen[4:6] == ["setup 1", "load 3.0"]


def test_a_step_may_ask_for_a_checkpoint(tmp_path: Path) -> None:
    class GuardedCalls(Counter):
        def step(self) -> dict[str, Any]:
            return {**super().step(), "should_checkpoint": self.iteration == 1}

    (result,) = fit(GuardedCalls, {"until": 4}, tmp_path)
    assert [metrics["total"] for _, metrics in result.best_checkpoints] == [2]
    assert "should_checkpoint" not in result.metrics


def test_paused_trials_go_on_where_they_were(tmp_path: Path) -> None:
    grid = fit(
        Counter,
        {"by": tune.grid_search([1, 2, 3, 4])},
        tmp_path,
        scheduler=HyperBandScheduler(max_t=4, reduction_factor=2),
    )
    assert grid.num_errors == 0
    totals = sorted(result.metrics["total"] for result in grid)
    assert totals == [1, 2, 6, 16]
    assert all(
        r.metrics["total"] == r.config["by"] * r.metrics["seen"] + r.config["by"] for r in grid
    )


class PausesEachReport(FIFOScheduler):
    """A user's own scheduler: it says nothing about itself."""

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Any) -> Any:
        return self.PAUSE


def test_a_class_saves_whoever_pauses_it(tmp_path: Path) -> None:
    log = tmp_path / "notes"
    (result,) = fit(
        Counter, {"until": 4, "notes": str(log)}, tmp_path, scheduler=PausesEachReport()
    )
    assert result.metrics["total"] == 4
    seen = notes({"notes": log})
    # A trial that is done is over, so the last step is not saved.
    assert [line for line in seen if "save" in line] == ["save 1", "save 2", "save 3"]
    assert [line for line in seen if "load" in line] == ["load 1.0", "load 2.0", "load 3.0"]


def test_a_class_that_cannot_be_saved_fails_when_it_is_paused(tmp_path: Path) -> None:
    class Unsaved(tune.Trainable):
        def step(self) -> dict[str, Any]:
            return {"total": 1}

    grid = fit(Unsaved, {}, tmp_path, scheduler=PausesEachReport())
    assert "Unsaved has to implement save_checkpoint()" in str(grid.errors[0])


def test_a_population_takes_over_what_others_have_reached(tmp_path: Path) -> None:
    grid = fit(
        Counter,
        {"by": tune.grid_search([1, 2, 30, 40]), "until": 6},
        tmp_path,
        scheduler=PopulationBasedTraining(
            time_attr="training_iteration",
            perturbation_interval=2,
            hyperparam_mutations={"by": [1, 2, 30, 40]},
            quantile_fraction=0.5,
            resample_probability=0,
            seed=1,
        ),
        max_concurrent_trials=2,  # so that they take turns, and none is done before others begin
        name="population",
    )
    assert grid.num_errors == 0
    assert grid.num_terminated == 4
    log = (tmp_path / "population" / "pbt_global.txt").read_text()
    assert log
    # By themselves the first two would have come to 6 and 12.
    assert all(result.metrics["total"] > 12 for result in grid)
    assert all(result.metrics["training_iteration"] >= 6 for result in grid)


def test_parameters_reach_setup(tmp_path: Path) -> None:
    (result,) = fit(tune.with_parameters(Counter, offset=100), {"until": 1}, tmp_path)
    assert result.metrics["total"] == 101


def test_functions_decide_by_themselves_when_to_save(tmp_path: Path) -> None:
    config = RunConfig(checkpoint_config=CheckpointConfig(checkpoint_frequency=2))
    with pytest.raises(ValueError, match=r"checkpoint_frequency=2.*tune\.Trainable"):
        DataParallelTrainer(lambda: None, run_config=config)
    with pytest.raises(ValueError, match=r"tune\.Trainable"):
        fit(
            lambda config: None,
            {},
            tmp_path,
            checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
        )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"checkpoint_frequency": -1}, ValueError),
        ({"checkpoint_frequency": 1.5}, TypeError),
        ({"checkpoint_at_end": "yes"}, TypeError),
    ],
)
def test_how_often_is_checked_when_given(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        CheckpointConfig(**options)
