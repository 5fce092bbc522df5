"""tune.run, for older scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.errors import TrainingFailedError
from lockstep.train import Checkpoint


def trial(config: dict[str, Any]) -> None:
    for i in range(3):
        loss = abs(config["x"] - i)
        tune.report({"loss": loss}, checkpoint=Checkpoint.from_dict({"loss": loss}))


def test_the_analysis(tmp_path: Path) -> None:
    analysis = tune.run(
        trial,
        config={"x": tune.grid_search([0, 2, 5])},
        metric="loss",
        mode="min",
        name="old",
        local_dir=tmp_path,
        keep_checkpoints_num=1,
        checkpoint_score_attr="min-loss",
        resources_per_trial={"cpu": 1},
        verbose=0,
    )
    assert analysis.best_config == {"x": 2} == analysis.get_best_config("loss", "min")
    assert analysis.best_result["loss"] == 0
    assert analysis.best_trial.config == {"x": 2}
    assert analysis.best_checkpoint is not None
    assert analysis.best_checkpoint.to_dict()["loss"] == 0
    assert analysis.get_best_config(scope="all") == {"x": 0}
    assert Path(analysis.best_logdir).parent == tmp_path / "old"
    assert len(analysis.best_dataframe) == 3
    assert len(analysis.dataframe("loss", "min")) == 3 == len(analysis.results_df)
    assert len(analysis.trials) == len(analysis.results) == len(analysis.trial_dataframes) == 3
    assert {"x": 5} in analysis.get_all_configs().values()
    assert analysis.get_last_checkpoint() is not None
    assert "3 trials" in repr(analysis)


def test_failed_trials_raise_or_not() -> None:
    def fail(config: dict[str, Any]) -> None:
        if config["x"]:
            raise ValueError("bad x")
        tune.report({"loss": 1})

    config = {"x": tune.grid_search([0, 1])}
    with pytest.raises(TrainingFailedError, match="1 of 2 trials failed") as raised:
        tune.run(fail, config=config, verbose=0)
    assert isinstance(raised.value.worker_failures[1], ValueError)
    analysis = tune.run(fail, config=config, verbose=0, raise_on_failed_trial=False)
    assert analysis.get_best_config("loss", "min") == {"x": 0}


def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="older name of storage_path"):
        tune.run(trial, local_dir="a", storage_path="b")
    with pytest.raises(ValueError, match="resume='maybe'"):
        tune.run(trial, resume="maybe")


@pytest.mark.parametrize(
    ("resume", "starts"),
    [("ERRORED_ONLY", [1]), ("AUTO+RESTART_ERRORED", [0]), ("AUTO+ERRORED", [1])],
)
def test_resuming_failed_trials_by_a_string(resume: str, starts: list[int], tmp_path: Path) -> None:
    mended = tmp_path / "mended"

    def fail(config: dict[str, Any]) -> None:
        checkpoint = tune.get_checkpoint()
        start = 0 if checkpoint is None else checkpoint.to_dict()["step"]
        if config["x"] and not mended.exists():
            tune.report({"start": start}, checkpoint=Checkpoint.from_dict({"step": 1}))
            raise ValueError("bad x")
        tune.report({"start": start})

    options: dict[str, Any] = {"storage_path": tmp_path, "name": "e", "verbose": 0}
    space = {"x": tune.grid_search([0, 1])}
    first = tune.run(fail, config=space, raise_on_failed_trial=False, **options)
    assert [one.status for one in first.trials] == ["TERMINATED", "ERROR"]
    mended.touch()
    again = tune.run(fail, config=space, resume=resume, **options)
    assert [one.status for one in again.trials] == ["TERMINATED", "TERMINATED"]
    assert [again.trials[1].last_result["start"]] == starts
    assert again.trials[0].path == first.trials[0].path


def test_trials_start_from_the_checkpoint_that_is_given(tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    Checkpoint.from_dict({"loss": 7}).to_directory(saved)

    def resume(config: dict[str, Any]) -> dict[str, Any]:
        checkpoint = tune.get_checkpoint()
        return {"loss": checkpoint.to_dict()["loss"] if checkpoint else None}

    class Resume(tune.Trainable):
        loss = 0

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.loss = checkpoint["loss"]

        def step(self) -> dict[str, Any]:
            return {"loss": self.loss, "done": True}

    for trainable in (resume, tune.with_parameters(resume), Resume):
        analysis = tune.run(trainable, restore=saved, verbose=0)
        assert [one.last_result["loss"] for one in analysis.trials] == [7]
    with pytest.raises(FileNotFoundError):
        tune.run(resume, restore=tmp_path / "nothing")


def test_a_failed_trial_has_a_file_with_its_tracebacks() -> None:
    def fail(config: dict[str, Any]) -> None:
        if config["x"]:
            raise ValueError("bad x") from KeyError("the cause")

    analysis = tune.run(
        fail,
        config={"x": tune.grid_search([0, 1])},
        verbose=0,
        max_failures=1,
        raise_on_failed_trial=False,
    )
    good, bad = analysis.trials
    assert good.error_file is None
    assert bad.error_file is not None
    text = Path(bad.error_file).read_text()
    assert text.count("ValueError: bad x") >= 2  # both attempts
    assert "KeyError: 'the cause'" in text
    assert "Attempt 2" in text
