"""An exception as a record, between processes and in the journal.

Between the processes of a run, a record also has the exception as a pickle, and the traceback as
file names and line numbers: so the exception that the driver raises is the user's own. The journal
keeps plain data only, because reading a run must never execute what is in its files.

    pack_error(error)      a record with a live part, for another process of the run
    error_data(record)     what the journal keeps: type, message, plain values, traceback as text
    unpack_error(record)   the exception of either

From data alone an exception has its own type if that is built in, or imported already, and if its
values are plain. Otherwise it is a ``RemoteError`` with the same text. The process that journaled
an error remembers the live part, so there every exception keeps its type.
"""

from __future__ import annotations

import base64
import builtins
import json
import sys
import threading
import traceback
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from lockstep.errors import RemoteError
from lockstep.traceback_record import pack_traceback, unpack_traceback

__all__ = [
    "error_data",
    "error_place",
    "error_text",
    "pack_error",
    "summarise_error",
    "unpack_error",
    "with_live",
]

_PACKAGE = str(Path(__file__).parent)
_AROUND_WAIT_FILE = "/lockstep/train/torch/collectives.py"
"""Has a function between torch's collectives and their wait, which nobody needs to see."""
_CHAIN = 8
"""How many causes of an exception are kept."""
_MAX_TEXT = 50_000
"""How many characters of a formatted traceback are kept."""
_MAX_VALUES = 100_000
"""How long an exception's values may be, as JSON, to be kept."""
_REMEMBERED = 1000
_REMEMBERED_BYTES = 32 << 20


@dataclass(frozen=True)
class _Live:
    """The part of a record that only processes of the run exchange. No JSON can contain it."""

    pickle: bytes | None
    traceback: list[dict[str, Any]]


class _Newest(OrderedDict[str, dict[str, Any]]):
    """Records by their ids, as many as fit. Thousands of ranks may fail at once."""

    def __init__(self) -> None:
        super().__init__()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, key: str, record: dict[str, Any]) -> None:
        with self._lock:
            self[key] = record
            self._size += _pickle_size(record)
            while len(self) > _REMEMBERED or (self._size > _REMEMBERED_BYTES and len(self) > 1):
                self._size -= _pickle_size(self.popitem(last=False)[1])

    def clear(self) -> None:
        super().clear()
        self._size = 0


_journaled = _Newest()
"""The newest errors that this process has journaled, by ids that nobody can guess."""


