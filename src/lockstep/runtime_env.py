"""``RuntimeEnv`` under Ray's path: what ``init(runtime_env=…)`` takes, as a dict."""

from __future__ import annotations

from typing import Any

__all__ = ["RuntimeEnv"]


class RuntimeEnv(dict[str, Any]):
    """A dict with ``env_vars``. ``init()`` refuses other keys: workers share this environment."""

    def __init__(self, *, env_vars: dict[str, str] | None = None, **others: Any) -> None:
        given = {"env_vars": env_vars, **others}
        super().__init__({name: value for name, value in given.items() if value is not None})

    def env_vars(self) -> dict[str, str]:
        """The variables of the workers."""
        return dict(self.get("env_vars") or {})

    def to_dict(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)
