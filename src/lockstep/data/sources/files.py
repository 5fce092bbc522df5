"""What all sources that read files share: the files, their schema and their blocks."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lockstep.data.sources.base import Block, Source
from lockstep.data.sources.paths import File, check_unchanged

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FileSource"]

T = TypeVar("T")

_FILES_AT_ONCE = 16


class FileSource(Source):
    """Rows of one or more files. The schema and the blocks are found once, then remembered."""

    not_pickled: tuple[str, ...] = ("_lock",)
    reader: str
    """The function that makes datasets of it."""

    def __init__(self, files: Sequence[File]) -> None:
        self._files = list(files)
        self._schema: pa.Schema | None = None
        self._blocks: list[Block] | None = None
        self._reset()

    def _reset(self) -> None:
        """Create the attributes that are not pickled."""
        # Reentrant: finding the blocks asks for the schema.
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in self.not_pickled}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    @property
    def text(self) -> str:
        """The call, with the first file."""
        more = len(self._files) - 1
        files = f", {more} more file{'s' * (more > 1)}" if more else ""
        return f"{self.reader}({self._files[0].path!r}{files})"

    def is_ready(self) -> bool:
        """Whether it has looked at the files."""
        return self._schema is not None and self._blocks is not None

    def files(self) -> list[str]:
        """The files' paths."""
        return [file.path for file in self._files]

    def check(self) -> None:
        """Compare the sizes of local files."""
        check_unchanged(self._files)

    def schema(self) -> pa.Schema:
        """The columns of all files."""
        with self._lock:
            if self._schema is None:
                self._schema = self._find_schema()
            return self._schema

    def index(self) -> list[Block]:
        """The blocks of all files, in order."""
        with self._lock:
            if self._blocks is None:
                self._blocks = self._find_blocks()
            return self._blocks

    def file_of(self, block: Block) -> File:
        """The file of a block whose ``where`` begins with the number of the file."""
        number: int = block.where[0]
        return self._files[number]

    def _each_file(self, action: Callable[[File], T]) -> list[T]:
        """The results of an action on every file, in order; several run at once."""
        from concurrent.futures import ThreadPoolExecutor

        threads = min(_FILES_AT_ONCE, len(self._files))
        with ThreadPoolExecutor(threads, "lockstep-data-index") as pool:
            return list(pool.map(action, self._files))

    @abstractmethod
    def _find_schema(self) -> pa.Schema:
        """The columns; called once."""

    @abstractmethod
    def _find_blocks(self) -> list[Block]:
        """The blocks; called once."""
