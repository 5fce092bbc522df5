"""Settings of Ray's scheduler that scripts pass: accepted and ignored here."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = [
    "DataContext",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "RandomSeedConfig",
    "check_hints",
    "plain_seed",
]

_HINTS = {
    "accelerator_type", "compute", "concurrency", "fallback_strategy", "label_selector",
    "max_calls", "max_restarts", "max_retries", "max_task_retries", "memory", "num_cpus",
    "num_gpus", "override_num_blocks", "parallelism", "ray_remote_args", "ray_remote_args_fn",
    "resources", "retry_exceptions", "runtime_env",
    "scheduling_strategy",
}  # fmt: skip
"""Arguments for where and how often Ray runs a task: no result depends on them."""


def check_hints(doing: str, given: Mapping[str, Any]) -> None:
    """Check that all extra arguments are hints to Ray's scheduler, which can be ignored.

    Raises:
        TypeError: an argument is not such a hint.
    """
    for name in sorted(given):
        if name not in _HINTS:
            raise TypeError(f"{doing}() has no argument {name!r}; leave it out.")


@dataclass(frozen=True)
class FileShuffleConfig:
    """``read_*(shuffle=…)`` with a seed; each epoch has a different order that follows from it."""

    seed: int | None = None
    reseed_after_execution: bool = True

    def __post_init__(self) -> None:
        if not self.reseed_after_execution:
            raise ValueError(
                f"FileShuffleConfig(reseed_after_execution={self.reseed_after_execution!r}): each "
                "epoch has its own order here, the same in each run with a seed; leave it out, or "
                "shuffle the list of paths for one order in all epochs."
            )


@dataclass(frozen=True)
class RandomSeedConfig:
    """A seed for ``random_shuffle`` and the like, as an object."""

    seed: int | None = None
    reseed_after_execution: bool = True
    use_timestamp_as_default: bool = False


def plain_seed(doing: str, seed: Any) -> Any:
    """The seed itself, where it was given as a ``RandomSeedConfig``.

    Raises:
        ValueError: each pass should have the same order.
    """
    if not isinstance(seed, RandomSeedConfig):
        return seed
    if seed.seed is not None and not seed.reseed_after_execution:
        raise ValueError(
            f"{doing}(seed={seed!r}): each epoch has its own order here, the same in each run with "
            "a seed; leave reseed_after_execution out, or call materialize() for one order."
        )
    return seed.seed


@dataclass
class ExecutionResources:
    """The resources that Ray's execution may use; ignored here."""

    cpu: float | None = None
    gpu: float | None = None
    object_store_memory: float | None = None
    memory: float | None = None

    @classmethod
    def zero(cls) -> ExecutionResources:
        """None of any resource."""
        return cls(0.0, 0.0, 0.0, 0.0)

    @classmethod
    def for_limits(
        cls,
        cpu: float | None = None,
        gpu: float | None = None,
        object_store_memory: float | None = None,
        memory: float | None = None,
    ) -> ExecutionResources:
        """Limits; a resource that is not given is unlimited."""
        given = (cpu, gpu, object_store_memory, memory)
        return cls(*(float("inf") if limit is None else limit for limit in given))

    def copy(self, **changes: float | None) -> ExecutionResources:
        """A copy with the values that are not None replaced."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


@dataclass
class ExecutionOptions:
    """How Ray executes; ignored here: the order is always preserved, and data always streams."""

    resource_limits: ExecutionResources | None = field(default_factory=ExecutionResources)
    exclude_resources: ExecutionResources | None = field(default_factory=ExecutionResources)
    locality_with_output: Any = False
    preserve_order: bool = True
    actor_locality_enabled: bool = True
    verbose_progress: bool | None = None
    label_selector: Mapping[str, str] | None = None


_SETTINGS: dict[str, Any] = {
    "actor_init_max_retries": 3, "actor_init_retry_on_errors": False,
    "actor_prefetcher_enabled": False, "actor_task_retry_on_errors": False,
    "autoscaling_config": None, "block_splitting_enabled": True, "checkpoint_config": None,
    "decoding_size_estimation": True, "default_hash_shuffle_parallelism": 200,
    "downstream_capacity_backpressure_ratio": None, "eager_free": False,
    "enable_auto_log_stats": False, "enable_dynamic_output_queue_size_backpressure": False,
    "enable_fallback_to_arrow_object_ext_type": None,
    "enable_get_object_locations_for_metrics": False, "enable_operator_progress_bars": True,
    "enable_pandas_block": True, "enable_per_node_metrics": False,
    "enable_progress_bar_name_truncation": True, "enable_progress_bars": True,
    "enable_rich_progress_bars": False, "enable_tensor_extension_casting": True,
    "issue_detectors_config": None, "join_operator_actor_num_cpus_override": None,
    "large_args_threshold": 50 << 20, "log_internal_stack_trace_to_stdout": False,
    "max_errored_blocks": 0, "max_hash_shuffle_aggregators": None,
    "max_hash_shuffle_finalization_batch_size": None, "max_num_blocks_in_streaming_gen_buffer": 2,
    "memory_usage_poll_interval_s": 1, "min_hash_shuffle_aggregator_wait_time_in_s": 300,
    "min_parallelism": 200, "new_execution_backend": True, "op_resource_reservation_enabled": True,
    "op_resource_reservation_ratio": 0.5, "optimize_fuse_read_stages": True,
    "optimize_fuse_shuffle_stages": True, "optimize_fuse_stages": True,
    "optimize_reorder_stages": True, "optimizer_enabled": True,
    "override_object_store_memory_limit_fraction": None,
    "pipeline_push_based_shuffle_reduce_tasks": True, "print_on_execution_start": True,
    "raise_original_map_exception": True, "read_op_min_num_blocks": 200, "retried_io_errors": (),
    "s3_try_create_dir": False, "scheduling_strategy": "SPREAD",
    "scheduling_strategy_large_args": "DEFAULT", "shuffle_strategy": None,
    "streaming_read_buffer_size": 32 << 20, "target_max_block_size": 128 << 20,
    "target_min_block_size": 1 << 20, "target_shuffle_max_block_size": 1 << 30,
    "trace_allocations": False, "use_arrow_native_fixed_shape_tensor_type": True,
    "use_arrow_tensor_v2": True, "use_polars": False, "use_polars_sort": False,
    "use_push_based_shuffle": False, "use_ray_tqdm": True, "use_runtime_metrics_scheduling": False,
    "use_streaming_executor": True, "verbose_stats_logs": False, "wait_for_min_actors_s": -1,
    "warn_on_driver_memory_usage_bytes": 2 << 30, "write_file_retry_on_errors": (),
}  # fmt: skip
"""The settings of Ray's executor, and the values that a script finds in them."""


