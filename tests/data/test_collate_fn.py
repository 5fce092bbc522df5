"""Classes for ``iter_torch_batches(collate_fn=…)``, and columns without values."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import torch

import lockstep.data
import lockstep.data.context
from lockstep.data.collate_fn import (
    ArrowBatchCollateFn,
    DefaultCollateFn,
    NumpyBatchCollateFn,
    PandasBatchCollateFn,
)
from tests.data.datasets import blocks


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        (ArrowBatchCollateFn, pa.Table),
        (NumpyBatchCollateFn, dict),
        (PandasBatchCollateFn, pd.DataFrame),
    ],
)
def test_the_class_chooses_the_batch(base: Any, kind: Any) -> None:
    class Collate(base):  # type: ignore[misc]
        def __call__(self, batch: Any) -> torch.Tensor:
            assert isinstance(batch, kind)
            return torch.as_tensor([int(v) for v in batch["id"].to_pylist()])

    class Plain(base):  # type: ignore[misc]
        def __call__(self, batch: Any) -> torch.Tensor:
            assert isinstance(batch, kind)
            return torch.as_tensor(list(batch["id"]))

    collate = Collate() if kind is pa.Table else Plain()
    (batch,) = blocks(3).iter_torch_batches(collate_fn=collate)
    assert batch.tolist() == [0, 1, 2]


def test_the_default_makes_tensors() -> None:
    (batch,) = blocks(3).iter_torch_batches(collate_fn=DefaultCollateFn(torch.float32))
    assert batch["id"].dtype == torch.float32
    assert batch["id"].tolist() == [0, 1, 2]


def test_a_column_of_nulls_is_nan() -> None:
    (batch,) = lockstep.data.from_items([{"x": None}, {"x": None}]).iter_torch_batches()
    assert batch["x"].isnan().tolist() == [True, True]
    with pytest.raises(TypeError, match="Column 'x' of type str"):
        list(lockstep.data.from_items([{"x": "a"}]).iter_torch_batches())


def test_the_module_of_settings() -> None:
    assert lockstep.data.context.DataContext is lockstep.data.DataContext
