"""Metric dictionaries: which values are allowed, and the automatic keys of every row."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from lockstep.redact import redact
from lockstep.run_layout import date_name

__all__ = [
    "describable",
    "first_of",
    "first_result",
    "flatten",
    "full_row",
    "json_value",
    "look_up",
    "normalise",
]

AUTOMATIC_KEYS = frozenset(
    (
        "_timestamp",
        "_time_this_iter_s",
        "_training_iteration",
        "time_this_iter_s",
        "done",
        "timesteps_total",
        "episodes_total",
        "training_iteration",
        "trial_id",
        "experiment_id",
        "date",
        "timestamp",
        "time_total_s",
        "pid",
        "hostname",
        "node_ip",
        "config",
        "time_since_restore",
        "timesteps_since_restore",
        "iterations_since_restore",
        "warmup_time",
        "experiment_tag",
        "checkpoint_dir_name",
        "data_wait",
    )
)
"""The keys that ``full_row`` adds to the reported ones; ``data_wait`` only with datasets."""

CHARTED_KEYS = frozenset(
    (
        "time_this_iter_s",
        "timesteps_total",
        "episodes_total",
        "training_iteration",
        "time_total_s",
        "data_wait",
    )
)
"""The automatic keys that trackers draw as charts."""

_PLAIN = frozenset((float, int, str, bool, type(None)))
_ALWAYS_PLAIN = frozenset((float, bool, type(None)))
_DIGITS = 600
"""How many digits an integer may have: every Python reads this many, however it is configured."""
_LARGEST = 10**_DIGITS
_DEPTH = 100
"""How many levels a value may be nested. Readers of JSON refuse what is nested too deeply."""
_BIG_ARRAY = 1000
"""A larger array in a config is recorded as its repr."""


def normalise(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as plain Python values. numpy scalars and arrays are converted.

    Raises:
        TypeError: ``metrics`` is not a dict, or a value cannot be kept as JSON; names the key.
        ValueError: a value is a tensor, or no reader takes it: too many digits or levels, or a text
            that cannot be encoded; names the key and the fix.
    """
    if not isinstance(metrics, Mapping):
        raise TypeError(
            f"metrics must be a dict of names to values, not {type(metrics).__name__}: {metrics!r}."
        )
    plain = {}
    for key, value in metrics.items():
        name = key if type(key) is str and key.isascii() else _name(key)
        # The usual values first: this runs at every report.
        kind = type(value)
        if (
            kind in _ALWAYS_PLAIN
            or (kind is int and -_LARGEST < value < _LARGEST)
            or (kind is str and value.isascii())
        ):
            plain[name] = value
        else:
            plain[name] = _plain_value(value, name, 1)
    return plain


def describable(config: Mapping[Any, Any]) -> dict[str, Any]:
    """A config for the journal: values that JSON cannot hold, and big arrays, as their repr.

    URIs are without their secrets.
    """
    plain = {}
    for key, value in config.items():
        name = _encodable(_text(key))
        try:
            plain[name] = _described(value, name, 1)
        except RecursionError:  # the value contains itself, or nearly
            plain[name] = _shown(value)
    return plain


