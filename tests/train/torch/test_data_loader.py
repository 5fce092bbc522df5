"""prepare_data_loader: shards, orders, options and kinds of batches."""

from __future__ import annotations

import copy
import dataclasses
import multiprocessing
import warnings
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from lockstep import train
from lockstep.train.torch import prepare_data_loader
from lockstep.train.torch.nested import move, tensors_in
from tests.train.torch.ranks import as_rank, fit


def numbers(loader: Any) -> list[int]:
    return [int(value) for batch in loader for value in batch]


def shares(size: int = 2, rows: int = 10, **options: Any) -> list[list[int]]:
    found = []
    for rank in range(size):
        with as_rank(rank, size):
            found.append(numbers(prepare_data_loader(DataLoader(range(rows), **options))))  # type: ignore[arg-type]
    return found


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def init_worker(worker: int) -> None:
    """A user's own sampler, which changes nothing."""


def as_list(rows: list[Any]) -> list[Any]:
    return rows


def test_each_rank_gets_its_share() -> None:
    first, second = shares(batch_size=2)
    assert (first, second) == ([0, 2, 4, 6, 8], [1, 3, 5, 7, 9])


def test_what_was_shuffled_stays_shuffled_and_disjoint() -> None:
    first, second = shares(rows=100, shuffle=True)
    assert sorted(first + second) == list(range(100))
    assert sorted(first) != first


def test_an_uneven_rest_is_padded_so_that_no_rank_waits_for_another() -> None:
    assert {len(share) for share in shares(size=3, rows=10)} == {4}


@pytest.mark.parametrize("rows", [0, 1])
def test_fewer_rows_than_ranks(rows: int) -> None:
    assert [len(share) for share in shares(size=2, rows=rows)] == [rows, rows]


def test_one_worker_keeps_its_sampler() -> None:
    loader: DataLoader[Any] = DataLoader(range(4), shuffle=True)  # type: ignore[arg-type]
    with as_rank():
        prepared = prepare_data_loader(loader)
    assert prepared.sampler is loader.sampler
    prepared.set_epoch(3)  # type: ignore[attr-defined]
    assert sorted(numbers(prepared)) == [0, 1, 2, 3]


def test_every_option_survives() -> None:
    context = multiprocessing.get_context("spawn")
    generator = torch.Generator()
    options: dict[str, Any] = {
        "batch_size": 3,
        "num_workers": 1,
        "collate_fn": as_list,
        "pin_memory": True,
        "drop_last": True,
        "timeout": 7,
        "worker_init_fn": init_worker,
        "multiprocessing_context": context,
        "generator": generator,
        "prefetch_factor": 4,
        "persistent_workers": True,
        "in_order": False,
    }
    loader: DataLoader[Any] = DataLoader(range(20), shuffle=True, **options)  # type: ignore[arg-type]
    with as_rank(1, 2):
        prepared = prepare_data_loader(loader)
    assert {name: getattr(prepared, name) for name in options} == options
    assert isinstance(prepared, DataLoader)
    assert prepared.dataset is loader.dataset
    assert prepared.batch_sampler.sampler is prepared.sampler  # type: ignore[union-attr]
    assert len(prepared) == 3
    assert isinstance(loader.sampler, RandomSampler), "the given loader is left alone"


def test_a_loader_class_of_the_users_own_is_kept() -> None:
    class Doubling(DataLoader[int]):
        extra = 5

        def __iter__(self) -> Any:
            return (batch * 2 for batch in super().__iter__())

    with as_rank(0, 2):
        prepared = prepare_data_loader(Doubling(range(4)))  # type: ignore[arg-type]
    assert isinstance(prepared, Doubling)
    assert (numbers(prepared), prepared.extra) == ([0, 4], 5)


def test_prepared_twice_is_prepared_once() -> None:
    with as_rank(0, 2):
        prepared = prepare_data_loader(DataLoader(range(4)))  # type: ignore[arg-type]
        assert prepare_data_loader(prepared) is prepared


