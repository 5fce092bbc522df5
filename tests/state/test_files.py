"""The files of a state: which ranks' files are read."""

from __future__ import annotations

import torch
from safetensors.torch import save

from lockstep.state.files import VERSION, StoredState, TensorSource, bytes_source


def test_of_a_sharded_tensor_only_the_ranks_with_a_wanted_part_are_read() -> None:
    whole = torch.arange(8.0)
    files = {rank: save({"model.w": whole[2 * rank : 2 * rank + 2]}) for rank in range(4)}
    indexes = {
        rank: {
            "version": VERSION,
            "snapshot": "one",
            "ranks": [0, 1, 2, 3],
            "chunks": {"model.w": [[8], [2 * rank]]},
            "groups": {},
        }
        for rank in files
    }
    opened: list[int] = []

    def open_data(rank: int) -> TensorSource:
        opened.append(rank)
        return bytes_source(bytearray(files[rank]))

    def read(begin: int, size: int) -> torch.Tensor:
        state = StoredState("here", indexes, open_data)
        node = {"shard": ["model.w", "float32", [8]]}
        found = state.decode(1, "model", node, lambda name, shape: ((size,), (begin,)))
        assert isinstance(found, torch.Tensor)
        return found

    assert read(2, 2).equal(whole[2:4])
    assert opened == [1]
    opened.clear()
    assert read(1, 3).equal(whole[1:4])
    assert opened == [1, 0]