def _described(value: Any, key: str, depth: int) -> Any:
    if depth > _DEPTH:
        raise RecursionError
    if isinstance(value, Mapping):
        return {_encodable(_text(k)): _described(v, key, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(v, key, depth + 1) for v in value]
    if isinstance(value, str):
        return redact(_encodable(_text(value)))
    try:
        return _shown(value) if _is_big_array(value) else _plain_value(value, key, depth)
    except (TypeError, ValueError):
        return _shown(value)


def _shown(value: Any) -> str:
    try:
        return _encodable(repr(value))
    except (ValueError, RecursionError):  # an integer of many digits; a value that contains itself
        return f"<{type(value).__qualname__}>"


def _encodable(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _is_big_array(value: Any) -> bool:
    # Every row contains the config.
    return type(value).__module__ == "numpy" and getattr(value, "size", 0) > _BIG_ARRAY


def _text(key: Any) -> str:
    # For a member of a string enum, its value (as json does), not the name that str() returns.
    return str.__str__(key) if isinstance(key, str) else str(key)


def _name(key: Any) -> str:
    text = _text(key)
    if not _is_encodable(text):
        raise ValueError(
            f"the metric's name {text!r} has half of a surrogate pair, which no file can hold; "
            "give the metric another name."
        )
    return text


def _is_encodable(text: str) -> bool:
    return text.isascii() or text == _encodable(text)


def _plain_value(value: Any, key: str, depth: int) -> Any:
    kind = type(value)
    if kind in _ALWAYS_PLAIN:
        return value
    if isinstance(value, str):
        if not _is_encodable(value):
            raise ValueError(
                f"metric {key!r} has half of a surrogate pair in its text, which no file can hold; "
                "report text.encode('utf-8', 'replace').decode()."
            )
        return _text(value)
    if isinstance(value, (Mapping, list, tuple)):
        if depth >= _DEPTH:
            raise ValueError(
                f"metric {re.split('[/[]', key)[0]!r} is nested more than {_DEPTH} levels deep, or "
                "contains itself; report fewer levels."
            )
        if isinstance(value, Mapping):
            items = ((_name(k), v) for k, v in value.items())
            return {k: _plain_value(v, f"{key}/{k}", depth + 1) for k, v in items}
        return [_plain_value(v, f"{key}[{i}]", depth + 1) for i, v in enumerate(value)]
    for plain in (bool, int, float):  # subclasses, too, such as an IntEnum or numpy.float64
        if isinstance(value, plain):
            if plain is int and not -_LARGEST < value < _LARGEST:
                raise ValueError(
                    f"metric {key!r} is an integer of more than {_DIGITS} digits, which not every "
                    "program can read; report its logarithm, or hex() of it."
                )
            return plain(value)
    root = kind.__module__.partition(".")[0]
    if root == "numpy" and hasattr(value, "tolist"):
        converted = value.tolist()
        if type(converted) is not kind:
            return _plain_value(converted, key, depth)
        if isinstance(value, Real):  # item() of a long double returns a long double
            return float(value)
    if root in ("torch", "tensorflow", "jax", "jaxlib") and hasattr(value, "shape"):
        cure = "numpy" if root == "tensorflow" else "item"  # TensorFlow's tensors have no item()
        raise ValueError(
            f"metric {key!r} is a {root} tensor of shape {tuple(value.shape)}; "
            f"report a plain number, such as {key}.{cure}()."
        )
    raise TypeError(
        f"metric {key!r} is a {kind.__module__}.{kind.__qualname__}, which cannot be kept as JSON; "
        "report numbers, strings, None, or lists and dicts of them."
    )


def flatten(metrics: Mapping[str, Any], prefix: str = "", delimiter: str = "/") -> dict[str, Any]:
    """``{"a": {"b": 1}}`` as ``{"a/b": 1}``. An empty dict stays a value."""
    flat: dict[str, Any] = {}
    for key, value in metrics.items():
        # The exact types first: isinstance(value, Mapping) is slow.
        if type(value) not in _PLAIN and isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}{delimiter}", delimiter))
        else:
            flat[f"{prefix}{key}" if prefix else key] = value
    return flat


def json_value(value: Any) -> Any:
    """A value as JSON that every program reads: NaN and infinities are null, objects are texts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    return value if value is None or isinstance(value, str | int | bool) else repr(value)


def first_of(objective: str | Sequence[str] | None) -> str | None:
    """A metric or a mode; the first one of several."""
    return objective if isinstance(objective, str) or objective is None else objective[0]


def look_up(metrics: Mapping[str, Any], key: str) -> Any:
    """The value at ``key``; ``"a/b"`` reaches into nested dicts. None if there is none."""
    if key in metrics:
        return metrics[key]
    head, slash, rest = key.partition("/")
    inner = metrics.get(head)
    return look_up(inner, rest) if slash and isinstance(inner, Mapping) else None


def full_row(
    reported: dict[str, Any],
    run: Mapping[str, Any],
    attempt: Mapping[str, Any],
    report: Mapping[str, Any],
) -> dict[str, Any]:
    """The reported metrics and the automatic keys, computed from three journal records.

    A key that the user reported keeps the user's value.
    """
    timestamp = report["time"]
    elapsed = report["time_since_start"]
    return {
        **reported,  # first, for the order of the columns
        "_timestamp": int(report["worker_time"]),
        "_time_this_iter_s": report["worker_time_this_iter"],
        "_training_iteration": report["attempt_index"],
        "time_this_iter_s": report["time_this_iter"],
        "done": False,
        "timesteps_total": None,
        "episodes_total": None,
        "training_iteration": report["iteration"],
        "trial_id": run["trial_id"],
        "experiment_id": run["experiment_id"],
        "date": _date(timestamp),
        "timestamp": int(timestamp),
        "time_total_s": attempt["time_before"] + elapsed,
        "pid": attempt["workers"][0]["pid"],
        "hostname": attempt["workers"][0]["hostname"],
        "node_ip": attempt["workers"][0]["node_ip"],
        "config": run["config"],
        "time_since_restore": elapsed,
        "timesteps_since_restore": 0,
        "iterations_since_restore": report["attempt_index"],
        "warmup_time": attempt["warmup_time"],
        "experiment_tag": run["experiment_tag"],
        "checkpoint_dir_name": report["checkpoint"],
        **({"data_wait": max(report["data_wait"])} if "data_wait" in report else {}),
        **reported,  # and last, for the values
    }


def first_result(run: Mapping[str, Any], attempt: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's ``last_result`` before its first report."""
    return {
        "trial_id": run["trial_id"],
        "experiment_id": run["experiment_id"],
        "date": _date(attempt["time"]),
        "timestamp": int(attempt["time"]),
        "pid": attempt["workers"][0]["pid"],
        "hostname": attempt["workers"][0]["hostname"],
        "node_ip": attempt["workers"][0]["node_ip"],
        "config": run["config"],
    }


_date_of: tuple[int, str] = (-1, "")


def _date(timestamp: float) -> str:
    # Cached: thousands of reports share a second, and to format a date costs more than the rest of
    # the row.
    global _date_of
    second = int(timestamp)
    if _date_of[0] != second:
        _date_of = (second, sys.intern(date_name(second)))
    return _date_of[1]
