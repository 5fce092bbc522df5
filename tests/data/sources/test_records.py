"""TFRecord and WebDataset files: what is written is read, by others, too."""

from __future__ import annotations

import importlib
import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lockstep.data
from lockstep.data.arrow.tfrecords import decode_example, encode_example
from lockstep.errors import StorageError

ROWS: list[dict[str, Any]] = [
    {"n": -1, "x": 0.5, "name": "a", "raw": b"\x00\xff", "many": [1, 2, 3]},
    {"n": 2**40, "x": -2.0, "name": "ü", "raw": b"", "many": [-4]},
]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80" * 40,  # a number without an end
        b"\x0a\x7f",  # a field that is longer than the record
        # A list of bytes with a number in it, which as a size would take 50 MB.
        b"\x0a\x0f\x0a\x0d\x0a\x01a\x12\x08\x0a\x06\x08\x80\xe1\xeb\x17\x00",
        b"\x0a\x07\x0a\x05\x08\x80\xe1\xeb\x17",  # a number as a name
    ],
)
def test_a_hostile_example_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"of an Example|of another kind|cut off"):
        decode_example(memoryview(data))


def test_tfrecords_are_read_as_written(tmp_path: Path) -> None:
    written = lockstep.data.from_items(ROWS).write_tfrecords(tmp_path / "out", num_rows_per_file=1)
    assert len(written) == 2
    dataset = lockstep.data.read_tfrecords(tmp_path / "out")
    assert dataset.count() == 2
    found = dataset.select_columns(["n", "x", "name", "raw"]).take_all()
    assert [row["n"] for row in found] == [-1, 2**40]
    assert [row["x"] for row in found] == [0.5, -2.0]
    assert [row["name"] for row in found] == [b"a", "ü".encode()]
    assert [row["raw"] for row in found] == [b"\x00\xff", b""]
    assert [list(row["many"]) for row in dataset.take_all()] == [[1, 2, 3], [-4]]


def test_other_readers_accept_the_records(tmp_path: Path) -> None:
    """TensorBoard's reader checks both checksums; protobuf reads the message."""
    descriptor_pb2: Any = importlib.import_module("google.protobuf.descriptor_pb2")
    descriptor_pool: Any = importlib.import_module("google.protobuf.descriptor_pool")
    message_factory: Any = importlib.import_module("google.protobuf.message_factory")
    from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

    [name] = lockstep.data.from_items(ROWS).write_tfrecords(tmp_path)
    reader = pywrap_tensorflow.PyRecordReader_New(str(tmp_path / name))
    reader.GetNext()
    record = reader.record()
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    lists = [("BytesList", kinds.TYPE_BYTES), ("FloatList", kinds.TYPE_FLOAT)]
    for name_of, kind in [*lists, ("Int64List", kinds.TYPE_INT64)]:
        message = file.message_type.add(name=name_of)
        message.field.add(name="value", number=1, type=kind, label=kinds.LABEL_REPEATED)
    feature = file.message_type.add(name="Feature")
    for number, inner in enumerate(["BytesList", "FloatList", "Int64List"], 1):
        feature.field.add(
            name=inner.lower(), number=number, type=kinds.TYPE_MESSAGE, type_name=f".t.{inner}",
            label=kinds.LABEL_OPTIONAL,
        )  # fmt: skip
    entry = file.message_type.add(name="Entry")
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=kinds.TYPE_MESSAGE, type_name=".t.Feature",
        label=kinds.LABEL_OPTIONAL,
    )  # fmt: skip
    for outer, inner, name_of in [("Features", "Entry", "feature"), ("Example", "Features", "f")]:
        message = file.message_type.add(name=outer)
        label = kinds.LABEL_REPEATED if outer == "Features" else kinds.LABEL_OPTIONAL
        message.field.add(
            name=name_of, number=1, type=kinds.TYPE_MESSAGE, type_name=f".t.{inner}", label=label
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    example = message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))()
    example.ParseFromString(record)
    features = {one.key: one.value for one in example.f.feature}
    assert list(features["n"].int64list.value) == [-1]
    assert list(features["many"].int64list.value) == [1, 2, 3]
    assert list(features["x"].floatlist.value) == [0.5]
    assert list(features["name"].byteslist.value) == [b"a"]
    # The other way round, too: protobuf writes, lockstep reads.
    assert decode_example(memoryview(example.SerializeToString()))["many"] == [1, 2, 3]


def test_features_without_values_and_of_no_kind() -> None:
    assert decode_example(memoryview(encode_example({"a": None, "b": [[1], [2]]}))) == {
        "a": [],
        "b": [1, 2],
    }
    with pytest.raises(TypeError, match="column 'a' has a dict"):
        encode_example({"a": {"x": 1}})


def test_a_file_that_is_no_tfrecord(tmp_path: Path) -> None:
    (tmp_path / "x.tfrecords").write_bytes(b"nothing of this kind")
    with pytest.raises(StorageError, match="no record of a TFRecord file at byte 0"):
        lockstep.data.read_tfrecords(tmp_path / "x.tfrecords").schema()
    [name] = lockstep.data.from_items(ROWS).write_tfrecords(tmp_path / "cut")
    file = tmp_path / "cut" / name
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(StorageError, match="cut off"):
        lockstep.data.read_tfrecords(tmp_path / "cut").take_all()


def test_webdataset_is_read_as_written(tmp_path: Path) -> None:
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    rows = [
        {"__key__": f"a/{n}", "cls": n, "txt": f"t{n}", "json": {"k": n}, "png": image + n}
        for n in range(3)
    ]
    lockstep.data.from_items(rows).write_webdataset(tmp_path, num_rows_per_file=2)
    dataset = lockstep.data.read_webdataset(tmp_path)
    found = dataset.take_all()
    assert [row["__key__"] for row in found] == ["a/0", "a/1", "a/2"]
    assert [row["cls"] for row in found] == [0, 1, 2]
    assert [row["txt"] for row in found] == ["t0", "t1", "t2"]
    assert [row["json"] for row in found] == [{"k": 0}, {"k": 1}, {"k": 2}]
    assert np.array_equal(found[2]["png"], image + 2)
    raw = lockstep.data.read_webdataset(tmp_path, decoder=None, suffixes=["txt"]).take_all()
    assert raw[0] == {"__key__": "a/0", "txt": b"t0"}
    wide = lockstep.data.read_webdataset(
        tmp_path, suffixes=["json"], expand_json=True, include_paths=True
    ).take_all()
    assert [row["k"] for row in wide] == [0, 1, 2]
    assert wide[0]["path"].endswith(".tar")


def test_samples_of_other_writers(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name in ("1.seg.txt", "1.cls", "README", "2.cls"):
            member = tarfile.TarInfo(name)
            member.size = 1
            archive.addfile(member, io.BytesIO(b"7"))
    assert lockstep.data.read_webdataset(tmp_path).take_all() == [
        {"__key__": "1", "seg.txt": "7", "cls": 7},
        {"__key__": "2", "seg.txt": None, "cls": 7},
    ]
    with pytest.raises(TypeError, match="column 'thing' has a int"):
        lockstep.data.from_items([{"thing": 1}]).write_webdataset(tmp_path / "out")
