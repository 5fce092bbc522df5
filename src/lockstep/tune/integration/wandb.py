"""Weights & Biases under the name of its older Tune module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lockstep.trackers.wandb import WandbLoggerCallback
from lockstep.train.tracking.wandb import setup_wandb

__all__ = ["WandbLoggerCallback", "setup_wandb", "wandb_mixin"]


def wandb_mixin(func: Callable[..., Any]) -> Callable[..., Any]:
    """A training function that calls ``setup_wandb(**config["wandb"])`` first. For old scripts.

    The config that is logged is without the key ``"wandb"``. New code calls ``setup_wandb``.

    Raises:
        TypeError: it is a class; call ``setup_wandb`` in its ``setup``.
    """
    if isinstance(func, type):
        raise TypeError(
            f"wandb_mixin({func.__name__}): expected a function; in a Trainable class, call "
            "setup_wandb() in its setup()."
        )

    @functools.wraps(func)
    def with_wandb(config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        searched = {key: value for key, value in config.items() if key != "wandb"}
        options = dict(config.get("wandb", {}))
        setup_wandb(searched, **options)
        return func(config, *args, **kwargs)

    return with_wandb
