"""Leaves credentials out of what is shown and stored: user names, passwords and keys in URIs."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["has_open_secret", "redact", "redacted", "without_secrets"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# No repetition without a bound before what it must end with: texts may be long, and hostile.
_IN_TEXT = re.compile(r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s'\"<>]*")
_SECRET_OPTION = re.compile(
    # Not ``tokenizer``, ``max_tokens`` or ``keywords``: a run that is restored needs these.
    r"(?<=[?&])[^=&]{0,40}(?:secret|token(?!s|iz)|passw|pwd|key(?!s|w)|credential|signature|sas|\bsig\b)"
    r"[^=&]{0,40}=[^&]*&?",
    re.I,
)
_NAMED = ("hdfs", "viewfs", "abfs", "abfss")
"""Schemes with a name before the ``@`` that is no secret: a user, a container."""
_WITH_PORT = ("hdfs", "viewfs", "http", "https", "tcp", "file")


def without_secrets(uri: str) -> str:
    """The URI without its password or key; any other text as it is."""
    match = _SCHEME.match(uri)
    if match is None:
        return uri
    scheme, rest = match[1].lower(), uri[match.end() :]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        login = authority.rpartition("@")[0]
        rest = rest[len(login) + 1 :]
        name = login.partition(":")[0]
        if scheme in _NAMED and name:
            rest = f"{name}@{rest}"
    elif has_open_secret(uri):
        rest = rest.rpartition("@")[2]
    address, mark, options = rest.partition("?")
    kept = _SECRET_OPTION.sub("", mark + options).rstrip("?&")
    return match[0] + address + kept


def has_open_secret(uri: str) -> bool:
    """Whether the URI's password has a ``/``, ``?`` or ``#`` in it, so its end is not known."""
    match = _SCHEME.match(uri)
    if match is None:
        return False
    rest = uri[match.end() :]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    _, colon, port = authority.partition(":")
    is_port = match[1].lower() in _WITH_PORT and port.isdecimal()
    return "@" not in authority and "@" in rest and bool(colon) and not is_port


def redact(text: str) -> str:
    """The text with all URIs in it without their secrets."""
    return _IN_TEXT.sub(lambda match: without_secrets(match[0]), text) if "://" in text else text


def redacted(value: Any) -> Any:
    """A value for storing: the URIs in its strings without their secrets.

    The same object if there is none. Looks into dicts, lists and tuples.
    """
    if type(value) is str:
        clean = redact(value)
        return value if clean == value else clean
    if type(value) is dict:
        new: Any = {key: redacted(item) for key, item in value.items()}
        same = all(new[key] is item for key, item in value.items())
    elif type(value) in (list, tuple):
        new = type(value)(map(redacted, value))
        same = all(one is two for one, two in zip(new, value, strict=True))
    else:
        return value
    return value if same else new
