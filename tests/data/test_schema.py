"""What Dataset.schema() returns."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

import lockstep.data
from lockstep.data import Schema


def test_a_schema_has_rays_names_and_arrows() -> None:
    arrow = pa.schema([("id", pa.int64()), ("a_long_name", pa.string())])
    schema = Schema(arrow)
    assert schema.names == ["id", "a_long_name"]
    assert schema.types == [pa.int64(), pa.string()]
    assert schema.base_schema is arrow
    assert schema.field("id").type == pa.int64()
    assert [field.name for field in schema] == schema.names
    assert len(schema) == 2
    assert schema == arrow
    assert arrow == schema
    assert schema == Schema(arrow)
    assert schema != Schema(pa.schema([]))
    assert schema != "id"
    assert schema[0] == schema["id"] == arrow.field("id")
    assert schema[-1].name == "a_long_name"
    assert hash(schema) == hash(arrow)
    assert len({schema, Schema(arrow)}) == 1
    with pytest.raises(KeyError, match="none"):
        schema["none"]
    assert pickle.loads(pickle.dumps(schema)) == schema
    assert repr(schema).splitlines() == [
        "Column       Type",
        "------       ----",
        "id           int64",
        "a_long_name  string",
    ]


def test_datasets_have_one() -> None:
    dataset = lockstep.data.range(3)
    assert isinstance(dataset.schema(), Schema)
    assert isinstance(dataset.iterator().schema(), Schema)
    assert dataset.iterator().schema() == dataset.schema()
    assert dataset.map(lambda row: row).iterator().schema() == dataset.schema()
    assert dataset.map(lambda row: row).schema(fetch_if_missing=False) is None
