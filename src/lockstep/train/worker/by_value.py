"""Lets processes that a worker starts with ``multiprocessing`` load what came by value.

The classes and functions of the driver's ``__main__`` (or of a module that workers cannot import)
reach a worker by value. The worker's own children, such as a data loader's with the method
``spawn``, have another ``__main__``, and would not find them there by name. So ``multiprocessing``
sends them on by value, in both directions.
"""

from __future__ import annotations

import sys
from multiprocessing.reduction import ForkingPickler
from types import FunctionType
from typing import Any

__all__ = ["send_on_by_value"]

_MAIN = ("__main__", "__mp_main__")


def send_on_by_value() -> None:
    """From now on, pickle such classes and functions by value for other processes."""
    ForkingPickler.reducer_override = _reduce  # type: ignore[method-assign]  # for all


def _reduce(pickler: Any, value: Any) -> Any:
    if isinstance(value, (type, FunctionType)) and not _can_be_imported(value):
        import cloudpickle

        return _load, (cloudpickle.dumps(value),)
    return NotImplemented


def _can_be_imported(value: Any) -> bool:
    module = getattr(value, "__module__", None)
    return module is None or (module in sys.modules and module not in _MAIN)


def _load(data: bytes) -> Any:
    import cloudpickle

    send_on_by_value()  # what this process sends back
    return cloudpickle.loads(data)
