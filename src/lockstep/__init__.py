"""lockstep: run a training function on N workers, in lockstep.

``lockstep.train`` is where to begin. Subpackages are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

__all__ = ["__version__", "init", "shutdown"]

_SUBPACKAGES = ("air", "data", "train", "tune")


def init(
    *,
    engine: str | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    num_cpus: int | None = None,
    num_gpus: int | None = None,
) -> None:
    """Set what later runs of this process start with. Optional; starts nothing.

    Called again, it changes only what it is given; ``shutdown()`` forgets it all.

    Args:
        engine: ``"local"`` (the default): processes on this machine.
        runtime_env: ``{"env_vars": {"NAME": "value"}}``: set in every worker before anything of
            yours is imported there.
        num_cpus, num_gpus: how much of this machine elastic runs may use. Called again during a
            run, with more, it makes them grow.
    """
    from lockstep import runtime
    from lockstep.engine.select import ENGINES

    if engine is not None and engine not in ENGINES:
        raise ValueError(f"init(engine={engine!r}): choose one of {', '.join(ENGINES)}.")
    runtime.configure(engine, runtime_env, num_cpus, num_gpus)


def shutdown() -> None:
    """Forget ``init()`` and end the warm processes; the next run starts them again."""
    from lockstep import runtime

    runtime.reset()


def __getattr__(name: str) -> ModuleType:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"lockstep.{name}")
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES})
