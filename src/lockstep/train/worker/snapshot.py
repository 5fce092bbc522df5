"""A copy of this rank's training state in memory, which the training function cannot change.

The memory is anonymous and shared: the driver opens it as well, and keeps it when this process
dies. It has no name in any file system, so nothing is left of it when the last process is
gone, however that ends. It is reused: of a state there is one copy, never two.

    SaveOrder ──▶ take()  ──▶ Snapshotted      training continues
                  wait()   ─▶ Sealed           every byte is there, with its checksum
                  write    ─▶ Saved            on storage
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from lockstep.errors import StorageError
from lockstep.state.files import VERSION
from lockstep.state.memory import CHUNK, checksum, create_memory
from lockstep.state.tensors import Layout, Slot, lay_out
from lockstep.state.tree import Leaf, torch_dtype
from lockstep.train.worker.overlap import StepFence, sum_bits

__all__ = ["Captured", "Overlapped", "Snapshot", "SnapshotMemory", "StateBase", "digests"]


class Captured(NamedTuple):
    """A state as it is now: structure and values copied, tensors only referred to."""

    entries: dict[str, Any]
    kinds: dict[str, str]
    leaves: dict[str, Leaf]
    shared: dict[str, frozenset[str]]
    """Entry → the tensors that are expected to be the same on every rank that has the entry."""
    stepped: Mapping[str, bool] = {}
    """The tensors that only an optimizer's step changes (``overlap``)."""
    layout: Layout | None = None
    """Of a file of another format: where everything goes in it; None: a ``train.State``."""


class StateBase(ABC):
    """What a session needs of ``train.State``."""

    file: str | None = None
    """The one file that it becomes; None: those of a ``train.State``."""

    @abstractmethod
    def capture(self) -> Captured:
        """The state as it is now."""


class Overlapped:
    """Tensors whose copy overlaps with the training function: they exist until it is complete."""

    def __init__(self, leaves: Sequence[Leaf], parameters: Sequence[Any], stream: Any) -> None:
        self._leaves: Sequence[Leaf] = leaves
        self._versions = [leaf.source._version for leaf in leaves]
        self._lock = threading.Lock()
        self._stream = stream
        # On the function's own stream, so before anything that it starts after this.
        self._before = sum_bits(parameters) if parameters else None
        self._after: Any = None
        self.is_torn = False

    def copied(self, parameters: Sequence[Any]) -> None:
        """The copy is ordered, on the stream that is current."""
        self._after = sum_bits(parameters) if parameters else None

    def close(self) -> None:
        """Changes from now on do not matter: they wait for the copy, or it is complete."""
        with self._lock:
            now = [leaf.source._version for leaf in self._leaves]
            self.is_torn |= bool(now) and now != self._versions
            self._leaves = ()

    def check(self) -> None:
        """The copy is complete. Raises StorageError if the tensors were changed before.

        torch counts the changes of a tensor, but not those through ``.data``: the sums show them.
        """
        self.close()
        if self._before is not None:
            with sys.modules["torch"].cuda.stream(self._stream):
                self.is_torn |= not self._before.equal(self._after)
        if self.is_torn:
            raise StorageError(
                "the parameters, or the optimizer's tensors, were changed while they were copied, "
                "and not by a step of an optimizer. From now on a report waits for the copy."
            )


class Snapshot(NamedTuple):
    """A snapshot of this rank's part of a state."""

    structure: bytes
    """The JSON of the rank; empty if the data is the only file."""
    layout: Layout
    memory: Any
    """The ``mmap`` that has it."""
    event: Any
    """Of a GPU: when it happens, the copy is complete; else None."""
    seconds: float
    """How long the training function waited."""
    place: tuple[int, str] | None
    """The descriptor of the memory, and its name; None: no other process can open it."""
    overlapped: Overlapped | None = None
    """What was copied after the training function had continued."""

    def wait(self) -> None:
        """Wait until every byte is there.

        Raises:
            StorageError: the training function has changed the parameters meanwhile.
        """
        if self.event is not None:
            self.event.synchronize()
        if self.overlapped is not None:
            self.overlapped.check()

    def checksum(self) -> tuple[int, ...]:
        """The checksum of every byte."""
        return checksum(self.memory, self.layout.size)

    def chunks(self) -> Iterator[memoryview]:
        """The content of the file of tensors."""
        view = memoryview(self.memory)
        for start in range(0, self.layout.size, CHUNK):
            yield view[start : min(start + CHUNK, self.layout.size)]


def digests(captured: Captured) -> dict[str, str]:
    """For each entry with shared tensors: their names, shapes and sums, as one word.

    Where two ranks have the same word, each needs to write only a part of the entry.
    """
    found = {}
    for entry, names in captured.shared.items():
        if not names:
            continue
        leaves = [captured.leaves[name] for name in sorted(names)]
        word = hashlib.sha256()
        for leaf in leaves:
            word.update(f"{leaf.name}|{leaf.dtype}|{leaf.shape};".encode())
        for sums in _sums(leaves):
            word.update(sums)
        found[entry] = word.hexdigest()[:32]
    return found


