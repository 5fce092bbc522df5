"""Datasets that are divided again for each attempt: of Ray Data, or by a user's ``configure()``.

driver                                            worker
RayDataset ─▶ Streams.split(workers) ───────────▶ open_stream() ─▶ Ray's own DataIterator
              once an attempt, of the size it has  the worker joins the cluster as a client of it
DataConfig.configure() ─▶ Streams.configure(size) ─▶ open_stream() ─▶ what it returned for the rank
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.console.text import shorten
from lockstep.engine.base import WorkerInfo
from lockstep.train.function.serialize import dump
from lockstep.train.protocol import Stream

if TYPE_CHECKING:
    from lockstep.data import DataConfig, Dataset
    from lockstep.data.sources.shared_tables import SharedTables

__all__ = [
    "ConfiguredPlan",
    "RayDataset",
    "StreamPlan",
    "Streams",
    "is_ray_dataset",
    "known_rows",
    "open_stream",
    "with_options",
]

_OPTIONS = ("preserve_order", "verbose_progress", "label_selector")
_RESOURCES = ("cpu", "gpu", "object_store_memory", "memory")


def is_ray_dataset(value: Any) -> bool:
    """Whether it is a dataset of Ray Data. Ray itself is not imported for this."""
    return type(value).__module__.startswith("ray.data.")


class RayDataset:
    """A dataset of Ray Data, which is read where it is known how.

    On a cluster it is streamed. Elsewhere it is read whole, by calling this object: so it is to the
    rest of lockstep what a function is that returns a dataset.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self) -> Dataset:
        """All rows, in this process's memory."""
        from lockstep import data

        tables = list(self.dataset.iter_batches(batch_size=None, batch_format="pyarrow"))
        return data.from_arrow(tables) if tables else data.from_items([])

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep how the rows are made. Rows in the cluster's memory are gone after the cluster."""
        if not self.dataset.has_serializable_lineage():
            raise TypeError(
                "this Ray Data dataset is in the memory of its Ray cluster, not read from files"
            )
        return _made_again, (type(self.dataset), self.dataset.serialize_lineage())


def _made_again(kind: Any, lineage: bytes) -> RayDataset:
    return RayDataset(kind.deserialize_lineage(lineage))


def known_rows(dataset: Any) -> int | None:
    """How many rows it has, where Ray knows that without reading any."""
    try:
        rows: int | None = dataset._meta_count()
    except Exception:  # not a part of Ray's public API
        return None
    return rows


def with_options(dataset: Any, options: Any) -> Any:
    """A copy that Ray executes with these ``ExecutionOptions``, of Ray or of lockstep.data.

    Raises:
        TypeError: they are no such options.
    """
    made = dataset.copy(dataset, _deep_copy=True)
    own = made.context.execution_options
    if isinstance(options, type(own)):
        made.context.execution_options = copy.deepcopy(options)
        return made
    if not all(hasattr(options, name) for name in ("resource_limits", *_OPTIONS)):
        raise TypeError(
            f"DataConfig(execution_options={options!r}): give a ray.data.ExecutionOptions, or a "
            "dict from names of datasets to those."
        )
    for name in _OPTIONS:
        if (value := getattr(options, name)) is not None:
            setattr(own, name, value)
    if options.resource_limits is not None:
        limits = {name: getattr(options.resource_limits, name) for name in _RESOURCES}
        own.resource_limits = own.resource_limits.copy(**limits)
    return made


class StreamPlan(NamedTuple):
    """How one dataset is streamed."""

    dataset: Any
    split: bool
    """Each worker gets a part. Otherwise each worker gets every row."""
    equal: bool
    """Each worker gets the same number of rows."""
    near: bool
    """A worker gets rows that are on its own node first."""


class ConfiguredPlan(NamedTuple):
    """All datasets of a run, which the user's ``DataConfig.configure()`` divides."""

    config: DataConfig
    datasets: Mapping[str, Dataset]
    function: Callable[..., Any]
    """The training function: what is in the shards is sent as it is."""
    tables: SharedTables | None
    """Workers of this machine map the tables from here."""

    def shards(self, size: int) -> list[dict[str, Stream]]:
        """What ``configure()`` returns for each of the workers.

        Raises:
            TypeError, ValueError: it is not a dict of iterators for each worker.
        """
        doing = f"{type(self.config).__qualname__}.configure()"
        returned = self.config.configure(
            dict(self.datasets), size, worker_handles=None, worker_node_ids=None
        )
        if not isinstance(returned, (list, tuple)) or len(returned) != size:
            raise ValueError(
                f"{doing} returned {shorten(repr(returned), 200)}; return a list with one dict for "
                f"each of the {size} workers."
            )
        with self.tables.active() if self.tables is not None else nullcontext():
            return [self._sent(doing, rank, mine) for rank, mine in enumerate(returned)]

    def _sent(self, doing: str, rank: int, given: Any) -> dict[str, Stream]:
        from lockstep.data import DataIterator, Dataset

        if not isinstance(given, Mapping):
            raise TypeError(
                f"{doing} returned {shorten(repr(given), 200)} for rank {rank}; return a dict from "
                "the datasets' names to iterators."
            )
        sent = {}
        for name, shard in given.items():
            if isinstance(shard, Dataset):
                shard = shard.iterator()
            if not isinstance(shard, DataIterator):
                raise TypeError(
                    f"{doing} returned {shorten(repr(shard), 200)} for dataset {name!r} of rank "
                    f"{rank}; return a shard of dataset.streaming_split(n), dataset.iterator(), or "
                    "a dataset."
                )
            what = f"datasets[{name!r}] of {doing}"
            sent[name] = Stream("", dump(shard, what, by_value=True, like=self.function))
        return sent


