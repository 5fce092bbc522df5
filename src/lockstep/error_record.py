"""An exception as plain data: it crosses processes and lies in the journal, and comes back whole.

The type and its arguments travel as a cloudpickle, the traceback as file names and line numbers, so
that the exception raised in the driver shows the user's own lines.
"""

from __future__ import annotations

import base64
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

from lockstep.errors import RemoteError

__all__ = ["pack_error", "summarise_error", "unpack_error"]

_PACKAGE = str(Path(__file__).parent)


def pack_error(error: BaseException) -> dict[str, Any]:
    """The exception as a JSON-able record; lockstep's own frames around the user's are dropped."""
    import cloudpickle
    from tblib import Traceback

    trace = _user_part(error.__traceback__)
    # The traceback travels apart; frames would drag every local variable into the pickle.
    bare = error.with_traceback(None)
    kind = type(error)
    encoded = None
    # The second form is for classes whose __init__ takes other arguments than Exception's.
    for form in (bare, (kind, bare.args, bare.__dict__)):
        try:
            pickled = cloudpickle.dumps(form)
            cloudpickle.loads(pickled)
        except Exception:
            continue
        encoded = base64.b64encode(pickled).decode("ascii")
        break
    return {
        "type": kind.__qualname__,
        "message": str(error),
        "pickle": encoded,
        "traceback": Traceback(trace).as_dict() if trace else None,
        "text": "".join(traceback.format_exception(kind, error.with_traceback(trace), trace)),
    }


def unpack_error(record: dict[str, Any]) -> BaseException:
    """The exception again, of its own type where that can be had, with its own traceback."""
    from tblib import Traceback

    error: BaseException | None = None
    if record["pickle"] is not None:
        import cloudpickle

        try:
            form = cloudpickle.loads(base64.b64decode(record["pickle"]))
            error = _rebuild(*form) if isinstance(form, tuple) else form
        except Exception:
            error = None  # its class is not to be had on this machine
    if not isinstance(error, BaseException):
        error = RemoteError(summarise_error(record))
    if record["traceback"]:
        error = error.with_traceback(Traceback.from_dict(record["traceback"]).as_traceback())
    return error


def summarise_error(record: dict[str, Any]) -> str:
    """``Type: message`` on one line."""
    first_line = record["message"].strip().partition("\n")[0]
    return f"{record['type']}: {first_line}" if first_line else str(record["type"])


def _rebuild(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def _user_part(trace: TracebackType | None) -> TracebackType | None:
    step = trace
    while step is not None and step.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        step = step.tb_next
    return step or trace
