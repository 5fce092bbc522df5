"""TensorflowTrainer: a data-parallel trainer whose workers find each other in ``TF_CONFIG``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train.backend import only_config
from lockstep.train.protocol import Faults
from lockstep.train.tensorflow.config import TensorflowConfig, check_installed, legacy_keras
from lockstep.train.trainer import DataParallelTrainer, TrainerPayload
from lockstep.train.validation import ValidationConfig

if TYPE_CHECKING:
    from lockstep.data import DataConfig, DatasetConfig
    from lockstep.data.preprocessor import Preprocessor

__all__ = ["TensorflowTrainer"]

# The modules of ``tf.keras`` if it is Keras 3; ``tf_keras.src`` is Keras 2.
_KERAS_3 = re.compile(rb"(?<!tf_)keras\.(?:src|_tf_keras)(?:\.\w+)*")


class TensorflowTrainer(DataParallelTrainer):
    """Runs a TensorFlow training function on every worker, with ``TF_CONFIG`` set.

    Inside the function ``tf.distribute.MultiWorkerMirroredStrategy()`` spans the workers, and
    ``tf.keras`` is Keras 2, which the strategy needs.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        train_loop_config: the argument of the function; ``{}`` by default.
        tensorflow_config: how TensorFlow is set up (``tensorflow_backend`` is its older name).
        scaling_config: the number of workers and their resources; one worker by default.
        run_config: the run's storage, name, failure handling and callbacks.
        datasets: by name; ``get_dataset_shard(name)`` returns a worker's shard.
        dataset_config: how datasets are sharded: a ``DataConfig``, or a ``DatasetConfig`` by name.
        metadata: returned by ``get_context().get_metadata()`` and, what JSON can hold of it, by
            ``get_metadata()`` of every checkpoint that the run uploads.
        preprocessor: fitted on the dataset ``"train"``, applied to all, kept with checkpoints.
        resume_from_checkpoint: returned by ``get_checkpoint()`` at the start.
        validation_config: how ``report(…, validation=True)`` validates a checkpoint.
        fault_plan: for tests: a ``lockstep.testing.FaultPlan`` to inject.
    """

    _backend_config_class = TensorflowConfig
    _takes_every_gpu = True

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        tensorflow_config: TensorflowConfig | None = None,
        tensorflow_backend: TensorflowConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: DataConfig | Mapping[str, DatasetConfig] | None = None,
        metadata: Mapping[str, Any] | None = None,
        preprocessor: Preprocessor | None = None,
        resume_from_checkpoint: Checkpoint | None = None,
        validation_config: ValidationConfig | None = None,
        fault_plan: Faults | None = None,
    ) -> None:
        config = only_config(
            TensorflowConfig,
            tensorflow_config=tensorflow_config,
            tensorflow_backend=tensorflow_backend,
        )
        check_installed("TensorflowTrainer")
        super().__init__(
            train_loop_per_worker,
            train_loop_config=train_loop_config,
            backend_config=config,
            scaling_config=scaling_config,
            run_config=run_config,
            datasets=datasets,
            dataset_config=dataset_config,
            metadata=metadata,
            preprocessor=preprocessor,
            resume_from_checkpoint=resume_from_checkpoint,
            validation_config=validation_config,
            fault_plan=fault_plan,
        )

    def payload(self, *, starts_now: bool = False) -> TrainerPayload:
        """Internal: also warn about a training function that refers to the driver's Keras 3."""
        payload = super().payload(starts_now=starts_now)
        if not legacy_keras() or payload.scaling.largest < 2:
            return payload
        found = _KERAS_3.search(payload.setup["function"])
        if found is None:
            return payload
        text = (
            f"the training function uses Keras 3 ({found[0].decode()}), this process's tf.keras, "
            "but MultiWorkerMirroredStrategy does not work with Keras 3: import Keras inside the "
            "function, or set TF_USE_LEGACY_KERAS=1 before this process imports TensorFlow (with 0 "
            "workers use Keras 3, too)."
        )
        return replace(payload, warnings=[*payload.warnings, text])
