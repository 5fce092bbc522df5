"""Checkpoint: directories and dicts, each as the other, stored and not."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import tarfile
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.checkpoint import Checkpoint
from lockstep.errors import CheckpointError
from lockstep.run_layout import DICT_FILE, MANIFEST, METADATA_FILE, PICKLED_DICT_FILE
from lockstep.storage import Storage, open_storage
from tests.storage.test_storage import run_python

FILES = {"step": b"7", "sub/weights.gz": b"w" * 1000}


ON_GPU = """
    import sys, torch
    from lockstep.checkpoint import Checkpoint

    model = torch.nn.Linear(2, 1).cuda()
    data = {"weights": model.state_dict(), "model": model, "plain": (model.weight * 2).sum()}
    for extra in ({}, {"f": eval("lambda: weight", {"weight": model.weight})}):
        checkpoint = Checkpoint.from_dict({**data, **extra})
        back = checkpoint.to_dict()
        assert all(tensor.device.type == "cpu" for tensor in back["weights"].values())
        assert isinstance(back["model"].weight, torch.nn.Parameter)
        assert back["model"].weight.requires_grad
        assert back["model"].weight.device.type == back["plain"].device.type == "cpu"
        assert torch.equal(back["model"].weight, model.weight.cpu())
        assert model.weight.device.type == "cuda"
        assert checkpoint.dict_value("plain") == data["plain"].item()
    checkpoint.to_directory(sys.argv[1])
