"""Tables that workers map: what is pickled is an address, and nothing is left when it is closed."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pytest

import lockstep.data
from lockstep.data.sources.base import MemorySource
from lockstep.data.sources.shared_tables import SMALLEST, SharedTables

TABLE = pa.table({"id": np.arange(SMALLEST // 4), "name": ["a", "b"] * (SMALLEST // 8)})


def test_a_table_is_mapped_with_all_that_is_in_it() -> None:
    tables = SharedTables()
    source = MemorySource(TABLE.slice(3), block_rows=1000)
    with tables.active():
        pickled = pickle.dumps([source, source])
    assert len(pickled) < 1000
    first, second = pickle.loads(pickled)
    assert first is second
    assert first.table.equals(source.table)
    assert first.block_rows == 1000
    allocated = pa.total_allocated_bytes()
    third = pickle.loads(pickled)[0]
    assert pa.total_allocated_bytes() - allocated < SMALLEST // 10
    tables.close()
    # What is mapped stays, but nobody else can map it.
    assert third.table["id"][-1].as_py() == SMALLEST // 4 - 1
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)
    tables.close()


def test_two_datasets_share_one_copy() -> None:
    tables = SharedTables()
    source = MemorySource(TABLE)
    with tables.active():
        first = pickle.dumps(source)
        assert pickle.dumps(source) == first
    tables.close()


def test_small_tables_and_those_pickled_elsewhere_are_sent() -> None:
    tables = SharedTables()
    with tables.active():
        small = pickle.dumps(MemorySource(TABLE.slice(0, 10)))
    tables.close()
    assert pickle.loads(small).table.num_rows == 10
    assert len(pickle.dumps(MemorySource(TABLE))) > TABLE.nbytes // 2


def test_a_dataset_goes_through_unchanged() -> None:
    dataset = lockstep.data.from_arrow(TABLE).map_batches(lambda b: {"double": b["id"] * 2})
    plan = dataset.prepare(2)
    tables = SharedTables()
    with tables.active():
        import cloudpickle

        pickled = cloudpickle.dumps(plan)
    mapped = pickle.loads(pickled)
    assert mapped.shard(1).to_arrow().equals(plan.shard(1).to_arrow())
    del mapped
    tables.close()
