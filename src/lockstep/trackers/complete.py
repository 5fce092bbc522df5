"""``progress.csv`` and ``result.json`` after a driver was killed: the rows that they lack.

A row is in the journal before its report is answered. The two files get it later, in batches, so a
killed driver leaves them behind the journal.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice

from lockstep.journal.records import RunRecords
from lockstep.trackers.csv import csv_file
from lockstep.trackers.json import json_file

__all__ = ["complete_tables"]

_BATCH = 1000


def complete_tables(directory: str, records: RunRecords) -> None:
    """Append the rows of the journal that the files in ``directory`` lack."""
    for file in (csv_file(directory), json_file(directory)):
        with suppress(OSError):  # the journal has every row: a full disk is no reason to stop
            missing = islice(records.reports(), file.count(), None)
            while batch := list(islice(missing, _BATCH)):
                for report in batch:
                    file.add(records.row(report))
                file.flush()
