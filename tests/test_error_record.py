"""Exceptions as plain data: they come back with their type, message and the user's own lines."""

from __future__ import annotations

import json
import threading
import traceback
from typing import Any

import pytest

from lockstep.error_record import pack_error, summarise_error, unpack_error
from lockstep.errors import RemoteError, WorkerDiedError
from lockstep.metrics import normalise


class TwoArguments(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code = code


class Unsendable(Exception):
    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class Speechless(Exception):
    def __str__(self) -> str:
        raise KeyError


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def through_json(error: BaseException) -> BaseException:
    record: dict[str, Any] = json.loads(json.dumps(pack_error(error)))
    return unpack_error(record)


def test_type_and_arguments() -> None:
    error = through_json(raised(ValueError("bad", 3)))
    assert type(error) is ValueError
    assert error.args == ("bad", 3)


def test_an_own_init() -> None:
    error = through_json(raised(TwoArguments(7, "no")))
    assert type(error) is TwoArguments
    assert (str(error), error.code) == ("no (7)", 7)


def test_a_local_class_keeps_its_identity() -> None:
    class Local(LookupError):
        pass

    error = through_json(raised(Local("here")))
    assert isinstance(error, Local)


def test_attributes() -> None:
    error = through_json(raised(WorkerDiedError("gone", -9)))
    assert isinstance(error, WorkerDiedError)
    assert error.exitcode == -9


def test_what_cannot_be_sent_comes_as_text() -> None:
    error = through_json(raised(Unsendable()))
    assert isinstance(error, RemoteError)
    assert str(error) == "Unsendable: held"


def test_a_class_that_is_gone_comes_as_text() -> None:
    record = pack_error(raised(ValueError("x")))
    record["pickle"] = "AAAA"
    assert str(unpack_error(record)) == "ValueError: x"


def test_a_message_that_cannot_be_had() -> None:
    assert pack_error(raised(Speechless()))["message"] == "(its __str__ raised KeyError)"


def test_the_traceback_shows_the_users_line() -> None:
    error = through_json(raised(ValueError("x")))
    frames = traceback.extract_tb(error.__traceback__)
    assert [frame.name for frame in frames] == ["raised"]
    assert frames[0].line == "raise error"


def test_lockstep_s_own_frames_around_it_are_dropped() -> None:
    class Bad(dict[str, Any]):
        def items(self) -> Any:
            raise OSError("inside")

    with pytest.raises(OSError, match="inside") as caught:
        normalise(Bad())
    trace = caught.value.__traceback__
    assert trace is not None
    record = pack_error(caught.value.with_traceback(trace.tb_next))
    frames = traceback.extract_tb(unpack_error(record).__traceback__)
    assert [frame.name for frame in frames] == ["items"]


def test_endless_recursion_keeps_both_ends_of_its_traceback() -> None:
    def deeper() -> None:
        deeper()

    try:
        deeper()
    except RecursionError as raised:
        record = pack_error(raised)
    error = unpack_error(json.loads(json.dumps(record)))
    assert type(error) is RecursionError
    frames = traceback.extract_tb(error.__traceback__)
    assert len(frames) == 100
    assert frames[0].name == "test_endless_recursion_keeps_both_ends_of_its_traceback"
    assert frames[-1].name == "deeper"


def test_packing_leaves_the_error_as_it_was() -> None:
    error = raised(ValueError("x"))
    pack_error(error)
    assert error.__traceback__ is not None


def test_what_it_was_raised_from() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError, match="second") as caught:
        fail()
    error = through_json(caught.value)
    assert isinstance(error.__cause__, KeyError)
    assert "first" in "".join(traceback.format_exception(error))


def test_never_raised() -> None:
    error = through_json(ValueError("x"))
    assert error.__traceback__ is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (ValueError("two things:\n\tone,\n\ttwo"), "ValueError: two things: one, two"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
    ],
)
def test_a_summary_is_one_line(error: BaseException, text: str) -> None:
    assert summarise_error(pack_error(error)) == text
