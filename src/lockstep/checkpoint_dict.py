"""What is kept of the dict a checkpoint is made from: its pickle, and the numbers in it."""

from __future__ import annotations

import io
from collections.abc import Mapping
from numbers import Real
from typing import Any

__all__ = ["number_at", "numbers_in", "pickle_dict"]


class _OnlyAShard(ValueError):
    """Of the dicts of all ranks one is kept: the other ranks' shards would be lost."""


def pickle_dict(data: dict[str, Any]) -> bytes:
    """The dict as bytes: by plain pickle if it can, so that it loads without this library.

    Raises:
        TypeError: it cannot be pickled; names the key.
        ValueError: it holds a tensor of which this worker has only a shard.
    """
    import pickle

    try:
        return _pickle_with(pickle.Pickler, data)
    except (MemoryError, _OnlyAShard):
        raise
    except Exception:
        import cloudpickle
    try:
        return _pickle_with(cloudpickle.Pickler, data)
    except Exception as error:
        for key, value in data.items():
            try:
                _pickle_with(cloudpickle.Pickler, value)
            except Exception as cause:
                raise TypeError(
                    f"Checkpoint.from_dict: the value at {key!r}, of type "
                    f"{type(value).__name__}, cannot be pickled ({cause}); leave it out."
                ) from cause
        raise TypeError(f"Checkpoint.from_dict: the dict cannot be pickled ({error}).") from error


def _pickle_with(pickler: Any, data: Any) -> bytes:
    import sys

    torch = sys.modules.get("torch")
    buffer = io.BytesIO()
    if torch is not None:
        pickler = _on_cpu(pickler, torch)
    pickler(buffer, protocol=5).dump(data)
    return buffer.getvalue()


def _is_shard(value: Any) -> bool:
    # A DTensor or a ShardedTensor, whose modules are not the same in every torch.
    if hasattr(type(value), "full_tensor"):
        return any(placement.is_shard() for placement in value.placements)
    return hasattr(type(value), "local_shards")


def _on_cpu(pickler: Any, torch: Any) -> Any:
    """The pickler class, made to write the tensors of accelerators as CPU tensors."""
    inherited = getattr(pickler, "reducer_override", None)

    class OnCPU(pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch.nn.parallel.DistributedDataParallel):
                # The wrapper belongs to a process group; what is kept is the model in it.
                # Protocol 1: the later ones insist on the class of the object that is replaced.
                return value.module.__reduce_ex__(1)
            if _is_shard(value):
                raise _OnlyAShard(
                    "Checkpoint.from_dict: of a tensor in the dict this worker has only a shard; "
                    "save it with torch.distributed.checkpoint, or gather it first: "
                    "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))."
                )
            if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
                moved = value.detach().cpu().requires_grad_(value.requires_grad)
                if isinstance(value, torch.nn.Parameter):
                    moved = torch.nn.Parameter(moved.detach(), value.requires_grad)
                return moved.__reduce_ex__(5)
            return NotImplemented if inherited is None else inherited(self, value)

    return OnCPU


def numbers_in(data: Mapping[Any, Any], above: tuple[int, ...] = ()) -> dict[str, Any]:
    """The numbers of nested dicts, None in the place of anything else."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            continue
        kind = type(value)
        if kind is float or kind is str:  # so that a dict of a million words costs little
            found[key] = value if kind is float else None
        elif isinstance(value, dict):
            # A dict inside itself has no numbers further down.
            inside = id(value) in above
            found[key] = None if inside else numbers_in(value, (*above, id(data)))
        else:
            found[key] = _as_number(value)
    return found


def _as_number(value: Any) -> float | None:
    if type(value) is not int:
        try:
            if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
                value = value.item()
        except Exception:
            return None  # a tensor without data has no number
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
    try:
        return float(value)
    except OverflowError:
        return None


def number_at(numbers: dict[str, Any], key: str) -> float | None:
    """The number at ``key`` of what ``numbers_in`` found; ``"a/b"`` reaches into nested dicts."""
    if key in numbers:
        value = numbers[key]
        return value if isinstance(value, float) else None
    head, slash, rest = key.partition("/")
    inner = numbers.get(head) if slash else None
    return number_at(inner, rest) if isinstance(inner, dict) else None
