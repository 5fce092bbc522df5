"""What a dict checkpoint keeps of its dict: the pickle, and the numbers in it."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Mapping
from numbers import Real
from typing import Any

__all__ = ["number_at", "numbers_in", "only_tensors", "pickle_dict"]


class _OnlyAShard(ValueError):
    """One rank's dict is kept, so the shards of the other ranks would be lost."""


def pickle_dict(data: dict[str, Any]) -> bytes:
    """The dict as bytes: by plain pickle if possible, so that it loads without cloudpickle.

    Raises:
        TypeError: the dict cannot be pickled; names the key.
        ValueError: the dict contains a tensor of which this worker has only a shard.
    """
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
    torch = sys.modules.get("torch")
    buffer = io.BytesIO()
    if torch is not None:
        pickler = _on_cpu(pickler, torch)
    pickler(buffer, protocol=5).dump(data)
    return buffer.getvalue()


def _is_shard(value: Any) -> bool:
    # A DTensor or a ShardedTensor. Their modules differ between versions of torch.
    if hasattr(type(value), "full_tensor"):
        return any(placement.is_shard() for placement in value.placements)
    return hasattr(type(value), "local_shards")


def _on_cpu(pickler: Any, torch: Any) -> Any:
    """A subclass of the pickler that writes the tensors of accelerators as CPU tensors."""
    inherited = getattr(pickler, "reducer_override", None)

    class OnCPU(pickler):  # type: ignore[misc]  # a base known at run time
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, torch.nn.parallel.DistributedDataParallel):
                # The wrapper belongs to a process group, so the model in it is kept instead.
                # Protocol 1: with a later one, pickle insists on the class of the wrapper.
                return value.module.__reduce_ex__(1)
            if _is_shard(value):
                raise _OnlyAShard(
                    "Checkpoint.from_dict: this worker has only a shard of a tensor in the dict; "
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


def only_tensors(data: Mapping[Any, Any]) -> bool:
    """Whether all values are torch's tensors, as in a state dict; False for an empty dict."""
    torch = sys.modules.get("torch")  # not imported: then no value is a tensor
    return torch is not None and bool(data) and all(map(torch.is_tensor, data.values()))


def numbers_in(data: Mapping[Any, Any], above: tuple[int, ...] = ()) -> dict[str, Any]:
    """The numbers of nested dicts as floats; any other value is None."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            continue
        kind = type(value)
        if kind is float or kind is str:  # the fast path: a dict may have a million words
            found[key] = value if kind is float else None
        elif isinstance(value, dict):
            # A dict may contain itself.
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
            return None  # a tensor without data, on the device "meta"
        if isinstance(value, bool) or not isinstance(value, Real):
            return None
    try:
        return float(value)
    except OverflowError:
        return None


def number_at(numbers: dict[str, Any], key: str) -> float | None:
    """The number at ``key`` in a result of ``numbers_in``; ``"a/b"`` reaches into nested dicts."""
    if key in numbers:
        value = numbers[key]
        return value if isinstance(value, float) else None
    head, slash, rest = key.partition("/")
    inner = numbers.get(head) if slash else None
    return number_at(inner, rest) if isinstance(inner, dict) else None
