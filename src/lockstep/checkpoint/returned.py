"""What a training function has returned: as data where it is plain, else for this process only.

The run's directory keeps a plain value in a file that is read without executing anything. Any other
value travels to the driver as a pickle, and the driver's own ``Result`` has it; it is not kept.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from lockstep.checkpoint.pickled import pickle_dict
from lockstep.checkpoint.plain import decode_plain, encode_plain
from lockstep.errors import LockstepError

__all__ = ["Returned", "pack_returned", "unpack_data", "unpack_returned"]

_KEY = "value"


class Returned(NamedTuple):
    """The return value of a rank."""

    kind: Literal["data", "pickle", "unsendable"]
    type_name: str
    content: bytes


def pack_returned(value: Any) -> Returned | None:
    """The value as bytes; None for None."""
    if value is None:
        return None
    name = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    data = encode_plain({_KEY: value})
    if data is not None:
        return Returned("data", name, data)
    try:
        return Returned("pickle", name, pickle_dict({_KEY: value}))
    except Exception:  # an object's own __reduce__ may raise anything
        return Returned("unsendable", name, b"")


def unpack_returned(returned: Returned) -> Any:
    """The value, in the process that drove the run. Executes what is in a pickle.

    Raises:
        LockstepError: the value could not be sent, or cannot be loaded here.
    """
    if returned.kind == "data":
        return unpack_data([returned.content])
    if returned.kind == "unsendable":
        raise LockstepError(
            f"The training function returned a {returned.type_name}, which cannot be pickled; "
            "return plain values, arrays or tensors."
        )
    try:
        return pickle.loads(returned.content)[_KEY]
    except Exception as error:
        raise LockstepError(
            f"The {returned.type_name} that the training function returned cannot be loaded here: "
            f"{type(error).__name__}: {error}."
        ) from error


def unpack_data(chunks: Iterable[bytes]) -> Any:
    """The value of a file that a run has kept. Executes nothing."""
    return decode_plain(chunks)[_KEY]