"""


class Local:
    """A class that plain pickle finds by name."""

    def __init__(self, value: int) -> None:
        self.value = value


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        path = tmp_path / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "checkpoint"


def arrow_storage(folder: Path) -> Storage:
    from pyarrow import fs

    folder.mkdir(exist_ok=True)
    return open_storage("root", fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()))


def stored_in(storage: Storage, checkpoint: Checkpoint, manifest: dict[str, Any]) -> Checkpoint:
    checkpoint.save_files(storage, storage.stage("c"), checkpoint.files())
    storage.publish("c", json.dumps(manifest).encode())
    return Checkpoint(storage.path("c"), storage.filesystem)


def content(folder: str | Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file()
    }


class TestMaking:
    def test_all_spellings_of_a_path(self, directory: Path) -> None:
        first = Checkpoint(directory)
        for other in (
            Checkpoint(str(directory)),
            Checkpoint(local_path=directory),
            Checkpoint(uri=f"file://{directory}"),
            Checkpoint.from_directory(directory),
            Checkpoint.from_uri(f"file://{directory}"),
        ):
            assert other == first
            assert other.path == other.uri == str(directory)
            assert other.get_internal_representation() == ("local_path", str(directory))

    def test_exactly_one_source(self) -> None:
        for arguments in ({}, {"path": "a", "uri": "b"}, {"path": "a", "data_dict": {}}):
            with pytest.raises(ValueError, match="exactly one"):
                Checkpoint(**arguments)

    def test_wrong_types(self) -> None:
        wrong: Any = {"a": 1}
        with pytest.raises(TypeError, match="from_dict"):
            Checkpoint(wrong)
        with pytest.raises(ValueError, match=r"Checkpoint\(''\): expected a path"):
            Checkpoint("")
        wrong = [1]
        with pytest.raises(TypeError, match=r"from_dict\(\[1\]\)"):
            Checkpoint.from_dict(wrong)

    def test_a_missing_directory_fails_when_used_by_its_path(self, tmp_path: Path) -> None:
        missing = Checkpoint(tmp_path / "nowhere")
        assert missing
        assert str(tmp_path / "nowhere") in repr(missing)
        uses: list[Callable[[], object]] = [
            missing.files,
            missing.to_dict,
            missing.to_directory,
            missing.get_metadata,
            lambda: missing.set_metadata({}),
            lambda: missing.current_id,
            lambda: missing.save_files(open_storage(tmp_path / "s"), "c", []),
            lambda: missing.as_directory().__enter__(),
        ]
        for use in uses:
            with pytest.raises(FileNotFoundError, match=r"nowhere.*does not exist"):
                use()
        assert not (tmp_path / "nowhere").exists()

    def test_a_file_is_not_a_directory(self, directory: Path) -> None:
        with pytest.raises(NotADirectoryError, match=r"step.*is a file"):
            Checkpoint(directory / "step").files()

    def test_a_new_checkpoint_is_true(self) -> None:
        assert Checkpoint.from_dict({})


class TestDict:
    def test_it_is_a_snapshot_and_gives_fresh_copies(self) -> None:
        state = {"epoch": 1, "list": [1]}
        checkpoint = Checkpoint.from_dict(state)
        state["epoch"] = 2
        state["list"].append(2)  # type: ignore[attr-defined]
        first = checkpoint.to_dict()
        assert first == {"epoch": 1, "list": [1]}
        first["list"].append(3)
        assert checkpoint.to_dict() == {"epoch": 1, "list": [1]}
        assert checkpoint.get_internal_representation() == ("data_dict", checkpoint.to_dict())
        assert (checkpoint.path, checkpoint.filesystem, checkpoint.uri) == (None, None, None)

    @pytest.mark.parametrize("data", [{}, {"a": None}, {1: 2, ("x",): [3]}])
    def test_any_dict(self, data: dict[Any, Any]) -> None:
        assert Checkpoint.from_dict(data).to_dict() == data

    def test_tensors_and_arrays(self) -> None:
        torch = pytest.importorskip("torch")
        model = torch.nn.Linear(2, 1)
        data = {"weights": model.state_dict(), "arrays": [np.ones(3)], "parameter": model.weight}
        back = Checkpoint.from_dict(data).to_dict()
        assert isinstance(back["weights"], OrderedDict)
        assert torch.equal(back["weights"]["bias"], model.state_dict()["bias"])
        assert isinstance(back["parameter"], torch.nn.Parameter)
        np.testing.assert_array_equal(back["arrays"][0], np.ones(3))

    @pytest.mark.gpu
    def test_accelerator_tensors_come_back_on_cpu(self, tmp_path: Path) -> None:
        """In processes of their own: CUDA keeps files open until its process ends."""
        pytest.importorskip("torch")
        path = str(tmp_path / "c")
        run_python(ON_GPU, path, check=True)
        code = """
            import sys, torch
            from lockstep.checkpoint import Checkpoint
            assert not torch.cuda.is_available()
            assert Checkpoint(sys.argv[1]).to_dict()["f"]().device.type == "cpu"
        """
        run_python(code, path, check=True, CUDA_VISIBLE_DEVICES="")

    def test_what_plain_pickle_cannot_do(self) -> None:
        class Inner:
            value = 3

        back = Checkpoint.from_dict({"f": lambda x: x + 1, "c": Inner(), "l": Local(4)}).to_dict()
        assert (back["f"](1), back["c"].value, back["l"].value) == (2, 3, 4)

    def test_the_key_that_cannot_be_pickled_is_named(self) -> None:
        with pytest.raises(TypeError, match=r"'lock'.*lock.*cannot be pickled") as caught:
            Checkpoint.from_dict({"fine": 1, "lock": threading.Lock()})
        assert caught.value.__cause__ is not None

    def test_as_a_directory(self, tmp_path: Path) -> None:
        checkpoint = Checkpoint.from_dict({"epoch": 1})
        with checkpoint.as_directory() as folder:
            assert os.listdir(folder) == [DICT_FILE]
            assert b'"epoch":1' in (Path(folder) / DICT_FILE).read_bytes()
            assert Checkpoint(folder).to_dict() == {"epoch": 1}
        assert not os.path.exists(folder)
        path = checkpoint.to_directory(tmp_path / "there")
        assert path == str(tmp_path / "there")
        assert Checkpoint(path).is_dict

    def test_a_pickle_as_a_directory(self, tmp_path: Path) -> None:
        Checkpoint.from_dict({"epoch": 1}).to_directory(tmp_path)
        Checkpoint.from_dict({"path": tmp_path}).to_directory(tmp_path)
        assert os.listdir(tmp_path) == [PICKLED_DICT_FILE]  # of the dict before, nothing is left
        assert pickle.loads((tmp_path / PICKLED_DICT_FILE).read_bytes()) == {"path": tmp_path}
        assert Checkpoint(tmp_path).to_dict() == {"path": tmp_path}
        Checkpoint(Checkpoint.from_dict({"epoch": 2}).to_directory()).to_directory(tmp_path)
        assert Checkpoint(tmp_path).to_dict() == {"epoch": 2}

    def test_equality_and_hash(self) -> None:
        one, same, other = (Checkpoint.from_dict({"a": value}) for value in (1, 1, 2))
        assert one == same
        assert one != other
        assert one != {"a": 1}
        assert len({one, same, other}) == 2
        one.set_metadata({"note": 1})
        assert one == same

    def test_pickling_by_value(self) -> None:
        checkpoint = Checkpoint.from_dict({"a": {"b": 2}})
        checkpoint.set_metadata({"note": 1})
        copy = pickle.loads(pickle.dumps(checkpoint))
        assert copy == checkpoint
        assert copy.to_dict() == {"a": {"b": 2}}
        assert copy.get_metadata() == {"note": 1}
        assert copy.dict_value("a/b") == 2.0

    def test_a_class_that_is_not_there_any_more(self, tmp_path: Path) -> None:
        (tmp_path / PICKLED_DICT_FILE).write_bytes(b"cno_such_module\nThing\n.")
        with pytest.raises(CheckpointError, match="no_such_module") as caught:
            Checkpoint(tmp_path).to_dict()
        assert str(tmp_path) in str(caught.value)
        assert isinstance(caught.value.__cause__, ImportError)

    @pytest.mark.parametrize(
        "damaged", [b"", b"\x80\x05X\x01\x00\x00\x00\xff.", b"cbuiltins\nint\n(S'x'\ntR."]
    )
    def test_a_damaged_pickle_is_named(self, tmp_path: Path, damaged: bytes) -> None:
        (tmp_path / PICKLED_DICT_FILE).write_bytes(damaged)
        with pytest.raises(CheckpointError, match=f"{tmp_path.name}.*cannot be unpickled"):
            Checkpoint(tmp_path).to_dict()

    def test_what_looks_like_a_number_and_has_none(self) -> None:
        torch = pytest.importorskip("torch")
        data = {"huge": 10**400, "loss": 1}
        checkpoint = Checkpoint.from_dict(data)
        assert checkpoint.to_dict() == data
        assert checkpoint.dict_value("huge") is None
        assert checkpoint.dict_value("loss") == 1.0
        without_data = Checkpoint.from_dict({"t": torch.tensor(1.0, device="meta")})
        assert without_data.to_dict()["t"].is_meta
        assert without_data.dict_value("t") is None


class TestStoredDict:
    @pytest.fixture(params=["local", "arrow"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
        if request.param == "local":
            return open_storage(tmp_path / "storage")
        return arrow_storage(tmp_path / "storage")

    def test_added_keys_come_last_and_are_new(self, storage: Storage) -> None:
        earlier = {"_current_checkpoint_id": 1, "_timestamp": 5, "epoch": 3, "_preprocessor": 0}
        made = Checkpoint.from_dict(earlier)
        assert made.to_dict() == earlier
        assert made.current_id == 1
        stored = stored_in(storage, made, {"id": 2, "timestamp": 99})
        assert stored.is_dict
        assert stored.current_id == 2
        assert list(stored.to_dict().items()) == [
            ("epoch", 3),
            ("_timestamp", 99),
            ("_preprocessor", None),
            ("_current_checkpoint_id", 2),
        ]

    def test_a_dict_of_tensors_gets_no_keys(self, storage: Storage) -> None:
        torch = pytest.importorskip("torch")
        model = torch.nn.Linear(2, 1)
        made = Checkpoint.from_dict(model.state_dict())
        stored = stored_in(storage, made, {"id": 2, "timestamp": 99})
        torch.nn.Linear(2, 1).load_state_dict(stored.to_dict())
        assert list(stored.to_dict()) == ["weight", "bias"]
        assert stored.current_id == 2

    def test_an_empty_dict_gets_the_keys(self, storage: Storage) -> None:
        stored = stored_in(storage, Checkpoint.from_dict({}), {"id": 2, "timestamp": 99})
        assert list(stored.to_dict()) == ["_timestamp", "_preprocessor", "_current_checkpoint_id"]

    def test_files_never_name_the_manifest(self, storage: Storage) -> None:
        made = Checkpoint.from_dict({"epoch": 3})
        made.set_metadata({"a": 1})
        stored = stored_in(storage, made, {"id": 0, "timestamp": 1})
        assert storage.exists(f"c/{MANIFEST}")
        assert stored.files() == made.files()
        assert list(made.files()) == [METADATA_FILE, DICT_FILE]
        assert made.files()[METADATA_FILE] == len('{"a": 1}')
        assert stored.fingerprint(stored.files()) == made.fingerprint(made.files())
        assert stored.get_metadata() == {"a": 1}

    def test_without_a_manifest_nothing_is_added(self, storage: Storage) -> None:
        made = Checkpoint.from_dict({"epoch": 3, "_current_checkpoint_id": 6})
        made.save_files(storage, "c", made.files())
        stored = Checkpoint(storage.path("c"), storage.filesystem)
        assert stored.to_dict() == {"epoch": 3, "_current_checkpoint_id": 6}
        assert stored.current_id == 6

    def test_its_numbers(self, storage: Storage) -> None:
        made = Checkpoint.from_dict({"eval": {"loss": 2}, "name": "x"})
        stored = stored_in(storage, made, {"id": 0, "timestamp": 1})
        values = [stored.dict_value(key) for key in ("eval/loss", "name", "no")]
        assert values == [2.0, None, None]
        storage.write(f"c/{DICT_FILE}", b"damaged")
        assert stored.dict_value("eval/loss") is None

    def test_it_can_be_stored_again(self, storage: Storage, tmp_path: Path) -> None:
        stored = stored_in(storage, Checkpoint.from_dict({"a": 1}), {"id": 0, "timestamp": 1})
        again = open_storage(tmp_path / "second")
        stored.save_files(again, "c", stored.files())
        assert Checkpoint(again.path("c")).to_dict() == {"a": 1}


class TestDirectory:
    def test_its_own_directory_is_used_and_kept(self, directory: Path) -> None:
        with Checkpoint(directory).as_directory() as folder:
            assert folder == str(directory)
        assert content(directory) == FILES

    def test_to_directory_copies(self, directory: Path, tmp_path: Path) -> None:
        checkpoint = Checkpoint(directory)
        path = checkpoint.to_directory(tmp_path / "copy" / "deep")
        assert content(path) == FILES
        temporary = checkpoint.to_directory()
        assert content(temporary) == FILES
        shutil.rmtree(temporary)
        assert checkpoint.to_directory(directory) == str(directory)
        assert content(directory) == FILES

    def test_a_copy_that_fails_leaves_no_temporary_directory(self, directory: Path) -> None:
        def temporary() -> list[Path]:
            return list(Path(tempfile.gettempdir()).glob("checkpoint-*"))

        (directory / "sub" / "link").symlink_to("nowhere")
        before = temporary()
        with pytest.raises(FileNotFoundError, match="nowhere"):
            Checkpoint(directory).to_directory()
        assert temporary() == before

    def test_what_is_published_is_not_taken_over_but_a_copy_may_be(self, tmp_path: Path) -> None:
        storage = open_storage(tmp_path / "run")
        made = Checkpoint.from_dict({"a": 1})
        stored = stored_in(storage, made, {"id": 0, "timestamp": 1, "name": "c"})
        (tmp_path / "latest").symlink_to(str(stored.path))
        assert not stored.is_movable
        assert not Checkpoint(tmp_path / "latest").is_movable
        shutil.copytree(tmp_path / "run", tmp_path / "copied_run")
        assert not Checkpoint(tmp_path / "copied_run" / "c").is_movable
        copy = Checkpoint(stored.to_directory(tmp_path / "copy"))
        assert copy.is_movable
        copy.save_files(storage, "taken", copy.files(), move=True)
        assert content(tmp_path / "copy") == {}
        assert stored.to_dict()["a"] == 1

    def test_elsewhere_it_is_a_temporary_copy(self, directory: Path, tmp_path: Path) -> None:
        storage = arrow_storage(tmp_path / "remote")
        made = Checkpoint(directory)
        made.save_files(storage, "c", made.files())
        stored = Checkpoint(storage.path("c"), storage.filesystem)
        seen: list[Any] = []

        def use() -> None:
            with stored.as_directory() as folder:
                seen.append(content(folder))
                seen.append(folder)
                raise RuntimeError("the user's")

        with pytest.raises(RuntimeError, match="the user's"):
            use()
        found, folder = seen
        assert found == FILES
        assert not os.path.exists(folder)
        assert content(tmp_path / "remote" / "root" / "c") == FILES

    def test_as_a_dict_and_back(self, directory: Path, tmp_path: Path) -> None:
        checkpoint = Checkpoint(directory)
        checkpoint.set_metadata({"a": 1})
        as_dict = checkpoint.to_dict()
        assert list(as_dict) == ["fs_checkpoint"]
        back = Checkpoint.from_dict(as_dict)
        assert not back.is_dict
        assert back.get_metadata() == {"a": 1}
        assert back.files() == checkpoint.files()
        with back.as_directory() as folder:
            assert content(folder) == content(directory)
        assert Checkpoint.from_dict(back.to_dict()) == back
        back.save_files(open_storage(tmp_path), "stored", back.files())
        assert content(tmp_path / "stored") == content(directory)

    def test_a_key_of_that_name_that_is_no_archive_is_data(self) -> None:
        for data in ({"fs_checkpoint": b"text"}, {"fs_checkpoint": 1}, {"fs_checkpoint": b""}):
            assert Checkpoint.from_dict(data).to_dict() == data

    @pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
    def test_an_archive_stays_inside(self, name: str) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo(name)
            if name == "link":
                member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
        with pytest.raises(ValueError, match=f"unsafe entry '{name}'"):
            Checkpoint.from_dict({"fs_checkpoint": buffer.getvalue()})

    def test_files_and_fingerprints(self, directory: Path, tmp_path: Path) -> None:
        checkpoint = Checkpoint(directory)
        assert checkpoint.files() == {"step": 1, "sub/weights.gz": 1000}
        before = checkpoint.fingerprint(checkpoint.files())
        assert list(before) == ["step", "sub/weights.gz"]
        (directory / "sub" / "weights.gz").write_bytes(b"w" * 999 + b"v")
        after = checkpoint.fingerprint(checkpoint.files())
        assert after["step"] == before["step"]
        assert after["sub/weights.gz"] != before["sub/weights.gz"]
        (tmp_path / "empty").mkdir()
        assert Checkpoint(tmp_path / "empty").files() == {}

    def test_saving_some_copies_and_move_takes_over(self, directory: Path, tmp_path: Path) -> None:
        checkpoint = Checkpoint(directory)
        storage = open_storage(tmp_path / "s")
        checkpoint.save_files(storage, "copy", ["step"])
        assert storage.walk_files("copy") == {"step": 1}
        assert content(directory) == FILES
        checkpoint.save_files(storage, "taken", checkpoint.files(), move=True, flush=False)
        assert content(tmp_path / "s" / "taken") == FILES
        assert content(directory) == {}

    def test_it_is_no_dict(self, directory: Path) -> None:
        checkpoint = Checkpoint(directory)
        assert not checkpoint.is_dict
        assert checkpoint.current_id is None
        assert checkpoint.dict_value("step") is None

    def test_pickled_by_path(self, directory: Path) -> None:
        data = pickle.dumps(Checkpoint(directory))
        assert b"wwww" not in data
        assert pickle.loads(data) == Checkpoint(directory)

    def test_equality_hash_repr(self, directory: Path, tmp_path: Path) -> None:
        checkpoint = Checkpoint(directory)
        assert repr(checkpoint) == f"Checkpoint(filesystem=local, path={directory})"
        assert {checkpoint: 1}[Checkpoint(str(directory))] == 1
        assert checkpoint != Checkpoint(tmp_path)
        assert checkpoint != Checkpoint.from_dict({})
        filesystem = checkpoint.filesystem
        assert filesystem is not None
        assert filesystem.get_file_info(checkpoint.path).type.name == "Directory"
        one, two = (arrow_storage(tmp_path / name) for name in ("one", "two"))
        remote = Checkpoint("root/c", one.filesystem)
        assert remote == Checkpoint("root/c", one.filesystem)
        assert remote != Checkpoint("root/c", two.filesystem)
        assert repr(remote) == "Checkpoint(filesystem=subtree, path=root/c)"


@pytest.mark.parametrize("kind", ["local", "arrow", "dict"])
def test_metadata(kind: str, directory: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint(directory)
    if kind == "arrow":
        storage = arrow_storage(tmp_path / "remote")
        checkpoint.save_files(storage, "c", checkpoint.files())
        checkpoint = Checkpoint(storage.path("c"), storage.filesystem)
    elif kind == "dict":
        checkpoint = Checkpoint.from_dict({"a": 1})
    assert checkpoint.get_metadata() == {}
    checkpoint.set_metadata({"a": 1, "b": [2]})
    checkpoint.update_metadata({"a": 3, "c": None})
    assert checkpoint.get_metadata() == {"a": 3, "b": [2], "c": None}
    checkpoint.set_metadata({"d": 4})
    assert checkpoint.get_metadata() == {"d": 4}
    with pytest.raises(TypeError, match="JSON"):
        checkpoint.set_metadata({"x": object()})
    assert checkpoint.get_metadata() == {"d": 4}
    with checkpoint.as_directory() as folder:
        assert json.loads((Path(folder) / METADATA_FILE).read_text()) == {"d": 4}


def test_dict_value() -> None:
    data: dict[Any, Any] = {
        "loss": 0.5,
        "count": 3,
        "flag": True,
        "text": "0.5",
        "numpy": np.float32(0.25),
        "array": np.array(2.0),
        "many": np.ones(2),
        "nan": float("nan"),
        "eval": {"acc": 0.9, "deep": {"x": 1}, "a/b": 7},
        "eval/acc": 0.1,
        "eval2/acc": "text",
        "eval2": {"acc": 1},
        5: 6,
    }
    data["itself"] = data
    checkpoint = Checkpoint.from_dict(data)
    expected = {
        "loss": 0.5,
        "count": 3.0,
        "flag": None,
        "text": None,
        "numpy": 0.25,
        "array": 2.0,
        "many": None,
        "eval": None,
        "eval/acc": 0.1,
        "eval2/acc": None,
        "eval/deep/x": 1.0,
        "eval/a/b": 7.0,
        "eval/no": None,
        "loss/x": None,
        "no": None,
        "": None,
    }
    assert {key: checkpoint.dict_value(key) for key in expected} == expected
    assert str(checkpoint.dict_value("nan")) == "nan"
    assert checkpoint.current_id is None


def test_a_pickle_that_is_no_dict(tmp_path: Path) -> None:
    (tmp_path / PICKLED_DICT_FILE).write_bytes(pickle.dumps([1]))
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.dict_value("loss") is None
    with pytest.raises(CheckpointError, match=f"has a list in its {PICKLED_DICT_FILE}"):
        checkpoint.to_dict()


def test_half_a_manifest_is_not_taken_over(tmp_path: Path) -> None:
    assert Checkpoint(tmp_path).is_movable
    (tmp_path / MANIFEST).write_text('{"name": "chec')
    assert not Checkpoint(tmp_path).is_movable


def test_a_temporary_directory_may_go_after_saving(tmp_path: Path, directory: Path) -> None:
    storage = open_storage(tmp_path / "run")
    checkpoint = Checkpoint.from_directory(directory)
    stored = stored_in(storage, checkpoint, {"id": 0, "timestamp": 1})
    shutil.rmtree(directory)
    with stored.as_directory() as folder:
        assert content(folder) == {**FILES, MANIFEST: b'{"id": 0, "timestamp": 1}'}
