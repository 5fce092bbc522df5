"""One contract, every storage: test_s3.py runs the same class on S3."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import StorageError
from lockstep.run_layout import MANIFEST
from lockstep.storage import LocalStorage, RemoteStorage, Storage, local, open_storage


def write_local(folder: Path, **files: bytes) -> Path:
    for name, data in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


class StorageContract:
    """What holds on every storage. A subclass makes the ``storage`` fixture."""

    def test_an_empty_place(self, storage: Storage) -> None:
        assert storage.listdir() == []
        assert storage.listdir("no/such") == []
        assert storage.walk_files("no/such") == {}
        assert not storage.exists("a")
        assert not storage.is_published("a")
        assert storage.manifest("a") is None

    def test_write_read_replace(self, storage: Storage) -> None:
        storage.write("deep/er/a.txt", b"one")
        storage.write("deep/er/a.txt", b"two, longer")
        assert storage.read("deep/er/a.txt") == b"two, longer"
        assert storage.exists("deep/er/a.txt")
        assert storage.exists("deep")
        assert storage.is_directory("deep/er")
        assert not storage.is_directory("deep/er/a.txt")
        assert storage.listdir("deep/er") == ["a.txt"]

    def test_reading_what_is_missing(self, storage: Storage, tmp_path: Path) -> None:
        storage.write("a", b"1")
        with pytest.raises(FileNotFoundError, match="nothing"):
            storage.read("nothing")
        with pytest.raises(FileNotFoundError, match="nothing"):
            storage.get("nothing", str(tmp_path / "x"))
        with pytest.raises(FileNotFoundError, match="signature"):  # a word of errors about logins
            storage.read("signature/forbidden")
        assert not (tmp_path / "x").exists()
        with pytest.raises(FileNotFoundError, match="gone"):
            storage.put("b", str(tmp_path / "gone"))

    def test_listing_is_sorted_and_relative(self, storage: Storage) -> None:
        for name in ("c/z", "c/a", "b", "c/d/e"):
            storage.put_bytes(name, name.encode())
        assert storage.listdir() == ["b", "c"]
        assert storage.listdir("c") == ["a", "d", "z"]
        assert storage.walk_files("c") == {"a": 3, "d/e": 5, "z": 3}
        assert list(storage.walk_files()) == ["b", "c/a", "c/d/e", "c/z"]

    def test_content_is_never_changed_by_a_name(self, storage: Storage) -> None:
        data = b"not gzip at all"
        for name in ("a.gz", "b.bz2", "with space.zst", "ünï", "c#d?e%41+"):
            storage.put_bytes(name, data)
            assert storage.read(name) == data
            storage.write(name, data * 2)
            assert storage.read(name) == data * 2

    def test_put_and_get_a_file(self, storage: Storage, tmp_path: Path) -> None:
        data = os.urandom(20_000_000)
        write_local(tmp_path, source=data, empty=b"")
        storage.put("x/y", str(tmp_path / "source"))
        storage.put("x/empty", str(tmp_path / "empty"))
        assert (tmp_path / "source").read_bytes() == data
        assert storage.walk_files("x") == {"empty": 0, "y": len(data)}
        storage.get("x/y", str(tmp_path / "back" / "y"))
        storage.get("x/empty", str(tmp_path / "back" / "empty"))
        assert (tmp_path / "back" / "y").read_bytes() == data
        assert (tmp_path / "back" / "empty").read_bytes() == b""

    def test_put_can_take_the_file_over(self, storage: Storage, tmp_path: Path) -> None:
        write_local(tmp_path, source=b"data")
        storage.put("x", str(tmp_path / "source"), move=True, flush=False)
        storage.flush("x")
        storage.flush()
        assert storage.read("x") == b"data"
        assert not (tmp_path / "source").exists()

    def test_put_from_memory_and_in_pieces(self, storage: Storage) -> None:
        storage.put_bytes("m", memoryview(b"memory"))
        storage.put_bytes("n", bytearray(b"array"), flush=False)
        storage.put_stream("s", iter([b"in ", b"", b"pieces"]))
        contents = [storage.read(name) for name in ("m", "n", "s")]
        assert contents == [b"memory", b"array", b"in pieces"]
        assert b"".join(storage.read_chunks("s")) == b"in pieces"

    def test_get_a_tree(self, storage: Storage, tmp_path: Path) -> None:
        files = {f"d/{i}/f{i}": bytes([i]) * i for i in range(12)}
        for name, data in files.items():
            storage.put_bytes(name, data)
        storage.get("d", str(tmp_path / "copy"))
        found = {
            f"d/{path.relative_to(tmp_path / 'copy')}": path.read_bytes()
            for path in (tmp_path / "copy").rglob("f*")
        }
        assert found == files

    def test_publish_makes_it_exist_at_once(self, storage: Storage) -> None:
        stage = storage.stage("c1")
        storage.put_bytes(f"{stage}/a", b"1")
        storage.put_bytes(f"{stage}/sub/b", b"22")
        assert not storage.is_published("c1")
        assert storage.manifest("c1") is None
        storage.publish("c1", b'{"id": 1}')
        assert storage.is_published("c1")
        assert storage.manifest("c1") == b'{"id": 1}'
        assert storage.walk_files("c1") == {MANIFEST: 9, "a": 1, "sub/b": 2}
        assert storage.child("c1").manifest() == b'{"id": 1}'

    def test_which_of_many_are_published(self, storage: Storage) -> None:
        for name in ("a", "b", "c"):
            storage.put_bytes(f"{storage.stage(name)}/file", b"1")
        storage.publish("a", b"{}")
        storage.publish("c", b"{}")
        storage.write("file", b"1")
        assert storage.published(["a", "b", "c", "file", "missing"]) == {"a", "c"}
        assert storage.published([]) == set()

    def test_publish_twice_fails_and_changes_nothing(self, storage: Storage) -> None:
        storage.put_bytes(f"{storage.stage('c1')}/a", b"1")
        storage.publish("c1", b"first")
        with pytest.raises(StorageError, match=r"c1.*published already"):
            storage.publish("c1", b"second")
        assert storage.manifest("c1") == b"first"

    def test_publish_without_files_and_under_a_nested_name(self, storage: Storage) -> None:
        storage.publish("empty", b"{}")
        assert storage.walk_files("empty") == {MANIFEST: 2}
        storage.put_bytes(f"{storage.stage('runs/one/c')}/a", b"1")
        storage.publish("runs/one/c", b"{}")
        assert storage.is_published("runs/one/c")

    def test_discard_drops_only_what_is_not_published(self, storage: Storage) -> None:
        storage.put_bytes(f"{storage.stage('c1')}/a", b"1")
        storage.discard("c1")
        storage.discard("c1")
        assert storage.walk_files(storage.stage("c1")) == {}
        storage.put_bytes(f"{storage.stage('c1')}/b", b"1")
        storage.publish("c1", b"{}")
        storage.discard("c1")
        assert storage.walk_files("c1") == {MANIFEST: 2, "b": 1}

    def test_unpublish_and_publish_again(self, storage: Storage) -> None:
        for content in (b"1", b"2"):
            storage.put_bytes(f"{storage.stage('c1')}/{content.decode()}", content)
            storage.publish("c1", content)
            assert storage.manifest("c1") == content
            storage.unpublish("c1")
            storage.unpublish("c1")
            assert not storage.is_published("c1")
            assert storage.walk_files("c1") == {}

    def test_sweep_leaves_what_is_published(self, storage: Storage) -> None:
        storage.write("state.json", b"{}")
        storage.put_bytes(f"{storage.stage('c1')}/a", b"1")
        storage.publish("c1", b"{}")
        storage.sweep()
        storage.sweep()
        assert storage.walk_files() == {f"c1/{MANIFEST}": 2, "c1/a": 1, "state.json": 2}

    def test_child(self, storage: Storage) -> None:
        child = storage.child("a/b")
        child.make_directory()
        child.make_directory()
        child.write("x", b"1")
        assert child.is_directory()
        assert storage.read("a/b/x") == b"1"
        assert child.path("x") == storage.path("a/b/x")
        assert child.root == storage.path("a/b")
        assert child.is_local is storage.is_local
        assert child == storage.child("a").child("b")
        assert child != storage
        assert len({child, storage.child("a/b")}) == 1

    def test_names_stay_inside(self, storage: Storage) -> None:
        for name in ("../x", "/x", "a/../../x"):
            with pytest.raises(ValueError, match="relative"):
                storage.write(name, b"")

    def test_the_filesystem_knows_the_path(self, storage: Storage) -> None:
        storage.write("a/b", b"12345")
        assert storage.filesystem.get_file_info(storage.path("a/b")).size == 5

    def test_pickling(self, storage: Storage) -> None:
        storage.write("x", b"1")
        copy = pickle.loads(pickle.dumps(storage))
        assert copy == storage
        assert hash(copy) == hash(storage)
        assert copy.uri == storage.uri
        assert copy.read("x") == b"1"

    def test_many_threads(self, storage: Storage) -> None:
        def write(worker: int) -> None:
            for i in range(5):
                storage.put_bytes(f"{storage.stage('c')}/{worker}/{i}", bytes([worker]))

        threads = [threading.Thread(target=write, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        storage.publish("c", b"{}")
        assert len(storage.walk_files("c")) == 31

    def test_a_failed_upload_leaves_no_file(self, storage: Storage) -> None:
        def pieces() -> Iterator[bytes]:
            yield b"half"
            raise OSError(errno.EIO, "the disk broke")

        with pytest.raises(StorageError, match="the disk broke") as caught:
            storage.put_stream("s/x", pieces())
        assert isinstance(caught.value.__cause__, OSError)
        assert "s/x" in str(caught.value)
        assert not storage.exists("s/x")

    def test_each_raises_the_failure(self, storage: Storage) -> None:
        seen: list[str] = []

        def action(name: str) -> None:
            seen.append(name)
            if name == "b":
                raise StorageError("b failed")

        storage.each(["a"], action)
        with pytest.raises(StorageError, match="b failed"):
            storage.each("abc", action)
        assert seen[:2] == ["a", "a"]


class TestLocal(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(tmp_path / "storage")


class TestArrowFilesystem(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        from pyarrow import fs

        (tmp_path / "tree").mkdir()
        tree = fs.SubTreeFileSystem(str(tmp_path / "tree"), fs.LocalFileSystem())
        storage = open_storage("storage", tree)
        assert isinstance(storage, RemoteStorage)
        return storage


class TestArrowFilesystemRoot(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        from pyarrow import fs

        (tmp_path / "tree").mkdir()
        return open_storage("", fs.SubTreeFileSystem(str(tmp_path / "tree"), fs.LocalFileSystem()))


class TestFsspec(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        fsspec = pytest.importorskip("fsspec")
        return open_storage(str(tmp_path / "storage"), fsspec.filesystem("file"))


class TestOpening:
    def test_paths(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        for path in ("~/x y", "x y", tmp_path / "x y", f"file://{tmp_path}/x%20y"):
            storage = open_storage(path)
            assert isinstance(storage, LocalStorage)
            assert (storage.root, storage.uri) == (str(tmp_path / "x y"),) * 2
        assert not (tmp_path / "x y").exists()

    def test_an_arrow_local_filesystem_is_local(self, tmp_path: Path) -> None:
        from pyarrow import fs

        assert open_storage(str(tmp_path), fs.LocalFileSystem()) == open_storage(tmp_path)

    def test_opening_a_local_path_needs_no_pyarrow(self, tmp_path: Path) -> None:
        code = """
            import sys
            from lockstep.checkpoint import Checkpoint
            from lockstep.storage import open_storage
            storage = open_storage(sys.argv[1])
            storage.write("a", b"1")
            storage.publish("c", b"{}")
            Checkpoint(sys.argv[1]).files()
            heavy = {"pyarrow", "numpy", "torch", "pandas", "rich"} & set(sys.modules)
            assert not heavy, heavy
        """
        run_python(code, str(tmp_path), check=True)

    def test_unknown_schemes_and_hosts_are_named(self) -> None:
        with pytest.raises(ValueError, match="unknown scheme 'ftp'"):
            open_storage("ftp://host/x")
        with pytest.raises(ValueError, match="host 'there'"):
            open_storage("file://there/x")

    def test_wrong_types(self) -> None:
        wrong: Any = b"/tmp"
        with pytest.raises(TypeError, match="str or Path"):
            open_storage(wrong)
        with pytest.raises(TypeError, match="not a filesystem"):
            open_storage("x", wrong)
        with pytest.raises(ValueError, match="null character"):
            open_storage("a\0b")

    def test_a_remote_uri_is_not_contacted_until_used(self) -> None:
        storage = open_storage("s3://key:secret@bucket/a%20b?endpoint_override=localhost:1").child(
            "c"
        )
        assert storage.root == "bucket/a b/c"
        assert storage.uri == "s3://bucket/a%20b/c?endpoint_override=localhost:1"
        assert "secret" not in repr(storage)
        assert open_storage("hdfs://host:8020/a/b/").root == "/a/b"
        assert pickle.loads(pickle.dumps(storage)) == storage

    @pytest.mark.parametrize("query", ["", "?endpoint_override=localhost:1"])
    @pytest.mark.parametrize(
        "name", ["plain", "sp ace", "é", "50%41", "what?", "#1", "a+b", "a=b&"]
    )
    def test_the_uri_of_a_name_leads_there_again(self, name: str, query: str) -> None:
        storage = open_storage(f"s3://bucket/prefix{query}").child(name).child("c")
        assert storage.root == f"bucket/prefix/{name}/c"
        assert storage.uri.endswith(query)
        assert open_storage(storage.uri).root == storage.root

    def test_which_paths_mean_the_same_file(self, tmp_path: Path) -> None:
        from pyarrow import fs

        here = open_storage(tmp_path)
        trees = [fs.SubTreeFileSystem(str(tmp_path / n), fs.LocalFileSystem()) for n in "ab"]
        one, other = (open_storage("root", tree) for tree in trees)
        assert here.same_filesystem(open_storage("/"))
        assert one.same_filesystem(open_storage("elsewhere", trees[0]))
        assert not any(a.same_filesystem(b) for a, b in ((here, one), (one, here), (one, other)))


class TestLocalFiles:
    def test_errors_name_path_and_cause(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        storage = open_storage(tmp_path / "file")
        actions: list[Callable[[], object]] = [
            lambda: storage.write("a", b""),
            lambda: storage.put_bytes("a", b""),
            lambda: storage.make_directory("a"),
            lambda: storage.listdir(),
            lambda: storage.publish("a", b""),
            lambda: storage.flush("a"),
        ]
        for action in actions:
            with pytest.raises(StorageError, match=r"Could not .*file.*: .*\.$") as caught:
                action()
            assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(StorageError, match="s a directory"):
            open_storage(tmp_path).read("")

    def test_a_failed_write_keeps_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        storage = open_storage(tmp_path)
        storage.write("a", b"old")

        def full(path: str, chunks: Iterable[bytes], opener: object = None) -> None:
            Path(path).write_bytes(b"ne")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(local, "_write_file", full)
        with pytest.raises(StorageError, match="No space left"):
            storage.write("a", b"new")
        assert storage.read("a") == b"old"
        assert os.listdir(tmp_path) == ["a"]

    def test_copying_where_the_kernel_cannot(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = os.urandom(40_000_000)
        (tmp_path / "source").write_bytes(data)
        real = getattr(os, "copy_file_range", None)

        def gives_up(source: int, target: int, count: int) -> int:
            if real is None or os.lseek(source, 0, os.SEEK_CUR) > 0:
                raise OSError(errno.EXDEV, "other device")
            return int(real(source, target, 1_000_000))

        monkeypatch.setattr(os, "copy_file_range", gives_up, raising=False)
        open_storage(tmp_path).put("copy", str(tmp_path / "source"))
        assert (tmp_path / "copy").read_bytes() == data

    def test_move_across_devices_copies(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "source").write_bytes(b"data")

        def other_device(source: str, destination: str) -> None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

        monkeypatch.setattr(local, "_rename", other_device)
        open_storage(tmp_path / "s").put("a", str(tmp_path / "source"), move=True)
        assert (tmp_path / "s" / "a").read_bytes() == b"data"
        assert not (tmp_path / "source").exists()

    def test_move_renames_but_never_a_link(self, tmp_path: Path) -> None:
        write_local(tmp_path, plain=b"1", target=b"2", shared=b"3")
        (tmp_path / "link").symlink_to("target")
        os.link(tmp_path / "shared", tmp_path / "other_name")
        inode = (tmp_path / "plain").stat().st_ino
        storage = open_storage(tmp_path / "s")
        for name in ("plain", "link", "shared"):
            storage.put(name, str(tmp_path / name), move=True)
        (tmp_path / "target").write_bytes(b"changed")
        (tmp_path / "other_name").write_bytes(b"changed")
        assert (tmp_path / "s" / "plain").stat().st_ino == inode
        assert not (tmp_path / "s" / "link").is_symlink()
        assert [storage.read(name) for name in ("plain", "link", "shared")] == [b"1", b"2", b"3"]

    def test_putting_a_file_onto_itself_keeps_it(self, tmp_path: Path) -> None:
        storage = open_storage(tmp_path)
        storage.write("a", b"data")
        storage.put("a", str(tmp_path / "a"))
        storage.put("a", str(tmp_path / "a"), move=True)
        assert storage.read("a") == b"data"

    def test_links_to_directories_are_followed_once(self, tmp_path: Path) -> None:
        write_local(tmp_path / "real", data=b"1")
        (tmp_path / "s").mkdir()
        (tmp_path / "s" / "linked").symlink_to(tmp_path / "real")
        (tmp_path / "s" / "loop").symlink_to(tmp_path / "s")
        storage = open_storage(tmp_path / "s")
        assert storage.walk_files() == {"linked/data": 1}
        (tmp_path / "s" / "dangling").symlink_to("nowhere")
        with pytest.raises(FileNotFoundError, match="dangling' is a link to 'nowhere', which"):
            storage.walk_files()

    def test_the_directory_that_cannot_be_listed_is_named(self, tmp_path: Path) -> None:
        write_local(tmp_path, a__b__data=b"1")
        (tmp_path / "a" / "b" / "link").symlink_to("link")
        with pytest.raises(StorageError, match=f"list '{tmp_path}/a/b': Too many levels"):
            open_storage(tmp_path).walk_files()

    def test_what_is_no_file_is_left_out(self, tmp_path: Path) -> None:
        write_local(tmp_path, data=b"1")
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to("fifo")
        assert open_storage(tmp_path).walk_files() == {"data": 1}

    def test_staged_files_are_not_under_the_final_name(self, tmp_path: Path) -> None:
        storage = open_storage(tmp_path)
        storage.put_bytes(f"{storage.stage('c1')}/a", b"1")
        assert not storage.exists("c1")
        storage.sweep()
        assert storage.listdir() == []

    def test_publishing_over_something_else_fails(self, tmp_path: Path) -> None:
        storage = open_storage(tmp_path)
        storage.put_bytes("c1/in_the_way", b"1")
        storage.put_bytes(f"{storage.stage('c1')}/a", b"1")
        with pytest.raises(StorageError, match=r"c1.*files of somebody else"):
            storage.publish("c1", b"{}")
        assert not storage.is_published("c1")

    def test_publish_flushes_before_it_renames(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        steps: list[tuple[str, str]] = []
        for name in ("_rename", "_write_file", "_fsync", "_copy_file"):
            monkeypatch.setattr(local, name, recorder(name, tmp_path, steps))
        (tmp_path / "source").write_bytes(b"x")
        storage = open_storage(tmp_path)
        storage.put(f"{storage.stage('c')}/sub/a", str(tmp_path / "source"))
        storage.publish("c", b"{}")
        rename = steps.index(("_rename", "c"))
        before = steps[:rename]
        for flushed in ("sub/a", "sub", MANIFEST, ""):
            assert ("_fsync", f".staging/c/{flushed}".rstrip("/")) in before
        assert steps[rename + 1 :] == [("_fsync", ".")]


def recorder(name: str, root: Path, steps: list[tuple[str, str]]) -> Callable[..., Any]:
    real = getattr(local, name)

    def record(*arguments: Any) -> Any:
        target = arguments[1] if name in ("_rename", "_copy_file") else arguments[0]
        steps.append((name, os.path.relpath(target, root)))
        return real(*arguments)

    return record


CRASH = """
    import os, signal, sys
    from lockstep.storage import local, open_storage

    folder, source, when = sys.argv[1:]
    count, stop = 0, 0

    def dying(real):
        def call(*arguments):
            global count
            count += 1
            if count == stop and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            writes = real.__name__ in ("_write_file", "_copy_file")
            if count == stop and writes and when == "inside":
                real(*arguments)
                path = arguments[0] if real.__name__ == "_write_file" else arguments[1]
                os.truncate(path, os.path.getsize(path) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments)
            if count == stop:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return call

    def sequence(root):
        storage = open_storage(root)
        storage.write("state", b"old state")
        for step in range(3):
            stage = storage.stage(f"c{step}")
            storage.put(f"{stage}/a", source)
            storage.put_bytes(f"{stage}/sub/b", b"b" * 1000)
            storage.publish(f"c{step}", b"manifest")
            storage.write("state", b"new state")
            if step:
                storage.unpublish(f"c{step - 1}")
        storage.sweep()

    for name in ("_rename", "_write_file", "_fsync", "_remove_tree", "_copy_file"):
        setattr(local, name, dying(getattr(local, name)))

    status = -1
    while status != 0:
        stop += 1
        child = os.fork()  # an interpreter for each kill would take most of the test's time
        if not child:
            sequence(os.path.join(folder, str(stop)))
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status not in (0, -signal.SIGKILL):
            sys.exit(f"killed at step {stop}, the process ended with {status}")
