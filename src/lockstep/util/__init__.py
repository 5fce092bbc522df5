"""What scripts use of ``ray.util`` on one machine. The rest of it is Ray's own."""

from __future__ import annotations

import importlib
from typing import Any

from lockstep.core import get_node_ip_address, of_ray_core
from lockstep.missing import raise_missing_name
from lockstep.util.debug import log_once

__all__ = ["get_node_ip_address", "log_once"]

_MODULES = ("accelerators", "annotations", "debug")
_OF_RAY_CORE = (
    "ActorPool",
    "get_current_placement_group",
    "get_placement_group",
    "list_named_actors",
    "placement_group",
    "placement_group_table",
    "queue",
    "remove_placement_group",
    "scheduling_strategies",
)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"lockstep.util.{name}")
    if name in _OF_RAY_CORE:
        try:
            return getattr(of_ray_core("util"), name)
        except LookupError as error:
            raise_missing_name(__name__, name, error.args[0])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
