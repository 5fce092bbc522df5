"""Iteration: the ``iter_*`` and ``to_*`` methods of datasets and shards, and the passes behind."""

from __future__ import annotations

import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from lockstep.checks import check_int, check_seed
from lockstep.data.arrow.formats import check_format, to_rows
from lockstep.data.compat import DataContext
from lockstep.data.iterate.batching import Batch, cut_arrays, cut_tables
from lockstep.data.iterate.prefetch import Prefetcher
from lockstep.data.iterate.stats import DataStats, StatsText
from lockstep.data.plan.meter import Meter, Stood
from lockstep.data.plan.unit import Piece, Reader
from lockstep.data.schema import Schema

if TYPE_CHECKING:
    import torch
    import torch.utils.data

    from lockstep.data.dataset import Dataset
    from lockstep.data.plan.position import LocalShuffle

__all__ = ["DataIterator", "Pass", "Request", "Rows"]

T = TypeVar("T")

PREFETCHED_BYTES = 16 << 20
"""About how many bytes of rows are read before they are needed, at most."""
_ROWS_AT_ONCE = 1024
"""How many rows become dicts at once: dicts take far more memory than the table."""


@dataclass(frozen=True)
class Request:
    """The user's arguments to an iteration."""

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
    """One iteration over the rows, and the user's progress in it.

    Attributes:
        pieces: starts reading the rows.
        size: the rows of this rank's batches (a part of ``batch_size`` where ranks share a batch).
        full_batches: leave out a last batch that is smaller than the others.
        consumed: the number of rows handed to the user.
        ended: the pass ended by itself, or the user dropped it.
        meter: of users' functions, None where there are none.
        reader: reads the rows, once that has begun.
    """

    pieces: Callable[[], Iterator[Piece]]
    size: int | None
    stats: DataStats
    epoch: int = 0
    base: Mapping[str, Any] | None = None
    batch_size: int | None = None
    full_batches: bool = False
    local_shuffle: LocalShuffle | None = None
    consumed: int = 0
    ended: bool = False
    meter: Meter | None = None
    reader: weakref.ref[Reader] | None = None

    def begin_reading(self, threads: bool, exact: bool = True) -> Reader:
        """The reader of this pass; closing the pass cancels what it has sent to processes."""
        reader = Reader(threads, exact, self.meter)
        self.reader = weakref.ref(reader)  # it holds rows, which end with their use
        return reader

    def end(self) -> None:
        """The user wants no more rows: what was sent to processes is not needed any more."""
        self.ended = True
        self.pieces = _no_pieces  # which may refer to the pass, and to the dataset
        reader = None if self.reader is None else self.reader()
        if reader is not None:
            reader.cancel()


def _no_pieces() -> Iterator[Piece]:
    return iter(())


Cutter = Callable[[Iterator[Piece], "int | None", bool], Iterator[Batch]]


@dataclass(frozen=True)
class _Work:
    """The steps from pieces to the user's batches.

    Attributes:
        cut: pieces into batches.
        then: converts the batches, in a thread of its own if ``in_thread``.
        hand_over: converts a batch in the user's thread.
    """

    cut: Cutter
    then: Callable[[Iterator[Batch]], Iterator[Batch]] | None = None
    in_thread: bool = False
    hand_over: Callable[[Any], Any] | None = None


