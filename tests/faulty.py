"""A filesystem that fails as often as it is told to, in whatever process it is used."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

__all__ = ["Faults", "faulty_filesystem"]

FAULTS = {
    "io": OSError("the connection was reset"),
    "permission": PermissionError("not yours"),
    "denied": OSError("AWS Error ACCESS_DENIED during PutObject operation"),
}


class Faults:
    """What is to fail: a file for each fault, so that processes share them; it goes with it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = str(folder)

    def add(self, operation: str, times: int = 1, *, kind: str = "io", path: str = "") -> None:
        """Let ``operation`` fail on paths that contain ``path``."""
        for number in range(times):
            name = f"{operation},{kind},{path.replace('/', '+')},{number}"
            Path(self._folder, name).touch()

    def left(self) -> int:
        return len(os.listdir(self._folder))

    def clear(self) -> None:
        for name in os.listdir(self._folder):
            os.unlink(os.path.join(self._folder, name))

    def occur(self, operation: str, path: str) -> None:
        for name in sorted(os.listdir(self._folder)):
            wanted, kind, part, _ = name.split(",")
            if wanted != operation or part.replace("+", "/") not in path:
                continue
            if kind == "stall":
                while os.path.exists(os.path.join(self._folder, name)):
                    time.sleep(0.005)
                continue
            try:
                os.unlink(os.path.join(self._folder, name))
            except FileNotFoundError:
                continue
            raise FAULTS[kind]


class _BrokenReader:
    """A file whose reads may fail."""

    closed = False

    def __init__(self, path: str, faults: Faults) -> None:
        self._path = path
        self._faults = faults
        self._file = open(path, "rb")  # noqa: SIM115

    def read(self, size: int = -1) -> bytes:
        if self._file.tell():
            self._faults.occur("read", self._path)
        return self._file.read(size)

    def seek(self, position: int, whence: int = 0) -> int:
        return self._file.seek(position, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self.closed = True
        self._file.close()


class _Handler(fs.FileSystemHandler):  # type: ignore[misc]
    def __init__(self, root: str, faults: Faults) -> None:
        self._root = root
        self._faults = faults

    def __reduce__(self) -> Any:
        return _Handler, (self._root, self._faults)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and self._root == other._root

    __hash__ = None  # type: ignore[assignment]

    @property
    def _real(self) -> Any:
        return fs.SubTreeFileSystem(self._root, fs.LocalFileSystem())

    def _call(self, operation: str, path: str, *args: Any) -> Any:
        self._faults.occur(operation, path)
        return getattr(self._real, operation)(path, *args)

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths:
            self._faults.occur("get_file_info", path)
        return self._real.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        self._faults.occur("list", selector.base_dir)
        return self._real.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._faults.occur("create_dir", path)
        self._real.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self._call("delete_dir", path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool) -> None:
        raise NotImplementedError

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def delete_file(self, path: str) -> None:
        self._call("delete_file", path)

    def move(self, source: str, destination: str) -> None:
        self._faults.occur("move", destination)
        self._real.move(source, destination)

    def copy_file(self, source: str, destination: str) -> None:
        raise NotImplementedError

    def open_input_stream(self, path: str) -> Any:
        self._faults.occur("open_input", path)
        return pa.PythonFile(_BrokenReader(f"{self._root}/{path}", self._faults), "r")

    open_input_file = open_input_stream

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._call("open_output_stream", path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise NotImplementedError


def faulty_filesystem(root: Path, faults: Faults) -> Any:
    """A filesystem on ``root`` with these faults; not a local one for lockstep."""
    root.mkdir(exist_ok=True)
    return fs.PyFileSystem(_Handler(str(root), faults))
