"""The only place that reads environment variables.

Values are read at each call, not at import, so a test or a notebook may change them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

__all__ = [
    "callback_flush_seconds",
    "child_environment",
    "chooses_debugger",
    "cluster_wait_seconds",
    "cuda_visible_devices",
    "engine_name",
    "environment",
    "is_completing",
    "legacy_keras",
    "library_variable",
    "omp_threads",
    "preemption_grace_seconds",
    "ray_names",
    "ray_names_environment",
    "reload_environment",
    "results_root",
    "shell",
    "start_timeout_seconds",
    "stop_grace_seconds",
    "sync_seconds",
    "take_reload_descriptor",
    "tensorflow_log_level",
    "tracker_environment",
    "user_thread_setting",
    "variable",
    "warm_directory",
    "warm_idle_seconds",
    "warm_is_off",
]

RAY_NAMES = "LOCKSTEP_RAY_NAMES"
"""Set by ``lockstep run`` for the workers of a script that imports ``ray``."""
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
    """``LOCKSTEP_STORAGE``: where runs are stored without ``RunConfig(storage_path=…)``."""
    return os.environ.get("LOCKSTEP_STORAGE") or os.path.join(
        os.path.expanduser("~"), "lockstep_results"
    )


def engine_name() -> str:
    """``LOCKSTEP_ENGINE``: the engine without ``lockstep.init(engine=…)``."""
    return os.environ.get("LOCKSTEP_ENGINE") or "local"


def ray_names() -> bool:
    """``LOCKSTEP_RAY_NAMES``: whether ``ray`` is lockstep's in the workers of this process."""
    return bool(os.environ.get(RAY_NAMES))


def ray_names_environment() -> dict[str, str]:
    """The same, for workers that do not inherit this process's environment."""
    return {RAY_NAMES: "1"} if ray_names() else {}


def stop_grace_seconds() -> float:
    """``LOCKSTEP_STOP_GRACE_S``: how long workers may clean up after Ctrl-C."""
    return _seconds("LOCKSTEP_STOP_GRACE_S", 5.0)


def start_timeout_seconds() -> float:
    """``LOCKSTEP_START_TIMEOUT_S``: how long workers may take to start; imports may take long."""
    return _seconds("LOCKSTEP_START_TIMEOUT_S", 600.0)


def cluster_wait_seconds() -> float:
    """``LOCKSTEP_CLUSTER_WAIT_S``: how long a run may wait for nodes that have not joined yet."""
    return _seconds("LOCKSTEP_CLUSTER_WAIT_S", 0.0)


def preemption_grace_seconds() -> float:
    """``LOCKSTEP_PREEMPTION_GRACE_S``: how long a run may take to save and stop after SIGTERM."""
    return _seconds("LOCKSTEP_PREEMPTION_GRACE_S", 25.0)


def callback_flush_seconds() -> float:
    """``LOCKSTEP_CALLBACK_FLUSH_S``: how long the end of a run waits for slow callbacks."""
    return _seconds("LOCKSTEP_CALLBACK_FLUSH_S", 30.0)


def sync_seconds() -> float:
    """``LOCKSTEP_SYNC_S``: how often a journal's new lines are copied to remote storage."""
    return max(_seconds("LOCKSTEP_SYNC_S", 1.0), 0.05)


def chooses_debugger() -> bool:
    """``PYTHONBREAKPOINT``: whether ``breakpoint()`` calls something else than pdb, or nothing."""
    return os.environ.get("PYTHONBREAKPOINT", "") not in ("", "pdb.set_trace")


def is_completing() -> bool:
    """``_ARGCOMPLETE``: whether a shell asks the ``lockstep`` command what could follow."""
    return "_ARGCOMPLETE" in os.environ


def shell() -> str:
    """``SHELL``: the user's shell; empty if it is not known."""
    return os.environ.get("SHELL", "")


def cuda_visible_devices() -> str | None:
    """``CUDA_VISIBLE_DEVICES`` of this process, None when unset."""
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def legacy_keras(extra: Mapping[str, str]) -> bool:
    """``TF_USE_LEGACY_KERAS``: whether ``tf.keras`` is Keras 2 in workers; yes when unset."""
    name = "TF_USE_LEGACY_KERAS"
    return extra.get(name, os.environ.get(name, "1")).lower() in ("1", "true")


def tensorflow_log_level() -> str:
    """``TF_CPP_MIN_LOG_LEVEL`` for workers; when unset "1", only warnings and errors."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")


def user_thread_setting(extra: Mapping[str, str]) -> str | None:
    """The thread count that the user chose by one of the usual variables; None if none is set."""
    values = (extra.get(name) or os.environ.get(name) for name in THREAD_VARIABLES)
    return next(filter(None, values), None)


def omp_threads() -> int | None:
    """``OMP_NUM_THREADS`` of this process; None when unset or not a number."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child process: this process's, with ``extra`` added."""
    # The address of this process's wandb service. A worker must start its own.
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    return {**inherited, **extra}


def variable(name: str) -> str | None:
    """A variable of this process that a run's workers need; None when unset."""
    return os.environ.get(name)


def library_variable(name: str) -> str | None:
    """A variable of another library, such as ``WANDB_API_KEY``; None when unset or empty."""
    return os.environ.get(name) or None


def warm_is_off() -> bool:
    """``LOCKSTEP_WARM=0``: no warm server is used or started."""
    return os.environ.get("LOCKSTEP_WARM", "").lower() in ("0", "no", "off", "false")


def warm_idle_seconds() -> float:
    """``LOCKSTEP_WARM_IDLE_S``: how long a warm server stays that nobody uses."""
    return _seconds("LOCKSTEP_WARM_IDLE_S", 900.0)


def take_reload_descriptor() -> int | None:
    """``LOCKSTEP_RELOAD_FD``, from ``lockstep run --reload`` for its script alone: removes it."""
    text = os.environ.pop("LOCKSTEP_RELOAD_FD", None)
    return int(text) if text else None


def reload_environment(descriptor: int) -> dict[str, str]:
    """What tells a script its connection to ``lockstep run --reload``."""
    return {"LOCKSTEP_RELOAD_FD": str(descriptor)}


def warm_directory() -> str:
    """Where warm servers listen: in ``XDG_RUNTIME_DIR``, else in the temporary directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isabs(runtime):
        return os.path.join(runtime, "lockstep")
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"lockstep-warm-{os.getuid()}")


def environment() -> dict[str, str]:
    """All variables of this process."""
    return dict(os.environ)


def tracker_environment() -> dict[str, str]:
    """The variable without which MLflow refuses a store of files, unless the user has set it."""
    name = "MLFLOW_ALLOW_FILE_STORE"
    return {} if os.environ.get(name) else {name: "true"}
