"""Modules and names of Ray Tune that lockstep does not have, and what to use instead.

A module of the table is a small file that calls ``raise_missing_module``. A package with missing
names calls ``raise_missing_name`` from its ``__getattr__``. Nothing is installed into Python's
import system.
"""

from __future__ import annotations

import sys
from typing import NoReturn

__all__ = ["raise_missing_module", "raise_missing_name"]

_OPTUNA = "use lockstep.tune.search.optuna.OptunaSearch, with any sampler of Optuna"
_BOHB = "use HyperBandScheduler with OptunaSearch"
_RESIZED = (
    "a trial keeps the resources it started with; a trainer with "
    "ScalingConfig(num_workers=(min, max)) grows and shrinks"
)
_INSTEAD = {
    "Experiment": "use lockstep.tune.Tuner",
    "run_experiments": "use lockstep.tune.Tuner",
    "register_env": "it belongs to RLlib, which is not part of lockstep",
    "suggest": "use lockstep.tune.search",
    "utils.log": "use RunConfig(verbose=…)",
    "schedulers.HyperBandForBOHB": _BOHB,
    "schedulers.hb_bohb": _BOHB,
    "schedulers.ResourceChangingScheduler": _RESIZED,
    "schedulers.resource_changing_scheduler": _RESIZED,
    **{f"search.{name}": _OPTUNA for name in ("ax", "bohb", "hebo", "zoopt")},
}


def raise_missing_module(module: str) -> NoReturn:
    """Raise the ImportError of a module in the table: it names the replacement."""
    raise ImportError(_explanation(module, _advice(module) or "it has no counterpart"), name=module)


def raise_missing_name(package: str, name: str) -> NoReturn:
    """Raise what a package's ``__getattr__`` has to raise for a name that it does not have.

    ``from package import name`` raises an ImportError that names the replacement. Any other
    look-up, such as ``hasattr``, gets the usual AttributeError.
    """
    full = f"{package}.{name}"
    advice = _advice(full)
    if advice is not None and _is_import_statement():
        raise ImportError(_explanation(full, advice), name=full)
    text = f"module {package!r} has no attribute {name!r}"
    raise AttributeError(text if advice is None else f"{text}: {advice}.", name=name)


def _advice(full_name: str) -> str | None:
    return _INSTEAD.get(full_name.removeprefix("lockstep.tune."))


def _explanation(full_name: str, advice: str) -> str:
    return f"{full_name} does not exist: {advice}."


def _is_import_statement() -> bool:
    """Whether a module's ``__getattr__`` was called by ``from … import …``.

    The import statement first asks with ``hasattr``, and drops the text of an AttributeError. So
    only an ImportError at that moment reaches the user.
    """
    caller = sys._getframe(3)  # this function, raise_missing_name, __getattr__, the caller
    return caller.f_code.co_filename == "<frozen importlib._bootstrap>"
