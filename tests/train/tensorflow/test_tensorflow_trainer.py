"""TensorflowTrainer: the code of the user guide, and the trainer's arguments."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep.data
from lockstep import runtime, train
from lockstep.air import Checkpoint, RunConfig, ScalingConfig, session
from lockstep.train.tensorflow import TensorflowConfig, TensorflowTrainer, prepare_dataset_shard
from tests.integration.runs import run_script

# Each worker imports TensorFlow, which takes a while on a busy machine.
pytestmark = [pytest.mark.environment("tensorflow"), pytest.mark.timeout(180)]


def fit(function: Callable[..., Any], workers: int = 2, **options: Any) -> train.Result:
    return TensorflowTrainer(
        function,
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(verbose=0),
        **options,
    ).fit()


def pages_function(config: dict[str, Any]) -> None:
    """The TensorFlow function of the user guide, unchanged."""
    import tensorflow as tf

    n = 100
    X = np.random.normal(0, 1, size=(n, 4))
    Y = np.random.uniform(0, 1, size=(n, 1))

    start_epoch = 0
    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()

    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(1, activation="linear", input_shape=(4,))]
        )
        checkpoint = session.get_checkpoint()
        if checkpoint:
            checkpoint_dict = checkpoint.to_dict()
            model.set_weights(checkpoint_dict.get("model_weights"))
            start_epoch = checkpoint_dict.get("epoch", -1) + 1
        model.compile(optimizer="Adam", loss="mean_squared_error", metrics=["mse"])

    for epoch in range(start_epoch, config["num_epochs"]):
        model.fit(X, Y, batch_size=20)
        checkpoint = Checkpoint.from_dict(
            dict(epoch=epoch, model_weights=model.get_weights())  # noqa: C408
        )
        session.report({}, checkpoint=checkpoint)


def test_the_code_of_the_pages() -> None:
    first = fit(pages_function, train_loop_config={"num_epochs": 2})
    assert first.checkpoint is not None
    saved = first.checkpoint.to_dict()
    assert (saved["epoch"], saved["_current_checkpoint_id"]) == (1, 1)
    assert [weight.shape for weight in saved["model_weights"]] == [(4, 1), (1,)]

    second = fit(
        pages_function,
        train_loop_config={"num_epochs": 5},
        resume_from_checkpoint=first.checkpoint,
    )
    assert second.checkpoint is not None
    saved = second.checkpoint.to_dict()
    assert (saved["epoch"], saved["_current_checkpoint_id"]) == (4, 3)
    assert len(second.metrics_dataframe) == 3


def rows_here(strategy: Any, dataset: Any) -> int:
    """Report the number of rows that this worker gets."""
    return sum(
        len(features)
        for batch in strategy.experimental_distribute_dataset(dataset)
        for features, _ in strategy.experimental_local_results(batch)
    )


def wiring_and_strategies() -> None:
    import json
    import os
    import socket

    import tensorflow as tf

    tf_config = json.loads(os.environ["TF_CONFIG"])
    workers = tf_config["cluster"]["worker"]
    mine = int(workers[tf_config["task"]["index"]].rpartition(":")[2])
    with socket.socket() as intruder, pytest.raises(OSError, match="Address already in use"):
        intruder.bind(("", mine))
    spanning = tf.distribute.MultiWorkerMirroredStrategy()
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"])
    rows = train.get_dataset_shard("train")
    numbers = rows.to_tf("x", "y", batch_size=2)
    shard = prepare_dataset_shard(numbers)
    with pytest.raises(TypeError, match=r"expected a tf\.data\.Dataset"):
        prepare_dataset_shard([1, 2])
    train.report(
        {
            "task": tf_config["task"],
            "workers": workers,
            "replicas": [mirrored.num_replicas_in_sync, spanning.num_replicas_in_sync],
            "keras": tf.keras.Model.__module__.partition(".")[0],
            "policy": shard.options().experimental_distribute.auto_shard_policy.name,
            "rows": rows_here(spanning, shard),
            "shared_out_twice": rows_here(spanning, numbers),
            "sum": sum(row["x"] for row in rows.iter_rows()),
            "threads": os.environ["TF_NUM_INTRAOP_THREADS"] == os.environ["OMP_NUM_THREADS"],
            "gpus": os.environ["CUDA_VISIBLE_DEVICES"],
        }
    )


def test_the_workers_are_wired() -> None:
    data = lockstep.data.from_items([{"x": float(n), "y": n + 1.0} for n in range(12)])
    rows = fit(wiring_and_strategies, datasets={"train": data}).metrics_by_rank
    assert sum(row["sum"] for row in rows) == sum(range(12))
    assert [row["task"] for row in rows] == [{"type": "worker", "index": n} for n in range(2)]
    assert rows[0]["workers"] == rows[1]["workers"]
    hosts, ports = zip(*(worker.split(":") for worker in rows[0]["workers"]), strict=True)
    assert hosts == ("127.0.0.1", "127.0.0.1")
    assert len(set(ports)) == 2
    for row in rows:
        assert row["replicas"] == [1, 2]
        assert row["keras"] == "tf_keras"
        assert row["policy"] == "OFF"
        assert row["rows"] == 6
        assert row["shared_out_twice"] == 3, "why prepare_dataset_shard is needed"
        assert row["threads"]
        assert row["gpus"] == "", "TensorFlow would take those that the run was not given"


def parents_threads_and_modules() -> None:
    """Report what the fork server, this worker's parent, has imported."""
    import os

    maps = Path(f"/proc/{os.getppid()}/maps").read_text()
    tasks = Path(f"/proc/{os.getppid()}/task").iterdir()
    names = [Path(task, "comm").read_text().strip() for task in tasks]
    train.report({"tensorflow": "libtensorflow" in maps, "pandas": "pandas" in maps, "on": names})


