"""``lockstep logs RUN``: what the ranks of a run have printed, also while they print it."""

from __future__ import annotations

import json
import re
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from lockstep.cli.command import Command, WholeNumber, add_run
from lockstep.console.text import clean, without_controls
from lockstep.journal.lookup import find_run
from lockstep.journal.records import RunRecords, damage_named
from lockstep.observe.state import may_run, spool_of
from lockstep.run_layout import LOG_DIRECTORY, log_file
from lockstep.storage import Storage, open_storage
from lockstep.storage.base import CHUNK, open_regular

__all__ = ["COMMAND"]

_POLL_S = 0.2
_REMOTE_POLL_S = 2.0
_COLOUR = re.compile(r"\x1b\[[\d;:]*m")
_RANK = re.compile(r"rank_(\d{1,9})\.log")


def _arguments(parser: ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="wait for more until the run ends"
    )
    parser.add_argument(
        "--rank",
        type=WholeNumber(0),
        action="append",
        metavar="N",
        help="only this rank; may be repeated",
    )
    parser.add_argument(
        "--grep",
        type=_pattern,
        metavar="PATTERN",
        help="only lines that match a regular expression",
    )
    parser.add_argument(
        "-n",
        "--lines",
        type=WholeNumber(0),
        metavar="N",
        help="only the last N lines of each rank",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ArgumentTypeError(f"{text!r} is not a regular expression: {error}") from None


def _logs(options: Namespace) -> int:
    wanted: re.Pattern[str] = options.grep or re.compile("")
    storage = find_run(options.run, pieces=True)
    with damage_named(f"what {storage.uri} records"):
        records = RunRecords(storage)
        if not storage.is_local and (spool := spool_of(records)) is not None:
            storage = open_storage(spool)  # what is on remote storage is an older copy
    logs: dict[int, _Log] = {}
    printed = 0
    while True:
        # Asked before the files are read: what was printed until then is in them.
        alive = options.follow and may_run(storage, records)
        first = not logs
        for rank in _ranks(storage):
            if not options.rank or rank in options.rank:
                logs.setdefault(rank, _Log(storage, rank))
        if options.rank and not alive and (missing := set(options.rank) - set(logs)):
            raise ValueError(f"rank {min(missing)} has printed nothing in {storage.uri}.")
        for rank, log in sorted(logs.items()):
            lines = (line for line in log.more(whole=alive) if wanted.search(line))
            label = f"[rank {rank}] " if len(logs) > 1 else ""
            for line in (
                deque(lines, options.lines) if first and options.lines is not None else lines
            ):
                print(json.dumps({"rank": rank, "line": line}) if options.json else label + line)
                printed += 1
        if not alive:
            break
        print(end="", flush=True)
        time.sleep(_POLL_S if storage.is_local else _REMOTE_POLL_S)
        if not storage.is_local:
            with damage_named(f"what {storage.uri} records"):
                records = RunRecords(storage)
    return 1 if options.grep is not None and not printed else 0


def _ranks(storage: Storage) -> list[int]:
    names = map(_RANK.fullmatch, storage.listdir(LOG_DIRECTORY))
    return sorted(int(name[1]) for name in names if name)


class _Log:
    """One rank's log, read from where the last reading ended."""

    def __init__(self, storage: Storage, rank: int) -> None:
        self._storage = storage
        self._name = log_file(rank)
        self._read = 0
        self._rest = b""

    def more(self, *, whole: bool) -> Iterator[str]:
        """The lines since the last call; ``whole``: not one that has no end yet."""
        for chunk in self._chunks():
            self._read += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from map(_text, lines)
        if self._rest and not whole:
            rest, self._rest = self._rest, b""
            yield _text(rest)

    def _chunks(self) -> Iterator[bytes]:
        if self._storage.is_local:
            with suppress(FileNotFoundError), open_regular(self._storage.path(self._name)) as file:
                file.seek(self._read)
                while chunk := file.read(CHUNK):
                    yield chunk
            return
        skip = self._read
        for chunk in self._storage.read_chunks(self._name):
            if len(chunk) > skip:
                yield chunk[skip:]
            skip = max(skip - len(chunk), 0)


def _text(line: bytes) -> str:
    # A progress bar writes one line many times: the last writing is what a terminal would show.
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    return clean(_COLOUR.sub("", without_controls(shown.decode("utf-8", "replace"))))


COMMAND = Command(
    "logs",
    "what the ranks of a run have printed; of an experiment, its newest run",
    (
        "lockstep logs -1 -f                     the newest run, until it ends",
        "lockstep logs mnist --rank 1 -n 20      the last lines of one rank",
        "lockstep logs mnist --grep 'nan|inf'    exit code 1 if no line matches",
        "lockstep logs mnist --json              one JSON object a line",
    ),
    _arguments,
    _logs,
)