class Rows(Generic[T]):
    """Batches (or rows) to iterate over any number of times, each an epoch; or ``next()``."""

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
    """A running pass. Dropping the last reference ends its threads."""

    def __init__(self, current: Pass, request: Request, work: _Work) -> None:
        self._pass = current
        self._prefetchers: list[Prefetcher[Any]] = []
        pieces: Iterator[Piece]
        if request.prefetch:
            reading = Prefetcher(
                current.pieces,
                lambda piece: int(piece.table.nbytes),
                # The bytes are the bound that counts; this one is for very small pieces.
                items=256,
                size=PREFETCHED_BYTES,
                name="lockstep-data-read",
            )
            self._prefetchers.append(reading)
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
                    # Counted in batches, as the user asked, whatever their size.
                    lambda batch: 0,
                    items=request.prefetch,
                    size=1,
                    name="lockstep-data-convert",
                )
                self._prefetchers.append(converting)
                batches = converting
        self._batches = batches
        self._hand_over = work.hand_over
        self._left = time.perf_counter()
        self._stood = None if current.meter is None else Stood(current.meter)

    def __iter__(self) -> _Running[T]:
        return self

    def __next__(self) -> T:
        current = self._pass
        if current.ended:
            raise StopIteration
        # Between `_left` and here the user's code had the batch; from here on it waits.
        came = time.perf_counter()
        stood = 0.0 if self._stood is None else self._stood.seconds()
        try:
            batch, rows = next(self._batches)
            if self._hand_over is not None:
                batch = self._hand_over(batch)
        except BaseException:
            self.close()
            raise
        left = time.perf_counter()
        current.stats.add(rows, waited=left - came, used=came - self._left, stood=stood)
        self._left = left
        if self._stood is not None:
            self._stood.begin()
        # Counted when handed out: a checkpoint saved now resumes behind this batch, and what is
        # prefetched is read again.
        current.consumed += rows
        return batch  # type: ignore[no-any-return]  # what the work makes of rows

    def close(self) -> None:
        """End the pass and its threads."""
        self._pass.end()
        # Stop all before joining any: one thread may wait for another's results.
        for prefetcher in self._prefetchers:
            prefetcher.stop()
        for prefetcher in self._prefetchers:
            prefetcher.close()
        self._prefetchers.clear()
        self._batches = iter(())

    def __del__(self) -> None:
        self.close()


def _one_by_one(pieces: Iterator[Piece], size: int | None, drop_last: bool) -> Iterator[Batch]:
    for piece in pieces:
        for start in range(0, piece.table.num_rows, _ROWS_AT_ONCE):
            for row in to_rows(piece.table.slice(start, _ROWS_AT_ONCE)):
                yield row, 1


