"""Datasets of Ray Data, as far as they can be tried without Ray; ``tests/engine/ray`` has more."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.data import DataConfig, DatasetConfig, ExecutionResources
from lockstep.train.datasets import check_datasets, check_positions, plan_datasets
from lockstep.train.streams import RayDataset, Streams


class Resources:
    def __init__(self, cpu: float | None = None, gpu: float | None = None) -> None:
        self.cpu, self.gpu = cpu, gpu

    def copy(self, **changes: float | None) -> Resources:
        return Resources(changes["cpu"], changes["gpu"])


class Options:
    def __init__(self, *, preserve_order: bool = False) -> None:
        self.preserve_order = preserve_order
        self.verbose_progress = True
        self.label_selector: Any = None
        self.resource_limits = Resources()


class InMemory:
    """Has what lockstep asks a dataset of Ray Data for."""

    shuffled = False
    rows: int | None = None

    def __init__(self) -> None:
        self.context = SimpleNamespace(execution_options=Options())

    def _meta_count(self) -> int | None:
        return self.rows

    @staticmethod
    def copy(dataset: InMemory, _deep_copy: bool) -> InMemory:
        return copy.deepcopy(dataset)

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


def plan(sharing: Any, *, shared: bool = False, rows: int | None = None) -> Any:
    dataset = InMemory()
    dataset.rows = rows
    datasets = check_datasets({"train": dataset})
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


def test_a_division_of_the_users_own_is_refused() -> None:
    class Own(DataConfig):
        def configure(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("nobody calls this")

    with pytest.raises(TypeError, match=r"Own\.configure\(\): datasets\['train'\] is of Ray Data"):
        plan(Own())


def test_a_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shuffles its rows itself; .* random_shuffle\(seed=7\)"):
        plan(DataConfig(seed=7))


def test_execution_options_are_those_of_ray() -> None:
    theirs = Options(preserve_order=True)
    used = plan(DataConfig(execution_options=theirs)).dataset.context.execution_options
    assert used is not theirs
    assert used.preserve_order
    ours = DataConfig.default_ingest_options()
    ours.resource_limits = ExecutionResources(cpu=3.0)
    used = plan(DataConfig(execution_options={"train": ours})).dataset.context.execution_options
    assert isinstance(used, Options)
    assert (used.preserve_order, used.resource_limits.cpu) == (True, 3.0)
    others = plan(DataConfig(execution_options={"other": ours}))
    assert not others.dataset.context.execution_options.preserve_order
    with pytest.raises(TypeError, match=r"execution_options=5\): give a ray.data.ExecutionOptions"):
        plan(DataConfig(execution_options=5))


def test_too_few_rows_are_named_where_ray_knows_them() -> None:
    with pytest.raises(ValueError, match=r"datasets\['train'\] is empty: .* no rows to train on"):
        plan(None, rows=0)
    with pytest.raises(ValueError, match=r"datasets\['train'\] has 1 rows for 2 workers, so they"):
        plan(None, rows=1)
    assert plan(DataConfig(equal=False), rows=1)
    assert plan(DataConfig(datasets_to_split=[]), rows=1)


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
