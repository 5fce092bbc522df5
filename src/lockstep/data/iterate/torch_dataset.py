"""A torch ``IterableDataset`` of features and labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.plan.operations import check_columns

if TYPE_CHECKING:
    import torch
    import torch.utils.data

__all__ = ["features_and_label"]


def features_and_label(
    batches: Iterable[Mapping[str, torch.Tensor]],
    columns: Sequence[str],
    label: str | None,
    features: Any,
    dtypes: tuple[Any, Any],
    unsqueeze: tuple[bool, bool],
) -> torch.utils.data.IterableDataset[Any]:
    """Batches of columns as batches of (features, label); see ``DataIterator.to_torch``."""
    import torch.utils.data

    if features is None:
        features = [name for name in columns if name != label]
    check_columns([*_flat(features), *([] if label is None else [label])], columns, "to_torch")
    label_dtype, feature_dtypes = dtypes
    unsqueeze_label, unsqueeze_features = unsqueeze

    class FeaturesAndLabel(torch.utils.data.IterableDataset[Any]):
        """The dataset that ``to_torch`` returns."""

        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            if torch.utils.data.get_worker_info() is not None:
                raise RuntimeError(
                    "A DataLoader over to_torch() would give every row once for each of its "
                    "processes; use num_workers=0, since a thread prefetches already."
                )
            for batch in batches:
                yield (
                    _features(batch, features, feature_dtypes, unsqueeze_features),
                    None if label is None else _one(batch[label], label_dtype, unsqueeze_label),
                )

    return FeaturesAndLabel()


def _flat(features: Any) -> list[str]:
    if isinstance(features, str):
        return [features]
    values = features.values() if isinstance(features, Mapping) else features
    return [name for value in values for name in _flat(value)]


def _features(batch: Mapping[str, Any], names: Any, dtypes: Any, unsqueeze: bool) -> Any:
    """A tensor, or several in the structure of ``names``."""
    if isinstance(names, Mapping):
        return {
            key: _features(batch, part, _of(dtypes, key), unsqueeze) for key, part in names.items()
        }
    if names and not isinstance(names[0], str):
        return [
            _features(batch, part, _of(dtypes, place), unsqueeze)
            for place, part in enumerate(names)
        ]
    names = [names] if isinstance(names, str) else names
    return _side_by_side([_one(batch[name], dtypes, unsqueeze) for name in names])


def _of(dtypes: Any, key: Any) -> Any:
    return dtypes[key] if isinstance(dtypes, (Mapping, list, tuple)) else dtypes


def _one(tensor: Any, dtype: Any, unsqueeze: bool) -> Any:
    tensor = tensor if dtype is None else tensor.to(dtype)
    return tensor.unsqueeze(1) if unsqueeze and tensor.ndim == 1 else tensor


def _side_by_side(tensors: list[Any]) -> Any:
    import torch

    if len(tensors) == 1:
        return tensors[0]
    if tensors[0].ndim == 1:
        return torch.stack(tensors, dim=1)
    return torch.cat(tensors, dim=1)
