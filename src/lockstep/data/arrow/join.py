"""Two tables joined by their keys, whatever the types of their other columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lockstep.data.arrow.unify import Mismatch, common_schema, conformed

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["join_tables"]

_ROWS = ("left", "right")


def join_tables(
    left: pa.Table,
    right: pa.Table,
    on: tuple[Sequence[str], Sequence[str]],
    join_type: str,
    suffixes: tuple[str, str],
) -> pa.Table:
    """The rows whose keys are equal; the key is in the result once.

    Args:
        left, right: the tables.
        on: the columns of the key, of each table.
        join_type: as Ray spells it, ``"left_outer"``, for example.
        suffixes: added to the names of columns that both tables have, other than the key.

    Raises:
        ValueError: the keys' types do not fit, or two columns would have one name.
    """
    import numpy as np
    import pyarrow as pa

    # Arrow cannot join lists, tensors or structs: only row numbers are joined, and the other
    # columns are taken by them.
    sides = [
        pa.table([*keys, pa.array(np.arange(table.num_rows))], [*map(str, range(len(keys))), name])
        for keys, table, name in zip(_keys(left, right, on), (left, right), _ROWS, strict=True)
    ]
    names = [str(number) for number in range(len(on[0]))]
    try:
        found = sides[0].join(sides[1], names, join_type=join_type.replace("_", " "))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        kinds = ", ".join(f"{name!r} ({left[name].type})" for name in on[0])
        raise ValueError(
            f"join: Arrow cannot compare the values of the key {kinds}: {error}. Give a key of "
            "numbers, text or times."
        ) from error
    of_right = join_type.startswith("right")
    both = not join_type.endswith(("semi", "anti"))
    parts: list[list[tuple[str, Any, bool]]] = []
    for table, own, row, kept in (
        (left, on[0], _ROWS[0], not of_right),
        (right, on[1], _ROWS[1], of_right),
    ):
        parts.append([])
        if not both and not kept:
            continue
        for name in table.column_names:
            if name not in own:
                parts[-1].append((name, table[name].take(found[row]), False))
            elif kept:
                parts[-1].append((name, found[str(list(own).index(name))], True))
    columns: dict[str, Any] = {}
    for part, other, suffix in zip(parts, reversed(parts), suffixes, strict=True):
        theirs = {name for name, _, _ in other}
        for name, column, is_key in part:
            unique = name if is_key or name not in theirs else name + suffix
            if unique in columns:
                raise ValueError(
                    f"join: two columns of the result would be named {unique!r}, because both "
                    f"sides have a column {name!r}; give another left_suffix or right_suffix."
                    if name in theirs
                    else f"join: two columns of the result would be named {unique!r}; give "
                    "another left_suffix or right_suffix."
                )
            columns[unique] = column
    return pa.table(columns)


def _keys(
    left: pa.Table, right: pa.Table, on: tuple[Sequence[str], Sequence[str]]
) -> tuple[list[Any], list[Any]]:
    """The columns of both keys, each pair of one type."""
    import pyarrow as pa
    import pyarrow.types as types

    keys: tuple[list[Any], list[Any]] = ([], [])
    for names in zip(*on, strict=True):
        pair = [pa.table({names[0]: t[name]}) for t, name in zip((left, right), names, strict=True)]
        if pair[0].schema.types != pair[1].schema.types:
            kinds = [table.schema.types[0] for table in pair]
            plain = [kind.value_type if types.is_dictionary(kind) else kind for kind in kinds]
            try:
                schema = common_schema(*(pa.schema([(names[0], kind)]) for kind in plain))
            except Mismatch as error:
                raise ValueError(
                    f"join: the key {names[0]!r} is {kinds[0]} on the left, and {names[1]!r} is "
                    f"{kinds[1]} on the right; make them one type with map_batches."
                ) from error
            pair = [conformed(table, schema) for table in pair]
        for key, table in zip(keys, pair, strict=True):
            key.append(table[0])
    return keys
