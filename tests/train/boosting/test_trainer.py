"""XGBoost and LightGBM on several workers, by their own collectives, with both of Ray's APIs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lockstep import data, train, tune
from lockstep.train import CheckpointConfig, DataParallelTrainer, RunConfig, ScalingConfig

LIBRARIES = ["xgboost", "lightgbm"]
TITLES = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}
PARAMS: dict[str, dict[str, Any]] = {
    "xgboost": {"objective": "reg:squarederror", "max_depth": 2, "nthread": 1, "seed": 1},
    "lightgbm": {"objective": "regression", "num_leaves": 4, "num_threads": 1, "verbose": -1},
}
METRIC = {"xgboost": "train-rmse", "lightgbm": "train-l2"}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


def trainer_class(library: str) -> Any:
    module = importlib.import_module(f"lockstep.train.{library}")
    return getattr(module, f"{TITLES[library]}Trainer")


def table(rows: int = 200) -> pd.DataFrame:
    x = np.arange(rows, dtype=np.float64)
    return pd.DataFrame({"x": x, "z": x % 7, "y": 3 * x + 1})


def simple(library: str, *, workers: int = 2, rounds: int = 6, **options: Any) -> Any:
    options.setdefault("run_config", RunConfig(verbose=0))
    frame = table()
    return trainer_class(library)(
        params=PARAMS[library],
        label_column="y",
        num_boost_round=rounds,
        datasets={"train": data.from_pandas(frame), "valid": data.from_pandas(frame[:40])},
        scaling_config=ScalingConfig(num_workers=workers),
        **options,
    )


def test_numbers_of_arrow_become_those_of_pandas() -> None:
    from lockstep.train.lightgbm import normalize_pandas_for_lightgbm

    plain = table()
    assert normalize_pandas_for_lightgbm(plain) is plain
    frame = pd.DataFrame(
        {
            "i": pd.array([1, None], dtype="int32[pyarrow]"),
            "u": pd.array([1, 2], dtype="uint8[pyarrow]"),
            "f": pd.array([1.5, None], dtype="float[pyarrow]"),
            "b": pd.array([True, None], dtype="bool[pyarrow]"),
            "s": pd.array(["a", "b"], dtype="string[pyarrow]"),
        }
    )
    kinds = normalize_pandas_for_lightgbm(frame).dtypes
    assert [str(kind) for kind in kinds[:4]] == ["Int32", "UInt8", "Float32", "boolean"]
    assert kinds["s"] == frame["s"].dtype


def test_params_and_a_label_column(library: str) -> None:
    result = simple(library).fit()
    metric = METRIC[library]
    values = result.metrics_dataframe[metric].tolist()
    assert len(values) == 6
    assert values[-1] < values[0]
    assert metric.replace("train", "valid") in result.metrics
    assert result.checkpoint is not None
    model = trainer_class(library).get_model(result.checkpoint)
    frame = table()[["x", "z"]]
    features = importlib.import_module("xgboost").DMatrix(frame) if library == "xgboost" else frame
    predicted = model.predict(features)
    assert predicted[-1] > predicted[0] + 50


def test_the_workers_train_one_model_on_all_rows(library: str) -> None:
    """Each rank has half of the rows, sorted: only together they can learn all of the range."""

    def function(config: dict[str, Any]) -> dict[str, Any]:
        library = config["library"]
        booster = importlib.import_module(library)
        module = importlib.import_module(f"lockstep.train.{library}")
        context = train.get_context()
        frame = table()
        half = len(frame) // context.get_world_size()
        own = frame[context.get_world_rank() * half :][:half]
        params = dict(config["params"])
        if library == "xgboost":
            matrix = booster.DMatrix(own[["x"]], label=own["y"])
            model = booster.train(
                params,
                matrix,
                num_boost_round=30,
                evals=[(matrix, "train")],
                callbacks=[module.RayTrainReportCallback(frequency=10)],
            )
            every = booster.DMatrix(frame[["x"]])
        else:
            params |= {"tree_learner": "data", "pre_partition": True}
            params |= module.get_network_params()
            model = booster.train(
                params,
                booster.Dataset(own[["x"]], label=own["y"]),
                num_boost_round=30,
                valid_sets=[booster.Dataset(own[["x"]], label=own["y"])],
                valid_names=["train"],
                callbacks=[module.RayTrainReportCallback(frequency=10)],
            )
            every = frame[["x"]]
        predicted = model.predict(every)
        return {"first": float(predicted[0]), "last": float(predicted[-1])}

    result = trainer_class(library)(
        function,
        train_loop_config={"library": library, "params": PARAMS[library]},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(verbose=0),
    ).fit()
    # Rank 0 has the rows with y up to 298, rank 1 the others, up to 598.
    assert result.return_value["first"] < 150
    assert result.return_value["last"] > 400
    assert len(result.best_checkpoints) == 3


def test_the_frequency_and_a_restore(library: str, tmp_path: Path) -> None:
    config = RunConfig(
        verbose=0,
        name="here",
        storage_path=tmp_path,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
        stop={"training_iteration": 4},
    )
    result = simple(library, workers=1, run_config=config).fit()
    assert [metrics["training_iteration"] for _, metrics in result.best_checkpoints] == [2, 4]
    again = simple(library, workers=1, resume_from_checkpoint=result.checkpoint).fit()
    assert len(again.metrics_dataframe) == 2  # of six rounds, four are in the checkpoint


def test_a_tuner_searches_the_params(library: str) -> None:
    depth = "max_depth" if library == "xgboost" else "num_leaves"
    grid = tune.Tuner(
        simple(library, workers=1, rounds=2),
        param_space={"params": {depth: tune.grid_search([2, 3])}},
        run_config=RunConfig(verbose=0),
    ).fit()
    assert not grid.errors
    assert [result.config["params"][depth] for result in grid] == [2, 3]
    assert all(METRIC[library] in result.metrics for result in grid)


def test_what_is_missing_is_named(library: str) -> None:
    cls = trainer_class(library)
    with pytest.raises(ValueError, match=r"params, label_column and datasets=\{'train'"):
        cls(params={}, label_column="y")
    with pytest.raises(TypeError, match=r"\(label_column=…\) goes with params"):
        cls(lambda: None, label_column="y")
    assert issubclass(cls, DataParallelTrainer)


def test_a_checkpoint_of_a_model(library: str) -> None:
    booster = importlib.import_module(library)
    module = importlib.import_module(f"lockstep.train.{library}")
    frame = table(20)
    if library == "xgboost":
        matrix = booster.DMatrix(frame[["x"]], label=frame["y"])
        model = booster.train(PARAMS[library], matrix, num_boost_round=2)
    else:
        matrix = booster.Dataset(frame[["x"]], label=frame["y"])
        model = booster.train(PARAMS[library], matrix, num_boost_round=2)
    kind = getattr(module, f"{TITLES[library]}Checkpoint")
    checkpoint = kind.from_model(model)
    loaded = checkpoint.get_model()
    assert type(loaded) is booster.Booster
    count = "num_boosted_rounds" if library == "xgboost" else "current_iteration"
    assert getattr(loaded, count)() == getattr(model, count)()


def test_outside_a_trainer_there_is_no_network() -> None:
    from lockstep.train.lightgbm import get_network_params

    assert get_network_params() == {}
