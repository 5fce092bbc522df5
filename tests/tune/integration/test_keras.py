"""Keras in a trial, through the callbacks of its Tune module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.train import RunConfig

# Each trial imports TensorFlow, which takes a while on a busy machine.
pytestmark = [pytest.mark.environment("tensorflow"), pytest.mark.timeout(180)]


def trial(config: dict[str, Any]) -> None:
    import numpy as np
    import tensorflow as tf

    from lockstep.tune.integration import keras

    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    callback = getattr(keras, config["name"])(metrics={"error": "mae"})
    model.fit(np.ones((4, 2)), np.ones(4), epochs=2, verbose=0, callbacks=[callback])


def test_keras(tmp_path: Path) -> None:
    names = ["TuneReportCheckpointCallback", "TuneReportCallback"]
    saved, reported = tune.Tuner(
        trial,
        param_space={"name": tune.grid_search(names)},
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    for result in (saved, reported):
        assert result.error is None
        errors = list(result.metrics_dataframe["error"])
        assert len(errors) == 2
        assert "mae" not in result.metrics
    assert saved.checkpoint is not None
    with saved.checkpoint.as_directory() as directory:
        assert Path(directory, "model.keras").stat().st_size > 0
    assert reported.checkpoint is None