def _sums(leaves: Sequence[Leaf]) -> Iterator[bytes]:
    """The sums of all tensors: an element that differs must not be missed, wherever it is."""
    by_device: dict[Any, list[Any]] = {}
    for leaf in leaves:
        if not (leaf.is_torch and leaf.source.numel()):
            continue
        tensor = leaf.source.detach()
        if tensor.device.type == "cpu":
            yield _sum_of_bytes(tensor)
        else:
            by_device.setdefault(tensor.device, []).append(_sum(tensor))
    for sums in by_device.values():  # one transfer a device
        content: bytes = sys.modules["torch"].stack(sums).cpu().numpy().tobytes()
        yield content


def _sum_of_bytes(tensor: Any) -> bytes:
    """On a CPU: as fast as the memory is read, where a sum of numbers takes ten times as long."""
    torch: Any = sys.modules["torch"]
    plain = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    return repr(checksum(plain, plain.nbytes)).encode()


def _sum(tensor: Any) -> Any:
    """On an accelerator, where that is fast."""
    torch: Any = sys.modules["torch"]
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    elif tensor.is_floating_point() and tensor.element_size() == 1:  # float8 has no sum
        tensor = tensor.view(torch.uint8)
    # Apple's GPUs have no float64.
    return tensor.sum(dtype=torch.float32 if tensor.device.type == "mps" else torch.float64)


def _divide(leaves: Sequence[Leaf], ranks: Sequence[int], rank: int) -> set[str]:
    """The names that ``rank`` writes: each rank about as many bytes. The same on every rank."""
    load = dict.fromkeys(ranks, 0)
    mine = set()
    for leaf in sorted(leaves, key=lambda leaf: (-leaf.nbytes, leaf.name)):
        least = min(ranks, key=lambda one: (load[one], one))
        load[least] += leaf.nbytes
        if least == rank:
            mine.add(leaf.name)
    return mine


