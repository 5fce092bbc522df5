"""Files that are one row each, or one array of rows: images, bytes, ``.npy`` files."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.columns import to_arrow
from lockstep.data.sources.base import BLOCK_BYTES, Block
from lockstep.data.sources.files import FileSource
from lockstep.data.sources.lines import read_file
from lockstep.data.sources.paths import File, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BinarySource", "ImageSource", "NumpySource"]

_FILES_OF_A_BLOCK = 64
_INFLATED = 16
"""About how many times larger an image is in memory than in its file."""


class _FileRows(FileSource):
    """A row a file; several small files are a block."""

    inflated = 1

    def __init__(
        self, files: Sequence[File], include_paths: bool, partitions: pa.Table | None = None
    ) -> None:
        super().__init__(files)
        self._include_paths = include_paths
        self._partitions = partitions

    def _find_blocks(self) -> list[Block]:
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

    def _find_schema(self) -> pa.Schema:
        return self.read(Block((0, 1), 1, 0), None, False).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Read a block file by file."""
        import pyarrow as pa

        files = self._files[slice(*block.where)]
        found = {}
        if columns is None or self.column in columns:
            found[self.column] = to_arrow([self.row(file) for file in files])
        if self._include_paths and (columns is None or "path" in columns):
            found["path"] = pa.array([file.path for file in files])
        if self._partitions is not None:
            rows = self._partitions.slice(block.where[0], len(files))
            for name in rows.column_names:
                if columns is None or name in columns:
                    found[name] = rows[name]
        table = pa.table(found)
        return table if columns is None else table.select(list(columns))

    column: str

    @abstractmethod
    def row(self, file: File) -> Any:
        """A file's value."""


class BinarySource(_FileRows):
    """Each file's bytes, in a column ``"bytes"``."""

    reader = "read_binary_files"

    column = "bytes"

    def row(self, file: File) -> bytes:
        """All bytes of a file."""
        with open_input(file) as source:
            return bytes(source.read())


class ImageSource(_FileRows):
    """Each file's image as an array of height, width and channels, in a column ``"image"``.

    Args:
        files: in order.
        include_paths: add a column ``"path"``.
        size: (height, width) to scale each to, or None.
        mode: Pillow's name of the colours to convert to, such as ``"RGB"``, or None.
        partitions: more columns, a row for each file.
    """

    reader = "read_images"

    column = "image"
    inflated = _INFLATED

    def __init__(
        self,
        files: Sequence[File],
        include_paths: bool,
        size: tuple[int, int] | None,
        mode: str | None,
        partitions: pa.Table | None = None,
    ) -> None:
        super().__init__(files, include_paths, partitions)
        self._size = size
        self._mode = mode

    def row(self, file: File) -> Any:
        """Decode an image."""
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


class NumpySource(FileSource):
    """The rows of ``.npy`` files, in a column ``"data"``; a block is a file."""

    reader = "read_numpy"

    def __init__(self, files: Sequence[File], allow_pickle: bool, include_paths: bool) -> None:
        super().__init__(files)
        self._allow_pickle = allow_pickle
        self._include_paths = include_paths

    def _find_blocks(self) -> list[Block]:
        """The files as blocks; reads their headers."""
        blocks = []
        (first_shape, first_dtype), *_ = shapes = [self._header(file) for file in self._files]
        for number, (file, (shape, dtype)) in enumerate(zip(self._files, shapes, strict=True)):
            if (shape[1:], dtype) != (first_shape[1:], first_dtype):
                raise ValueError(
                    f"Column 'data' has rows of {dtype} {list(shape[1:])} in {file.path!r} but of "
                    f"{first_dtype} {list(first_shape[1:])} in {self._files[0].path!r}; read files "
                    "with the same rows."
                )
            blocks.append(Block((number,), shape[0], file.size, file.path))
        return blocks

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
                f"{file.path!r} holds a single value; the first dimension must count the rows."
            )
        return shape, dtype

    def _find_schema(self) -> pa.Schema:
        return self.read(self.index()[0], None, False).schema

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Load a file."""
        import numpy as np
        import pyarrow as pa

        file = self.file_of(block)
        try:
            array = np.load(io.BytesIO(read_file(file)), allow_pickle=self._allow_pickle)
        except (ValueError, EOFError, OSError) as error:
            raise unreadable(file, error) from error
        table = pa.table({"data": to_arrow(array)})
        if self._include_paths:
            table = table.append_column("path", pa.array([file.path] * len(array)))
        return table if columns is None else table.select(list(columns))