def test_every_iteration_is_another_epoch() -> None:
    with as_rank(0, 2):
        prepared: Any = prepare_data_loader(DataLoader(range(50), shuffle=True))  # type: ignore[arg-type]
    orders = [numbers(prepared) for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    prepared.sampler.set_epoch(1)
    assert numbers(prepared) == orders[1]
    assert numbers(prepared) == orders[2], "it counts on from there"
    prepared.set_epoch(2)
    assert numbers(prepared) == orders[2], "the same one again, if asked for"


def test_a_fresh_loader_can_begin_at_a_later_epoch() -> None:
    with as_rank(0, 2):
        loaders: list[Any] = [
            prepare_data_loader(DataLoader(range(50), shuffle=True))  # type: ignore[arg-type]
            for _ in range(2)
        ]
    orders = [numbers(loaders[0]) for _ in range(3)]
    loaders[1].set_epoch(2)
    assert numbers(loaders[1]) == orders[2]


@pytest.mark.parametrize("options", [{}, {"add_dist_sampler": False}])
def test_a_distributed_sampler_of_the_users_own_is_not_touched(options: Any) -> None:
    sampler = DistributedSampler(range(8), num_replicas=2, rank=1)  # type: ignore[arg-type,var-annotated]
    loader: DataLoader[Any] = DataLoader(range(8), sampler=sampler)  # type: ignore[arg-type]
    with as_rank(1, 2):
        prepared = prepare_data_loader(loader, **options)
    assert prepared.sampler is sampler
    assert numbers(prepared) == numbers(prepared)
    sampler.set_epoch(3)
    assert (numbers(prepared), sampler.epoch) == (numbers(loader), 3)


def test_an_iterable_dataset_is_not_touched() -> None:
    with as_rank(1, 2):
        assert numbers(prepare_data_loader(DataLoader(Endless()))) == [0, 1, 2, 3]


def test_a_custom_sampler_is_replaced_with_one_warning() -> None:
    loader: DataLoader[Any] = DataLoader(range(6), sampler=WeightedRandomSampler([1.0] * 6, 6))  # type: ignore[arg-type]
    with as_rank(0, 2):
        with pytest.warns(UserWarning, match="WeightedRandomSampler.*add_dist_sampler=False") as w:
            prepared = prepare_data_loader(loader)
        assert len(w) == 1
        assert w[0].filename == __file__
        assert isinstance(prepared.sampler, DistributedSampler)
        assert prepared.sampler.shuffle, "it was no sequential one"
        assert len(numbers(prepared)) == 3
        kept = prepare_data_loader(loader, add_dist_sampler=False)
    assert kept.sampler is loader.sampler


def test_a_random_sampler_with_replacement_is_not_lost_silently() -> None:
    loader: DataLoader[Any] = DataLoader(
        range(6),  # type: ignore[arg-type]
        sampler=RandomSampler(range(6), num_samples=3),
    )
    with as_rank(0, 2), pytest.warns(UserWarning, match="neither replacement nor num_samples"):
        prepare_data_loader(loader)


def test_a_plain_batch_sampler_is_divided() -> None:
    batches = BatchSampler(SequentialSampler(range(8)), 2, drop_last=False)
    with as_rank(1, 2):
        prepared = prepare_data_loader(DataLoader(range(8), batch_sampler=batches))  # type: ignore[arg-type]
    assert [batch.tolist() for batch in prepared] == [[1, 3], [5, 7]]


def test_a_batch_sampler_of_the_users_own_is_kept_with_a_warning() -> None:
    loader: DataLoader[Any] = DataLoader(range(4), batch_sampler=[[0, 1], [2, 3]])  # type: ignore[arg-type]
    with as_rank(1, 2), pytest.warns(UserWarning, match="leaves the loader's own batch_sampler"):
        prepared = prepare_data_loader(loader)
    assert numbers(prepared) == [0, 1, 2, 3]


def test_rows_without_batches_are_divided_too() -> None:
    assert [[int(row) for row in share] for share in _unbatched()] == [[0, 2], [1, 3]]


def _unbatched() -> list[list[Any]]:
    found = []
    for rank in range(2):
        with as_rank(rank, 2):
            found.append(list(prepare_data_loader(DataLoader(range(4), batch_size=None))))  # type: ignore[arg-type]
    return found


def test_something_else_than_a_loader_is_an_error() -> None:
    with pytest.raises(TypeError, match="expected a torch DataLoader"):
        prepare_data_loader([1, 2])  # type: ignore[arg-type]


def test_in_workers_with_worker_processes() -> None:
    def function() -> None:
        warnings.simplefilter("error")
        loader = prepare_data_loader(
            DataLoader(range(12), batch_size=2, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
        )
        epochs = [[batch.tolist() for batch in loader] for _ in range(2)]
        train.report({"epochs": epochs, "length": len(loader)})

    ranks = fit(function).metrics_by_rank
    assert [rank["length"] for rank in ranks] == [3, 3]
    assert ranks[0]["epochs"] == [[[0, 2], [4, 6], [8, 10]]] * 2
    assert ranks[1]["epochs"] == [[[1, 3], [5, 7], [9, 11]]] * 2


# Kinds of batches; the device "meta" replaces a GPU.

META = torch.device("meta")
Pair = namedtuple("Pair", ["x", "label"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    name: str


class Movable:
    def __init__(self, device: Any = "cpu") -> None:
        self.device = device

    def to(self, device: Any) -> Movable:
        return Movable(device)


def test_batches_of_any_nesting_are_moved() -> None:
    x = torch.ones(2)
    batch: dict[str, Any] = {
        "tensor": x,
        "list": [x, "text", None],
        "tuple": (x, 3),
        "named": Pair(x, "cat"),
        "dataclass": Frozen(x, "dog"),
        "own": Movable(),
        "ordered": OrderedDict(a=x),
        "default": defaultdict(list, a=[x]),
        "proxy": MappingProxyType({"a": x}),
        "packed": torch.nn.utils.rnn.pack_sequence([x]),
    }
    before = copy.copy(batch)
    moved = move(batch, META)
    assert moved["tensor"].device == META
    assert (moved["list"][0].device, moved["list"][1:]) == (META, ["text", None])
    assert (moved["tuple"][0].device, moved["tuple"][1]) == (META, 3)
    assert isinstance(moved["named"], Pair)
    assert (moved["named"].x.device, moved["named"].label) == (META, "cat")
    assert (moved["dataclass"].x.device, moved["dataclass"].name) == (META, "dog")
    assert moved["own"].device == META
    assert isinstance(moved["ordered"], OrderedDict)
    assert moved["ordered"]["a"].device == META
    assert moved["default"].default_factory is list
    assert moved["default"]["a"][0].device == META
    assert moved["proxy"]["a"].device == META
    assert moved["packed"].data.device == META
    assert batch == before
    assert all(tensor.device.type == "cpu" for tensor in tensors_in(batch))
    assert len([t for t in tensors_in(moved) if t.device == META]) >= 8
