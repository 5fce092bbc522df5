"""How datasets reach workers: what is wrong is said when it is given."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.data import DataConfig, DatasetConfig


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets_to_split": "train"}, r"datasets_to_split='train'\): give 'all' or a list"),
        ({"datasets_to_split": [1]}, "names must be strings"),
        ({"order": "random"}, r"order='random'\): give 'local' or 'global'"),
        ({"equal": 1}, r"equal=1\): give True or False"),
        ({"seed": "x"}, r"seed='x'\): give a whole number or None"),
        ({"seed": True}, r"seed=True\): give a whole number or None"),
    ],
)
def test_a_wrong_data_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DataConfig(**options)


def test_which_datasets_are_divided() -> None:
    assert DataConfig().splits("anything")
    assert DataConfig(["train"]).splits("train")
    assert not DataConfig(datasets_to_split=["train"]).splits("test")
    assert not DataConfig(datasets_to_split=[]).splits("train")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "yes"}, r"split='yes'\): give True, False or None"),
        ({"global_shuffle": 1}, r"global_shuffle=1\): give True"),
        ({"randomize_block_order": 1}, r"randomize_block_order=1\): give True"),
        ({"per_epoch_preprocessor": len}, "there are no preprocessors here; use map_batches"),
    ],
)
def test_a_wrong_dataset_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DatasetConfig(**options)
