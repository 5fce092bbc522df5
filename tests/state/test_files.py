"""The files of a state: which ranks' files are read."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save

from lockstep.errors import CheckpointError
from lockstep.state.files import VERSION, StoredState, TensorSource, bytes_source

WHOLE = torch.arange(8.0)


def read(parts: list[tuple[int, int]], begin: int, size: int) -> tuple[torch.Tensor, list[int]]:
    """What rank 1 reads of a tensor, of which each rank has a part; and whose files it has opened.

    ``parts``: where the part of each rank begins and ends.
    """
    indexes = {
        rank: {
            "version": VERSION,
            "snapshot": "one",
            "ranks": list(range(len(parts))),
            "chunks": {"model.w": [[8], [first]]},
            "groups": {},
        }
        for rank, (first, _) in enumerate(parts)
    }
    opened: list[int] = []

    def open_data(rank: int) -> TensorSource:
        opened.append(rank)
        return bytes_source(bytearray(save({"model.w": WHOLE[slice(*parts[rank])]})))

    state = StoredState("here", indexes, open_data)
    node = {"shard": ["model.w", "float32", [8]]}
    found = state.decode(1, "model", node, lambda name, shape: ((size,), (begin,)))
    assert isinstance(found, torch.Tensor)
    return found, opened


def test_only_the_ranks_with_a_wanted_part_are_read() -> None:
    parts = [(0, 2), (2, 4), (4, 6), (6, 8)]
    found, opened = read(parts, 2, 2)
    assert found.equal(WHOLE[2:4])
    assert opened == [1]
    found, opened = read(parts, 1, 3)
    assert found.equal(WHOLE[1:4])
    assert opened == [1, 0]


def test_a_part_that_two_replicas_have_written_counts_once() -> None:
    found, _ = read([(0, 4), (0, 4), (4, 8), (4, 8)], 0, 8)
    assert found.equal(WHOLE)


@pytest.mark.parametrize("parts", [[(0, 4), (2, 6)], [(0, 4), (0, 4)]])
def test_parts_that_are_not_the_whole(parts: list[tuple[int, int]]) -> None:
    with pytest.raises(CheckpointError, match=r"overlap|only 4 elements"):
        read(parts, 0, 8)
