"""``prepare_data_loader``: each worker's shard of the data, on its device."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockstep.train import api
from lockstep.train.torch import amp, reproducibility
from lockstep.train.torch.nested import move, tensors_in
from lockstep.train.worker import session as sessions
from lockstep.train.worker.torch_device import get_device

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

__all__ = ["PreparedLoader", "prepare_data_loader"]


def prepare_data_loader(
    data_loader: DataLoader[Any],
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> DataLoader[Any]:
    """Return a copy of the loader that yields this worker's shard, on this worker's device.

    Every option of the loader is kept. A loader that shuffles still does, in another order at every
    iteration; ``set_epoch(n)``, on the loader or on its sampler, chooses the order of the next
    iteration. A loader with an iterable dataset or a ``DistributedSampler`` keeps its samples.

    Args:
        data_loader: any ``DataLoader``.
        add_dist_sampler: whether to divide the data between the workers, if there are several.
        move_to_device: whether to move the batches to the device; they may be nested.
        auto_transfer: on a GPU, copy the next batch during the work on the current batch.
    """
    from torch.utils.data import DataLoader

    if not isinstance(data_loader, DataLoader):
        raise TypeError(f"prepare_data_loader({data_loader!r}): expected a torch DataLoader.")
    amp.acceleration("prepare_data_loader")
    if isinstance(data_loader, PreparedLoader):
        return data_loader
    kind: type = type(data_loader)
    loader: DataLoader[Any] = object.__new__(_mixed(PreparedLoader, kind))
    # Bypasses DataLoader.__setattr__, which refuses changes to a loader that was constructed.
    fields = vars(loader)
    fields.update(vars(data_loader))
    fields["_iterator"] = None
    if add_dist_sampler and api.world_size() > 1:
        fields.update(_distributed(data_loader))
    seed = reproducibility.seed()
    if seed is not None and loader.generator is None:
        fields["generator"] = _generator(seed)
    device = get_device() if move_to_device else None
    if device is not None and device.type == "cpu":
        device = None
    if device is not None and auto_transfer and loader.num_workers > 0:
        fields["pin_memory"] = True  # the loader's own thread pins, not the training loop
    fields["_lockstep_device"] = device
    fields["_lockstep_prefetches"] = auto_transfer
    return loader


class PreparedLoader:
    """Mixed into the class of a prepared loader: what is added to a ``DataLoader``."""

    _lockstep_device: torch.device | None
    _lockstep_prefetches: bool

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; later iterations count up from there."""
        loader: Any = self
        for part in (loader.sampler, loader.batch_sampler, loader.dataset):
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        sampler = self.sampler  # type: ignore[attr-defined]  # the loader's
        if isinstance(sampler, _Epochs):
            sampler.advance()
        batches = _timed(super().__iter__())  # type: ignore[misc]  # the loader's
        device = self._lockstep_device
        if device is None:
            return batches
        if self._lockstep_prefetches:
            return _prefetch_to_device(batches, device)
        return (move(batch, device) for batch in batches)


class _Epochs:
    """Mixed into a DistributedSampler: every iteration of the loader is a new epoch."""

    epoch: int
    _fresh = True  # no iteration has used this epoch yet

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)  # type: ignore[misc]  # the sampler's
        self._fresh = True

    def advance(self) -> None:
        if not self._fresh:
            self.set_epoch(self.epoch + 1)
        self._fresh = False


def _distributed(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the fields to replace in a loader so that each worker gets its shard."""
    from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset

    if isinstance(loader.dataset, IterableDataset):
        return {}
    batches = loader.batch_sampler
    sampler: Any = loader.sampler
    if loader.batch_size is None and batches is not None:
        sampler = getattr(batches, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            return {}
        if type(batches) is not BatchSampler:
            warnings.warn(
                f"prepare_data_loader() leaves the loader's own batch_sampler, a "
                f"{type(batches).__name__}, as it is: make it yield only this worker's batches.",
                stacklevel=3,
            )
            return {}
    if isinstance(sampler, DistributedSampler):
        return {}
    shard = _sampler(loader, sampler)
    if batches is None:
        return {"sampler": shard}
    batch_size: int = batches.batch_size  # type: ignore[attr-defined]  # a BatchSampler's
    drop_last: bool = batches.drop_last  # type: ignore[attr-defined]  # a BatchSampler's
    return {"sampler": shard, "batch_sampler": BatchSampler(shard, batch_size, drop_last)}


def _sampler(loader: DataLoader[Any], sampler: Any) -> DistributedSampler[Any]:
    from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

    shuffle = not isinstance(sampler, SequentialSampler)
    if type(sampler) not in (RandomSampler, SequentialSampler):
        warnings.warn(
            f"prepare_data_loader() replaces the loader's sampler, a {type(sampler).__name__}, by "
            f"a DistributedSampler with shuffle={shuffle}; to keep your own, give each worker its "
            "share in it and pass add_dist_sampler=False.",
            stacklevel=4,
        )
    elif shuffle and (sampler.replacement or sampler.num_samples != len(loader.dataset)):  # type: ignore[arg-type]
        warnings.warn(
            "prepare_data_loader() replaces the loader's RandomSampler by a DistributedSampler, "
            "which has neither replacement nor num_samples; to keep your own, pass "
            "add_dist_sampler=False.",
            stacklevel=4,
        )
    made: DistributedSampler[Any] = _mixed(_Epochs, DistributedSampler)(
        loader.dataset,
        num_replicas=api.world_size(),
        rank=api.world_rank(),
        shuffle=shuffle,
        seed=reproducibility.seed() or 0,
    )
    return made


def _generator(seed: int) -> torch.Generator:
    import torch

    # Differs by rank: loader processes of two ranks must not draw the same augmentations.
    return torch.Generator().manual_seed(seed + api.world_rank())


@functools.cache
def _mixed(mixin: type, base: type) -> type[Any]:
    return type(base.__name__, (mixin, base), {"__module__": base.__module__})


_END = object()


def _timed(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches; the time that the training function waits for them is in the ledger."""
    session = sessions.current()
    while True:
        came = time.perf_counter()
        batch = next(batches, _END)
        if session is not None:
            session.waited("data", time.perf_counter() - came)
        if batch is _END:
            return
        yield batch


def _prefetch_to_device(batches: Iterator[Any], device: torch.device) -> Iterator[Any]:
    """Yield the batches on the device, one transfer before they are needed.

    A second CUDA stream copies the next batch while the training loop computes on its own stream.
    """
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's own
    recorded = True

    def fetch() -> Any:
        batch = next(batches, _END)
        if batch is _END:
            return _END
        if not recorded:  # a freed batch may still be in use: do not copy into its memory yet
            stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            return move(batch, device, pin=True)

    batch = fetch()
    while batch is not _END:
        computing = torch.cuda.current_stream(device)
        computing.wait_stream(stream)
        for tensor in tensors_in(batch):
            if tensor.is_cuda:
                try:
                    # The allocator must not reuse the memory, which belongs to the copying
                    # stream, before the computing stream is done with it.
                    tensor.record_stream(computing)
                except NotImplementedError:  # a sparse tensor
                    recorded = False
        following = fetch()
        yield batch
        batch = following
