"""Passes over rows: the methods that datasets and shards share, and what runs behind them."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstep.checks import check_int, check_seed
from lockstep.data.arrow.formats import check_format, to_rows
from lockstep.data.iterate.batching import Batch, cut_arrays, cut_tables
from lockstep.data.iterate.prefetch import Prefetcher
from lockstep.data.iterate.stats import DataStats
from lockstep.data.plan.unit import Piece

if TYPE_CHECKING:
    import pyarrow as pa
    import torch
    import torch.utils.data

    from lockstep.data.plan.position import LocalShuffle

__all__ = ["DataIterator", "Pass", "Request", "Rows"]

T = TypeVar("T")

AHEAD_BYTES = 16 << 20
"""How much may lie read and unused."""
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Request:
    """What a user asked of an iteration."""

    batch_size: int | None
    drop_last: bool = False
    prefetch: int = 1
    shuffle_size: int | None = None
    shuffle_seed: int | None = None
    single_rows: bool = False

    def __post_init__(self) -> None:
        for name, field, least in (
            ("batch_size", "batch_size", 1),
            ("prefetch_batches", "prefetch", 0),
            ("local_shuffle_buffer_size", "shuffle_size", 1),
        ):
            value = getattr(self, field)
            if value is not None:
                object.__setattr__(self, field, check_int(f"{name}={value!r}", value, least))
        seed = check_seed("local_shuffle", self.shuffle_seed)
        object.__setattr__(self, "shuffle_seed", seed)
        if self.shuffle_size is not None and self.batch_size is None:
            raise ValueError("local_shuffle_buffer_size needs a batch_size; give one.")


@dataclass
class Pass:
    """One iteration: where its rows come from, and how far the user has come.

    Attributes:
        pieces: makes the rows, when called.
        size: the rows of a batch here (a part of ``batch_size`` where ranks share a batch).
        whole_batches: leave out a last batch that is smaller than the others.
        consumed: rows handed to the user.
        ended: it is over, by itself or because the user let go of it.
    """

    pieces: Callable[[], Iterator[Piece]]
    size: int | None
    stats: DataStats
    epoch: int = 0
    base: Mapping[str, Any] | None = None
    batch_size: int | None = None
    whole_batches: bool = False
    local_shuffle: LocalShuffle | None = None
    consumed: int = 0
    ended: bool = False


Cutter = Callable[[Iterator[Piece], "int | None", bool], Iterator[Batch]]


@dataclass(frozen=True)
class _Work:
    """What is done to pieces until they are what the user gets."""

    cut: Cutter
    then: Callable[[Iterator[Batch]], Iterator[Batch]] | None = None
    in_thread: bool = False
    hand_over: Callable[[Any], Any] | None = None


class Rows(Generic[T]):
    """Batches (or rows): iterate it as often as you like, each time is an epoch; or ``next()``."""

    def __init__(self, owner: DataIterator, request: Request, work: _Work) -> None:
        self._owner = owner
        self._request = request
        self._work = work
        self._own: _Running[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return _Running(self._owner._begin(self._request), self._request, self._work)

    def __next__(self) -> T:
        if self._own is None:
            self._own = _Running(self._owner._begin(self._request), self._request, self._work)
        return next(self._own)


class _Running(Generic[T]):
    """A pass under way. Letting go of it ends its threads."""

    def __init__(self, current: Pass, request: Request, work: _Work) -> None:
        self._pass = current
        self._ahead: list[Prefetcher[Any]] = []
        pieces: Iterator[Piece]
        if request.prefetch:
            reading = Prefetcher(
                current.pieces,
                lambda piece: int(piece.table.nbytes),
                items=256,
                size=AHEAD_BYTES,
                name="lockstep-data-read",
            )
            self._ahead.append(reading)
            pieces = reading
        else:
            pieces = current.pieces()
        batches = work.cut(pieces, current.size, request.drop_last)
        if work.then is not None:
            made = work.then(batches)
            batches = made
            if request.prefetch and work.in_thread:
                converting: Prefetcher[Batch] = Prefetcher(
                    lambda: made,
                    lambda batch: 0,
                    items=request.prefetch,
                    size=1,
                    name="lockstep-data-convert",
                )
                self._ahead.append(converting)
                batches = converting
        self._batches = batches
        self._hand_over = work.hand_over
        self._left = time.perf_counter()

    def __iter__(self) -> _Running[T]:
        return self

    def __next__(self) -> T:
        current = self._pass
        if current.ended:
            raise StopIteration
        came = time.perf_counter()
        try:
            batch, rows = next(self._batches)
            if self._hand_over is not None:
                batch = self._hand_over(batch)
        except BaseException:
            self.close()
            raise
        left = time.perf_counter()
        current.stats.add(rows, waited=left - came, used=came - self._left)
        self._left = left
        current.consumed += rows
        return batch  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the pass and its threads."""
        self._pass.ended = True
        for ahead in self._ahead:  # all are told before one is waited for: one may wait for another
            ahead.stop()
        for ahead in self._ahead:
            ahead.close()
        self._ahead.clear()
        self._batches = iter(())

    def __del__(self) -> None:
        self.close()


