"""Exceptions as plain data: they come back with their type, message and the user's own lines."""

from __future__ import annotations

import json
import pickle
import threading
import traceback
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockstep import error_record
from lockstep.error_record import error_data, pack_error, summarise_error, unpack_error
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


def sent(error: BaseException) -> BaseException:
    """As from a worker to its driver."""
    return unpack_error(pickle.loads(pickle.dumps(pack_error(error))))


def journaled(error: BaseException) -> BaseException:
    """As read by the process that wrote the journal."""
    return unpack_error(json.loads(json.dumps(error_data(pack_error(error)))))


def read(error: BaseException) -> BaseException:
    """As read by any other process."""
    record: dict[str, Any] = json.loads(json.dumps(error_data(pack_error(error))))
    error_record._journaled.clear()
    return unpack_error(record)


EVERYWHERE = pytest.mark.parametrize("through", [sent, journaled, read])


@EVERYWHERE
def test_type_and_arguments(through: Any) -> None:
    error = through(raised(ValueError("bad", 3)))
    assert type(error) is ValueError
    assert error.args == ("bad", 3)


@EVERYWHERE
def test_an_own_init(through: Any) -> None:
    error = through(raised(TwoArguments(7, "no")))
    assert type(error) is TwoArguments
    assert (str(error), error.code) == ("no (7)", 7)


@pytest.mark.parametrize("through", [sent, journaled])
def test_a_local_class_keeps_its_identity(through: Any) -> None:
    class Local(LookupError):
        pass

    error = through(raised(Local("here")))
    assert isinstance(error, Local)


@EVERYWHERE
def test_attributes(through: Any) -> None:
    error = through(raised(WorkerDiedError("gone", -9)))
    assert isinstance(error, WorkerDiedError)
    assert error.exitcode == -9


@EVERYWHERE
def test_what_cannot_be_sent_comes_as_text(through: Any) -> None:
    error = through(raised(Unsendable()))
    assert isinstance(error, RemoteError)
    assert str(error) == "Unsendable: held"


def test_a_class_that_is_gone_comes_as_text() -> None:
    record = pack_error(raised(ValueError("x")))
    record["live"] = error_record._Live(b"AAAA", [])
    assert str(unpack_error(record)) == "ValueError: x"


def test_a_type_that_is_not_imported_comes_as_text() -> None:
    class Local(LookupError):
        pass

    error = read(raised(Local("one\ntwo")))
    assert type(error) is RemoteError
    assert str(error).endswith("Local: one\ntwo")
    (shown,) = error.__notes__
    assert "raise error" in shown
    assert error.__traceback__ is None


@EVERYWHERE
def test_notes(through: Any) -> None:
    error = ValueError("x")
    error.add_note("look here") if hasattr(error, "add_note") else setattr(
        error, "__notes__", ["look here"]
    )
    assert through(raised(error)).__notes__[0] == "look here"
    assert through(raised(error)).__notes__.count("look here") == 1


@EVERYWHERE
@pytest.mark.parametrize(
    "error",
    [
        OSError(2, "No such file", "/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        SyntaxError("bad", ("f.py", 1, 2, "x =", 1, 3)),
        StopIteration({"a": [1, (2.5, None)]}),
        KeyError(("a", 1)),
    ],
)
def test_built_in_types_keep_what_they_have(through: Any, error: BaseException) -> None:
    back = through(raised(error))
    assert (type(back), back.args, str(back)) == (type(error), error.args, str(error))
    assert vars(back).keys() - {"__notes__"} == vars(error).keys()
    if isinstance(error, OSError):
        assert (back.errno, back.filename) == (2, "/x")


class Loud(Exception):
    """Says so when it is constructed."""

    made: ClassVar[list[str]] = []

    def __new__(cls, *args: Any) -> Any:
        cls.made.append("new")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        self.made.append("init")
        super().__init__(*args)


def test_reading_calls_no_constructor() -> None:
    record = json.loads(json.dumps(error_data(pack_error(raised(Loud("x"))))))
    error_record._journaled.clear()
    Loud.made.clear()
    error = unpack_error(record)
    assert (type(error), error.args, Loud.made) == (Loud, ("x",), [])


def test_reading_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("class Bad(Exception): pass\nraise SystemExit(3)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    record = {"type": "Bad", "module": "planted", "message": "x", "values": '{"tuple": []}'}
    assert str(unpack_error(record)) == "Bad: x"
    lazy = {**record, "module": "lockstep", "type": "data.Dataset"}
    assert type(unpack_error(lazy)) is RemoteError


BROKEN: list[Any] = [
    None,
    3,
    "text",
    {},
    {"type": None, "message": ["x"], "values": 3, "notes": 4, "text": 5, "cause": 6},
    {"type": "ValueError", "module": "builtins", "message": "x", "values": "{"},
    {"type": "ValueError", "module": "builtins", "message": "x", "values": '{"exec": []}'},
    {"type": "ValueError.__init__", "module": "builtins", "message": "x", "values": "[]"},
    {"type": "eval", "module": "builtins", "message": "x", "values": "[]"},
    {"type": "ValueError", "module": "builtins", "message": "x", "live": {"pickle": "x"}},
]


@pytest.mark.parametrize("record", BROKEN)
def test_a_broken_record_is_text(record: Any) -> None:
    assert isinstance(unpack_error(record), RemoteError)


def test_a_long_chain_of_causes_is_cut() -> None:
    record: dict[str, Any] = {"type": "E", "message": "x"}
    for _ in range(5000):
        record = {"type": "E", "message": "x", "cause": record}
    error: BaseException | None = unpack_error(record)
    count = 0
    while error is not None:
        error, count = error.__cause__, count + 1
    assert count < 20


def test_a_message_that_cannot_be_had() -> None:
    assert pack_error(raised(Speechless()))["message"] == "(its __str__ raised KeyError)"


@pytest.mark.parametrize("through", [sent, journaled])
def test_the_traceback_shows_the_users_line(through: Any) -> None:
    error = through(raised(ValueError("x")))
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
    assert len(record["text"]) < 60_000
    error = unpack_error(record)
    assert type(error) is RecursionError
    frames = traceback.extract_tb(error.__traceback__)
    assert len(frames) == 100
    assert frames[0].name == "test_endless_recursion_keeps_both_ends_of_its_traceback"
    assert frames[-1].name == "deeper"


def test_packing_leaves_the_error_as_it_was() -> None:
    error = raised(ValueError("x"))
    pack_error(error)
    assert error.__traceback__ is not None


@EVERYWHERE
def test_what_it_was_raised_from(through: Any) -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError("second") from error

    with pytest.raises(ValueError, match="second") as caught:
        fail()
    error = through(caught.value)
    assert isinstance(error.__cause__, KeyError)
    assert "first" in "".join(traceback.format_exception(error))


@EVERYWHERE
def test_never_raised(through: Any) -> None:
    error = through(ValueError("x"))
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


def test_errors_with_long_texts_take_bounded_memory() -> None:
    """One run after another may fail with a text of many megabytes."""
    for _ in range(20):
        data = error_data(pack_error(ValueError("x" * (4 << 20))))
    assert len(json.dumps(data)) < 1 << 20
    assert str(unpack_error(data)) == "x" * (4 << 20)  # the newest is remembered
    sizes = [len(record["live"].pickle) for record in error_record._journaled.values()]
    assert sum(sizes) <= error_record._REMEMBERED_BYTES
