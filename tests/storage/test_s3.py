"""The storage contract and checkpoints on S3: a server on loopback, started here."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.checkpoint import Checkpoint
from lockstep.errors import StorageError
from lockstep.run_layout import MANIFEST
from lockstep.storage import RemoteStorage, Storage, open_storage
from tests.s3 import new_bucket, s3_filesystem, s3_uri
from tests.storage.test_storage import StorageContract


@pytest.fixture
def bucket() -> str:
    return new_bucket()


@pytest.fixture
def uri(s3_port: int, bucket: str) -> str:
    return s3_uri(s3_port, bucket)


def disconnected_after(storage: Storage) -> Iterator[Storage]:
    """Pytest holds a fixture's value past its end; the connections must not live that long."""
    assert isinstance(storage, RemoteStorage)
    yield storage
    storage._remote._filesystem = None


class TestS3(StorageContract):
    @pytest.fixture
    def storage(self, s3_port: int, bucket: str) -> Iterator[Storage]:
        yield from disconnected_after(open_storage(f"{bucket}/prefix", s3_filesystem(s3_port)))


class TestS3FromUri(StorageContract):
    @pytest.fixture
    def storage(self, uri: str) -> Iterator[Storage]:
        yield from disconnected_after(open_storage(uri))


def with_keys(uri: str | None) -> str:
    """A storage shows its URI without them."""
    assert uri is not None
    return uri.replace("s3://", "s3://key:secret@")


def test_uri_and_root(uri: str, bucket: str) -> None:
    storage = open_storage(uri)
    storage.write("a/b c", b"1")
    assert (storage.root, storage.uri) == (f"{bucket}/some/prefix", uri.replace("key:secret@", ""))
    child = storage.child("a")
    assert with_keys(child.uri) == uri.replace("prefix?", "prefix/a?")
    assert open_storage(with_keys(child.uri)).read("b c") == b"1"
    assert open_storage(with_keys(child.uri)) == child


def test_a_server_that_is_not_there_is_one_sentence() -> None:
    storage = open_storage("bucket/x", s3_filesystem(port=1))
    with pytest.raises(StorageError, match=r"^Could not .*'bucket/x/a': .*\.$") as caught:
        storage.exists("a")
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_missing_bucket_is_named(s3_port: int, uri: str, bucket: str) -> None:
    storage = open_storage(uri.replace("&allow_bucket_creation=true", ""))
    with pytest.raises(StorageError, match=bucket):
        storage.write("a", b"1")


def test_a_name_that_is_no_text_is_named(uri: str) -> None:
    with pytest.raises(StorageError, match=r"Could not write 's3://.*bad\\udcff"):
        open_storage(uri).put_bytes(os.fsdecode(b"bad\xff"), b"1")


def test_the_manifest_goes_first_when_unpublished(uri: str) -> None:
    storage = open_storage(uri)
    storage.put_bytes(f"{storage.stage('c')}/a", b"1")
    storage.publish("c", b"{}")
    storage.filesystem.delete_file(storage.path(f"c/{MANIFEST}"))
    assert not storage.is_published("c")
    storage.unpublish("c")
    assert storage.listdir() == []


def test_a_dict_checkpoint(uri: str, tmp_path: Path) -> None:
    storage = open_storage(uri)
    made = Checkpoint.from_dict({"epoch": 3})
    made.set_metadata({"note": "x"})
    made.save_files(storage, storage.stage("c1"), made.files())
    storage.publish("c1", b'{"id": 4, "timestamp": 99}')
    stored = Checkpoint(storage.path("c1"), storage.filesystem)
    expected = {"epoch": 3, "_timestamp": 99, "_preprocessor": None, "_current_checkpoint_id": 4}
    for checkpoint in (stored, pickle.loads(pickle.dumps(stored))):
        assert checkpoint.to_dict() == expected
        assert checkpoint.current_id == 4
        assert checkpoint.get_metadata() == {"note": "x"}
    assert Checkpoint.from_uri(with_keys(storage.child("c1").uri)).to_dict() == expected


def test_a_directory_checkpoint(uri: str, tmp_path: Path) -> None:
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "weights").write_bytes(b"w" * 1000)
    (tmp_path / "d" / "step").write_text("7")
    made = Checkpoint.from_directory(tmp_path / "d")
    storage = open_storage(uri)
    made.save_files(storage, "c1", made.files())
    stored = Checkpoint(with_keys(storage.child("c1").uri))
    assert stored.files() == made.files() == {"step": 1, "sub/weights": 1000}
    assert stored.fingerprint(stored.files()) == made.fingerprint(made.files())
    assert stored.get_internal_representation() == ("uri", storage.child("c1").uri)
    assert repr(stored) == f"Checkpoint(filesystem=s3, path={storage.path('c1')})"
    with stored.as_directory() as folder:
        assert (Path(folder) / "sub" / "weights").read_bytes() == b"w" * 1000
    assert not os.path.exists(folder)
    stored.update_metadata({"a": 1})
    assert Checkpoint(with_keys(storage.child("c1").uri)).get_metadata() == {"a": 1}


def test_from_one_storage_to_another(uri: str, tmp_path: Path) -> None:
    storage = open_storage(uri)
    storage.put_bytes("c1/big", b"x" * 20_000_000)
    storage.put_bytes("c1/sub/small", b"y")
    stored = Checkpoint(with_keys(storage.child("c1").uri))
    local = open_storage(tmp_path / "local")
    for target in (storage, local):
        stored.save_files(target, "c2", stored.files(), move=True)
        assert target.walk_files("c2") == {"big": 20_000_000, "sub/small": 1}
    assert storage.walk_files("c1") == storage.walk_files("c2")


def test_a_checkpoint_that_is_not_there(uri: str) -> None:
    storage = open_storage(uri)
    storage.make_directory()
    missing = Checkpoint(with_keys(storage.child("nowhere").uri))
    for use in (missing.files, missing.to_dict, missing.get_metadata):
        with pytest.raises(FileNotFoundError, match=r"prefix/nowhere.*does not exist"):
            use()


def test_equality_is_place_and_filesystem(uri: str) -> None:
    storage = open_storage(uri)
    one, two = (
        Checkpoint(with_keys(storage.child("c").uri)),
        Checkpoint(storage.path("c"), storage.filesystem),
    )
    assert one == two
    assert len({one, two}) == 1
    assert one != Checkpoint(with_keys(storage.child("d").uri))
