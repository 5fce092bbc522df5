"""How the datasets of a run are divided among its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from lockstep.checks import check_seed
from lockstep.data.compat import ExecutionOptions

if TYPE_CHECKING:
    from lockstep.data.dataset import Dataset

__all__ = ["DataConfig", "DatasetConfig"]


@dataclass
class DataConfig:
    """How the ``datasets`` of a trainer are divided among its workers.

    A subclass may divide them itself: see ``configure``.

    Args:
        datasets_to_split: ``"all"`` (the default), or the names of the datasets to divide; every
            worker gets all rows of the others.
        execution_options: how Ray executes a dataset of Ray Data on a Ray cluster, or a dict from
            names to that; ignored for all others.
        enable_shard_locality: on a Ray cluster, a worker gets the rows of a dataset of Ray Data
            that are on its own node first; ignored for all others.
        equal: every worker gets the same number of rows, so that no worker waits for another at the
            end; the remaining rows (fewer than there are workers) are left out of that epoch.
            False: every row is read exactly once, by some worker.
        seed: for every ``random_shuffle()`` without a seed. Not for datasets that Ray Data streams,
            which shuffle themselves.
        order: ``"local"``: each worker reads its own part. ``"global"``: the workers share each
            batch, and the sequence of batches is the same for any number of workers; every worker
            then reads all of the data.
    """

    datasets_to_split: Literal["all"] | Sequence[str] = "all"
    execution_options: Any = None
    enable_shard_locality: bool = True
    equal: bool = True
    seed: int | None = None
    order: Literal["local", "global"] = "local"

    def __post_init__(self) -> None:
        names = self.datasets_to_split
        if isinstance(names, str):
            if names != "all":
                raise ValueError(
                    f"DataConfig(datasets_to_split={names!r}): give 'all' or a list of names."
                )
        elif not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
            raise TypeError(
                f"DataConfig(datasets_to_split={names!r}): names must be strings; give 'all' or a "
                "list of names."
            )
        if self.order not in ("local", "global"):
            raise ValueError(f"DataConfig(order={self.order!r}): give 'local' or 'global'.")
        if not isinstance(self.equal, bool):
            raise TypeError(f"DataConfig(equal={self.equal!r}): give True or False.")
        self.seed = check_seed("DataConfig", self.seed)

    @staticmethod
    def default_ingest_options() -> ExecutionOptions:
        """Options that Ray's scripts change and pass as ``execution_options``."""
        return ExecutionOptions()

    def configure(
        self,
        datasets: Mapping[str, Dataset],
        world_size: int,
        worker_handles: Sequence[Any] | None = None,
        worker_node_ids: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Divide the datasets among workers, in the driver, before each attempt.

        Where a subclass overrides it, each worker's ``get_dataset_shard(name)`` is what it returns
        for that worker, and after a restart every epoch starts from its beginning. Otherwise it is
        not called, and a run resumes in the middle of an epoch.

        Args:
            datasets: the trainer's.
            world_size: the number of workers.
            worker_handles: None: workers are processes, no actors.
            worker_node_ids: the node of each worker; None: not known yet.
            kwargs: none today.

        Returns:
            For each worker a dict of iterators: shards of ``streaming_split``, ``iterator()``, or
            datasets.
        """
        output: list[dict[str, Any]] = [{} for _ in range(world_size)]
        for name, dataset in datasets.items():
            split = self.splits(name)
            plan = dataset.prepare(
                world_size if split else 1,
                equal=self.equal,
                order=self.order,
                seed=self.seed,
                name=f"datasets[{name!r}]",
            )
            for rank, mine in enumerate(output):
                mine[name] = plan.shard(rank if split else 0)
        return output

    def splits(self, name: str) -> bool:
        """Whether a dataset is divided among the workers; otherwise each worker gets all rows."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split


@dataclass(frozen=True)
class DatasetConfig:
    """How one dataset is divided: the older form, used in a dict from dataset name to config.

    Args:
        fit: fit the trainer's preprocessor on this dataset, rather than on ``"train"``.
        transform: whether the trainer's preprocessor transforms this dataset; the default.
        split: divide the dataset among the workers (the default), or give each worker all rows.
        required: raise an error if the trainer has no dataset of that name.
        global_shuffle: call ``random_shuffle()``; each epoch has a different order.
        randomize_block_order: reorder the blocks in each epoch, which is a cheaper shuffle.
        per_epoch_preprocessor: must be None; transform the dataset instead, which is lazy.
        max_object_store_memory_fraction, use_stream_api, stream_window_size: accepted for scripts
            written for Ray, and ignored; data always streams.
    """

    fit: bool | None = None
    split: bool | None = None
    required: bool | None = None
    transform: bool | None = None
    max_object_store_memory_fraction: float | None = None
    global_shuffle: bool | None = None
    randomize_block_order: bool | None = None
    per_epoch_preprocessor: Any = None
    use_stream_api: bool | None = None
    stream_window_size: int | None = None

    def __post_init__(self) -> None:
        switches = ("fit", "split", "required", "transform", "global_shuffle")
        for name in (*switches, "randomize_block_order"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, bool):
                raise TypeError(f"DatasetConfig({name}={value!r}): give True, False or None.")
        if self.per_epoch_preprocessor is not None:
            raise ValueError(
                f"DatasetConfig(per_epoch_preprocessor={self.per_epoch_preprocessor!r}): give "
                "per_epoch_preprocessor.transform(dataset), which runs again in each epoch."
            )
