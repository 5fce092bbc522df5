"""The only reader of environment variables. Everything else asks here.

Values are read when asked for, not at import, so a test or a notebook may change them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "callback_flush_seconds",
    "child_environment",
    "cuda_visible_devices",
    "engine_name",
    "legacy_keras",
    "library_variable",
    "omp_threads",
    "preemption_grace_seconds",
    "results_root",
    "stop_grace_seconds",
    "tensorflow_log_level",
    "tracker_environment",
    "user_thread_setting",
]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={text!r} is not a finite number of seconds (0 or more).")
    return value


def results_root() -> str:
    """``LOCKSTEP_STORAGE``: where runs go when ``RunConfig(storage_path=…)`` is not given."""
    return os.environ.get("LOCKSTEP_STORAGE") or str(Path.home() / "lockstep_results")


def engine_name() -> str:
    """``LOCKSTEP_ENGINE``: the engine used when ``lockstep.init(engine=…)`` names none."""
    return os.environ.get("LOCKSTEP_ENGINE") or "local"


def stop_grace_seconds() -> float:
    """``LOCKSTEP_STOP_GRACE_S``: how long workers may clean up after Ctrl-C."""
    return _seconds("LOCKSTEP_STOP_GRACE_S", 5.0)


def preemption_grace_seconds() -> float:
    """``LOCKSTEP_PREEMPTION_GRACE_S``: how long after a SIGTERM a run may take to save and stop."""
    return _seconds("LOCKSTEP_PREEMPTION_GRACE_S", 25.0)


def callback_flush_seconds() -> float:
    """``LOCKSTEP_CALLBACK_FLUSH_S``: how long the end of a run waits for slow callbacks."""
    return _seconds("LOCKSTEP_CALLBACK_FLUSH_S", 30.0)


def cuda_visible_devices() -> str | None:
    """``CUDA_VISIBLE_DEVICES`` of this process, None when unset."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def legacy_keras(extra: Mapping[str, str]) -> bool:
    """``TF_USE_LEGACY_KERAS``: whether ``tf.keras`` is Keras 2 in workers; yes when unset."""
    name = "TF_USE_LEGACY_KERAS"
    return extra.get(name, os.environ.get(name, "1")).lower() in ("1", "true")


def tensorflow_log_level() -> str:
    """``TF_CPP_MIN_LOG_LEVEL`` for workers; when unset "1", which leaves out what is no warning."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")


def user_thread_setting(extra: Mapping[str, str]) -> str | None:
    """The thread count the user chose through the usual variables, None where they did not."""
    for name in THREAD_VARIABLES:
        value = extra.get(name) or os.environ.get(name)
        if value:
            return value
    return None


def omp_threads() -> int | None:
    """``OMP_NUM_THREADS`` of this process as a number, None when unset or not one."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``extra`` laid over it, for a child process."""
    # Where wandb in this process has its service: a worker's wandb would use it, as this process.
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return {**inherited, **extra}


def library_variable(name: str) -> str | None:
    """A variable of another library, such as ``WANDB_API_KEY``; None when unset or empty."""
    return os.environ.get(name) or None


def tracker_environment() -> dict[str, str]:
    """What MLflow needs in the environment before it accepts a store of files, unless it is set."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    return {} if os.environ.get(name) else {name: "true"}
