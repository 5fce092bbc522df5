"""Files that are rows, or arrays of rows: numpy's, images, anything as bytes."""

from __future__ import annotations

import io
import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow
from lockstep.data.sources.base import BLOCK_BYTES, Block, Source
from lockstep.data.sources.lines import read_whole
from lockstep.data.sources.paths import File, check_unchanged, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BinarySource", "ImageSource", "NumpySource"]

_FILES_OF_A_BLOCK = 64
_INFLATED = 16
"""How much bigger an image is in memory than in its file, about."""


class _FileRows(Source):
    """A row a file; several small files are a block."""

    inflated = 1

    def __init__(self, files: Sequence[File], include_paths: bool) -> None:
        self._files = list(files)
        self._include_paths = include_paths
        self._schema: pa.Schema | None = None

    def files(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self._files]

    def check(self) -> None:
        """Sizes, of local files."""
        check_unchanged(self._files)

    def index(self) -> list[Block]:
        """Runs of files."""
        blocks: list[Block] = []
        start = size = 0
        for place, file in enumerate(self._files):
            size += file.size * self.inflated
            full = size >= BLOCK_BYTES or place - start + 1 >= _FILES_OF_A_BLOCK
            if full or place == len(self._files) - 1:
                name = self._files[start].path
                blocks.append(Block((start, place + 1), place + 1 - start, size, name))
                start, size = place + 1, 0
        return blocks

    def schema(self) -> pa.Schema:
        """Of the first file."""
        if self._schema is None:
            self._schema = self.read(Block((0, 1), 1, 0), None, False).schema
        return self._schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """File by file."""
        import pyarrow as pa

        files = self._files[slice(*block.where)]
        found = {}
        if columns is None or self.column in columns:
            found[self.column] = to_arrow([self.row(file) for file in files])
        if self._include_paths and (columns is None or "path" in columns):
            found["path"] = pa.array([file.path for file in files])
        table = pa.table(found)
        return table if columns is None else table.select(list(columns))

    column: str

    @abstractmethod
    def row(self, file: File) -> Any:
        """A file's value."""


class BinarySource(_FileRows):
    """Each file's bytes, in a column ``"bytes"``."""

    column = "bytes"

    def row(self, file: File) -> bytes:
        """All of them, as they are."""
        with open_input(file) as source:
            return bytes(source.read())


class ImageSource(_FileRows):
    """Each file's image as an array of height, width and channels, in a column ``"image"``.

    Args:
        files: in order.
        include_paths: add a column ``"path"``.
        size: (height, width) to scale each to, or None.
        mode: Pillow's name of the colours to convert to, such as ``"RGB"``, or None.
    """

    column = "image"
    inflated = _INFLATED

    def __init__(
        self,
        files: Sequence[File],
        include_paths: bool,
        size: tuple[int, int] | None,
        mode: str | None,
    ) -> None:
        super().__init__(files, include_paths)
        self._size = size
        self._mode = mode

    def row(self, file: File) -> Any:
        """Decode one."""
        import numpy as np
        from PIL import Image, UnidentifiedImageError

        try:
            with open_input(file) as source, Image.open(io.BytesIO(source.read())) as opened:
                image: Image.Image = opened
                if self._size is not None:
                    image = image.resize((self._size[1], self._size[0]))
                if self._mode is not None:
                    image = image.convert(self._mode)
                return np.asarray(image)
        except UnidentifiedImageError as error:
            raise unreadable(file, ValueError("it is no image that Pillow knows")) from error
        except (OSError, ValueError) as error:
            raise unreadable(file, error) from error


class NumpySource(Source):
    """The rows of ``.npy`` files, in a column ``"data"``; a block is a file."""

    def __init__(self, files: Sequence[File], allow_pickle: bool, include_paths: bool) -> None:
        self._files = list(files)
        self._allow_pickle = allow_pickle
        self._include_paths = include_paths
        self._schema: pa.Schema | None = None
        self._blocks: list[Block] | None = None
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    def files(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self._files]

    def check(self) -> None:
        """Sizes, of local files."""
        check_unchanged(self._files)

    def index(self) -> list[Block]:
        """The files, from their headers."""
        with self._lock:
            if self._blocks is None:
                shapes = [self._header(file) for file in self._files]
                for file, (shape, dtype) in zip(self._files, shapes, strict=True):
                    if (shape[1:], dtype) != (shapes[0][0][1:], shapes[0][1]):
                        raise ValueError(
                            f"Column 'data' has rows of {dtype} {list(shape[1:])} in {file.path!r} "
                            f"but of {shapes[0][1]} {list(shapes[0][0][1:])} in "
                            f"{self._files[0].path!r}; read files with the same rows."
                        )
                self._blocks = [
                    Block((number,), shape[0], file.size, file.path)
                    for number, (file, (shape, _)) in enumerate(
                        zip(self._files, shapes, strict=True)
                    )
                ]
            return self._blocks

    def _header(self, file: File) -> tuple[tuple[int, ...], Any]:
        import numpy as np

        try:
            with open_input(file) as source:
                version = np.lib.format.read_magic(source)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                shape, _, dtype = read(source)
        except (ValueError, EOFError) as error:
            raise unreadable(file, error) from error
        if not shape:
            raise ValueError(
                f"{file.path!r} holds a single value; the first dimension is the rows."
            )
        return shape, dtype

    def schema(self) -> pa.Schema:
        """Of the first file."""
        if self._schema is None:
            self._schema = self.read(self.index()[0], None, False).schema
        return self._schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Load a file."""
        import numpy as np
        import pyarrow as pa

        file = self._files[block.where[0]]
        try:
            array = np.load(io.BytesIO(read_whole(file)), allow_pickle=self._allow_pickle)
        except (ValueError, EOFError, OSError) as error:
            raise unreadable(file, error) from error
        table = pa.table({"data": to_arrow(array)})
        if self._include_paths:
            table = table.append_column("path", pa.array([file.path] * len(array)))
        return table if columns is None else table.select(list(columns))