def _one_by_one(pieces: Iterator[Piece], size: int | None, drop_last: bool) -> Iterator[Batch]:
    for piece in pieces:
        for start in range(0, piece.table.num_rows, _ROWS_AT_ONCE):
            for row in to_rows(piece.table.slice(start, _ROWS_AT_ONCE)):
                yield row, 1


class DataIterator(ABC):
    """What can be iterated over: the rows of a dataset, or a worker's part of them."""

    auto_device: Callable[[], Any] | None = None
    """What ``device="auto"`` asks; the CPU where nobody said."""

    def __init__(self) -> None:
        self._stats = DataStats()

    @abstractmethod
    def _begin(self, request: Request) -> Pass:
        """Begin a pass over the rows."""

    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns and their types."""

    def stats(self) -> DataStats:
        """What was handed out, and how much of the time was spent waiting for it."""
        return self._stats

    def iter_batches(
        self,
        *,
        batch_size: int | None = 256,
        batch_format: str | None = "default",
        prefetch_batches: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
    ) -> Rows[Any]:
        """Batches of rows.

        Args:
            batch_size: rows of a batch; None takes the blocks as they are read. With
                ``order="global"`` it counts the rows of all workers together.
            batch_format: ``"numpy"`` (the default: a dict of arrays, not to be written to),
                ``"pandas"`` or ``"pyarrow"``.
            prefetch_batches: 0 reads in the calling thread, when a batch is asked for. Otherwise a
                thread reads ahead, up to about 16 MB; where batches take work (a ``collate_fn``, a
                copy to a GPU) another keeps so many ready.
            drop_last: leave out the last batch where it is smaller.
            local_shuffle_buffer_size: permute each so many rows that follow each other.
            local_shuffle_seed: of that permutation.
            prefetch_blocks: the older name of ``prefetch_batches``.

        Returns:
            An object to iterate over, as often as you like: each time is an epoch.
        """
        name = check_format(batch_format, ("default", "numpy", "pandas", "pyarrow"))
        ahead = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, ahead, local_shuffle_buffer_size, local_shuffle_seed
        )
        if name == "numpy":
            return Rows(self, request, _Work(lambda p, s, d: cut_arrays(p, s, d, write=False)))
        return Rows(self, request, _Work(lambda p, s, d: cut_tables(p, s, d, name)))

    def iter_rows(self, *, prefetch_blocks: int = 1) -> Rows[dict[str, Any]]:
        """Rows as dicts, one by one."""
        return Rows(
            self, Request(1, prefetch=prefetch_blocks, single_rows=True), _Work(_one_by_one)
        )

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
        prefetch_blocks: int | None = None,
    ) -> Rows[Any]:
        """Batches of rows as tensors.

        Args:
            prefetch_batches, prefetch_blocks, batch_size, drop_last, local_shuffle_buffer_size,
                local_shuffle_seed: as in ``iter_batches``.
            dtypes: of all columns, or of each.
            device: where to put them; ``"auto"`` is the worker's own. To a GPU they are copied
                through pinned memory, beside the training.
            collate_fn: makes a batch of a dict of arrays, in a thread; instead of ``dtypes``.
            pin_memory: put them into pinned memory, for a copy of your own.
        """
        from lockstep.data.iterate.torch_batches import ToTensors, arrived

        if collate_fn is not None and dtypes is not None:
            raise ValueError("collate_fn makes the tensors, so dtypes cannot; give one of the two.")
        convert = ToTensors(dtypes, self._device(device), collate_fn, pin_memory)
        ahead = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, ahead, local_shuffle_buffer_size, local_shuffle_seed
        )
        work = _Work(
            lambda p, s, d: cut_arrays(p, s, d, write=True),
            convert,
            convert.is_work,
            arrived if convert.on_gpu else None,
        )
        return Rows(self, request, work)

    def _device(self, device: Any) -> torch.device:
        import torch

        if device != "auto":
            found = torch.device(device)
            if found.type == "cuda" and not torch.cuda.is_available():
                raise ValueError(
                    f"device={device!r}: torch sees no GPU in this process; give 'cpu' or 'auto', "
                    "or ask for one with ScalingConfig(use_gpu=True)."
                )
            return found
        return torch.device("cpu" if self.auto_device is None else self.auto_device())

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Sequence[str] | Sequence[Sequence[str]] | Mapping[str, Any] | None = None,
        label_column_dtype: torch.dtype | None = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        prefetch_batches: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
        prefetch_blocks: int | None = None,
    ) -> torch.utils.data.IterableDataset[Any]:
        """A torch ``IterableDataset`` of (features, label) batches.

        Args:
            label_column: None gives None for the labels.
            feature_columns: columns put side by side in one tensor; a list of lists or a dict of
                lists gives several tensors. None is every column but the label.
            label_column_dtype, feature_column_dtypes: of the tensors, in the same structure.
            batch_size, prefetch_batches, prefetch_blocks, drop_last, local_shuffle_buffer_size,
                local_shuffle_seed: as in ``iter_batches``.
            unsqueeze_label_tensor, unsqueeze_feature_tensors: make a column of numbers a tensor of
                two dimensions, one column wide.
        """
        from lockstep.data.iterate.torch_dataset import features_and_label

        batches = self.iter_torch_batches(
            batch_size=batch_size,
            prefetch_batches=prefetch_batches,
            prefetch_blocks=prefetch_blocks,
            drop_last=drop_last,
            device="cpu",
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return features_and_label(
            batches,
            self.schema().names,
            label_column,
            feature_columns,
            (label_column_dtype, feature_column_dtypes),
            (unsqueeze_label_tensor, unsqueeze_feature_tensors),
        )

    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        additional_columns: str | Sequence[str] | None = None,
        prefetch_batches: int = 1,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        feature_type_spec: Any = None,
        label_type_spec: Any = None,
        additional_type_spec: Any = None,
        prefetch_blocks: int | None = None,
    ) -> Any:
        """A ``tf.data.Dataset`` of (features, labels) batches; each iteration is an epoch.

        Args:
            feature_columns, label_columns, additional_columns: a name gives a tensor, a list of
                names a dict of tensors.
            prefetch_batches, prefetch_blocks, batch_size, drop_last, local_shuffle_buffer_size,
                local_shuffle_seed: as in ``iter_batches``.
            feature_type_spec, label_type_spec, additional_type_spec: ``tf.TypeSpec``, where what is
                found from the columns is not what you want.
        """
        from lockstep.data.iterate.tf_dataset import tf_dataset

        batches = self.iter_batches(
            batch_size=batch_size,
            prefetch_batches=prefetch_batches,
            prefetch_blocks=prefetch_blocks,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        parts = (feature_columns, label_columns, additional_columns)
        specs = (feature_type_spec, label_type_spec, additional_type_spec)
        return tf_dataset(batches, self.schema(), parts, specs)

    def iter_tf_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_blocks: int | None = None,
    ) -> Rows[Any]:
        """Batches of rows as dicts of TensorFlow's tensors; arguments as in ``iter_batches``."""
        import tensorflow as tf

        def convert(batches: Iterator[Batch]) -> Iterator[Batch]:
            for arrays, rows in batches:
                yield (
                    {
                        name: tf.convert_to_tensor(
                            array, dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes
                        )
                        for name, array in arrays.items()
                    },
                    rows,
                )

        ahead = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, ahead, local_shuffle_buffer_size, local_shuffle_seed
        )
        work = _Work(lambda p, s, d: cut_arrays(p, s, d, write=False), convert)
        return Rows(self, request, work)
