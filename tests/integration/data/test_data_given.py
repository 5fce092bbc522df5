"""What a trainer is given besides its function: looked at in the right order, and not lost."""

from __future__ import annotations

import sys
import threading
from types import ModuleType
from typing import Any

import pytest

import lockstep.data
from lockstep import train
from lockstep.errors import InsufficientResourcesError
from lockstep.train import (
    Checkpoint,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    WorkerGroupError,
)

QUIET = RunConfig(verbose=0)


def half_an_epoch() -> None:
    for batch in train.get_dataset_shard("train").iter_batches(batch_size=4):
        train.report({"n": len(batch["id"])}, checkpoint=Checkpoint.from_dict({"x": 1}))
        if train.get_context().get_attempt() == 1:
            raise OSError("no space left")


def left_in_the_middle(dataset: Any) -> str:
    with pytest.raises(WorkerGroupError) as raised:
        DataParallelTrainer(half_an_epoch, datasets={"train": dataset}, run_config=QUIET).fit()
    assert raised.value.result is not None
    return raised.value.result.path


def test_a_dataset_that_does_not_fit_leaves_the_run_as_it_was() -> None:
    path = left_in_the_middle(lockstep.data.range(32))
    other = {"train": lockstep.data.range(16)}
    with pytest.raises(ValueError, match="has 16 rows"):
        DataParallelTrainer.restore(path, datasets=other).fit()
    result = DataParallelTrainer.restore(path).fit()
    assert result.metrics_dataframe is not None
    assert result.metrics_dataframe["n"].sum() == 32


def test_a_function_that_cannot_be_kept_has_to_be_given_again() -> None:
    lock = threading.Lock()

    def load() -> Any:
        with lock:
            return lockstep.data.range(32)

    path = left_in_the_middle(load)
    with pytest.raises(ValueError, match=r"dataset 'train' could not be kept.*give datasets="):
        DataParallelTrainer.restore(path)
    restored = DataParallelTrainer.restore(path, datasets={"train": load})
    assert restored.fit().metrics["n"] == 4


def never() -> Any:
    raise AssertionError("nothing should have asked for the data")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scaling_config": ScalingConfig(num_workers=1000, use_gpu=True)}, "GPU"),
        ({"run_config": RunConfig(callbacks=[print])}, "expected objects of"),
    ],
)
def test_what_cannot_run_raises_before_data_is_read(options: Any, error: str) -> None:
    trainer = DataParallelTrainer(print, datasets={"train": never}, **options)
    with pytest.raises((InsufficientResourcesError, TypeError), match=error):
        trainer.fit()


def test_a_module_of_the_users_own_called_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        """A map-style dataset that, like most, does not end by an IndexError."""

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> dict[str, int]:
            return {"id": index}

    Endless.__module__ = "datasets"
    own = ModuleType("datasets")
    vars(own)["Dataset"] = object()
    monkeypatch.setitem(sys.modules, "datasets", own)
    trainer = DataParallelTrainer(print, datasets={"train": Endless()})
    assert trainer.datasets["train"].count() == 4


def test_a_misspelt_name_in_the_config() -> None:
    config = {"trian": lockstep.data.DatasetConfig(split=False)}
    with pytest.raises(ValueError, match=r"dataset_config\['trian'\].*datasets are 'train'"):
        DataParallelTrainer(
            print, datasets={"train": lockstep.data.range(2)}, dataset_config=config
        )
