"""HorovodTrainer: a data-parallel trainer whose workers may call ``hvd.init()``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig
from lockstep.train.backend import only_config
from lockstep.train.horovod.config import HorovodConfig, check_installed
from lockstep.train.protocol import Faults
from lockstep.train.trainer import DataParallelTrainer
from lockstep.train.validation import ValidationConfig

if TYPE_CHECKING:
    from lockstep.data import DataConfig, DatasetConfig
    from lockstep.data.preprocessor import Preprocessor

__all__ = ["HorovodTrainer"]


class HorovodTrainer(DataParallelTrainer):
    """Runs an unchanged Horovod training function on every worker.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config. It calls
            ``hvd.init()`` itself.
        train_loop_config: the argument of the function; ``{}`` by default.
        horovod_config: how Horovod is set up (``horovod_backend`` and ``tensorflow_backend`` are
            its older names).
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

    _backend_config_class = HorovodConfig
    _takes_every_gpu = True

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: Mapping[str, Any] | None = None,
        horovod_config: HorovodConfig | None = None,
        horovod_backend: HorovodConfig | None = None,
        tensorflow_backend: HorovodConfig | None = None,
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
            HorovodConfig,
            horovod_config=horovod_config,
            horovod_backend=horovod_backend,
            tensorflow_backend=tensorflow_backend,
        )
        check_installed("HorovodTrainer")
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
