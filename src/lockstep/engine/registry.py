"""The engines by name, one object each for the process."""

from __future__ import annotations

import threading

from lockstep.engine.base import Engine

__all__ = ["ENGINES", "choose_engine", "close_engines"]

ENGINES = ("local", "inprocess")
"""The names that ``lockstep.init(engine=…)`` accepts."""

_open: dict[str, Engine] = {}
_lock = threading.Lock()


def choose_engine(name: str) -> Engine:
    """The process-wide engine of that name, made on first use."""
    with _lock:
        if name not in _open:
            _open[name] = _make(name)
        return _open[name]


def close_engines() -> None:
    """End everything engines keep warm."""
    with _lock:
        while _open:
            _open.popitem()[1].close()


def _make(name: str) -> Engine:
    if name == "local":
        from lockstep.engine.local import LocalEngine

        return LocalEngine()
    if name == "inprocess":
        from lockstep.engine.inprocess import InProcessEngine

        return InProcessEngine()
    raise ValueError(f"engine {name!r} is not known; choose one of {', '.join(ENGINES)}.")
