"""Helpers that a PyTorch training function calls: device, model, data loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lockstep.train import api

if TYPE_CHECKING:
    import torch
    from torch.utils.data import DataLoader

__all__ = ["get_device", "prepare_data_loader", "prepare_model"]


def get_device() -> torch.device:
    """This worker's device: its own GPU if it has one, else the CPU."""
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if _has_gpu() else torch.device("cpu")


def prepare_model(
    model: torch.nn.Module,
    move_to_device: bool = True,
    wrap_ddp: bool = True,
    ddp_kwargs: dict[str, Any] | None = None,
) -> torch.nn.Module:
    """Move the model to this worker's device and, with more than one worker, wrap it in DDP."""
    from torch.nn.parallel import DistributedDataParallel

    if move_to_device:
        model = model.to(get_device())
    if wrap_ddp and api.world_size() > 1:
        model = DistributedDataParallel(model, **(ddp_kwargs or {}))
    return model


def prepare_data_loader(
    data_loader: DataLoader[Any], add_dist_sampler: bool = True, move_to_device: bool = True
) -> DataLoader[Any]:
    """Give each worker its share of the data, and batches on its device.

    A loader over an iterable dataset or with a DistributedSampler of its own keeps what it has.
    """
    import torch
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

    loader = data_loader
    distribute = (
        add_dist_sampler
        and api.world_size() > 1
        and not isinstance(loader.dataset, IterableDataset)
        and not isinstance(loader.sampler, DistributedSampler)
        and loader.batch_size is not None
    )
    if distribute:
        sampler: DistributedSampler[Any] = DistributedSampler(
            loader.dataset,
            shuffle=isinstance(loader.sampler, RandomSampler),
        )
        loader = DataLoader(
            loader.dataset,
            batch_size=loader.batch_size,
            sampler=sampler,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            drop_last=loader.drop_last,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )
    if not move_to_device and not distribute:
        return loader
    device = get_device() if move_to_device else torch.device("cpu")
    return _PreparedLoader(loader, device)  # type: ignore[return-value]


class _PreparedLoader:
    """A loader whose batches arrive on the device and whose sampler reshuffles every epoch."""

    def __init__(self, loader: DataLoader[Any], device: torch.device) -> None:
        self._loader = loader
        self._device = device
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        set_epoch = getattr(self._loader.sampler, "set_epoch", None)
        if set_epoch is not None and self._epoch:
            set_epoch(self._epoch)
        self._epoch += 1
        if self._device.type == "cpu":
            yield from self._loader
        else:
            for batch in self._loader:
                yield _to_device(batch, self._device)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _to_device(batch: Any, device: torch.device) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: _to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_to_device(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(_to_device(value, device) for value in batch)
    return batch


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() and torch.cuda.device_count() > 0
