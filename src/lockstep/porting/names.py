"""Which names of Ray's lockstep has, looked up in the lockstep that runs; and today's paths."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import lockstep

__all__ = ["Missing", "Remark", "accepts", "find", "find_module", "needs_ray_core", "today"]

_TODAY = {
    "air": "train",
    "air.checkpoint": "train",
    "air.config": "train",
    "air.result": "train",
    "air.callbacks.comet": "air.integrations.comet",
    "air.callbacks.keras": "air.integrations.keras",
    "air.callbacks.mlflow": "air.integrations.mlflow",
    "air.callbacks.wandb": "air.integrations.wandb",
    "tune.integration.comet": "air.integrations.comet",
    "tune.integration.mlflow": "air.integrations.mlflow",
    "tune.integration.wandb": "air.integrations.wandb",
    "tune.tune_config": "tune",
    "tune.tuner": "tune",
}
"""Old paths below ``ray`` → today's."""


@dataclass(frozen=True, order=True)
class Remark:
    """Something that a person has to look at."""

    line: int
    name: str
    reason: str


class Missing(Exception):
    """lockstep does not have a name; the text says why, or what to use instead."""


@cache
def find_module(path: str) -> ModuleType:
    """The module of lockstep at a path below ``ray``, such as ``train.torch``.

    Raises:
        Missing: there is none.
    """
    name = f"lockstep.{path}" if path else "lockstep"
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise Missing(f"lockstep has no module {path}") from None
    except ImportError as error:
        raise Missing(str(error).removesuffix(".")) from None


def find(path: str, name: str) -> Any:
    """A name in a module of lockstep; None where it is made from a framework on first use.

    Raises:
        Missing: the module does not have it.
    """
    module = find_module(path)
    where = f"lockstep.{path}" if path else "lockstep"
    if name in vars(module):
        return vars(module)[name]
    if needs_ray_core(path, name) or name in getattr(module, "__all__", ()):
        return None
    try:
        return getattr(module, name)
    except ImportError as error:
        raise Missing(str(error).removesuffix(".")) from None
    except AttributeError as error:
        try:
            return find_module(f"{path}.{name}".lstrip("."))
        except Missing:
            _, found, advice = str(error).partition(": ")
            text = advice.removesuffix(".") if found else f"{where} has no {name}"
            raise Missing(text) from None


def needs_ray_core(path: str, name: str) -> bool:
    """Whether it is Ray's own, on the engine ``ray`` only."""
    return path == "" and name in lockstep._OF_RAY_CORE


def today(path: str, names: Iterable[str]) -> str:
    """Today's path of names that are imported from an old one; the same, unless it has all."""
    new = _TODAY.get(path)
    if new is None:
        return path
    try:
        return new if all(find(path, n) is find(new, n) for n in names) else path
    except Missing:
        return path


def accepts(function: Any, keywords: Sequence[str]) -> list[str]:
    """The keyword arguments that a call must not have; empty where that is not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return []
    known = {parameter.name for parameter in parameters}
    return [keyword for keyword in keywords if keyword not in known]
