"""The Keras callback and checkpoints of Keras models."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from lockstep import train
from lockstep.errors import CheckpointError
from lockstep.train import Checkpoint, Result, RunConfig, ScalingConfig
from lockstep.train.tensorflow import TensorflowCheckpoint, TensorflowTrainer
from lockstep.train.tensorflow.keras import Callback, ReportCheckpointCallback
from tests.integration.runs import run_script

# Each worker imports TensorFlow, which takes a while on a busy machine.
pytestmark = [pytest.mark.environment("tensorflow"), pytest.mark.timeout(180)]


def fit(
    function: Any,
    workers: int = 1,
    config: dict[str, Any] | None = None,
    stop: dict[str, Any] | None = None,
) -> Result:
    return TensorflowTrainer(
        function,
        train_loop_config=config,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0, stop=stop),
    ).fit()


def model_for(strategy: Any) -> Any:
    """A model with variables of its own on every replica: saving combines them across workers."""
    import tensorflow as tf

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Dense(3, input_shape=(2,)),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dense(1),
            ]
        )
        model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    return model


def train_with_callback(config: dict[str, Any]) -> None:
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf.keras.utils.set_random_seed(0)
    model = model_for(strategy)
    inputs = tf.reshape(tf.range(32, dtype=tf.float32), (16, 2)) / 32
    callback = ReportCheckpointCallback(**config["callback"])
    assert isinstance(callback, tf.keras.callbacks.Callback)
    assert isinstance(callback, ReportCheckpointCallback)
    model.fit(
        inputs,
        tf.reduce_sum(inputs, axis=1),
        batch_size=8,
        epochs=config["epochs"],
        validation_data=(inputs, tf.reduce_sum(inputs, axis=1)),
        verbose=0,
        callbacks=[callback],
    )


def test_metrics_and_a_model_at_each_epoch_until_it_is_stopped(tmp_path: Path) -> None:
    config = {"callback": {}, "epochs": 1000}
    result = fit(train_with_callback, workers=2, config=config, stop={"training_iteration": 3})
    assert result.state == "finished"
    frame = result.metrics_dataframe
    assert len(frame) == 3
    assert {"loss", "mae", "val_loss", "val_mae"} <= set(frame)
    assert result.checkpoint is not None
    assert set(result.checkpoint.files()) == {"model.keras"}
    assert not [name for name in os.listdir(result.path) if name.startswith(".snapshot")]
    # This process has not chosen Keras 2, but loads the model.
    done = run_script(
        tmp_path,
        f"""
        import tensorflow as tf
        from lockstep.train import Result
        model = Result.from_path({result.path!r}).checkpoint.get_model()
        inputs = tf.reshape(tf.range(32, dtype=tf.float32), (16, 2)) / 32
        loss, mae = model.evaluate(inputs, tf.reduce_sum(inputs, axis=1), verbose=0)
        print(loss, tf.keras.__version__)
        """,
        timeout_s=150,
    )
    loss, driver_keras = done.stdout.split()
    # Only approximately: each replica validates with its own averages; their mean is saved.
    assert float(loss) == pytest.approx(result.metrics["val_loss"], rel=0.02)
    assert driver_keras.startswith("3.")


def test_batches_frequencies_and_chosen_metrics() -> None:
    callback = {
        "checkpoint_on": ["train_batch_end", "train_end"],
        "report_metrics_on": "train_batch_end",
        "metrics": {"error": "mae"},
        "frequency": [3, 1],
    }
    result = fit(train_with_callback, config={"callback": callback, "epochs": 2})
    rows = result.metrics_dataframe
    # Two batches an epoch, and the end of training; saved at the third batch and at the end.
    assert len(rows) == 5
    assert rows["error"].notna().all()
    assert "loss" not in rows
    assert len(result.best_checkpoints) == 2


def train_with_the_older_callback() -> None:
    import numpy as np
    import tensorflow as tf

    model = model_for(tf.distribute.get_strategy())
    data = (np.ones((8, 2), "float32"), np.ones((8, 1), "float32"))
    callback = Callback({"error": "mae"}, frequency=2)
    assert isinstance(callback, tf.keras.callbacks.Callback)
    model.fit(*data, epochs=5, verbose=0, callbacks=[callback])
    never = Callback("loss", ["epoch_end", "train_end"], [0, 1])
    model.fit(*data, epochs=2, verbose=0, callbacks=[never])


def test_the_callback_of_earlier_releases() -> None:
    result = fit(train_with_the_older_callback)
    frame = result.metrics_dataframe
    assert frame["error"].notna().tolist() == [True] * 5 + [False] * 3
    assert frame["loss"].notna().tolist() == [False] * 5 + [True] * 3
    # At every second of the first five events, and at the end of the second training.
    saved = frame["checkpoint_dir_name"].notna().tolist()
    assert saved == [False, True, False, True, False, False, False, True]


class Loud(ReportCheckpointCallback):
    """A subclass with arguments and a hook of its own."""

    def __init__(self, word: str) -> None:
        super().__init__(checkpoint_on=[], metrics="loss")
        self.word = word
        self.calls: list[str] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"{self.word} {epoch}")
        super().on_epoch_end(epoch, logs)  # type: ignore[misc]


def callbacks_and_checkpoints() -> None:
    """The checks that need TensorFlow but no second worker, in one process."""
    import keras
    import numpy as np
    import tensorflow as tf

    model = model_for(tf.distribute.get_strategy())
    inputs = np.ones((8, 2), "float32")
    answers = np.ones((8, 1), "float32")

    loud = Loud("epoch")
    # Unused hooks stay Keras's own, so that Keras does not prepare logs for them.
    assert not loud._implements_train_batch_hooks()  # type: ignore[attr-defined]
    model.fit(inputs, answers, epochs=2, verbose=0, callbacks=[loud])
    assert loud.calls == ["epoch 0", "epoch 1"]
    again = cloudpickle.loads(cloudpickle.dumps(loud))
    assert isinstance(again, Loud)
    assert isinstance(again, tf.keras.callbacks.Callback)
    assert (again.word, again.calls) == (loud.word, loud.calls)

    unknown = ReportCheckpointCallback(metrics=["nothing"])
    with pytest.raises(
        ValueError, match="Keras logged no 'nothing' here, only \\['loss', 'mae'\\]"
    ):
        model.fit(inputs, answers, verbose=0, callbacks=[unknown])

    each_batch = ReportCheckpointCallback(checkpoint_on=[], report_metrics_on="train_batch_end")
    keras_3 = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    keras_3.compile("sgd", "mse")
    keras_3.fit(inputs, answers, batch_size=4, verbose=0, callbacks=[each_batch])

    expected = model.predict(inputs, verbose=0)

    def same(loaded: Any) -> bool:
        return bool(np.allclose(loaded.predict(inputs, verbose=0), expected))

    in_memory = TensorflowCheckpoint.from_model(model)
    assert set(in_memory.files()) == {"model.keras", ".metadata.json"}
    assert same(in_memory.get_model())
    weights = TensorflowCheckpoint.from_checkpoint(
        Checkpoint.from_dict({"model_weights": model.get_weights()})
    )
    fresh = model_for(tf.distribute.get_strategy())
    assert weights.get_model(fresh) is fresh
    assert same(fresh)
    assert same(weights.get_model(lambda: model_for(tf.distribute.get_strategy())))
    with pytest.raises(ValueError, match=r"give the model to load them into: get_model\(model\)"):
        weights.get_model()
    with tempfile.TemporaryDirectory() as directory:
        model.save(f"{directory}/model.h5")
        model.save(f"{directory}/saved", save_format="tf")
        assert same(TensorflowCheckpoint.from_h5(f"{directory}/model.h5").get_model())
        assert same(TensorflowCheckpoint.from_saved_model(f"{directory}/saved").get_model())
    train.report({"files": sorted(in_memory.files())}, checkpoint=in_memory)


@pytest.mark.filterwarnings("ignore")
def test_subclasses_and_kinds_of_checkpoints() -> None:
    result = fit(callbacks_and_checkpoints)
    # Two epochs, two batches of a Keras 3 model, and the report at the end.
    assert result.metrics_dataframe["loss"].notna().tolist() == [True] * 4 + [False]
    assert result.checkpoint is not None
    assert set(result.checkpoint.files()) == {"model.keras", ".metadata.json"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"checkpoint_on": "epoch"}, "Keras has no event 'epoch'"),
        ({"report_metrics_on": ["epoch_end", "x"]}, "Keras has no event 'x'"),
        ({"frequency": 0}, "expected an integer above 0"),
        ({"frequency": True}, "expected an integer above 0"),
        ({"frequency": [1, 2]}, r"one for each of the 1 event\(s\)"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReportCheckpointCallback(**arguments)


def test_wrong_arguments_of_the_older_callback() -> None:
    with pytest.raises(ValueError, match="expected an integer above -1"):
        Callback(frequency=-1)
    with pytest.raises(ValueError, match=r"one for each of the 2 event\(s\)"):
        Callback(on=["epoch_end", "train_end"], frequency=[1])
    with pytest.raises(ValueError, match="Keras has no event 'x'"):
        Callback(on="x")


def test_things_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="expected a Keras model"):
        TensorflowCheckpoint.from_model({"a": 1})
    with pytest.raises(ValueError, match=r"expected the path of an \.h5 file"):
        TensorflowCheckpoint.from_h5(tmp_path / "none.h5")
    with pytest.raises(ValueError, match=r"expected a directory with saved_model\.pb"):
        TensorflowCheckpoint.from_saved_model(tmp_path)
    with pytest.raises(CheckpointError, match="has no Keras model"):
        TensorflowCheckpoint.from_checkpoint(Checkpoint(tmp_path)).get_model()
    with pytest.raises(CheckpointError, match="is a dict without 'model_weights'"):
        TensorflowCheckpoint.from_checkpoint(Checkpoint.from_dict({"a": 1})).get_model()
