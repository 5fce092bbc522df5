"""How datasets reach workers: what is wrong is said when it is given."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.data import (
    DataConfig,
    DataContext,
    DatasetConfig,
    ExecutionOptions,
    ExecutionResources,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets_to_split": "train"}, r"datasets_to_split='train'\): give 'all' or a list"),
        ({"datasets_to_split": [1]}, "names must be strings"),
        ({"datasets_to_split": None}, "datasets_to_split=None.*give 'all' or a list of names"),
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


def test_what_rays_scripts_say_about_execution() -> None:
    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    assert DataContext.get_current().enable_progress_bars is False
    options = DataConfig.default_ingest_options()
    options.resource_limits = ExecutionResources(cpu=1)
    assert DataConfig(execution_options=options) != DataConfig(
        execution_options=ExecutionOptions(verbose_progress=True)
    )


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
