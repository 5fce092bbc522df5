"""What is left out of objects that are kept on storage: keys, passwords, values of variables.

A restore finds them where every process finds them, in its environment, or in the arguments that
``restore()`` is given instead of the kept ones.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lockstep import runtime, settings
from lockstep.config import RunConfig
from lockstep.redact import without_secrets
from lockstep.storage.remote_filesystem import RemoteFilesystem

__all__ = ["reduce_without_secrets"]

_SECRET_NAME = re.compile(r"key|secret|token|passw|credential|connection_string|sas", re.I)


def reduce_without_secrets(value: Any) -> tuple[Any, ...] | None:
    """How to pickle an object that may hold secrets, without them; None for any other object."""
    if isinstance(value, RunConfig):
        return _reduce_run_config(value)
    if type(value) is RemoteFilesystem:
        filesystem, uri = value.__reduce__()[1]
        return RemoteFilesystem, (None if uri else filesystem, without_secrets(uri))
    if _is_filesystem(value):
        make, arguments, *rest = value.__reduce__()
        return make, _without_secrets(arguments), *rest
    return None


def _reduce_run_config(config: RunConfig) -> tuple[Any, ...]:
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    values["storage_filesystem"] = None
    if values["storage_path"] is not None:
        values["storage_path"] = without_secrets(str(values["storage_path"]))
    given = values.pop("worker_runtime_env") or {}
    return _make_run_config, (type(config), values, sorted(given.get("env_vars") or ()))


def _make_run_config(kind: type[RunConfig], values: dict[str, Any], names: list[str]) -> RunConfig:
    """The kept config. The variables of its workers come from this process."""
    given = runtime.current().env_vars
    found = {name: given.get(name, settings.variable(name)) for name in names}
    missing = [name for name, value in found.items() if value is None]
    if missing:
        raise ValueError(
            f"the values of RunConfig(worker_runtime_env=…) are not kept: set "
            f"{', '.join(missing)} in this process's environment"
        )
    return kind(**values, worker_runtime_env={"env_vars": found} if found else None)


def _is_filesystem(value: Any) -> bool:
    arrow, other = sys.modules.get("pyarrow.fs"), sys.modules.get("fsspec")
    return (arrow is not None and isinstance(value, arrow.FileSystem)) or (
        other is not None and isinstance(value, other.AbstractFileSystem)
    )


def _without_secrets(value: Any) -> Any:
    """Arguments of a filesystem's constructor, with None for keys, as if they were not given."""
    if isinstance(value, Mapping):
        return {
            name: None if _is_secret(name, item) else _without_secrets(item)
            for name, item in value.items()
        }
    return tuple(map(_without_secrets, value)) if isinstance(value, tuple) else value


def _is_secret(name: Any, value: Any) -> bool:
    return isinstance(name, str) and isinstance(value, str) and bool(_SECRET_NAME.search(name))
