"""Batches of arrays as batches of tensors, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.formats import to_tensor

if TYPE_CHECKING:
    import torch

    from lockstep.data.iterate.batching import Batch

__all__ = ["ToTensors", "wait_for_copy"]


class ToTensors:
    """Turns batches of arrays into tensors on a device.

    Copies to a GPU go through pinned memory, on a stream of their own: a batch is copied while the
    training function uses the batch before.
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
        """Whether the conversion takes enough time to deserve a thread."""
        return self._collate is not None or self._pin or self._device.type != "cpu"

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Convert batches."""
        stream: Any = None
        if self.on_gpu:
            import torch

            # On the default stream the copy would queue behind the training's kernels.
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # torch's own
        for arrays, rows in batches:
            batch = self._tensors(arrays) if self._collate is None else self._collate(arrays)
            yield (self._placed(batch) if stream is None else self._copied(batch, stream)), rows

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

    def _copied(self, batch: Any, stream: Any) -> Any:
        import torch

        with torch.cuda.stream(stream):
            pinned = _each(batch, lambda t: t if t.is_cuda or t.is_pinned() else t.pin_memory())
            copy = _each(pinned, lambda t: t.to(self._device, non_blocking=True))
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            done.record(stream)
        return _PendingCopy(copy, done, pinned, self._device)


class _PendingCopy:
    """A batch whose copy to the GPU may still run; keeps the pinned memory alive."""

    def __init__(self, batch: Any, done: Any, pinned: Any, device: torch.device) -> None:
        self._batch, self._done, self._pinned = batch, done, pinned
        self._device = device

    def wait(self) -> Any:
        """Make the consumer's stream wait for the copy; the consumer itself does not wait."""
        import torch

        current = torch.cuda.current_stream(self._device)  # may differ from the current device
        current.wait_event(self._done)
        # The allocator must not reuse this memory before the consumer's stream is done with it.
        _each(self._batch, lambda tensor: tensor.record_stream(current))
        return self._batch


def wait_for_copy(batch: Any) -> Any:
    """A batch that is ready for use in the calling thread."""
    return batch.wait() if isinstance(batch, _PendingCopy) else batch


def _each(value: Any, action: Callable[[torch.Tensor], Any]) -> Any:
    """The same structure with an action applied to each tensor."""
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