class DataIterator(ABC):
    """Iterates over rows: of a dataset, or of a worker's part of it."""

    auto_device: Callable[[], Any] | None = None
    """Finds the device for ``device="auto"``; None is the CPU."""

    def __init__(self) -> None:
        self._stats = DataStats()

    @abstractmethod
    def _begin(self, request: Request) -> Pass:
        """Begin a pass over the rows."""

    @abstractmethod
    def schema(self) -> Schema:
        """The columns and their types."""

    @abstractmethod
    def materialize(self) -> Dataset:
        """All rows as a dataset in memory."""

    def get_context(self) -> DataContext:
        """Ray's settings, which have no effect here."""
        return DataContext.get_current()

    def stats(self) -> StatsText:
        """The rows handed out, and the share of time spent waiting for them, as text.

        The text has the attributes of ``DataStats``; it is empty before the first batch.
        """
        return StatsText(self._stats)

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
            batch_format: ``"numpy"`` (the default: a dict of read-only arrays), ``"pandas"`` or
                ``"pyarrow"``.
            prefetch_batches: 0 reads in the calling thread, when a batch is asked for. Otherwise a
                thread prefetches up to about 16 MB. Where batches take work (a ``collate_fn``, a
                copy to a GPU), another thread keeps this many batches ready.
            drop_last: leave out the last batch if it is smaller.
            local_shuffle_buffer_size: permute every this many consecutive rows.
            local_shuffle_seed: of that permutation.
            prefetch_blocks: the older name of ``prefetch_batches``.

        Returns:
            An object to iterate over any number of times: each time is an epoch.
        """
        name = check_format(batch_format, ("default", "numpy", "pandas", "pyarrow"))
        prefetch = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, prefetch, local_shuffle_buffer_size, local_shuffle_seed
        )
        if name == "numpy":
            return Rows(self, request, _Work(partial(cut_arrays, write=False)))
        return Rows(self, request, _Work(partial(cut_tables, batch_format=name)))

    def iter_rows(self, *, prefetch_blocks: int = 1) -> Rows[dict[str, Any]]:
        """Rows as dicts, one by one."""
        request = Request(1, prefetch=prefetch_blocks, single_rows=True)
        return Rows(self, request, _Work(_one_by_one))

    def iter_torch_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: Any = "auto",
        collate_fn: Callable[[Any], Any] | None = None,
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
            device: of the tensors; ``"auto"`` is the worker's own. Copies to a GPU go through
                pinned memory and overlap with the training.
            collate_fn: makes a batch of a dict of arrays, in a thread; instead of ``dtypes``. A
                class of ``lockstep.data.collate_fn`` gets an Arrow table or a data frame.
            pin_memory: put the tensors into pinned memory, for a copy of your own.
        """
        from lockstep.data.collate_fn import of_arrays
        from lockstep.data.iterate.torch_batches import ToTensors, wait_for_copy

        if collate_fn is not None and dtypes is not None:
            raise ValueError(
                "collate_fn makes the tensors, so dtypes has no effect; give one of the two."
            )
        convert = ToTensors(dtypes, self._device(device), of_arrays(collate_fn), pin_memory)
        prefetch = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, prefetch, local_shuffle_buffer_size, local_shuffle_seed
        )
        cut = partial(cut_arrays, write=True)
        hand_over = wait_for_copy if convert.on_gpu else None
        return Rows(self, request, _Work(cut, convert, convert.is_work, hand_over))

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
            feature_columns: columns stacked in one tensor; a list of lists or a dict of lists
                gives several tensors. None is every column except the label.
            label_column_dtype, feature_column_dtypes: of the tensors, in the same structure.
            batch_size, prefetch_batches, prefetch_blocks, drop_last, local_shuffle_buffer_size,
                local_shuffle_seed: as in ``iter_batches``.
            unsqueeze_label_tensor, unsqueeze_feature_tensors: make a column of numbers a tensor of
                shape (rows, 1).
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
            feature_type_spec, label_type_spec, additional_type_spec: ``tf.TypeSpec``, instead of
                the one derived from the columns.
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

    def iter_jax_batches(
        self,
        *,
        prefetch_batches: int = 1,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        synchronize_batches: bool = False,
        paddings: Any = None,
    ) -> Rows[Any]:
        """Batches of rows as dicts of JAX arrays on this process's default device.

        Args:
            prefetch_batches, batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed:
                as in ``iter_batches``.
            dtypes: a type of JAX for all columns, or by column.
            synchronize_batches: accepted and ignored: shards of workers have the same number of
                rows, so the batches have the same sizes.
            paddings: fill the last batch up to ``batch_size`` with this value, or by column.
        """
        import jax.numpy as jnp

        def convert(batches: Iterator[Batch]) -> Iterator[Batch]:
            for arrays, rows in batches:
                if paddings is not None and batch_size is not None:
                    arrays = _padded(arrays, batch_size, paddings)
                yield _converted(arrays, jnp.asarray, dtypes), rows

        request = Request(
            batch_size, drop_last, prefetch_batches, local_shuffle_buffer_size, local_shuffle_seed
        )
        return Rows(self, request, _Work(partial(cut_arrays, write=False), convert))

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
        """Batches of rows as dicts of TensorFlow tensors; arguments as in ``iter_batches``."""
        import tensorflow as tf

        def convert(batches: Iterator[Batch]) -> Iterator[Batch]:
            for arrays, rows in batches:
                yield _converted(arrays, tf.convert_to_tensor, dtypes), rows

        prefetch = prefetch_batches if prefetch_blocks is None else prefetch_blocks
        request = Request(
            batch_size, drop_last, prefetch, local_shuffle_buffer_size, local_shuffle_seed
        )
        return Rows(self, request, _Work(partial(cut_arrays, write=False), convert))


def _converted(
    arrays: Mapping[str, Any], convert: Callable[[Any, Any], Any], dtypes: Any
) -> dict[str, Any]:
    """The arrays of another library, with a type for all columns or by column."""
    by_column = dtypes if isinstance(dtypes, Mapping) else dict.fromkeys(arrays, dtypes)
    return {name: convert(array, by_column.get(name)) for name, array in arrays.items()}


def _padded(arrays: Mapping[str, Any], size: int, paddings: Any) -> dict[str, Any]:
    """The arrays with ``size`` rows, the added ones filled with a value, or a value by column."""
    import numpy as np

    padded = {}
    for name, array in arrays.items():
        value = paddings.get(name) if isinstance(paddings, Mapping) else paddings
        missing = size - len(array)
        if missing <= 0 or value is None:
            padded[name] = array
        else:
            added = np.full((missing, *array.shape[1:]), value, dtype=array.dtype)
            padded[name] = np.concatenate([array, added])
    return padded