class Streams:
    """The datasets of a run that are divided again for each attempt.

    Args:
        plans: by the datasets' names.
    """

    def __init__(self, plans: Mapping[str, StreamPlan | ConfiguredPlan]) -> None:
        self._plans = {n: plan for n, plan in plans.items() if isinstance(plan, StreamPlan)}
        configured = [plan for plan in plans.values() if isinstance(plan, ConfiguredPlan)]
        self._configured = configured[0] if configured else None
        self._divided: list[dict[str, Stream]] = []
        self._current: dict[str, Sequence[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._plans) or self._configured is not None

    @property
    def why_not_resumed(self) -> str:
        """Why their rows start again with an epoch after a restart, as a part of a sentence."""
        if self._configured is not None:
            return f"The datasets are divided by {type(self._configured.config).__qualname__}"
        names = ", ".join(map(repr, self._plans))
        return f"The dataset(s) {names} are of Ray Data"

    def configure(self, size: int) -> None:
        """Call the user's ``configure()`` for an attempt of this size, if there is one.

        Raises:
            Exception: the user's, or what is wrong with what it returned.
        """
        if self._configured is not None:
            self._divided = self._configured.shards(size)

    def split(self, workers: Sequence[WorkerInfo]) -> list[dict[str, Stream]]:
        """For each worker of a new attempt, its streams by name. Those of the last attempt end."""
        self.close()
        if self._configured is not None:
            return self._divided
        sent: list[dict[str, Stream]] = [{} for _ in workers]
        if not self._plans:
            return sent
        from lockstep.engine.ray import cluster_address

        address = cluster_address()
        for name, plan in self._plans.items():
            # A dataset that is not split is one stream for each worker, to which it is all.
            groups = [workers] if plan.split else [[worker] for worker in workers]
            shards = [shard for group in groups for shard in _split(plan, group)]
            # The process that divides the rows lives as long as these are referred to.
            self._current[name] = shards
            for streams, shard in zip(sent, shards, strict=True):
                streams[name] = Stream(
                    address,
                    dump(shard, f"datasets[{name!r}]"),
                    "" if plan.split and not plan.equal else _no_rows(name, plan, len(workers)),
                )
        return sent

    def close(self) -> None:
        """End the streams of the last attempt."""
        self._current = {}


def _split(plan: StreamPlan, workers: Sequence[WorkerInfo]) -> list[Any]:
    nodes = [worker.node_id for worker in workers] if plan.near else None
    shards: list[Any] = plan.dataset.streaming_split(
        len(workers), equal=plan.split and plan.equal, locality_hints=nodes
    )
    return shards


def open_stream(stream: Stream) -> Any:
    """In a worker: its part of a dataset; of a cluster's, it is Ray's own ``DataIterator``.

    Raises:
        EngineError: the cluster cannot be joined from here.
    """
    if stream.address:
        from lockstep.engine.ray import join_cluster

        join_cluster(stream.address)
    shard = pickle.loads(stream.shard)
    if stream.if_empty:
        _refuse_nothing(shard, stream.if_empty)
    return shard


def _no_rows(name: str, plan: StreamPlan, workers: int) -> str:
    if not plan.split:
        return f"datasets[{name!r}] is empty: Ray Data gave no rows of it to train on."
    return (
        f"datasets[{name!r}] is empty, or has fewer rows than there are workers, which are "
        f"{workers}: Ray Data gave none to this one. Use fewer workers or DataConfig(equal=False)."
    )


def _refuse_nothing(shard: Any, text: str) -> None:
    """Let an epoch without a row raise ``text``. Ray ends it without a word."""
    bundles_of = getattr(shard, "_to_ref_bundle_iterator", None)
    if bundles_of is None:  # not a part of Ray's public API
        return

    def checked() -> tuple[Any, ...]:
        bundles, *others = bundles_of()
        return _with_rows(bundles, text), *others

    shard._to_ref_bundle_iterator = checked


def _with_rows(bundles: Iterator[Any], text: str) -> Iterator[Any]:
    found = False
    for bundle in bundles:
        found = found or bundle.num_rows() != 0
        yield bundle
    if not found:
        raise ValueError(text)
