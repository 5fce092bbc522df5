"""Modules and names of Ray Tune that lockstep does not have, and what to use instead.

A module of the table is a small file that calls ``raise_missing_module``. A package with missing
names calls ``raise_missing_name`` from its ``__getattr__``.
"""

from __future__ import annotations

from typing import NoReturn

from lockstep import missing

__all__ = ["raise_missing_module", "raise_missing_name"]

_RESIZED = (
    "a trial keeps the resources it started with; a trainer with "
    "ScalingConfig(num_workers=(min, max)) grows and shrinks"
)
_INSTEAD = {
    "register_env": "it belongs to RLlib, which is not part of lockstep",
    "suggest": "use lockstep.tune.search",
    "utils.log": "use RunConfig(verbose=…)",
    "schedulers.ResourceChangingScheduler": _RESIZED,
    "schedulers.resource_changing_scheduler": _RESIZED,
}


def raise_missing_module(module: str) -> NoReturn:
    """Raise the ImportError of a module in the table: it names the replacement."""
    missing.raise_missing_module(module, _advice(module) or "it has no counterpart")


def raise_missing_name(package: str, name: str) -> NoReturn:
    """Raise what a package's ``__getattr__`` has to raise for a name that it does not have."""
    missing.raise_missing_name(package, name, _advice(f"{package}.{name}"), depth=1)


def _advice(full_name: str) -> str | None:
    return _INSTEAD.get(full_name.removeprefix("lockstep.tune."))
