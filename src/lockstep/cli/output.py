"""How commands print: JSON for scripts, tables and facts for people. Everything is cleaned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.console.text import clean
from lockstep.metrics import json_value

__all__ = ["print_facts", "print_json", "print_table", "short_time"]


def print_json(value: Any) -> None:
    """One JSON document. A number that JSON does not have (NaN, infinity) is null."""
    print(json.dumps(json_value(value), indent=2))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """``label:   value``, a line each."""
    for label, value in facts:
        print(f"{label + ':' if label else '':<13}{clean(value)}")


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Iterable[str] = ()
) -> None:
    """Columns as wide as their content; those in ``numbers`` to the right.

    A row with one cell is a remark about the row above it.
    """
    lines = [[clean(cell) for cell in row] for row in (head, *rows)]
    full = [line for line in lines if len(line) > 1]
    widths = [max(len(line[column]) for line in full) for column in range(len(head))]
    right = set(numbers)
    for line in lines:
        if len(line) == 1:
            print(" " * widths[0], line[0], sep="  ")
            continue
        cells = zip(head, line, widths, strict=True)
        print(
            "  ".join(
                cell.rjust(width) if name in right else cell.ljust(width)
                for name, cell, width in cells
            ).rstrip()
        )


def short_time(seconds: float) -> str:
    """``7 s``, ``12 min``, ``3 h``, ``5 d``."""
    for limit, divisor, unit in ((100, 1, "s"), (6000, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{max(int(seconds / divisor), 0)} {unit}"
    return f"{int(seconds / 86400)} d"
