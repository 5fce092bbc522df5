"""``to_torch``: a dataset for torch, also in the processes of its loader."""

from __future__ import annotations

import gc

import pytest
import torch

import lockstep.data
from tests.data.datasets import blocks


def test_to_torch() -> None:
    dataset = lockstep.data.from_items([{"a": i, "b": i * 2, "y": i * 10} for i in range(6)])
    features, label = next(iter(dataset.to_torch(label_column="y", batch_size=3)))
    assert (features.shape, label.shape) == ((3, 2), (3, 1))
    features, label = next(
        iter(
            dataset.to_torch(
                label_column="y",
                feature_columns={"one": ["a"], "two": ["a", "b"]},
                feature_column_dtypes={"one": torch.float32, "two": torch.float64},
                label_column_dtype=torch.int32,
                batch_size=2,
                unsqueeze_label_tensor=False,
            )
        )
    )
    assert features["two"].tolist() == [[0, 0], [1, 2]]
    assert (features["one"].dtype, label.dtype) == (torch.float32, torch.int32)
    assert label.tolist() == [0, 10]
    parts, none = next(
        iter(dataset.to_torch(feature_columns=[["a"], ["b", "y"]], unsqueeze_feature_tensors=False))
    )
    assert none is None
    assert [part.tolist() for part in parts] == [[0], [[0, 0]]]
    loader = torch.utils.data.DataLoader(
        dataset.to_torch(label_column="y", batch_size=2), batch_size=None
    )
    assert len(list(loader)) == len(list(loader)) == 3
    with pytest.raises(KeyError, match="to_torch: there is no column 'q'"):
        dataset.to_torch(label_column="q")


@pytest.mark.timeout(180)
def test_to_torch_in_the_processes_of_a_loader() -> None:
    def read() -> str:
        batches = blocks(6).to_torch(batch_size=2)
        loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1)
        try:
            list(loader)
        except RuntimeError as error:
            return str(error)
        return "no error"

    assert "use num_workers=0" in read()
    gc.collect()  # the loader's pipes end with it
