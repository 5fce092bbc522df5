"""Datasets of Ray Data, as far as they can be tried without Ray; ``tests/engine/ray`` has more."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from lockstep.data import DataConfig, DatasetConfig
from lockstep.train.datasets import check_datasets, check_positions, plan_datasets
from lockstep.train.streams import RayDataset, Streams


class InMemory:
    """Has what lockstep asks a dataset of Ray Data for."""

    shuffled = False

    def has_serializable_lineage(self) -> bool:
        return False

    def random_shuffle(self) -> InMemory:
        other = InMemory()
        other.shuffled = True
        return other


class FromFiles(InMemory):
    def has_serializable_lineage(self) -> bool:
        return True

    def serialize_lineage(self) -> bytes:
        return b"lineage"

    @classmethod
    def deserialize_lineage(cls, lineage: bytes) -> FromFiles:
        assert lineage == b"lineage"
        return cls()


for kind in (InMemory, FromFiles):
    kind.__qualname__, kind.__module__ = kind.__name__, "ray.data.dataset"


def plan(sharing: Any, *, shared: bool = False) -> Any:
    datasets = check_datasets({"train": InMemory()})
    plans, _, streams = plan_datasets(datasets, sharing, 2, plan, shared=shared)
    assert plans == {"train": b""}
    check_positions(plans, {"train": {"of": "another dataset"}})  # nothing to resume
    return streams["train"]


def test_on_a_cluster_it_is_streamed() -> None:
    default = plan(None)
    assert (default.split, default.equal, default.near) == (True, True, True)
    whole = plan(DataConfig(datasets_to_split=[], equal=False, enable_shard_locality=False))
    assert (whole.split, whole.equal, whole.near) == (False, False, False)
    shuffled = plan({"train": DatasetConfig(global_shuffle=True, split=False)})
    assert shuffled.dataset.shuffled
    assert not shuffled.split


def test_a_global_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"datasets\['train'\] is of Ray Data, which divides"):
        plan(DataConfig(order="global"))


def test_only_what_can_be_made_again_is_kept_with_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FromFiles, "__module__", __name__)  # so that it can be imported
    again = pickle.loads(pickle.dumps(RayDataset(FromFiles())))
    assert isinstance(again.dataset, FromFiles)
    with pytest.raises(TypeError, match="in the memory of its Ray cluster"):
        pickle.dumps(RayDataset(InMemory()))


def test_without_streams_nothing_of_ray_is_needed() -> None:
    streams = Streams({})
    assert not streams
    assert streams.split([]) == []
    streams.close()
