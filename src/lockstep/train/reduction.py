"""Every rank's report becomes one row: whose metrics count, and how ranks are combined."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

from lockstep.metrics import flatten
from lockstep.train.protocol import Report

__all__ = ["REDUCTIONS", "check_reduce", "combine", "keys_of_nobody"]


def _spreading(choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """NaN on any rank makes the result NaN, as it does in a sum."""
    return lambda values: math.nan if any(map(math.isnan, values)) else choose(values)


REDUCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": _spreading(min),
    "max": _spreading(max),
    "last": lambda values: values[-1],
}
_BITS = 1000
"""An integer with more bits cannot become a float."""


def check_reduce(reduce: str | Mapping[str, str] | None, metrics: Mapping[str, Any]) -> None:
    """Raise if a reduction is unknown, asks for a number where there is none, or misses them all.

    A rank may lack some of the keys, which other ranks have; it may not have metrics and none of
    the keys.
    """
    if reduce is None:
        return
    for how in reduce.values() if isinstance(reduce, Mapping) else [reduce]:
        if not isinstance(how, str) or how not in REDUCTIONS:
            known = ", ".join(map(repr, REDUCTIONS))
            raise ValueError(f"report(reduce={reduce!r}): {how!r} is not one of {known}.")
    if not isinstance(reduce, Mapping):
        return
    found = {key: _at(metrics, path) for key in reduce if (path := _path(metrics, key))}
    for key, value in found.items():
        if reduce[key] != "last" and not _is_number(value):
            raise TypeError(
                f"report(reduce={{{key!r}: {reduce[key]!r}}}): {value!r} is not a number."
            )
    if reduce and metrics and not found:
        raise ValueError(
            f"report(reduce={dict(reduce)!r}): none of these is among the metrics, which are "
            f"{', '.join(map(repr, flatten(metrics)))}."
        )


def combine(reports: Sequence[Report]) -> dict[str, Any]:
    """Rank 0's metrics, with those that are to be reduced combined across ranks.

    A rank that lacks a key does not count for it.
    """
    lead = reports[0]
    ranks = [report.metrics or {} for report in reports]
    if lead.reduce is None:
        return dict(ranks[0])
    if isinstance(lead.reduce, str):
        return _combine_all(ranks[0], ranks, lead.reduce)
    metrics = ranks[0]
    for key, how in lead.reduce.items():
        paths = [(rank, path) for rank in ranks if (path := _path(rank, key))]
        values = [_at(rank, path) for rank, path in paths]
        if how != "last":
            values = [value for value in values if _is_number(value)]
        if values:
            metrics = _with(metrics, paths[0][1], REDUCTIONS[how](values))
    return dict(metrics)


def keys_of_nobody(reports: Sequence[Report]) -> list[str]:
    """The keys of ``reduce`` that no rank has: left out this time, or misspelt."""
    reduce = reports[0].reduce
    if not isinstance(reduce, Mapping):
        return []
    return [key for key in reduce if not any(_path(r.metrics or {}, key) for r in reports)]


def _combine_all(
    lead: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], how: str
) -> dict[str, Any]:
    """``lead`` with every number in ``ranks`` combined, in nested dicts, too."""
    combined = dict(lead)
    for key in dict.fromkeys(key for rank in ranks for key in rank):
        values = [rank[key] for rank in ranks if key in rank]
        numbers = [value for value in values if _is_number(value)]
        nested = [value for value in values if isinstance(value, Mapping)]
        if numbers and _is_number(lead.get(key, numbers[0])):
            combined[key] = REDUCTIONS[how](numbers)
        elif nested and isinstance(lead.get(key, nested[0]), Mapping):
            inner = _combine_all(lead.get(key, {}), nested, how)
            if inner or key in lead:
                combined[key] = inner
    return combined


def _path(metrics: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Where ``look_up`` finds ``key``; empty where it does not."""
    if key in metrics:
        return (key,)
    head, slash, rest = key.partition("/")
    inner = metrics.get(head)
    below = _path(inner, rest) if slash and isinstance(inner, Mapping) else ()
    return (head, *below) if below else ()


def _at(metrics: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    return functools.reduce(getitem, path, metrics)


def _with(metrics: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    head, *below = path
    if below:
        inner = metrics.get(head)
        value = _with(inner if isinstance(inner, Mapping) else {}, tuple(below), value)
    return {**metrics, head: value}


def _is_number(value: object) -> bool:
    """Whether it is a float, or an integer that fits into one."""
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() < _BITS
    return isinstance(value, float)
