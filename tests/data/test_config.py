"""How datasets reach workers: what is wrong is said when it is given."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lockstep.data import (
    DataConfig,
    DataContext,
    DatasetConfig,
    ExecutionOptions,
    ExecutionResources,
    FileShuffleConfig,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"datasets_to_split": "train"}, r"datasets_to_split='train'\): give 'all' or a list"),
        ({"datasets_to_split": [1]}, "names must be strings"),
        ({"datasets_to_split": None}, "datasets_to_split=None.*give 'all' or a list of names"),
        ({"order": "random"}, r"order='random'\): give 'local' or 'global'"),
        ({"equal": 1}, r"equal=1\): give True or False"),
        ({"seed": "x"}, r"seed='x'\): give an integer or None"),
        ({"seed": True}, r"seed=True\): give an integer or None"),
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
    assert ExecutionOptions(label_selector={"pool": "a"}).label_selector == {"pool": "a"}
    limits = ExecutionResources.for_limits(cpu=1)
    assert (limits.cpu, limits.gpu, limits.memory) == (1, float("inf"), float("inf"))
    changed = limits.copy(gpu=2)
    assert (changed.cpu, changed.gpu, limits.gpu) == (1, 2, float("inf"))
    assert ExecutionResources.zero() == ExecutionResources(0, 0, 0, 0)


def test_a_setting_that_was_never_set() -> None:
    context = DataContext()
    assert context.target_max_block_size == 128 << 20
    context.target_max_block_size = 1
    for same in (copy.deepcopy(context), context.copy()):
        assert same.target_max_block_size == 1
    assert not hasattr(context, "_private")
    context.set_config("mine", 3)
    assert (context.get_config("mine"), context.copy().get_config("mine")) == (3, 3)
    context.remove_config("mine")
    assert context.get_config("mine", "gone") == "gone"


def test_a_setting_that_does_not_exist() -> None:
    context = DataContext()
    message = r"no setting 'target_max_blok_size'; did you mean target_max_block_size"
    with pytest.raises(AttributeError, match=message):
        _ = context.target_max_blok_size
    with pytest.raises(AttributeError, match=message):
        context.target_max_blok_size = 3
    with pytest.raises(AttributeError, match=r"no setting 'qqq'\. It has Ray's settings"):
        _ = context.qqq


def test_a_setting_that_would_change_results() -> None:
    with pytest.warns(UserWarning, match="max_errored_blocks = 3 has no effect: the first error"):
        DataContext().max_errored_blocks = 3


def test_a_shuffle_of_files_that_stays() -> None:
    assert FileShuffleConfig(1, reseed_after_execution=True) == FileShuffleConfig(seed=1)
    with pytest.raises(ValueError, match=r"reseed_after_execution=False.*shuffle the list"):
        FileShuffleConfig(seed=1, reseed_after_execution=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "yes"}, r"split='yes'\): give True, False or None"),
        ({"global_shuffle": 1}, r"global_shuffle=1\): give True"),
        ({"randomize_block_order": 1}, r"randomize_block_order=1\): give True"),
        ({"per_epoch_preprocessor": len}, "per_epoch_preprocessor.transform"),
    ],
)
def test_a_wrong_dataset_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DatasetConfig(**options)
