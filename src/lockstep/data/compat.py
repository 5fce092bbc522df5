"""Settings of Ray's scheduler that scripts pass: accepted and ignored here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

__all__ = [
    "DataContext",
    "ExecutionOptions",
    "ExecutionResources",
    "FileShuffleConfig",
    "check_hints",
]

_HINTS = {
    "accelerator_type", "compute", "concurrency", "fallback_strategy", "label_selector",
    "max_calls", "max_restarts", "max_retries", "max_task_retries", "memory", "num_cpus",
    "num_gpus", "override_num_blocks", "parallelism", "ray_remote_args", "ray_remote_args_fn",
    "resources", "retry_exceptions", "scheduling_strategy",
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


class DataContext:
    """Ray's settings: any attribute can be set, has no effect, and is None until it is set."""

    _current: DataContext | None = None

    def __init__(self) -> None:
        self.execution_options = ExecutionOptions()

    @classmethod
    def get_current(cls) -> DataContext:
        """The settings of this process."""
        if DataContext._current is None:
            DataContext._current = cls()
        return DataContext._current

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"DataContext has no attribute {name!r}.")
        return None

    if TYPE_CHECKING:  # any name may be set

        def __setattr__(self, name: str, value: Any) -> None: ...