_INSTEAD = {
    "actor_task_retry_on_errors": "a function is called once for a batch",
    "checkpoint_config": "positions are saved with the checkpoints of a run",
    "max_errored_blocks": "the first error ends the iteration",
    "raise_original_map_exception": "a function's own exception is always raised",
}
"""Settings that change results, and what happens here whatever they are."""


class DataContext:
    """Ray's settings: each of Ray's names can be read and set, and none has an effect here.

    Most are about Ray's scheduler. Setting one that would change results warns. Another name is
    an error: it would be a misspelt one.
    """

    _current: DataContext | None = None
    execution_options: ExecutionOptions

    def __init__(self) -> None:
        vars(self)["_config"] = {}
        self.execution_options = ExecutionOptions()

    @classmethod
    def get_current(cls) -> DataContext:
        """The settings of this process."""
        if DataContext._current is None:
            DataContext._current = cls()
        return DataContext._current

    def get_config(self, key: str, default: Any = None) -> Any:
        """A value of your own that ``set_config`` has stored."""
        return self._config.get(key, default)

    def set_config(self, key: str, value: Any) -> None:
        """Store a value of your own, under any name."""
        self._config[key] = value

    def remove_config(self, key: str) -> None:
        """Forget a value of your own."""
        self._config.pop(key, None)

    def copy(self) -> DataContext:
        """A copy with the same settings."""
        new = DataContext()
        vars(new).update({**vars(self), "_config": dict(self._config)})
        return new

    def __getattr__(self, name: str) -> Any:
        if name in _SETTINGS:
            return _SETTINGS[name]
        raise AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SETTINGS and name != "execution_options":
            raise AttributeError(_unknown(name))
        if name in _INSTEAD and value != _SETTINGS[name]:
            warnings.warn(
                f"DataContext.{name} = {value!r} has no effect: {_INSTEAD[name]}.",
                UserWarning,
                stacklevel=2,
            )
        super().__setattr__(name, value)


def _unknown(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [*_SETTINGS, "execution_options"], 3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return (
        f"DataContext has no setting {name!r}{meant or '.'} It has Ray's settings, which have no "
        "effect here; keep values of your own with set_config()."
    )
