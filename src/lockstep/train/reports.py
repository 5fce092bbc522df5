"""Every rank's report becomes one row: whose metrics count, and how ranks are combined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.engine.messages import Report

__all__ = ["REDUCTIONS", "check_reduce", "combine"]

REDUCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
    "last": lambda values: values[-1],
}


def check_reduce(reduce: str | Mapping[str, str] | None, metrics: Mapping[str, Any]) -> None:
    """Raise if a reduction is unknown or asks for a number where there is none."""
    if reduce is None:
        return
    named = reduce if isinstance(reduce, Mapping) else {"*": reduce}
    for key, how in named.items():
        if not isinstance(how, str) or how not in REDUCTIONS:
            known = ", ".join(map(repr, REDUCTIONS))
            raise ValueError(f"report(reduce={reduce!r}): {how!r} is not one of {known}.")
        if key in metrics and how != "last" and not _is_number(metrics[key]):
            raise TypeError(
                f"report(reduce={{{key!r}: {how!r}}}): {metrics[key]!r} is not a number."
            )


def combine(reports: Sequence[Report]) -> dict[str, Any]:
    """Rank 0's metrics, with those that are to be reduced combined across ranks."""
    lead = reports[0]
    metrics = dict(lead.metrics or {})
    if lead.reduce is None:
        return metrics
    if isinstance(lead.reduce, str):
        wanted = {
            key: lead.reduce
            for report in reports
            for key, value in (report.metrics or {}).items()
            if _is_number(metrics.get(key, value))
        }
    else:
        wanted = dict(lead.reduce)
    for key, how in wanted.items():
        values = [
            report.metrics[key] for report in reports if report.metrics and key in report.metrics
        ]
        if how != "last":
            values = [value for value in values if _is_number(value)]
        if values:
            metrics[key] = REDUCTIONS[how](values)
    return metrics


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
