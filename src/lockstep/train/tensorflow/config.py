"""TensorflowConfig: how TensorFlow is set up between workers, and whether it can be."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from lockstep import runtime, settings
from lockstep.train.backend import Backend, BackendConfig
from lockstep.train.tensorflow.backend import TensorflowBackend

__all__ = ["TensorflowConfig", "check_installed", "legacy_keras"]

# TensorFlow's heavy dependencies that are safe to fork.
_PRELOAD = (
    "numpy",
    "pandas",
    "h5py",
    "absl.logging",
    "google.protobuf.descriptor_pool",
    "ml_dtypes",
    "opt_einsum",
    "requests",
    "unittest.mock",
    "flatbuffers",
    "gast",
    "wrapt",
    "astunparse",
    "lockstep.train.tensorflow",
)


@dataclass(frozen=True)
class TensorflowConfig(BackendConfig):
    """How TensorFlow is set up. There is nothing to choose: ports are chosen automatically."""

    def make_backend(self) -> Backend:
        """Return the backend to send to the workers."""
        check_installed("TensorflowTrainer")
        preload = tuple(name for name in _PRELOAD if _is_installed(name.partition(".")[0]))
        variables = {"TF_CPP_MIN_LOG_LEVEL": settings.tensorflow_log_level()}
        if legacy_keras():
            variables["TF_USE_LEGACY_KERAS"] = "1"
        return TensorflowBackend(preload, variables)


def check_installed(needed_by: str) -> None:
    """Raise ImportError if TensorFlow, or the Keras to go with it, is not installed."""
    if not _is_installed("tensorflow"):
        raise ImportError(
            f"{needed_by} needs TensorFlow; install it: pip install 'lockstep-train[tensorflow]'"
        )
    if legacy_keras() and not _is_installed("tf_keras"):
        raise ImportError(
            f"{needed_by} needs tf-keras, the Keras that TensorFlow's multi-worker strategies work "
            "with; install it: pip install 'lockstep-train[tensorflow]', or choose Keras 3 with "
            "the variable TF_USE_LEGACY_KERAS=0."
        )


def legacy_keras() -> bool:
    """Whether ``tf.keras`` is Keras 2 in workers."""
    return settings.legacy_keras(runtime.current().env_vars)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