class SnapshotMemory:
    """The memory for one snapshot, reused for the next. Used from one thread at a time."""

    def __init__(self) -> None:
        self._map: Any = None
        self._descriptor = -1
        self._name = ""
        self._pinned = False
        self._slots: tuple[Slot, ...] = ()
        self._layout: Layout | None = None
        self._targets: dict[str, Any] = {}
        self._stream: Any = None
        self._fence: StepFence | None = None
        self._overlapped: Overlapped | None = None

    def take(
        self,
        captured: Captured,
        snapshot: str,
        rank: int,
        ranks: Sequence[int],
        groups: Mapping[str, Sequence[int]],
    ) -> Snapshot:
        """Copy this rank's part of a state.

        Args:
            captured: the state.
            snapshot: the snapshot's name, the same on all ranks.
            rank: this one.
            ranks: those that take part.
            groups: entry → the ranks whose shared tensors are the same.

        Raises:
            StorageError: there is not enough memory for a copy.
        """
        began = time.perf_counter()
        leaves = self._own(captured, rank, groups)
        slots = tuple(Slot(leaf.name, leaf.dtype, leaf.shape, leaf.nbytes) for leaf in leaves)
        on_gpu = any(leaf.is_torch and leaf.source.is_cuda for leaf in leaves)
        if captured.layout is not None or self._layout is None or slots != self._slots:
            layout = captured.layout or lay_out(slots, {"format": "pt"})
            if self._layout is None or layout.places != self._layout.places:
                self._targets = {}
            self._reserve(layout.size, on_gpu)
            for start, piece in layout.pieces:
                self._map[start : start + len(piece)] = piece
            self._slots, self._layout = slots, layout._replace(pieces=())
        self.settle()
        event = self._copy(leaves, on_gpu, captured.stepped)
        if captured.layout is not None:
            return self._taken(b"", event, began)
        chunks = {leaf.name: leaf.chunk for leaf in leaves if leaf.chunk is not None}
        index = {
            "version": VERSION,
            "snapshot": snapshot,
            "rank": rank,
            "ranks": list(ranks),
            "entries": captured.entries,
            "kinds": captured.kinds,
            "groups": {entry: list(group) for entry, group in groups.items()},
            "chunks": chunks,
        }
        text = json.dumps(index, ensure_ascii=False, separators=(",", ":")).encode()
        return self._taken(text, event, began)

    def _taken(self, structure: bytes, event: Any, began: float) -> Snapshot:
        assert self._layout is not None
        place = None if self._descriptor < 0 else (self._descriptor, self._name)
        seconds = time.perf_counter() - began
        overlapped = None if self._fence is None or not self._fence.is_up else self._overlapped
        return Snapshot(structure, self._layout, self._map, event, seconds, place, overlapped)

    def settle(self) -> None:
        """Let what the function starts from here on wait for the copy, on the GPU."""
        if self._fence is not None:
            self._fence.settle()

    def close(self) -> None:
        """Release the memory; views of it stay valid."""
        if self._fence is not None:
            self._fence.close()
            self._fence = None
        self._targets = {}
        self._layout = None
        if self._pinned:
            with suppress(Exception):  # the process of a GPU that has failed
                self._cudart().cudaHostUnregister(self._address())
            self._pinned = False
        self._map = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _own(
        self, captured: Captured, rank: int, groups: Mapping[str, Sequence[int]]
    ) -> list[Leaf]:
        """What this rank writes, of what it has."""
        others: set[str] = set()
        for entry, ranks in groups.items():
            names = captured.shared.get(entry, frozenset())
            if len(ranks) > 1 and names:
                others |= names - _divide([captured.leaves[n] for n in names], ranks, rank)
        return [
            leaf
            for leaf in captured.leaves.values()
            if leaf.name not in others and not leaf.is_copy
        ]

    def _reserve(self, size: int, on_gpu: bool) -> None:
        if self._map is not None and len(self._map) >= size and self._pinned == on_gpu:
            return
        self.close()
        try:
            self._descriptor, self._name = create_memory(size)
            self._map = mmap.mmap(self._descriptor, size)
        except OSError as error:
            self.close()
            raise StorageError(
                f"There is no room in memory for a copy of the training state, {size / 2**20:.0f} "
                f"MiB on this rank ({error.strerror or error}); free memory, raise the "
                "container's limit, or report checkpoints that are directories."
            ) from error
        if on_gpu:
            self._pin(size)

    def _pin(self, size: int) -> None:
        """Let the GPU write into the memory itself. Where it cannot, the copy is only slower."""
        with suppress(Exception):
            self._cudart().cudaHostRegister(self._address(), size, 0)
        self._pinned = True

    def _cudart(self) -> Any:
        return sys.modules["torch"].cuda.cudart()

    def _address(self) -> int:
        torch: Any = sys.modules["torch"]
        return int(torch.frombuffer(self._map, dtype=torch.uint8).data_ptr())

    def _copy(self, leaves: Sequence[Leaf], on_gpu: bool, stepped: Mapping[str, bool]) -> Any:
        on_host = [leaf for leaf in leaves if not (leaf.is_torch and leaf.source.is_cuda)]
        for leaf in on_host:
            target = self._target(leaf)
            if leaf.is_torch:
                target.copy_(leaf.source)
            elif leaf.nbytes:
                target[...] = leaf.source
        if not on_gpu:
            return None
        cuda = sys.modules["torch"].cuda
        if self._stream is None:
            self._stream = cuda.Stream()
        device = self._stream.device
        current = cuda.current_stream(device)
        now, later = list[Leaf](), list[Leaf]()
        for leaf in leaves:
            if leaf.is_torch and leaf.source.is_cuda:
                # The events below are of this stream, and so of its device only.
                overlaps = leaf.name in stepped and leaf.source.device == device
                (later if overlaps and not self._was_torn else now).append(leaf)
        parameters = [leaf.source for leaf in later if stepped[leaf.name]]
        overlapped = Overlapped(later, parameters, self._stream)
        self._stream.wait_stream(current)
        with cuda.stream(self._stream):
            for leaf in now:
                here = leaf.source.device == device
                self._target(leaf).copy_(leaf.source, non_blocking=here)
            event = self._stream.record_event(cuda.Event(blocking=True))
            # Whatever the function starts from here on waits for that, on the GPU. This thread
            # does not.
            current.wait_event(event)
            if not later:
                return event
            for leaf in later:
                self._target(leaf).copy_(leaf.source, non_blocking=True)
            overlapped.copied(parameters)
            event = self._stream.record_event(cuda.Event(blocking=True))
        if self._fence is None:
            self._fence = StepFence()

        def before_step() -> None:
            overlapped.close()
            cuda.current_stream(device).wait_event(event)

        self._fence.raise_(before_step)
        self._overlapped = overlapped
        return event

    @property
    def _was_torn(self) -> bool:
        return self._overlapped is not None and self._overlapped.is_torn

    def _target(self, leaf: Leaf) -> Any:
        target = self._targets.get(leaf.name)
        if target is None:
            assert self._layout is not None
            place = self._layout.places[leaf.name]
            if leaf.is_torch:
                torch: Any = sys.modules["torch"]
                dtype = torch_dtype(leaf.dtype)
                count = place.nbytes // dtype.itemsize
                if count:
                    flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=place.start)
                else:
                    flat = torch.empty(0, dtype=dtype)
            else:
                import numpy as np

                dtype = leaf.source.dtype
                flat = np.frombuffer(self._map, dtype, leaf.source.size, place.start)
            target = self._targets[leaf.name] = flat.reshape(leaf.shape)
        return target
