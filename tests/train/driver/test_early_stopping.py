"""EarlyStopping: when a run ends, and that it counts across failures and restores."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.train import Checkpoint, DataParallelTrainer, EarlyStopping, RunConfig
from lockstep.tune import Tuner
from tests.integration.runs import failure, fit, trainer

LOSSES = [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 3.0, 2.9]


def end_of(condition: EarlyStopping, values: list[Any], key: str = "loss") -> int | None:
    for place, value in enumerate(values, 1):
        row = {"training_iteration": place, **({} if value is None else {key: value})}
        if condition("a", row):
            return place
    return None


@pytest.mark.parametrize(
    ("options", "values", "end"),
    [
        ({}, LOSSES, 6),
        ({"patience": 1}, LOSSES, 4),
        ({"patience": 4}, LOSSES, 7),
        ({"patience": 5}, LOSSES, None),
        ({"mode": "max"}, LOSSES, 4),
        ({"mode": "max", "patience": 2}, [1, 2, 3, 3, 3], 5),
        ({"min_delta": 0.5, "patience": 2}, [5.0, 4.8, 4.6, 4.4], 3),
        ({"patience": 2}, [3, math.nan, math.nan], 3),
        ({"patience": 2}, [math.nan, math.nan], 2),
        ({"patience": 2}, [3, None, None, 4, None, 5], 6),
        ({"patience": 2}, [3, "text", True, 4, 5], 5),
    ],
)
def test_when_it_ends(options: dict[str, Any], values: list[Any], end: int | None) -> None:
    assert end_of(EarlyStopping("loss", **options), values) == end


def test_runs_are_counted_apart_and_a_pickle_has_none_of_them() -> None:
    condition = EarlyStopping("loss", patience=2)
    for place in (1, 2):
        assert not condition("a", {"loss": 1, "training_iteration": place})
        assert not condition("b", {"loss": 1, "training_iteration": place})
    fresh = pickle.loads(pickle.dumps(condition))
    assert repr(fresh) == "EarlyStopping('loss', patience=2, mode='min', min_delta=0.0)"
    assert not fresh("a", {"loss": 1, "training_iteration": 3})
    assert condition("a", {"loss": 1, "training_iteration": 3})


def test_repeated_reports_replace_those_of_before() -> None:
    condition = EarlyStopping("loss", patience=3)
    for place, loss in enumerate([3.0, 2.0, 2.5, 1.0, 1.5, 1.5], 1):
        assert not condition("a", {"loss": loss, "training_iteration": place})
    # The run goes back to its checkpoint after the third report: two of three are waited.
    assert not condition("a", {"loss": 2.5, "training_iteration": 4})
    assert condition("a", {"loss": 2.5, "training_iteration": 5})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": ""}, "metric=''"),
        ({"metric": "a", "patience": 0}, "patience=0"),
        ({"metric": "a", "mode": "down"}, "mode='down'"),
        ({"metric": "a", "min_delta": -1}, "min_delta=-1"),
    ],
)
def test_bad_arguments(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EarlyStopping(**options)


def losing(config: dict[str, Any]) -> None:
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 0, len(LOSSES)):
        if step == config.get("fail_at") and not os.path.exists(config["gate"]):
            raise RuntimeError("once")
        train.report({"loss": LOSSES[step]}, checkpoint=Checkpoint.from_dict({"step": step}))


def test_every_rank_stops_there() -> None:
    result = fit(losing, stop=EarlyStopping("loss", patience=2))
    assert result.metrics["training_iteration"] == 5
    assert result.state == "finished"


def test_a_restored_run_counts_what_it_has_reported_before(tmp_path: Path) -> None:
    config = {"fail_at": 4, "gate": str(tmp_path / "gate")}
    error = failure(losing, config=config, stop=EarlyStopping("loss", patience=3))
    (tmp_path / "gate").touch()
    assert error.result is not None
    restored = DataParallelTrainer.restore(error.result.path).fit()
    assert restored.metrics["training_iteration"] == 6


def test_a_metric_that_the_first_report_lacks_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    fit(losing, workers=1, stop=EarlyStopping("los"))
    told = capfd.readouterr().err
    assert told.count("RunConfig(stop=…) names 'los', which the first report does not have") == 1


def test_trials_stop_one_by_one_and_a_key_that_no_report_has_gives_a_warning(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def trial(config: dict[str, int]) -> None:
        for step in range(6):
            train.report({"loss": abs(config["best"] - step)})

    space = {"best": {"grid_search": [0, 2]}}
    stop = EarlyStopping("loss", patience=2)
    grid = Tuner(trial, param_space=space, run_config=RunConfig(verbose=0, stop=stop)).fit()
    assert sorted(result.metrics["training_iteration"] for result in grid) == [3, 5]
    assert "RunConfig(stop=" not in capfd.readouterr().err
    grid = Tuner(trial, param_space=space, run_config=RunConfig(verbose=0, stop={"los": 1})).fit()
    assert [result.metrics["training_iteration"] for result in grid] == [6, 6]
    told = capfd.readouterr().err
    assert told.count("RunConfig(stop=…) names 'los', which the first report does not have") == 1


def test_one_condition_serves_several_runs() -> None:
    stop = EarlyStopping("loss", patience=2)
    runs = [trainer(losing, workers=1, stop=stop).fit() for _ in range(2)]
    assert [run.metrics["training_iteration"] for run in runs] == [5, 5]
