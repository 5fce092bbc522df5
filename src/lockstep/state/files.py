"""A training state as files, or as snapshots in memory: what is in it, and how it is read.

Each rank has written two files. ``rank_0.json`` has the structure and the plain values that rank 0
gets back; ``rank_0.safetensors`` has the tensors that rank 0 has written. A tensor that is the same
on several ranks was written by one of them: ``groups`` says which ranks share an entry. Of a tensor
that is divided among ranks each has its shard: ``chunks`` says where that begins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from lockstep.errors import CheckpointError, StorageError
from lockstep.run_layout import STATE_DIRECTORY, state_data, state_index, state_rank
from lockstep.state.tensors import Place, data_start, parse_header
from lockstep.state.tree import TreeDecoder, numpy_dtype, torch_dtype
from lockstep.storage import Storage

__all__ = ["VERSION", "EntrySummary", "StoredState", "TensorSource", "bytes_source"]

VERSION = 1
"""Of the index. Readers refuse a newer one."""
SMALL = 1 << 20
"""Tensors that are no larger are always copied: an optimizer may keep its counters as such."""

Shard = Callable[[str, tuple[int, ...]], "tuple[tuple[int, ...], tuple[int, ...]] | None"]
"""From a shard's name and the complete shape to the part that is wanted: its shape and offset."""


class TensorSource(Protocol):
    """The tensors that one rank has written."""

    places: dict[str, Place]

    def tensor(self, place: Place) -> Any:
        """The tensor at a place. It may share memory with the source."""

    def array(self, place: Place) -> Any:
        """The array at a place, a copy."""


class EntrySummary(NamedTuple):
    """What an entry of a state has."""

    name: str
    kind: str
    tensors: int
    nbytes: int
    value: Any
    """Of a plain value: the value; else None."""


