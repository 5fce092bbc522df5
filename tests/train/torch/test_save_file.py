"""TorchFile: a snapshot has the bytes that torch.save would write."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lockstep.train.torch.save_file import TorchFile
from lockstep.train.worker.snapshot import SnapshotMemory


@pytest.fixture
def memory() -> Iterator[SnapshotMemory]:
    made = SnapshotMemory()
    yield made
    made.close()


def taken(memory: SnapshotMemory, content: Any) -> bytes:
    snapshot = memory.take(TorchFile("a.ckpt", content).capture(), "one", 0, (0,), {})
    snapshot.wait()
    return b"".join(snapshot.chunks())


def saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def contents() -> dict[str, Any]:
    weight = torch.randn(300, 7)
    return {
        "weight": weight,
        "tied": weight,
        "row": weight[3],
        "turned": weight.t(),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "odd": torch.ones(3, dtype=torch.uint8),
        "complex": torch.ones(3, dtype=torch.complex64),
        "empty": torch.empty(0, 3),
        "number": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "model": torch.nn.Linear(2, 3),
        "sparse": torch.eye(3).to_sparse(),
        "storage": torch.arange(4).untyped_storage(),
        "optimizer": torch.optim.SGD,
        "values": [1, "a", {"b": (1, 2)}],
    }


def test_it_is_the_file_of_torch_save(memory: SnapshotMemory) -> None:
    content = contents()
    for epoch in range(3):  # the memory is reused; the file grows
        content["weight"].add_(1)
        content["epoch"] = "x" * 100 * epoch
        data = taken(memory, content)
        assert len(data) == len(saved(content))
        invariants: Any = torch.sparse.check_sparse_tensor_invariants
        with invariants(enable=True):  # an older torch warns where this is not said
            found = torch.load(io.BytesIO(data), weights_only=False)
        assert list(found) == list(content)
        for name in ("weight", "tied", "row", "turned", "half", "odd", "complex", "empty"):
            assert torch.equal(found[name], content[name])
            assert found[name].stride() == content[name].stride()
            assert found[name].dtype is content[name].dtype
        assert found["tied"].data_ptr() == found["weight"].data_ptr()
        assert torch.equal(found["model"].weight, content["model"].weight)
        assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
        assert bytes(found["storage"]._untyped_storage) == bytes(content["storage"])
        assert found["values"] == content["values"]
        assert found["epoch"] == content["epoch"]


def test_later_changes_are_not_in_it(memory: SnapshotMemory) -> None:
    content = {"weight": torch.zeros(1000)}
    snapshot = memory.take(TorchFile("a", content).capture(), "one", 0, (0,), {})
    content["weight"].fill_(1)
    found = torch.load(io.BytesIO(b"".join(snapshot.chunks())), weights_only=True)
    assert found["weight"].sum() == 0


def test_where_torch_leaves_no_room_it_writes_the_file_itself(
    memory: SnapshotMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.serialization, "skip_data", raising=False)  # an older torch
    content = {"weight": torch.arange(5.0), "epoch": 3}
    assert taken(memory, content) == saved(content)


def test_what_cannot_be_pickled_is_an_error() -> None:
    # Since Python 3.14 it is a PicklingError.
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match=r"lambda|pickle"):
        TorchFile("a", {"f": lambda: None}).capture()
