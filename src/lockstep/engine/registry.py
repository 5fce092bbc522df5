"""The engines by name, one object each for the process."""

from __future__ import annotations

import pkgutil
import threading

from lockstep.engine.base import Engine

__all__ = ["ENGINES", "choose_engine", "close_engines"]

ENGINES = {
    "local": "lockstep.engine.local:LocalEngine",
    "ray": "lockstep.engine.ray:RayEngine",
    "inprocess": "lockstep.engine.inprocess:InProcessEngine",
}
"""The names that ``lockstep.init(engine=…)`` accepts → the class, imported at its first use."""

_open: dict[str, Engine] = {}
_lock = threading.Lock()


def choose_engine(name: str) -> Engine:
    """The process-wide engine of that name, created at its first use."""
    if name not in ENGINES:
        raise ValueError(f"engine {name!r} is not known; choose one of {', '.join(ENGINES)}.")
    with _lock:
        if name not in _open:
            _open[name] = pkgutil.resolve_name(ENGINES[name])()
        return _open[name]


def close_engines() -> None:
    """End everything engines keep warm."""
    with _lock:
        while _open:
            _open.popitem()[1].close()
