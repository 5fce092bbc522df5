"""Files of lines: a block is a range of bytes that ends with a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lockstep.data.sources.base import Block
from lockstep.data.sources.files import FileSource
from lockstep.data.sources.paths import File, open_input, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LineSource", "count_lines", "read_file", "read_range", "skip_lines"]

_COMPRESSED = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4", "br": "brotli"}
_LINE = 1 << 16
"""How much is read at a time to find the end of a line."""
_COUNTED = 1 << 20
"""How many bytes are searched for line ends at a time."""
BLOCK_BYTES = 4 << 20
"""Bytes of text in a block. The columns made of them take several times as much memory."""
_NEWLINE, _RETURN = 10, 13


class LineSource(FileSource):
    """Rows that are lines, or that begin and end with a line, in one or more files.

    A compressed file cannot be entered in the middle, so it is one block. So is a file whose rows
    may contain line breaks (``single_blocks``). Lines are counted when their number is first
    needed.
    """

    keeps_empty_lines = False

    def __init__(self, files: Sequence[File], single_blocks: bool = False) -> None:
        super().__init__(files)
        self._single_blocks = single_blocks
        self._counts: dict[tuple[Any, ...], int] = {}

    def index(self) -> list[Block]:
        """Ranges of bytes, with their numbers of rows where those were counted."""
        blocks = super().index()
        return [replace(block, rows=self._counts.get(block.where)) for block in blocks]

    def _find_blocks(self) -> list[Block]:
        self.schema()
        ranges = self._each_file(self._ranges)
        return [
            Block((number, start, stop), None, stop - start, file.path)
            for number, (file, found) in enumerate(zip(self._files, ranges, strict=True))
            for start, stop in found
        ]

    def _ranges(self, file: File) -> list[tuple[int, int]]:
        if self.is_single_block(file):
            return [(0, file.size)] if file.size else []
        with open_input(file) as source:
            start = self._first_row(file, source)
            bounds = [start]
            while bounds[-1] + BLOCK_BYTES < file.size:
                bounds.append(_after_line(source, bounds[-1] + BLOCK_BYTES, file.size))
            if bounds[-1] < file.size:
                bounds.append(file.size)
        return list(pairwise(bounds))

    def is_single_block(self, file: File) -> bool:
        """Whether a file is one block."""
        return self._single_blocks or _compression(file) is not None

    def count(self, block: Block) -> int:
        """The lines of a range, or the rows of a file that is one block."""
        known = self._counts.get(block.where)
        if known is None:
            if self.is_single_block(self.file_of(block)):
                known = self.read(block, None, True).num_rows
            else:
                known = count_lines(self.bytes_of(block), self.keeps_empty_lines)
            self._counts[block.where] = known
        return known

    def bytes_of(self, block: Block) -> pa.Buffer:
        """The text of a block."""
        file = self.file_of(block)
        if self.is_single_block(file):
            return read_file(file)
        return read_range(file, *block.where[1:])

    def _first_row(self, file: File, source: Any) -> int:
        """The position in a file at which the first row begins."""
        return 0


def _compression(file: File) -> str | None:
    return _COMPRESSED.get(file.path.rpartition(".")[2].lower())


def read_range(file: File, start: int, stop: int) -> pa.Buffer:
    """Some bytes of a file. For a local file, a view of the page cache."""
    with open_input(file) as source:
        source.seek(start)
        return source.read_buffer(stop - start)


def read_file(file: File) -> pa.Buffer:
    """All bytes of a file, decompressed."""
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
    """The position after the first line end at or after ``position``."""
    while position < size:
        source.seek(position)
        found: int = source.read(_LINE).find(b"\n")
        if found >= 0:
            return position + found + 1
        position += _LINE
    return size


def skip_lines(source: Any, count: int, size: int) -> int:
    """The position after the first ``count`` lines."""
    position = 0
    for _ in range(count):
        position = _after_line(source, position, size)
    return position


def count_lines(data: Any, keep_empty: bool = False) -> int:
    """The number of lines in a buffer; ``keep_empty`` counts empty lines, too."""
    import numpy as np

    everything = np.frombuffer(data, np.uint8)
    lines = 0
    before = _NEWLINE  # the last byte of what was counted
    for start in range(0, len(everything), _COUNTED):
        part = everything[start : start + _COUNTED]
        if not keep_empty and (part == _RETURN).any():
            part = part[part != _RETURN]
            if not len(part):
                continue
        ends = part == _NEWLINE
        lines += int(np.count_nonzero(ends))
        if not keep_empty:
            # A line end right after another one closes an empty line.
            lines -= int(np.count_nonzero(ends[1:] & ends[:-1]))
            lines -= int(before == _NEWLINE and bool(ends[0]))
        before = int(part[-1])
    return lines + int(before != _NEWLINE and len(everything) > 0)
