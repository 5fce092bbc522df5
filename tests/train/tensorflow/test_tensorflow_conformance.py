"""TensorFlow passes the suite that every trainer passes."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.testing import TrainerConformance
from lockstep.train.tensorflow import TensorflowTrainer

# Each worker imports TensorFlow, which takes a while on a busy machine.
pytestmark = [pytest.mark.environment("tensorflow"), pytest.mark.timeout(180)]


class TestTensorflowTrainer(TrainerConformance):
    trainer_class = TensorflowTrainer

    @staticmethod
    def total(value: float) -> float:
        import tensorflow as tf

        if not tf.distribute.has_strategy():
            # Once a process: it opens its server on the worker's port.
            tf.distribute.experimental_set_strategy(tf.distribute.MultiWorkerMirroredStrategy())
        strategy = tf.distribute.get_strategy()

        def add() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.constant(value))

        totals = tf.function(lambda: strategy.run(add))()
        return float(strategy.experimental_local_results(totals)[0].numpy())
