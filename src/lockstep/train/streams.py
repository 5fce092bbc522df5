"""Datasets of Ray Data in training: on a cluster Ray streams their rows to the workers.

driver                                            worker
RayDataset ─▶ Streams.split(workers) ───────────▶ open_stream() ─▶ Ray's own DataIterator
              once an attempt, of the size it has  the worker joins the cluster as a client of it
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lockstep.engine.base import WorkerInfo
from lockstep.train.protocol import Stream
from lockstep.train.serialize import dump

if TYPE_CHECKING:
    from lockstep.data import Dataset

__all__ = [
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


class Streams:
    """The streamed datasets of a run.

    Args:
        plans: by the datasets' names.
    """

    def __init__(self, plans: Mapping[str, StreamPlan]) -> None:
        self._plans = plans
        self._current: dict[str, Sequence[Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._plans)

    @property
    def names(self) -> list[str]:
        """The datasets' names."""
        return list(self._plans)

    def split(self, workers: Sequence[WorkerInfo]) -> list[dict[str, Stream]]:
        """For each worker of a new attempt, its streams by name. Those of the last attempt end."""
        self.close()
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
    """In a worker: its part of a dataset, Ray's own ``DataIterator``.

    Raises:
        EngineError: the cluster cannot be joined from here.
    """
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
