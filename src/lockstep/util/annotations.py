"""Ray's marks of how stable a name is. Here they do nothing but return what they mark."""

from __future__ import annotations

from typing import Any

__all__ = ["Deprecated", "DeveloperAPI", "PublicAPI"]


def PublicAPI(*marked: Any, **options: Any) -> Any:
    """``@PublicAPI`` or ``@PublicAPI(stability=…)``."""
    return marked[0] if marked and callable(marked[0]) else lambda value: value


def DeveloperAPI(*marked: Any, **options: Any) -> Any:
    """``@DeveloperAPI`` or ``@DeveloperAPI()``."""
    return PublicAPI(*marked)


def Deprecated(*marked: Any, **options: Any) -> Any:
    """``@Deprecated`` or ``@Deprecated(message=…)``."""
    return PublicAPI(*marked)
