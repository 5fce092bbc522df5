"""What ``lockstep.init()`` has set for this process: the engine and the workers' environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep import settings

__all__ = ["Runtime", "configure", "current", "reset"]


@dataclass(frozen=True)
class Runtime:
    """The process-wide choices a run starts with."""

    engine: str
    env_vars: Mapping[str, str] = field(default_factory=dict)


_configured: Runtime | None = None


def configure(engine: str | None, runtime_env: Mapping[str, Any] | None) -> None:
    """Check and keep what ``lockstep.init()`` was given."""
    global _configured
    runtime_env = {} if runtime_env is None else runtime_env
    if not isinstance(runtime_env, Mapping):
        raise TypeError(f"init(runtime_env={runtime_env!r}): expected a dict with 'env_vars'.")
    unknown = sorted(set(runtime_env) - {"env_vars"})
    if unknown:
        raise ValueError(
            f"init(runtime_env={{{unknown[0]!r}: …}}): only 'env_vars' is supported; workers share "
            "this process's Python, packages and working directory."
        )
    env_vars = runtime_env.get("env_vars") or {}
    for name, value in env_vars.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"init(runtime_env={{'env_vars': {{{name!r}: {value!r}}}}}): names and values "
                "must be strings."
            )
    _configured = Runtime(engine or settings.engine_name(), dict(env_vars))


def current() -> Runtime:
    """What holds for the next run."""
    return _configured or Runtime(settings.engine_name())


def reset() -> None:
    """Forget ``init()`` and end everything engines keep warm."""
    global _configured
    _configured = None
    select = sys.modules.get("lockstep.engine.select")
    if select is not None:
        select.close_engines()
