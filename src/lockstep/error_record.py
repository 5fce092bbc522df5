"""An exception as plain data that crosses processes and is kept in the journal.

The type and its arguments are kept as a cloudpickle, the traceback as plain data. So the exception
raised in the driver shows the user's own lines.
"""

from __future__ import annotations

import base64
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from lockstep.errors import RemoteError
from lockstep.traceback_record import pack_traceback, unpack_traceback

__all__ = ["error_place", "pack_error", "summarise_error", "unpack_error"]

_PACKAGE = str(Path(__file__).parent)
_CHAIN = 8
"""How many causes of an exception are kept."""


def pack_error(error: BaseException, depth: int = 0) -> dict[str, Any]:
    """The exception, with its causes, as a record that JSON can hold.

    lockstep's own frames around the user's are dropped.
    """
    import cloudpickle

    trace = _user_part(error.__traceback__)
    # The traceback is kept apart: its frames would pull every local variable into the pickle.
    bare = error.with_traceback(None)
    kind = type(error)
    message = _message(error)
    encoded = None
    # The second form is for classes whose __init__ takes other arguments than Exception's: pickle
    # would call it with ``args``, and it would fail or build another message.
    for form in (bare, (kind, bare.args, bare.__dict__)):
        try:
            pickled = cloudpickle.dumps(form)
            if _message(_load(pickled)) != message:
                continue
        except Exception:
            continue
        encoded = base64.b64encode(pickled).decode("ascii")
        break
    record: dict[str, Any] = {
        "type": kind.__qualname__,
        "message": message,
        "pickle": encoded,
        "traceback": pack_traceback(trace),
    }
    error.with_traceback(trace)
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and depth < _CHAIN:
        key = "context" if error.__cause__ is None else "cause"
        record[key] = pack_error(earlier, depth + 1)
    return record


def unpack_error(record: dict[str, Any]) -> BaseException:
    """The exception of a record, with its traceback: of its own type if that can be imported."""
    error: BaseException | None = None
    if record["pickle"] is not None:
        try:
            error = _load(base64.b64decode(record["pickle"]))
        except Exception:
            error = None  # its class cannot be imported here
    if not isinstance(error, BaseException):
        error = RemoteError(summarise_error(record))
    if record["traceback"]:
        error = error.with_traceback(unpack_traceback(record["traceback"]))
    if "cause" in record:
        error.__cause__ = unpack_error(record["cause"])
    elif "context" in record:
        error.__context__ = unpack_error(record["context"])
    return error


def summarise_error(record: dict[str, Any]) -> str:
    """``Type: message`` on one line: the first line and, where it ends with a colon, the others."""
    text, _, rest = record["message"].strip().partition("\n")
    if text.endswith(":"):  # as load_state_dict's does, which names the keys in the next lines
        text = " ".join((text, *rest.split()))
    return f"{record['type']}: {text}" if text else str(record["type"])


def error_place(record: dict[str, Any]) -> tuple[str, str] | None:
    """The file and the line that raised; None if there is no traceback."""
    if not record["traceback"]:
        return None
    last = record["traceback"][-1]
    return str(last["file"]), str(last["line"])


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
    return step or trace