class StoredState:
    """A state of all ranks.

    Args:
        where: what an error calls it.
        indexes: the index of each rank, by rank.
        open_data: opens the tensors of a rank.
        fleeting: the memory of the tensors will not stay: what is kept of them must be copied.
    """

    def __init__(
        self,
        where: str,
        indexes: Mapping[int, dict[str, Any]],
        open_data: Callable[[int], TensorSource],
        *,
        fleeting: bool = False,
    ) -> None:
        self.where = where
        self._indexes = indexes
        self._open_data = open_data
        self.fleeting = fleeting
        self._sources: dict[int, TensorSource] = {}
        self._check()

    def _check(self) -> None:
        first = self._indexes[min(self._indexes)]
        for rank, index in self._indexes.items():
            if index.get("version") != VERSION:
                raise CheckpointError(
                    f"{self.where}: the state of rank {rank} has the format "
                    f"{index.get('version')!r}, and this lockstep reads {VERSION}; use the "
                    "version of lockstep that wrote it, or a newer one."
                )
            if index["snapshot"] != first["snapshot"] or index["ranks"] != first["ranks"]:
                raise CheckpointError(
                    f"{self.where} mixes files of different snapshots (rank {min(self._indexes)}: "
                    f"{first['snapshot']!r}, rank {rank}: {index['snapshot']!r}); copy the whole "
                    "checkpoint again."
                )
        missing = sorted(set(first["ranks"]) - set(self._indexes))
        if missing:
            raise CheckpointError(
                f"{self.where}: the file {state_index(missing[0])} is missing; copy the whole "
                "checkpoint again."
            )

    @staticmethod
    def is_in(storage: Storage) -> bool:
        """Whether a directory has a state."""
        return any(state_rank(name) is not None for name in storage.listdir(STATE_DIRECTORY))

    @classmethod
    def read(cls, storage: Storage) -> StoredState:
        """The state in a checkpoint's directory. Reads the indexes, and no tensor.

        Raises:
            CheckpointError: there is none, or it is damaged.
        """
        ranks = [state_rank(name) for name in storage.listdir(STATE_DIRECTORY)]
        indexes: dict[int, dict[str, Any]] = {}
        with _damage(storage.uri):
            for rank in sorted(rank for rank in ranks if rank is not None):
                index = json.loads(storage.read(state_index(rank)))
                if not isinstance(index, dict):
                    raise ValueError("an index is not an object")
                indexes[rank] = index
            if not indexes:
                raise CheckpointError(
                    f"{storage.uri} has no training state: it was not saved by "
                    "train.report(checkpoint=state). Read it as it was written, with to_dict() or "
                    "as_directory()."
                )
            return cls(storage.uri, indexes, lambda rank: _open(storage, state_data(rank)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose state it has."""
        return tuple(sorted(self._indexes))

    def has_rank(self, rank: int) -> bool:
        """Whether it has this rank's own state; otherwise a rank gets that of the lowest."""
        return rank in self._indexes

    def nodes(self, rank: int) -> dict[str, Any]:
        """The entries that a rank gets back, as nodes of ``tree``."""
        entries: dict[str, Any] = self._index(rank)["entries"]
        return entries

    def kind(self, rank: int, entry: str) -> str:
        """What kind of object an entry was."""
        return str(self._index(rank)["kinds"].get(entry, "value"))

    def decode(
        self,
        rank: int,
        entry: str,
        node: Any,
        shard: Shard | None = None,
        *,
        copied: bool = False,
    ) -> Any:
        """The value of a node below an entry, for a rank.

        Args:
            rank, entry, node: which.
            shard: says which part of a divided tensor is wanted; by default the complete tensor.
            copied: the caller copies large tensors itself, and keeps none.
        """
        most = SMALL if copied else math.inf
        with _damage(self.where):
            return self._decoder(rank, entry, shard, most).decode(node)

    def entries(self, rank: int = 0) -> dict[str, Any]:
        """Every entry that a rank gets back, with complete tensors."""
        return {name: self.decode(rank, name, node) for name, node in self.nodes(rank).items()}

    def summary(self) -> list[EntrySummary]:
        """What is in it. Reads the headers of the files, and no tensor."""
        found = []
        with _damage(self.where):
            for entry, node in self.nodes(min(self._indexes)).items():
                names = set(_leaf_names(node))
                places = [
                    place
                    for rank in self.ranks
                    for name, place in self._source(rank).places.items()
                    if name in names
                ]
                kind = self.kind(min(self._indexes), entry)
                value = None if names or kind != "value" else self.decode(0, entry, node)
                nbytes = sum(place.nbytes for place in places)
                found.append(EntrySummary(entry, kind, len(names), nbytes, value))
        return found

    def _index(self, rank: int) -> dict[str, Any]:
        return self._indexes[rank if rank in self._indexes else min(self._indexes)]

    def _source(self, rank: int) -> TensorSource:
        if rank not in self._sources:
            self._sources[rank] = self._open_data(rank)
        return self._sources[rank]

    def _find(self, rank: int, entry: str, name: str) -> tuple[TensorSource, Place]:
        own = rank if rank in self._indexes else min(self._indexes)
        # Its own first: of tensors that are each rank's own, every rank has one of the name.
        # A tensor may be of another entry, whose name it begins with: a model and a part of it.
        groups, owner = self._index(rank)["groups"], name.partition(".")[0]
        for other in (own, *groups.get(entry, ()), *groups.get(owner, ())):
            place = self._source(other).places.get(name)
            if place is not None:
                return self._source(other), place
        raise ValueError(f"the tensor {name!r} is in none of its files")

    def _decoder(self, rank: int, entry: str, shard: Shard | None, most: float) -> TreeDecoder:
        tensors: dict[str, Any] = {}

        def tensor(name: str) -> Any:
            if name not in tensors:  # tied weights are one tensor again
                source, place = self._find(rank, entry, name)
                found = source.tensor(place)
                clone = self.fleeting and place.nbytes <= most
                tensors[name] = found.clone() if clone else found
            return tensors[name]

        def array(name: str) -> Any:
            source, place = self._find(rank, entry, name)
            return source.array(place)

        def assemble(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
            wanted = shard(name, shape) if shard is not None else None
            return self._assemble(rank, name, dtype, *(wanted or (shape, (0,) * len(shape))))

        return TreeDecoder(tensor, array, assemble)

    def _assemble(
        self, own: int, name: str, dtype: str, shape: tuple[int, ...], offset: tuple[int, ...]
    ) -> Any:
        """The part of a divided tensor that begins at ``offset``, from the ranks' shards of it.

        ``own`` comes first: often its shard is the whole part, and no other file is opened.
        """
        import torch

        made = torch.empty(shape, dtype=torch_dtype(dtype))
        filled, regions = 0, set[tuple[tuple[int, int], ...]]()
        for rank in sorted(self.ranks, key=lambda rank: rank != own):
            chunk = self._indexes[rank]["chunks"].get(name)
            if chunk is None or filled == made.numel():
                continue
            if any(b >= at + size for b, at, size in zip(chunk[1], offset, shape, strict=True)):
                continue  # it begins after the part's end
            place = self._source(rank).places.get(name)
            if place is None:
                continue
            here, there, count = [], [], 1
            for begin, length, at, size in zip(chunk[1], place.shape, offset, shape, strict=True):
                first, last = max(begin, at), min(begin + length, at + size)
                here.append(slice(first - at, max(last, first) - at))
                there.append(slice(first - begin, max(last, first) - begin))
                count *= max(last - first, 0)
            region = tuple((one.start, one.stop) for one in here)
            if not count or region in regions:  # replicas of a mesh may have written it, too
                continue
            if any(_overlap(region, other) for other in regions):
                raise ValueError(f"two parts of the tensor {name!r} overlap")
            regions.add(region)
            made[tuple(here)] = self._source(rank).tensor(place)[tuple(there)]
            filled += count
        if filled != made.numel():
            raise ValueError(f"of the tensor {name!r} only {filled} elements are in its files")
        return made


def _overlap(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    return all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))


def _leaf_names(node: Any) -> Iterator[str]:
    if type(node) is list:
        for inner in node:
            yield from _leaf_names(inner)
    elif type(node) is dict:
        ((kind, parts),) = node.items()
        if kind in ("tensor", "array", "shard"):
            yield parts[0]
        elif kind == "dict":
            for inner in parts.values():
                yield from _leaf_names(inner)
        elif type(parts) is list:
            yield from _leaf_names(parts)


class _damage:
    """Around code that reads files: what they should not have is one sentence."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        known = (KeyError, TypeError, ValueError, IndexError, RuntimeError, FileNotFoundError)
        ours = (CheckpointError, StorageError)
        if isinstance(error, known) and not isinstance(error, ours):
            what = f"it has no {error.args[0]!r}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(
                f"The training state in {self._where} cannot be read: {what}. The files are "
                "damaged: use another checkpoint, or a good copy."
            ) from error


class _FileSource:
    """The tensors of a local file, mapped into memory: what is not used is not read."""

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            head = file.read(8)
            head += file.read(data_start(head) - 8)
            self._size = file.seek(0, 2)
        self.places = parse_header(head, self._size)
        self._mapped: Any = None

    def tensor(self, place: Place) -> Any:
        import torch

        dtype = torch_dtype(place.dtype)
        if not place.nbytes:
            return torch.empty(place.shape, dtype=dtype)
        if self._mapped is None:
            # Private: what is written to the tensors never reaches the file.
            self._mapped = torch.UntypedStorage.from_file(self._path, False, self._size)
        start = place.start // dtype.itemsize
        made = torch.empty(0, dtype=dtype)
        if place.start % dtype.itemsize:  # a file of another program
            part: Any = self._mapped[place.start : place.start + place.nbytes]
            return made.set_(part.clone(), 0, place.shape)  # type: ignore[call-overload]  # not in its stub
        return made.set_(self._mapped, start, place.shape)  # type: ignore[call-overload]  # not in its stub

    def array(self, place: Place) -> Any:
        with open(self._path, "rb") as file:
            file.seek(place.start)
            return _array(file.read(place.nbytes), place, 0)


class _BytesSource:
    """The tensors of a buffer."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        view = memoryview(buffer)
        self.places = parse_header(bytes(view[: data_start(bytes(view[:8]))]), len(view))

    def tensor(self, place: Place) -> Any:
        import torch

        dtype = torch_dtype(place.dtype)
        if not place.nbytes:
            return torch.empty(place.shape, dtype=dtype)
        count = place.nbytes // dtype.itemsize
        flat = torch.frombuffer(self._buffer, dtype=dtype, count=count, offset=place.start)
        return flat.reshape(place.shape)

    def array(self, place: Place) -> Any:
        return _array(self._buffer, place, place.start)


def _array(buffer: Any, place: Place, start: int) -> Any:
    import numpy as np

    dtype = numpy_dtype(place.dtype)
    if dtype is None:
        raise ValueError(f"numpy has no {place.dtype}")
    if not place.nbytes:
        return np.empty(place.shape, dtype)
    count = place.nbytes // np.dtype(dtype).itemsize
    flat: Any = np.frombuffer(buffer, dtype, count, start)
    return flat.reshape(place.shape).copy()


def bytes_source(buffer: Any) -> TensorSource:
    """The tensors of a writable buffer with the content of a file.

    Raises:
        ValueError: the content is damaged.
    """
    return _BytesSource(buffer)


def _open(storage: Storage, name: str) -> TensorSource:
    if storage.is_local:
        return _FileSource(storage.path(name))
    return _BytesSource(bytearray(storage.read(name)))
