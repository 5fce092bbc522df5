"""``result.json``, one JSON object for each report, and ``params.json``, in the run's directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.callback import TrialSnapshot
from lockstep.run_layout import PARAMS_FILE, RESULT_FILE
from lockstep.trackers.files import (
    FileLoggerCallback,
    RowFile,
    append,
    plain,
    replace_file,
    truncate,
)

__all__ = ["JsonLoggerCallback", "json_file"]


class JsonLoggerCallback(FileLoggerCallback):
    """Writes ``result.json``, one line for each report, and the config to ``params.json``.

    The first line has the config, too, and so has each line from which on it is another one. Ray
    repeats it in every line, which makes the file many times as long; its readers need no key.
    NaN and infinities are written as Python's ``json`` writes and reads them.
    """

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        """Write ``params.json``; values that JSON cannot represent become their repr."""
        text = _encode(trial.config, default=_parameter, indent=2)
        replace_file(os.path.join(trial.local_path, PARAMS_FILE), [text.encode() + b"\n"])

    def open_file(self, trial: TrialSnapshot) -> RowFile:
        """Return the trial's ``result.json``."""
        return json_file(trial.local_path)


def json_file(directory: str) -> RowFile:
    """The ``result.json`` of a run's directory."""
    return _Lines(os.path.join(directory, RESULT_FILE))


# One encoder for all rows: json.dumps(default=…) would create one for each row.
_encode_result = json.JSONEncoder(default=plain).encode


class _Lines(RowFile):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._checked = False
        self._config: Any = None
        self._pending: list[str] = []

    def count(self) -> int:
        try:
            with open(self.path, "rb") as file:
                return sum(line.endswith(b"\n") for line in file)
        except FileNotFoundError:
            return 0

    def add(self, result: dict[str, Any]) -> None:
        config = result.get("config")
        if config is not None and config is self._config:
            result = dict(result)
            del result["config"]
        else:
            self._config = config
        try:
            line = _encode_result(result)
        except (TypeError, ValueError):
            line = _encode(result, default=plain)
        self._pending.append(line)

    def flush(self) -> None:
        if not self._pending:
            return
        if not self._checked and os.path.exists(self.path):
            with open(self.path, "rb") as file:
                size = sum(len(line) for line in file if line.endswith(b"\n"))
            truncate(self.path, size)
        self._checked = True
        append(self.path, "".join(f"{line}\n" for line in self._pending).encode())
        self._pending.clear()


def _parameter(value: object) -> Any:
    return plain(value) if getattr(value, "ndim", None) == 0 else repr(value)


def _encode(value: object, default: Callable[[object], Any], indent: int | None = None) -> str:
    try:
        return json.dumps(value, default=default, indent=indent)
    except (TypeError, ValueError):  # a key that is no string, or a value that contains itself
        return json.dumps(_encodable(value, ()), default=default, indent=indent)


def _encodable(value: object, outer: tuple[int, ...]) -> object:
    if id(value) in outer:
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): _encodable(item, (*outer, id(value))) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item, (*outer, id(value))) for item in value]
    return value
