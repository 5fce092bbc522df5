"""Text files: a row a line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.data.sources.base import Block
from lockstep.data.sources.lines import LineSource
from lockstep.data.sources.paths import File, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TextSource"]


class TextSource(LineSource):
    """The lines of text files, in a column ``"text"``."""

    reader = "read_text"

    def __init__(self, files: Sequence[File], encoding: str, drop_empty_lines: bool) -> None:
        # In these encodings bytes 10 and 13 may be half of a letter.
        wide = "utf-16" in encoding.lower() or "utf-32" in encoding.lower()
        super().__init__(files, single_blocks=wide)
        self._encoding = encoding
        self.keeps_empty_lines = not drop_empty_lines

    def _find_schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema([("text", pa.string())])

    def read(self, block: Block, columns: Sequence[str] | None, threads: bool) -> pa.Table:
        """Decode a range of a file."""
        import pyarrow as pa

        file = self.file_of(block)
        try:
            text = self.bytes_of(block).to_pybytes().decode(self._encoding)
        except UnicodeDecodeError as error:
            raise unreadable(file, error) from error
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        if lines[-1] == "":
            lines.pop()
        if not self.keeps_empty_lines:
            lines = [line for line in lines if line]
        table = pa.table({"text": pa.array(lines, pa.string())})
        return table if columns is None else table.select(list(columns))
