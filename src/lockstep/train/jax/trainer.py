"""JaxTrainer: a data-parallel trainer whose workers are connected by ``jax.distributed``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.config import ScalingConfig
from lockstep.train.backend import only_config
from lockstep.train.jax.config import JaxConfig, check_installed
from lockstep.train.trainer import DataParallelTrainer

__all__ = ["JaxTrainer"]


class JaxTrainer(DataParallelTrainer):
    """Runs a JAX training function on every worker, as one process of ``jax.distributed`` each.

    Args:
        train_loop_per_worker: the training function, with no argument or one, the config.
        jax_config: how the workers are connected.
        scaling_config: the number of workers and their resources; one worker by default.
        options: as in ``DataParallelTrainer``.
    """

    _backend_config_class = JaxConfig
    _takes_every_gpu = True

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        jax_config: JaxConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        **options: Any,
    ) -> None:
        check_installed("JaxTrainer")
        config = only_config(JaxConfig, jax_config=jax_config)
        super().__init__(
            train_loop_per_worker, backend_config=config, scaling_config=scaling_config, **options
        )