def pack_error(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """The exception, with its causes, as a record for another process of the run.

    lockstep's own frames around the user's are dropped.
    """
    import cloudpickle

    trace = _user_part(error.__traceback__)
    text = _formatted(error, trace)
    # The traceback is stored as data: its frames would pull every local variable into the pickle.
    bare = error.with_traceback(None)
    kind = type(error)
    message = _message(error)
    notes = getattr(error, "__notes__", None)
    pickled = None
    # The second form is for classes whose __init__ takes other arguments than Exception's: pickle
    # would call it with ``args``, and it would fail or build another message.
    for form in (bare, (kind, bare.args, bare.__dict__)):
        try:
            tried = cloudpickle.dumps(form)
            if _message(_load(tried)) != message:
                continue
        except Exception:
            continue
        pickled = tried
        break
    record: dict[str, Any] = {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "message": _cut(message),
        "values": _encoded_values(bare),
        "notes": [str(note) for note in notes] if isinstance(notes, list) else [],
        "text": text,
        "live": _Live(pickled, pack_traceback(trace)),
    }
    error.with_traceback(trace)
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and depth < _CHAIN:
        key = "context" if error.__cause__ is None else "cause"
        record[key] = pack_error(earlier, depth + 1)
    return record


def error_data(record: dict[str, Any]) -> dict[str, Any]:
    """The plain data of a record, for the journal. This process remembers the rest."""
    data = {**record, "id": uuid.uuid4().hex}
    del data["live"]
    for key in ("cause", "context"):
        if key in data:
            data[key] = error_data(data[key])
    _journaled.add(data["id"], record)
    return data


def _pickle_size(record: dict[str, Any]) -> int:
    live = record.get("live")
    return 0 if live is None or live.pickle is None else len(live.pickle)


def with_live(data: dict[str, Any]) -> dict[str, Any]:
    """What ``error_data`` returned, with the live part if this process remembers it: to pickle."""
    record = {**data, "live": _live(data)}
    for key in ("cause", "context"):
        if isinstance(data.get(key), dict):
            record[key] = with_live(data[key])
    return record


def unpack_error(record: Any, depth: int = 0) -> BaseException:
    """The exception of a record. Executes nothing that a file contains, and never raises."""
    if not isinstance(record, dict):
        return RemoteError("an error that the journal does not describe")
    live = _live(record)
    error = _from_data(record) if live is None else _from_live(record, live)
    for key in ("cause", "context"):
        if key in record and depth < _CHAIN:
            setattr(error, f"__{key}__", unpack_error(record[key], depth + 1))
    return error


def summarise_error(record: dict[str, Any]) -> str:
    """``Type: message`` on one line: the first line and, where it ends with a colon, the others."""
    text, _, rest = str(record.get("message")).strip().partition("\n")
    if text.endswith(":"):  # as load_state_dict's does, which names the keys in the next lines
        text = " ".join((text, *rest.split()))
    return f"{record.get('type')}: {text}" if text else str(record.get("type"))


def error_text(record: dict[str, Any]) -> str:
    """The traceback of a record as text, with those of its causes first."""
    earlier = record.get("cause") or record.get("context")
    before = f"{error_text(earlier)}\n" if isinstance(earlier, dict) else ""
    return before + str(record.get("text") or _full_text(record)).rstrip()


def error_place(record: dict[str, Any]) -> tuple[str, str] | None:
    """The file and the line that raised; None if there is no traceback."""
    frames = record["live"].traceback
    return (str(frames[-1]["file"]), str(frames[-1]["line"])) if frames else None


def _live(record: dict[str, Any]) -> _Live | None:
    journaled = _journaled.get(str(record.get("id")), {})
    live = record.get("live") or journaled.get("live")
    return live if isinstance(live, _Live) else None


def _full_text(record: dict[str, Any]) -> str:
    kind, message = str(record.get("type")), str(record.get("message")).strip()
    return f"{kind}: {message}" if message else kind


def _from_live(record: dict[str, Any], live: _Live) -> BaseException:
    error: BaseException | None = None
    if live.pickle is not None:
        try:
            error = _load(live.pickle)
        except Exception:
            error = None  # its class cannot be imported here
    if not isinstance(error, BaseException):
        error = RemoteError(_full_text(record))
    return error.with_traceback(unpack_traceback(live.traceback))


def _from_data(record: dict[str, Any]) -> BaseException:
    error = _rebuilt(record) or RemoteError(_full_text(record))
    notes = record.get("notes")
    # As text, not as frames: to show a frame, Python opens the file that the frame names.
    notes = [*(notes if isinstance(notes, list) else ()), record.get("text")]
    error.__notes__ = [note for note in notes if isinstance(note, str) and note]
    return error


def _rebuilt(record: dict[str, Any]) -> BaseException | None:
    """The exception in its own type, made without calling the type's own constructor."""
    kind = _imported(record.get("module"), record.get("type"))
    if kind is None or not isinstance(record.get("values"), str):
        return None
    native = _native(kind)
    try:
        arguments, state = _decoded(json.loads(record["values"]))
        error = native.__new__(kind, *arguments)
        native.__init__(error, *arguments)
        vars(error).update(state)
        return cast(BaseException, error) if _message(error) == record["message"] else None
    except Exception:
        return None


def _native(kind: type[BaseException]) -> Any:
    """The built-in type that an exception type is derived from."""
    return next(base for base in kind.__mro__ if base.__module__ == builtins.__name__)


def _imported(module: Any, name: Any) -> type[BaseException] | None:
    """An exception type that this process has already; nothing is imported for it."""
    found: Any = sys.modules.get(str(module))
    for part in str(name).split("."):
        # Not getattr: a module may import another one when it is asked for a name.
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _encoded_values(error: BaseException) -> str | None:
    """What an exception was made of, and its attributes, as JSON; None if not all are plain."""
    try:
        state = {key: value for key, value in vars(error).items() if key != "__notes__"}
        # ``args`` of an OSError lack its file names; what it is pickled with does not.
        arguments = _native(type(error)).__reduce__(error)[1]
        text = json.dumps(_encoded((arguments, state)))
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= _MAX_VALUES else None


def _encoded(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_encoded(item) for item in value]}
    if type(value) is dict:
        return {"dict": [[_encoded(key), _encoded(item)] for key, item in value.items()]}
    raise TypeError(f"{type(value)} is not plain")


def _decoded(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "dict":
        return {_decoded(key): _decoded(item) for key, item in content}
    return {"list": list, "tuple": tuple}[kind](_decoded(item) for item in content)


def _formatted(error: BaseException, trace: TracebackType | None) -> str:
    """The traceback as Python shows it, without causes; empty if there is none."""
    if trace is None and not isinstance(error, _GROUPS):
        return ""
    try:
        shown = traceback.TracebackException(type(error), error, trace)
        lines = "".join(shown.format(chain=False))
    except Exception:
        return ""
    return _cut(lines)


def _cut(text: str) -> str:
    """The beginning and the end of a text that is too long for a journal."""
    half = _MAX_TEXT // 2
    return text if len(text) <= _MAX_TEXT else f"{text[:half]}\n  …\n{text[-half:]}"


_GROUPS = (getattr(builtins, "BaseExceptionGroup", ()),)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as reason:
        return f"(its __str__ raised {type(reason).__name__})"


def _load(pickled: bytes) -> BaseException:
    import cloudpickle

    error: Any = cloudpickle.loads(pickled)
    if isinstance(error, tuple):
        kind, args, state = error
        error = kind.__new__(kind, *args)
        error.__dict__.update(state)
    return cast(BaseException, error)


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        step = step.tb_next
    found = step = step or trace
    while step is not None and step.tb_next is not None:
        if step.tb_next.tb_frame.f_code.co_filename.endswith(_AROUND_WAIT_FILE):
            step.tb_next = step.tb_next.tb_next
        else:
            step = step.tb_next
    return found
