"""MLflow under the name of its older Tune module."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from lockstep.trackers.mlflow import MLflowLoggerCallback
from lockstep.train.tracking.mlflow import setup_mlflow

__all__ = ["MLflowLoggerCallback", "mlflow_mixin", "setup_mlflow"]


def mlflow_mixin(func: Callable[..., Any]) -> Callable[..., Any]:
    """A training function that calls ``setup_mlflow(**config["mlflow"])`` first. For old scripts.

    The config that is logged is without the key ``"mlflow"``. New code calls ``setup_mlflow``.

    Raises:
        TypeError: it is a class; call ``setup_mlflow`` in its ``setup``.
    """
    if isinstance(func, type):
        raise TypeError(
            f"mlflow_mixin({func.__name__}): expected a function; in a Trainable class, call "
            "setup_mlflow() in its setup()."
        )

    @functools.wraps(func)
    def with_mlflow(config: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        searched = {key: value for key, value in config.items() if key != "mlflow"}
        options = dict(config.get("mlflow", {}))
        options["tracking_token"] = options.pop("token", options.get("tracking_token"))
        setup_mlflow(searched, **options)
        return func(config, *args, **kwargs)

    return with_mlflow
