"""A rebuilt traceback is shown as the original, by Python and by IPython."""

from __future__ import annotations

import json
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import pytest

from lockstep.traceback_record import pack_traceback, unpack_traceback
from tests.integration.runs import run_script


def division(x: int) -> float:
    values = {"a": 1, "b": 0}
    return values["a"] + x / values["b"] + len("after")


def several_lines(*args: int, flag: bool = True, **options: int) -> float:
    return sum(
        division(each)
        for each in args
        if flag
    )  # fmt: skip


def in_a_comprehension(first: int, /, *, second: int = 2) -> list[float]:
    return [division(each) for each in (first, second)]


def after_other_letters() -> Any:
    return "čeština ✓" + {"größe": 1}["breite"]  # type: ignore[operator]


def in_a_class_body() -> None:
    class Body:
        value = [1][2]


def in_a_lambda() -> Any:
    return (lambda x, *rest: x.missing + len(rest))(1, 2)


def in_a_generator() -> Any:
    def numbers() -> Iterator[float]:
        yield 1
        yield division(1)

    return list(numbers())


def far_below_its_first_line() -> Any:
    text = """










































































"""
    return int(text + "x")


def endless(depth: int) -> int:
    return endless(depth + 1) + 1


CASES = [
    lambda: several_lines(1, 2, extra=3),
    lambda: in_a_comprehension(1),
    after_other_letters,
    in_a_class_body,
    in_a_lambda,
    in_a_generator,
    far_below_its_first_line,
    lambda: json.loads("{"),
]


def error_of(function: Callable[[], Any]) -> BaseException:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("the function did not raise")


def rebuilt(trace: TracebackType | None) -> TracebackType | None:
    return unpack_traceback(json.loads(json.dumps(pack_traceback(trace))))


@pytest.mark.parametrize("function", CASES)
def test_python_shows_the_same(function: Callable[[], Any]) -> None:
    error = error_of(function)
    shown = traceback.format_exception(error)
    assert "^" in "".join(shown) or sys.version_info < (3, 11)
    assert traceback.format_exception(error.with_traceback(rebuilt(error.__traceback__))) == shown


def test_a_frame_has_the_names_of_its_arguments_and_no_values() -> None:
    trace = rebuilt(error_of(lambda: several_lines(1, extra=3)).__traceback__)
    while trace is not None and trace.tb_frame.f_code.co_name != "several_lines":
        trace = trace.tb_next
    assert trace is not None
    assert trace.tb_frame.f_code.co_varnames == ("flag", "args", "options")
    assert repr(trace.tb_frame.f_locals["flag"]) == "<not kept>"
    assert trace.tb_frame.f_code.co_firstlineno == several_lines.__code__.co_firstlineno
    assert trace.tb_frame.f_lineno == trace.tb_lineno or sys.version_info < (3, 11)


def test_endless_recursion_keeps_both_ends() -> None:
    frames = pack_traceback(error_of(lambda: endless(0)).__traceback__)
    assert len(frames) == 100
    assert frames[0]["name"] == "error_of"
    assert frames[-1]["name"] == "endless"


def failing_module(directory: Path) -> tuple[Path, ModuleType]:
    file = directory / "failing.py"
    file.write_text("def fail(x):\n    return x / 0  # the old line\n")
    module = ModuleType("failing")
    exec(compile(file.read_text(), file, "exec"), vars(module))
    return file, module


def test_a_file_that_was_edited_since_does_not_lend_its_lines(tmp_path: Path) -> None:
    file, module = failing_module(tmp_path)
    frames = pack_traceback(error_of(lambda: module.fail(1)).__traceback__)
    file.write_text("# a new first line\ndef fail(x):\n    return x / 1\n")
    shown = "".join(traceback.format_tb(unpack_traceback(frames)))
    assert f'File "{file} (as it was then)", line 2, in fail' in shown
    assert "return x / 0  # the old line" in shown
    assert "def fail(x)" not in shown


def test_lines_of_a_file_of_another_machine_are_shown(tmp_path: Path) -> None:
    file, module = failing_module(tmp_path)
    frames = pack_traceback(error_of(lambda: module.fail(1)).__traceback__)
    file.unlink()
    linecache.checkcache()
    shown = "".join(traceback.format_tb(unpack_traceback(frames)))
    assert f'File "{file}", line 2, in fail\n    return x / 0  # the old line' in shown


def test_notebook_cells_show_the_lines_that_failed(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    done = run_script(
        tmp_path,
        """
        from IPython.core.interactiveshell import InteractiveShell

        shell = InteractiveShell.instance(colors="nocolor")
        shell.run_cell('''
        from lockstep.train import DataParallelTrainer, RunConfig

        def helper(config, x):
            values = {"a": 1}
            return values["a"] + config["learning_rate"] + x / 0
        '''.replace("\\n        ", "\\n"))
        shell.run_cell('''
        # a comment
        def train_func(config):
            y = 3
            return helper({"learning_rate": 2}, y)
        '''.replace("\\n        ", "\\n"))
        shell.run_cell('''
        try:
            train_func({})
        except ZeroDivisionError as error:
            raise RuntimeError from error
        '''.replace("\\n        ", "\\n"))
        print("=== in a worker")
        shell.run_cell("DataParallelTrainer(train_func, run_config=RunConfig(verbose=0)).fit()")
        """,
    )
    direct, in_a_worker = done.stdout.split("=== in a worker")
    frames = direct[direct.index("in train_func(config)") : direct.index("ZeroDivisionError: ")]
    assert "return values" in frames
    assert frames in in_a_worker
