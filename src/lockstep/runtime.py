"""The settings of ``lockstep.init()`` for this process: engine, resources, workers' variables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep import settings
from lockstep.checks import is_int

__all__ = ["Runtime", "checked_env_vars", "configure", "current", "is_configured", "reset", "watch"]


@dataclass(frozen=True)
class Runtime:
    """The process-wide choices a run starts with."""

    engine: str
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    num_cpus: int | None = None
    """How many CPUs elastic runs may use; None: all of the machine."""
    num_gpus: int | None = None
    address: str | None = None
    """The Ray cluster of the engine ``ray``; None: Ray's own default."""
    runtime_env: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the engine ``ray`` passes to ``ray.init``: everything but ``env_vars``."""


SHIPPING = frozenset({"ray"})
"""The engines that send packages and files to the workers' machines."""

_configured: Runtime | None = None
_watchers: list[Callable[[], None]] = []


def configure(
    engine: str | None,
    runtime_env: Mapping[str, Any] | None,
    num_cpus: int | None,
    num_gpus: int | None,
    address: str | None = None,
) -> None:
    """Check and keep the arguments of ``lockstep.init()``, and notify the watchers."""
    global _configured
    for name, count in (("num_cpus", num_cpus), ("num_gpus", num_gpus)):
        if count is not None and (not is_int(count) or count < 0):
            raise ValueError(f"init({name}={count!r}): expected an integer, 0 or more.")
    runtime_env = {} if runtime_env is None else runtime_env
    before = current()  # arguments that are not given keep their value
    shipped: Mapping[str, Any] = {}
    if (engine or before.engine) in SHIPPING and isinstance(runtime_env, Mapping):
        shipped = {name: value for name, value in runtime_env.items() if name != "env_vars"}
        runtime_env = {name: runtime_env[name] for name in runtime_env if name not in shipped}
    env_vars = checked_env_vars(runtime_env, "init(runtime_env=")
    _configured = Runtime(
        engine or before.engine,
        env_vars if "env_vars" in runtime_env else before.env_vars,
        before.num_cpus if num_cpus is None else num_cpus,
        before.num_gpus if num_gpus is None else num_gpus,
        before.address if address is None else address,
        shipped or before.runtime_env,
    )
    for changed in list(_watchers):  # a copy: a watcher may cancel itself
        changed()


def checked_env_vars(runtime_env: object, given: str) -> dict[str, str]:
    """The variables in a ``runtime_env``; ``given`` starts the message of an error."""
    if not isinstance(runtime_env, Mapping):
        kind = type(runtime_env).__name__  # never the value: it may hold a key
        raise TypeError(f"{given}…) is of type {kind}: expected a dict with 'env_vars'.")
    unknown = sorted(set(runtime_env) - {"env_vars"})
    if unknown:
        raise ValueError(
            f"{given}{{{unknown[0]!r}: …}}): only 'env_vars' is supported; workers share this "
            "process's Python, packages and working directory."
        )
    env_vars = runtime_env.get("env_vars")
    if env_vars is None:
        return {}
    if not isinstance(env_vars, Mapping):
        kind = type(env_vars).__name__
        raise TypeError(
            f"{given}{{'env_vars': …}}): of type {kind}, expected a dict of names to values."
        )
    for name, value in env_vars.items():
        if not isinstance(name, str) or not isinstance(value, str):
            kinds = f"a name of type {type(name).__name__}, a value of {type(value).__name__}"
            raise TypeError(
                f"{given}{{'env_vars': {{{name!r}: …}}}}): {kinds}; both must be strings."
            )
    return dict(env_vars)


def watch(changed: Callable[[], None]) -> Callable[[], None]:
    """Call ``changed`` after each ``init()``, on its thread; returns a function that ends this."""
    _watchers.append(changed)
    return lambda: _watchers.remove(changed) if changed in _watchers else None


def current() -> Runtime:
    """The settings for the next run."""
    return _configured or Runtime(settings.engine_name())


def is_configured() -> bool:
    """Whether ``init()`` was called, and not ``reset`` since."""
    return _configured is not None


def reset() -> None:
    """Forget ``init()`` and end the processes that engines keep warm."""
    global _configured
    _configured = None
    registry = sys.modules.get("lockstep.engine.registry")  # loaded by the first run
    if registry is not None:
        registry.close_engines()
