"""What a worker does before the training function."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.engine.base import WorkerInfo
from lockstep.errors import StorageError
from lockstep.run_layout import JOURNAL_FILE
from lockstep.storage import open_storage
from lockstep.train.worker.main import check_shared

WORKER = WorkerInfo(1, 42, "second", "10.0.0.2", 0, "id")


def test_a_node_that_does_not_see_the_storage_is_named(tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    with pytest.raises(StorageError) as raised:
        check_shared(storage, WORKER, patience_s=0)
    text = str(raised.value)
    assert "rank 1, on node 10.0.0.2 (second), does not see the run's directory" in text
    assert str(tmp_path) in text
    assert "all nodes must share the storage" in text


def test_a_node_that_sees_the_storage_goes_on(tmp_path: Path) -> None:
    (tmp_path / JOURNAL_FILE).touch()
    check_shared(open_storage(str(tmp_path)), WORKER, patience_s=0)
