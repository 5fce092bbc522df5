"""``setup_wandb``: a Weights & Biases run on rank 0, the same one after every restart."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.trackers.credentials import check_wandb_key, read_key, require, variable
from lockstep.trackers.values import Outcome
from lockstep.trackers.wandb import WANDB_EXIT_CODE, given_settings
from lockstep.train.tracking.worker import StandIn, checked_config, tracked_worker, within_time

__all__ = ["setup_wandb", "wandb_mixin"]


def setup_wandb(
    config: Mapping[str, Any] | None = None,
    api_key: str | None = None,
    api_key_file: str | os.PathLike[str] | None = None,
    rank_zero_only: bool = True,
    **kwargs: Any,
) -> Any:
    """Create this run at Weights & Biases, or resume it after a restart.

    Returns the wandb run, and on the other ranks a stand-in that does nothing. The run's id is the
    trial's id. When the training function ends, the run is finished with the outcome as its exit
    code, unless you have called ``finish()`` yourself.

    Args:
        config: the run's config.
        api_key, api_key_file: the key; by default ``WANDB_API_KEY``, or that of ``wandb login``.
        rank_zero_only: False gives every rank a run of its own.
        **kwargs: for ``wandb.init``, such as ``project``, ``mode="offline"``, ``dir``.

    Raises:
        ImportError: wandb is not installed.
        ValueError: a key is needed, and there is none.
    """
    require("wandb", "wandb", "setup_wandb()")
    described = checked_config(config, "setup_wandb")
    worker = tracked_worker(rank_zero_only)
    if worker is None:
        return StandIn()
    key = read_key(api_key, api_key_file)
    settings = given_settings(kwargs.get("settings"))
    mode = kwargs.get("mode") or settings.get("mode") or variable("WANDB_MODE") or "online"
    if key is None and not settings.get("api_key"):
        check_wandb_key(mode)
    import wandb

    if key is not None and mode == "online":
        wandb.login(key=key)
    chosen: dict[str, Any] = {
        "id": worker.trial_id,
        "name": worker.name,
        "group": worker.experiment_name,
        "config": described,
        "resume": "allow",
        **kwargs,
    }
    run = wandb.init(**chosen)

    def finish(outcome: Outcome) -> None:
        within_time(lambda: run.finish(exit_code=WANDB_EXIT_CODE[outcome]), "wandb")

    worker.at_end(finish)
    return run


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
