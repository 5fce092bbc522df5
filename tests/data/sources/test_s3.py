"""Datasets on S3: a server on loopback, started here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import lockstep.data
from lockstep.errors import StorageError
from tests.s3 import new_bucket, s3_filesystem, s3_uri


@pytest.fixture(scope="module")
def port(s3_port: int) -> int:
    # What Arrow opens on first use and keeps is then there before a test begins.
    s3_filesystem(s3_port).get_file_info("nothing")
    return s3_port


@pytest.fixture(autouse=True)
def disconnected() -> Iterator[None]:
    """Connections end with what holds them, which an error's traceback does in a cycle."""
    yield
    gc.collect()


def ids(dataset: Any) -> list[int]:
    return [int(row["id"]) for row in dataset.take_all()]


def test_files_by_uri(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.data.sources.lines.BLOCK_BYTES", 1000)
    uri = s3_uri(port, new_bucket())
    place, mark, query = uri.partition("?")

    def at(name: str) -> str:
        return f"{place}/{name}{mark}{query}"

    numbers = lockstep.data.range(1000)
    names = numbers.write_parquet(at("p"), num_rows_per_file=300)
    assert [name[:10] for name in names] == [f"part-{number:05d}" for number in range(4)]
    numbers.write_csv(at("c"))
    numbers.write_json(at("j"))
    assert ids(lockstep.data.read_parquet(at("p"))) == list(range(1000))
    assert ids(lockstep.data.read_parquet(at(f"p/{names[1]}"))) == list(range(300, 600))
    assert ids(lockstep.data.read_parquet(at("p/part-0000[13]-*.parquet"))) == [
        *range(300, 600),
        *range(900, 1000),
    ]
    csv = lockstep.data.read_csv(at("c"))
    assert csv.num_blocks() == 4
    assert ids(csv) == list(range(1000))
    assert ids(lockstep.data.read_json(at("j"))) == list(range(1000))
    plan = cloudpickle.loads(cloudpickle.dumps(csv.random_shuffle(seed=1).prepare(2)))
    seen = [int(i) for r in range(2) for b in plan.shard(r).iter_batches() for i in b["id"]]
    assert sorted(seen) == list(range(1000))
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        lockstep.data.read_parquet(at("nothing"))


def test_files_on_a_filesystem(port: int) -> None:
    filesystem = s3_filesystem(port)
    bucket = new_bucket()
    filesystem.create_dir(bucket)
    lockstep.data.range(10).write_parquet(f"{bucket}/x", filesystem=filesystem)
    dataset = lockstep.data.read_parquet(f"{bucket}/x/*.parquet", filesystem=filesystem)
    assert ids(dataset) == list(range(10))
    with filesystem.open_output_stream(f"{bucket}/bad.parquet") as file:
        file.write(b"no parquet at all")
    with pytest.raises(StorageError, match=r"Could not read '.*/bad.parquet'"):
        lockstep.data.read_parquet(f"{bucket}/bad.parquet", filesystem=filesystem)
