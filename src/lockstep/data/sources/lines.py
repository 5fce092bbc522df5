"""Files of lines: a block is a range of bytes that ends with a line."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block, Source
from lockstep.data.sources.paths import File, check_unchanged, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LineSource", "count_lines", "read_range", "read_whole", "skip_lines"]

_COMPRESSED = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}
_FILES_AT_ONCE = 16
_LINE = 1 << 16
"""How much is read at a time to find the end of a line."""
_COUNTED = 1 << 20
BLOCK_BYTES = 4 << 20
"""Of text: what is made of it takes several times as much."""
_NEWLINE, _RETURN = 10, 13


class LineSource(Source):
    """Rows that are lines (or begin and end with them) in one or more files.

    A compressed file cannot be entered in the middle, and is one block; so is a file whose rows may
    have line breaks inside (``whole_files``). Lines are counted when their number is first needed.
    """

    keeps_empty_lines = False

    def __init__(self, files: Sequence[File], whole_files: bool = False) -> None:
        self._files = list(files)
        self._whole_files = whole_files
        self._schema: pa.Schema | None = None
        self._blocks: list[Block] | None = None
        self._counts: dict[tuple[Any, ...], int] = {}
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.RLock()

    def files(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self._files]

    def check(self) -> None:
        """Sizes, of local files."""
        check_unchanged(self._files)

    def schema(self) -> pa.Schema:
        """Of all files; looks into each of them."""
        with self._lock:
            if self._schema is None:
                self._schema = self._find_schema()
            return self._schema

    def _each_file(self, action: Any) -> list[Any]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(_FILES_AT_ONCE, len(self._files)), "lockstep-data-index") as p:
            return list(p.map(action, self._files))

    def index(self) -> list[Block]:
        """Ranges of bytes; looks only where one may end."""
        with self._lock:
            if self._blocks is None:
                self.schema()
                ranges = self._each_file(self._ranges)
                self._blocks = [
                    Block((number, start, stop), None, stop - start, file.path)
                    for number, (file, found) in enumerate(zip(self._files, ranges, strict=True))
                    for start, stop in found
                ]
            return [replace(block, rows=self._counts.get(block.where)) for block in self._blocks]

    def _ranges(self, file: File) -> list[tuple[int, int]]:
        if self.is_whole(file):
            return [(0, file.size)] if file.size else []
        with open_input(file) as source:
            start = self._first_row(file, source)
            bounds = [start]
            while bounds[-1] + BLOCK_BYTES < file.size:
                bounds.append(_after_line(source, bounds[-1] + BLOCK_BYTES, file.size))
            if bounds[-1] < file.size:
                bounds.append(file.size)
        return list(pairwise(bounds))

    def is_whole(self, file: File) -> bool:
        """Whether a file is one block."""
        return self._whole_files or _compression(file) is not None

    def count(self, block: Block) -> int:
        """The lines of a range, or the rows of a file read as a whole."""
        known = self._counts.get(block.where)
        if known is None:
            number, start, stop = block.where
            file = self._files[number]
            if self.is_whole(file):
                known = self.read(block, None, True).num_rows
            else:
                known = count_lines(read_range(file, start, stop), self.keeps_empty_lines)
            self._counts[block.where] = known
        return known

    def bytes_of(self, block: Block) -> pa.Buffer:
        """What is in a block."""
        number, start, stop = block.where
        file = self._files[number]
        if self.is_whole(file):
            return read_whole(file)
        return read_range(file, start, stop)

    def file_of(self, block: Block) -> File:
        """The file a block is in."""
        number: int = block.where[0]
        return self._files[number]

    @abstractmethod
    def _find_schema(self) -> pa.Schema:
        """The columns, found by looking into the files; called once."""

    def _first_row(self, file: File, source: Any) -> int:
        """Where, in a file, the first row begins."""
        return 0


def _compression(file: File) -> str | None:
    return _COMPRESSED.get(file.path.rpartition(".")[2].lower())


def read_range(file: File, start: int, stop: int) -> pa.Buffer:
    """Some bytes of a file; a view of the page cache where it is local."""
    with open_input(file) as source:
        source.seek(start)
        return source.read_buffer(stop - start)


def read_whole(file: File) -> pa.Buffer:
    """A file's bytes, decompressed."""
    import pyarrow as pa

    kind = _compression(file)
    try:
        with open_input(file) as source:
            if kind is None:
                return source.read_buffer()
            with pa.CompressedInputStream(source, kind) as stream:
                return stream.read_buffer()
    except (OSError, pa.ArrowException) as error:
        raise unreadable(file, error) from error


def _after_line(source: Any, position: int, size: int) -> int:
    """The first position after a line that ends at or after this one."""
    while position < size:
        source.seek(position)
        found: int = source.read(_LINE).find(b"\n")
        if found >= 0:
            return position + found + 1
        position += _LINE
    return size


def skip_lines(source: Any, count: int, size: int) -> int:
    """The position after so many lines from the start."""
    position = 0
    for _ in range(count):
        position = _after_line(source, position, size)
    return position


def count_lines(data: Any, keep_empty: bool = False) -> int:
    """How many lines there are in a buffer that begins with one; empty ones only if asked for."""
    import numpy as np

    whole = np.frombuffer(data, np.uint8)
    lines = 0
    before = _NEWLINE  # the last byte of what was counted
    for start in range(0, len(whole), _COUNTED):
        part = whole[start : start + _COUNTED]
        if not keep_empty and (part == _RETURN).any():
            part = part[part != _RETURN]
            if not len(part):
                continue
        ends = part == _NEWLINE
        lines += int(np.count_nonzero(ends))
        if not keep_empty:
            lines -= int(np.count_nonzero(ends[1:] & ends[:-1])) + int(
                before == _NEWLINE and bool(ends[0])
            )
        before = int(part[-1])
    return lines + int(before != _NEWLINE and len(whole) > 0)
