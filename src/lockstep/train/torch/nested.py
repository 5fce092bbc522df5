"""Nested batches and outputs: applies a function to every leaf of their containers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["map_leaves", "move", "tensors_in"]


def map_leaves(value: Any, change: Callable[[Any], Any], stop: Callable[[Any], bool]) -> Any:
    """Return the same containers with ``change(leaf)`` in them; the original is not changed.

    Containers are mappings, lists, tuples, named tuples and dataclasses, unless ``stop`` returns
    True for one: then it is a leaf. The containers' classes are kept.
    """
    if stop(value):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: map_leaves(inner, change, stop) for key, inner in value.items()}
        # torch.compile can trace plain containers, but not copy().
        if type(value) is dict or not isinstance(value, MutableMapping):
            return items
        copied: Any = copy.copy(value)
        for key, inner in items.items():  # Transformers' outputs refuse update()
            copied[key] = inner
        return copied
    if isinstance(value, list):
        inners = [map_leaves(inner, change, stop) for inner in value]
        if type(value) is list:
            return inners
        copied = copy.copy(value)
        copied[:] = inners
        return copied
    if isinstance(value, tuple):
        inners = [map_leaves(inner, change, stop) for inner in value]
        return type(value)(*inners) if hasattr(value, "_fields") else type(value)(inners)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            inner = map_leaves(getattr(value, field.name), change, stop)
            object.__setattr__(copied, field.name, inner)  # works for frozen ones, too
        return copied
    return change(value)


def move(batch: Any, device: torch.device, *, pin: bool = False) -> Any:
    """Return the batch on a device: its tensors, and other objects with a ``to`` method.

    Args:
        batch: anything; leaves that cannot be moved stay unchanged.
        device: the target.
        pin: copy tensors to pinned memory first, so that the transfer is asynchronous.
    """
    import torch

    def change(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            dense_on_cpu = leaf.device.type == "cpu" and leaf.layout == torch.strided
            if pin and dense_on_cpu and not leaf.is_pinned():
                leaf = leaf.pin_memory()
            return leaf.to(device, non_blocking=True)
        if _has_to(leaf):
            try:
                return leaf.to(device, non_blocking=True)
            except TypeError:  # the user's own method, without that option
                return leaf.to(device)
        return leaf

    return map_leaves(batch, change, _has_to)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return every tensor in the containers, and in the attributes of objects with ``to``."""
    import torch

    found: list[torch.Tensor] = []

    def collect(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif _has_to(leaf):
            parts = leaf if isinstance(leaf, tuple) else getattr(leaf, "__dict__", {}).values()
            found.extend(part for part in parts if isinstance(part, torch.Tensor))
            for part in parts:
                if isinstance(part, (Mapping, list)):
                    found.extend(tensors_in(part))
        return leaf

    map_leaves(value, collect, _has_to)
    return found


def _has_to(value: Any) -> bool:
    return callable(getattr(value, "to", None)) and not isinstance(value, type)
