"""Batches of arrays as batches of tensors, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.formats import to_tensor

if TYPE_CHECKING:
    import torch

    from lockstep.data.iterate.batching import Batch

__all__ = ["ToTensors", "arrived"]


class ToTensors:
    """Turns batches of arrays into tensors on a device.

    To a GPU they go through pinned memory, on a stream of their own: the copy of one batch runs
    while the training function works on the one before.
    """

    def __init__(
        self,
        dtypes: Any,
        device: torch.device,
        collate_fn: Callable[[Any], Any] | None,
        pin_memory: bool,
    ) -> None:
        self._each = dtypes if isinstance(dtypes, Mapping) else {}
        self._all = None if isinstance(dtypes, Mapping) else dtypes
        self._device = device
        self._collate = collate_fn
        self._pin = pin_memory
        self.on_gpu = device.type == "cuda"

    @property
    def is_work(self) -> bool:
        """Whether it takes time worth a thread of its own."""
        return self._collate is not None or self._pin or self._device.type != "cpu"

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches as tensors."""
        stream: Any = None
        if self.on_gpu:
            import torch

            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        for arrays, rows in batches:
            batch = self._tensors(arrays) if self._collate is None else self._collate(arrays)
            yield (self._placed(batch) if stream is None else self._sent(batch, stream)), rows

    def _tensors(self, arrays: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        each, all_of_them = self._each, self._all
        tensors = {}
        for name, array in arrays.items():
            tensor = to_tensor(name, array)
            dtype = each.get(name, all_of_them)
            tensors[name] = tensor if dtype is None else tensor.to(dtype)
        return tensors

    def _placed(self, batch: Any) -> Any:
        if self._device.type == "cpu":
            return _each(batch, lambda t: t.pin_memory()) if self._pin else batch
        return _each(batch, lambda t: t.to(self._device))

    def _sent(self, batch: Any, stream: Any) -> Any:
        import torch

        with torch.cuda.stream(stream):
            pinned = _each(batch, lambda t: t if t.is_cuda or t.is_pinned() else t.pin_memory())
            sent = _each(pinned, lambda t: t.to(self._device, non_blocking=True))
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(stream)
        return _OnTheWay(sent, arrived, pinned, self._device)


class _OnTheWay:
    """A batch whose copy to the GPU may still run; the pinned memory is kept until it is used."""

    def __init__(self, batch: Any, arrived: Any, pinned: Any, device: torch.device) -> None:
        self._batch, self._arrived, self._pinned = batch, arrived, pinned
        self._device = device

    def arrive(self) -> Any:
        """Make the consumer's stream wait for the copy, not the consumer."""
        import torch

        current = torch.cuda.current_stream(self._device)  # which may not be the current device
        current.wait_event(self._arrived)
        _each(self._batch, lambda tensor: tensor.record_stream(current))
        return self._batch


def arrived(batch: Any) -> Any:
    """A batch ready for use in the calling thread."""
    return batch.arrive() if isinstance(batch, _OnTheWay) else batch


def _each(value: Any, action: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure with something done to each tensor in it."""
    import torch

    if isinstance(value, torch.Tensor):
        return action(value)
    if isinstance(value, Mapping):
        return {key: _each(inner, action) for key, inner in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_each(inner, action) for inner in value))
    if isinstance(value, (list, tuple)):
        return type(value)(_each(inner, action) for inner in value)
    return value
