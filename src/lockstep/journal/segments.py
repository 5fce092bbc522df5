"""A journal on storage that cannot append: one object, and segments with what came after it.

    journal.jsonl                                   the beginning, 0 … n
    .journal.jsonl.segments/<start>-<end>           bytes start … end of the same journal

A segment is written once and ends with a line. The segments that the object has caught up with are
deleted after it. So a reader finds every line that was copied, whenever the writer was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lockstep.storage import Storage

__all__ = ["delete_segments", "list_segments", "read_journal", "segment_directory", "segment_name"]

_NAME = re.compile(r"(\d+)-(\d+)")
_TRIES = 3


def segment_directory(journal: str) -> str:
    """The directory of a journal's segments."""
    return f".{journal}.segments"


def segment_name(journal: str, start: int, end: int) -> str:
    """The name of the segment with these bytes of a journal."""
    return f"{segment_directory(journal)}/{start:015d}-{end:015d}"


def list_segments(storage: Storage, journal: str) -> list[tuple[int, int]]:
    """Start and end of each segment, in order."""
    found = map(_NAME.fullmatch, storage.listdir(segment_directory(journal)))
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def delete_segments(storage: Storage, journal: str, segments: Iterable[tuple[int, int]]) -> None:
    """Delete segments, which the journal's object has caught up with."""
    storage.each((segment_name(journal, *segment) for segment in segments), storage.delete)


def read_journal(storage: Storage, journal: str) -> bytes:
    """The content of a journal, with its segments.

    Raises:
        FileNotFoundError: there is no journal.
    """
    for tries_left in reversed(range(_TRIES)):
        # Listed before the object is read: a segment that is deleted meanwhile is in the object.
        segments = list_segments(storage, journal)
        data = storage.read(journal)
        try:
            return _joined(storage, journal, data, segments)
        except FileNotFoundError:  # the object has caught up since it was read
            if not tries_left:
                raise
    raise AssertionError("unreachable")


def _joined(
    storage: Storage, journal: str, data: bytes, segments: Iterable[tuple[int, int]]
) -> bytes:
    parts, length = [data], len(data)
    for start, end in segments:
        if start <= length < end:
            parts.append(storage.read(segment_name(journal, start, end))[length - start :])
            length = end
    return b"".join(parts)
