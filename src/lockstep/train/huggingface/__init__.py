"""Hugging Face: helpers for training functions that use a Transformers trainer."""

from __future__ import annotations

import importlib
from types import ModuleType

from lockstep.missing import raise_missing_name

__all__ = ["transformers"]


def __getattr__(name: str) -> ModuleType:
    if name == "transformers":
        return importlib.import_module("lockstep.train.huggingface.transformers")
    raise_missing_name(__name__, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
