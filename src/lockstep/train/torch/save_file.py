"""The file that ``torch.save`` would write, taken as a snapshot, without pickling the tensors.

torch writes everything but the content of the tensors, which is small, and leaves room for that.
The content goes where a ``train.State`` has its own: into memory that outlives this process.
"""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from lockstep.state.tensors import Layout, Place
from lockstep.state.tree import Leaf
from lockstep.train.worker.snapshot import Captured, StateBase

__all__ = ["TorchFile"]


class TorchFile(StateBase):
    """An object as the file that ``torch.save(object, file)`` would write.

    Args:
        file: the file's name in the checkpoint.
        content: what is saved. Its tensors are read when the snapshot is taken.
    """

    def __init__(self, file: str, content: Any) -> None:
        self.file = file
        self._content = content

    def capture(self) -> Captured:
        """Internal: the file as it is now."""
        import torch
        from torch import serialization

        found: dict[str, Any] = {}
        target: Any = _Pieces()
        try:
            with serialization.skip_data():  # since torch 2.6
                torch.save(self._content, target, pickle_module=_pickle_module(found))
            rooms = dict(zip(_with_content(found), target.rooms(), strict=True))
            if any(found[key].nbytes() != nbytes for key, (_, nbytes) in rooms.items()):
                raise ValueError("torch has left other room than its tensors need")
        except (AttributeError, RuntimeError, ValueError):
            # A quantized tensor, say, for which torch leaves no room: slower, and the same file.
            found, rooms, target = {}, {}, _Pieces()
            torch.save(self._content, target)
        leaves: dict[str, Leaf] = {}
        places: dict[str, Place] = {}
        for key, (start, nbytes) in rooms.items():
            device = found[key].device
            content = torch.empty(0, dtype=torch.uint8, device=device).set_(found[key])
            leaves[key] = Leaf(key, content, "U8", (nbytes,), nbytes, True)
            places[key] = Place("U8", (nbytes,), start, nbytes)
        layout = Layout(tuple(target.pieces), places, target.size)
        return Captured({}, {}, leaves, {}, layout=layout)


def _with_content(found: dict[str, Any]) -> list[str]:
    # torch writes them in the order of their numbers.
    return [key for key in sorted(found, key=int) if found[key].nbytes()]


class _Pieces:
    """A file that has only what is written to it: where its writer seeks forward, there is room."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, bytes]] = []
        self.size = 0
        self._at = 0

    def write(self, content: Any) -> int:
        piece = bytes(content)
        self.pieces.append((self._at, piece))
        self.seek(self._at + len(piece))
        return len(piece)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self.size)[whence]
        self.size = max(self.size, self._at)
        return self._at

    def tell(self) -> int:
        return self._at

    def flush(self) -> None:
        pass

    def rooms(self) -> list[tuple[int, int]]:
        """Where the content of tensors goes, and how many bytes."""
        found, end = [], 0
        for start, piece in self.pieces:
            if start > end:
                found.append((end, start - end))
            end = start + len(piece)
        return found


def _pickle_module(found: dict[str, Any]) -> Any:
    """A module ``pickle`` for torch.save that collects the storages, by their numbers in the file.

    torch derives its pickler from the module's, and says in ``persistent_id`` which number each
    storage gets.
    """

    class Pickler(pickle.Pickler):
        def __init_subclass__(cls) -> None:
            number_of = cls.persistent_id

            def persistent_id(self: Any, value: Any) -> Any:
                saved = number_of(self, value)
                if saved is not None:
                    found[saved[2]] = getattr(value, "_untyped_storage", value)
                return saved

            cls.persistent_id = persistent_id  # type: ignore[method-assign]  # torch's own, wrapped

    return SimpleNamespace(Pickler=Pickler, __name__="pickle")
