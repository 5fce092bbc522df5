"""Trainables by name, for scripts that register them."""

from __future__ import annotations

from typing import Any

from lockstep.tune.execution.launch import check_trainable

__all__ = ["register_trainable", "registered_trainable"]

_TRAINABLES: dict[str, Any] = {}


def register_trainable(name: str, trainable: Any) -> None:
    """Let ``Tuner("name")`` and ``tune.run("name")`` find a function or a class in this process."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"register_trainable({name!r}, …): expected a name.")
    check_trainable(trainable)
    _TRAINABLES[name] = trainable


def registered_trainable(name: str) -> Any:
    """The trainable that was registered under this name.

    Raises:
        ValueError: there is none.
    """
    if name not in _TRAINABLES:
        known = ", ".join(sorted(_TRAINABLES)) or "none"
        raise ValueError(
            f"Tuner({name!r}): no trainable is registered under this name (known: {known}); call "
            "tune.register_trainable first, or give the function itself."
        )
    return _TRAINABLES[name]