def test_tensorflow_is_not_in_the_fork_server() -> None:
    held = fit(parents_threads_and_modules, workers=1).reported_metrics
    assert not held["tensorflow"]
    assert held["pandas"]


def test_in_this_process(tmp_path: Path) -> None:
    """Two runs, both with Keras 2, although no variable was set before."""
    done = run_script(
        tmp_path,
        """
        from lockstep import train
        from lockstep.train import RunConfig, ScalingConfig
        from lockstep.train.tensorflow import TensorflowTrainer

        def function():
            import tensorflow as tf
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            with strategy.scope():
                model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
                model.compile(optimizer="sgd", loss="mse")
            model.fit(tf.ones((4, 2)), tf.ones((4, 1)), verbose=0)
            keras = tf.keras.Model.__module__.partition(".")[0]
            train.report({"keras": keras, "replicas": strategy.num_replicas_in_sync})

        for _ in range(2):
            result = TensorflowTrainer(
                function,
                scaling_config=ScalingConfig(num_workers=0),
                run_config=RunConfig(verbose=0),
            ).fit()
            print(result.metrics["keras"], result.metrics["replicas"])
        """,
        timeout_s=150,
    )
    assert done.stdout.splitlines() == ["tf_keras 1", "tf_keras 1"]


def test_keras_3_is_a_choice(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        from lockstep import train
        from lockstep.train import RunConfig
        from lockstep.train.tensorflow import TensorflowTrainer

        def function():
            import tensorflow as tf
            train.report({"keras": tf.keras.__version__})

        print(TensorflowTrainer(function, run_config=RunConfig(verbose=0)).fit().metrics["keras"])
        """,
        environment={"TF_USE_LEGACY_KERAS": "0"},
        timeout_s=150,
    )
    assert done.stdout.startswith("3.")


def test_the_drivers_keras_in_a_function(tmp_path: Path) -> None:
    """Imports at the top of the script are Keras 3, and the workers get them."""
    done = run_script(
        tmp_path,
        """
        import lockstep
        import tensorflow as tf
        from tensorflow import keras
        from tensorflow.keras.layers import Dense
        from lockstep.train import ScalingConfig
        from lockstep.train.tensorflow import TensorflowTrainer

        def with_module():
            return keras.Sequential()

        def with_class():
            return Dense(1)

        def inside():
            from tensorflow import keras
            return tf.keras.Sequential([keras.layers.Dense(1)])

        def warnings(function, workers=2):
            scaling = ScalingConfig(num_workers=workers)
            return TensorflowTrainer(function, scaling_config=scaling).payload().warnings

        for function in (with_module, with_class):
            (text,) = warnings(function)
            assert "uses Keras 3 (keras." in text and "TF_USE_LEGACY_KERAS=1 before" in text, text
            assert not warnings(function, workers=1)
        assert not warnings(inside)
        lockstep.init(runtime_env={"env_vars": {"TF_USE_LEGACY_KERAS": "0"}})
        assert not warnings(with_class)
        print("fine")
        """,
        timeout_s=150,
    )
    assert done.stdout == "fine\n"


def test_the_config_has_two_names() -> None:
    config = TensorflowConfig()
    for given in ({"tensorflow_config": config}, {"tensorflow_backend": config}):
        assert TensorflowTrainer(pages_function, **given).backend_config is config  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="names of one argument; give one of them"):
        TensorflowTrainer(pages_function, tensorflow_config=config, tensorflow_backend=config)
    with pytest.raises(TypeError, match=r"tensorflow_backend=2: expected a TensorflowConfig\."):
        TensorflowTrainer(pages_function, tensorflow_backend=2)  # type: ignore[arg-type]


def test_without_the_keras_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tf_keras" else find_spec(name)
    )
    with pytest.raises(ImportError, match=r"needs tf-keras.*TF_USE_LEGACY_KERAS=0"):
        TensorflowTrainer(pages_function)
    monkeypatch.setattr(runtime, "_configured", None)
    lockstep.init(runtime_env={"env_vars": {"TF_USE_LEGACY_KERAS": "0"}})
    TensorflowTrainer(pages_function)
    monkeypatch.setattr(runtime, "_configured", None)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "0")
    assert "TF_USE_LEGACY_KERAS" not in TensorflowConfig().make_backend().environment()
