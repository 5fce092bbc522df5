"""What users configure to validate checkpoints beside training."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lockstep.checkpoint import Checkpoint
from lockstep.checks import is_number

__all__ = ["ValidationConfig", "ValidationFn", "ValidationTaskConfig"]

_USED = frozenset(("num_cpus", "num_gpus", "resources", "runtime_env"))


class ValidationFn(Protocol):
    """A function that validates a checkpoint: returns a dict of metrics."""

    def __call__(self, checkpoint: Checkpoint, **kwargs: Any) -> dict[str, Any]:
        """Return the metrics of ``checkpoint``."""


@dataclass
class ValidationTaskConfig:
    """One validation, given to ``report(validation=…)``.

    Args:
        fn_kwargs: arguments of the function besides the checkpoint; what JSON can hold.
        timeout_s: after how many seconds the validation is ended; None: never.
    """

    fn_kwargs: dict[str, Any] | None = None
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        self.fn_kwargs = {} if self.fn_kwargs is None else self.fn_kwargs
        if not isinstance(self.fn_kwargs, Mapping):
            raise TypeError(f"ValidationTaskConfig(fn_kwargs={self.fn_kwargs!r}): expected a dict.")
        self.fn_kwargs = dict(self.fn_kwargs)
        for name, value in self.fn_kwargs.items():
            try:
                json.dumps({name: value})
            except (TypeError, ValueError, RecursionError):
                raise TypeError(
                    f"ValidationTaskConfig(fn_kwargs={{{name!r}: …}}): a {type(value).__name__} "
                    "cannot be kept as JSON with the run, which may be restored before the "
                    "validation has finished; give plain values, or bind it to the function with "
                    "functools.partial."
                ) from None
        timeout = self.timeout_s
        if timeout is not None and not (is_number(timeout) and timeout > 0):
            raise ValueError(
                f"ValidationTaskConfig(timeout_s={timeout!r}): expected seconds, more than 0, or "
                "None."
            )


class ValidationConfig:
    """How the checkpoints of a run are validated, given to a trainer.

    ``report(…, checkpoint=…, validation=True)`` then has the function called with the checkpoint
    once it is committed, in a process of its own, beside training. The metrics that the function
    returns join those of the checkpoint, for ``checkpoint_score_attribute`` and
    ``Result.best_checkpoints``, too. Checkpoints are validated one after the other, and the run
    ends when the last one is.

    Args:
        fn: called with the checkpoint and the ``fn_kwargs``; returns a dict of metrics.
        task_config: what ``report(validation=True)`` uses.
        ray_remote_kwargs: ``num_cpus``, ``num_gpus``, ``resources`` and ``runtime_env`` of the
            process; others have no effect.
    """

    def __init__(
        self,
        fn: Callable[..., Mapping[str, Any]],
        task_config: ValidationTaskConfig | None = None,
        ray_remote_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"ValidationConfig(fn={fn!r}): expected a function.")
        if task_config is not None and not isinstance(task_config, ValidationTaskConfig):
            raise TypeError(
                f"ValidationConfig(task_config={task_config!r}): expected a ValidationTaskConfig."
            )
        if ray_remote_kwargs is not None and not isinstance(ray_remote_kwargs, Mapping):
            raise TypeError(
                f"ValidationConfig(ray_remote_kwargs={ray_remote_kwargs!r}): expected a dict."
            )
        self.fn = fn
        self.task_config = task_config or ValidationTaskConfig()
        self.ray_remote_kwargs = dict(ray_remote_kwargs or {})
        unused = sorted(self.ray_remote_kwargs.keys() - _USED)
        if unused:
            warnings.warn(
                f"ValidationConfig(ray_remote_kwargs=…): {', '.join(unused)} of Ray's tasks has no "
                "effect; num_cpus, num_gpus, resources and runtime_env have.",
                stacklevel=2,
            )

    def task(self, given: Mapping[str, Any]) -> ValidationTaskConfig:
        """Internal: the arguments and the timeout of one validation, as it was requested."""
        own = self.task_config
        if "fn_kwargs" not in given:
            return own
        kwargs = {**(own.fn_kwargs or {}), **given["fn_kwargs"]}
        return ValidationTaskConfig(kwargs, given["timeout_s"])
