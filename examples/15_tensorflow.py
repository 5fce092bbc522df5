"""TensorFlow on two workers: save, resume, and load the model that the Keras callback kept.

Needs TensorFlow: pip install 'lockstep-train[tensorflow]'
"""

from typing import Any

import numpy as np

from lockstep.air import Checkpoint, ScalingConfig, session
from lockstep.train.tensorflow import TensorflowTrainer
from lockstep.train.tensorflow.keras import ReportCheckpointCallback

WORKER_BATCH_SIZE = 10


def build_model() -> Any:
    import tensorflow as tf

    # The strategy first: it must exist before any other TensorFlow object.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
    return model


def data() -> dict[str, Any]:
    inputs = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
    batch_size = WORKER_BATCH_SIZE * session.get_world_size()  # Keras is given the global one
    return {"x": inputs, "y": inputs @ [[2.0], [-1.0]], "batch_size": batch_size, "verbose": 0}


def save_and_resume(config: dict[str, Any]) -> None:
    model, first = build_model(), 0
    checkpoint = session.get_checkpoint()
    if checkpoint:
        saved = checkpoint.to_dict()
        model.set_weights(saved["model_weights"])
        first = saved["epoch"] + 1
    for epoch in range(first, config["num_epochs"]):
        history = model.fit(**data())
        saved = {"epoch": epoch, "model_weights": model.get_weights()}
        session.report({"loss": history.history["loss"][0]}, Checkpoint.from_dict(saved))


def with_the_callback() -> None:
    build_model().fit(**data(), epochs=4, callbacks=[ReportCheckpointCallback(frequency=2)])


if __name__ == "__main__":
    two = ScalingConfig(num_workers=2)
    config = {"num_epochs": 2}
    begun = TensorflowTrainer(save_and_resume, train_loop_config=config, scaling_config=two).fit()
    resumed = TensorflowTrainer(
        save_and_resume,
        train_loop_config={"num_epochs": 5},
        scaling_config=two,
        resume_from_checkpoint=begun.checkpoint,
    ).fit()
    print("epochs:", len(begun.metrics_dataframe), "and", len(resumed.metrics_dataframe), "more")
    print("learned:", np.round(resumed.checkpoint.to_dict()["model_weights"][0].ravel(), 1) + 0.0)

    kept = TensorflowTrainer(with_the_callback, scaling_config=two).fit()
    model = kept.checkpoint.get_model()
    print("loaded:", np.round(model.get_weights()[0].ravel(), 1) + 0.0, len(kept.best_checkpoints))
