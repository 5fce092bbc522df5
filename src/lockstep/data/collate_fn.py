"""Classes for ``iter_torch_batches(collate_fn=…)`` that choose the type of batch they get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.data.arrow.formats import to_format, to_pandas, to_table

__all__ = [
    "ArrowBatchCollateFn",
    "CollateFn",
    "DefaultCollateFn",
    "NumpyBatchCollateFn",
    "PandasBatchCollateFn",
    "of_arrays",
]


class CollateFn(ABC):
    """Makes a batch for the training function."""

    @abstractmethod
    def __call__(self, batch: Any) -> Any:
        """The batch that the training function gets."""


class ArrowBatchCollateFn(CollateFn):
    """Gets an Arrow table."""


class NumpyBatchCollateFn(CollateFn):
    """Gets a dict of arrays, as a function does."""


class PandasBatchCollateFn(CollateFn):
    """Gets a data frame."""


class DefaultCollateFn(ArrowBatchCollateFn):
    """Makes tensors of an Arrow table, as without a ``collate_fn``.

    Args:
        dtypes: of all columns, or of each.
        device: of the tensors.
        pin_memory: put them into pinned memory.
    """

    def __init__(self, dtypes: Any = None, device: Any = None, pin_memory: bool = False) -> None:
        self.dtypes, self.device, self.pin_memory = dtypes, device, pin_memory

    def __call__(self, batch: Any) -> dict[str, Any]:
        """A dict of tensors."""
        made = {}
        for name, tensor in to_format(batch, "torch").items():
            one = isinstance(self.dtypes, Mapping)
            dtype = self.dtypes.get(name) if one else self.dtypes
            tensor = tensor.to(device=self.device, dtype=dtype)
            made[name] = tensor.pin_memory() if self.pin_memory else tensor
        return made


def of_arrays(given: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    """A ``collate_fn`` as a function of a dict of arrays."""
    if isinstance(given, (ArrowBatchCollateFn, PandasBatchCollateFn)):
        pandas = isinstance(given, PandasBatchCollateFn)

        def collate(arrays: Any) -> Any:
            table = to_table(arrays, "iter_torch_batches")
            return given(to_pandas(table) if pandas else table)

        return collate
    return given