"""


def run_python(
    code: str, *arguments: str, check: bool = False, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run code in an interpreter of its own, with this source tree and these variables."""
    source = str(Path(local.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, **variables}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], env=environment, check=check
    )


@pytest.mark.parametrize("when", ["before", "inside", "after"])
def test_killed_at_every_step_what_is_published_is_complete(tmp_path: Path, when: str) -> None:
    (tmp_path / "source").write_bytes(b"a" * 1000)
    whole = {MANIFEST: 8, "a": 1000, "sub/b": 1000}
    newest = -1
    run_python(CRASH, str(tmp_path), str(tmp_path / "source"), when, check=True)
    steps = sum(1 for path in tmp_path.iterdir() if path.is_dir())
    assert steps > 40
    for stop in range(1, steps + 1):
        root = tmp_path / str(stop)
        storage = open_storage(root)
        published = [name for name in storage.listdir() if storage.is_published(name)]
        visible = [name for name in storage.listdir() if name.startswith("c")]
        assert visible == published
        for name in published:
            assert storage.walk_files(name) == whole, (stop, name)
        if storage.exists("state"):
            assert storage.read("state") in (b"old state", b"new state")
        now = int(published[-1][1:]) if published else -1
        assert now >= newest, "a later kill lost what an earlier one had"
        newest = now
        storage.sweep()
        assert not {".staging", ".trash"} & set(os.listdir(root) if root.exists() else ())
        assert [name for name in storage.listdir() if storage.is_published(name)] == published
    assert published == ["c2"], "the last process was not killed"
