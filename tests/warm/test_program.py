"""``lockstep run`` of a program, beside ``python`` of the same program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.repository import SRC
from tests.warm.warm_runs import Warm

STATE = """
import sys
names = {name: value for name, value in globals().items() if name != "__builtins__"}
print(sys.argv, sys.orig_argv[1:], sys.path, type(__builtins__), names, flush=True)
print(sys.stdin.read())
"""
FILES = {
    "state.py": STATE,
    "folder/__main__.py": STATE,
    "package/__init__.py": "",
    "package/__main__.py": STATE,
    "package/module.py": STATE,
    "broken.py": "value = (",
    "encoded.py": "# -*- coding: latin-1 -*-\nprint('\\xe9')\n",
    "raises.py": "def f():\n    1 / 0\ntry:\n    f()\nexcept Exception:\n    raise ValueError\n",
    "hook.py": "import sys\ndef hook(*_):\n    raise TypeError\nsys.excepthook = hook\n1 / 0\n",
    "leaves.py": "import atexit, sys\natexit.register(print, 'bye')\nsys.exit('no')\n",
    "interrupt.py": "import atexit\natexit.register(print, 'bye')\nraise KeyboardInterrupt\n",
    "unflushed.py": "file = open('written', 'w')\nfile.write('kept')\n",
    "empty/other.py": "",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="latin-1")
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", STATE)
    return tmp_path


def outcome(
    directory: Path, command: list[str], flags: list[str], warm: Warm | None = None
) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *flags, *command],
        cwd=directory,
        env=warm.environment
        if warm
        else {**os.environ, "PYTHONPATH": str(SRC), "LOCKSTEP_WARM": "0"},
        input="typed",
        capture_output=True,
        text=True,
        timeout=150,
    )
    return done.returncode, re.sub("0x[0-9a-f]+", "0x…", done.stdout), done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["state.py", "a", "-m", "-v"],
        ["-c", "class Own(KeyboardInterrupt): pass\nraise Own"],
        ["./link.py"],
        ["folder", "x"],
        ["archive.zip"],
        ["-m", "package", "--option"],
        ["-m", "package.module"],
        ["-c", "import sys; print(sys.argv, sys.path, sorted(globals()))", "-c", "x"],
        ["encoded.py"],
        ["broken.py"],
        ["raises.py"],
        ["hook.py"],
        ["leaves.py"],
        ["interrupt.py"],
        ["unflushed.py"],
        ["nosuch.py"],
        ["empty"],
        ["-m", "nosuch"],
        ["-m", "package.nosuch"],
        ["-c", "import sys; sys.exit(300)"],
        ["-c", "1 / 0"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["cold", "warm"])
def test_it_is_as_with_python(
    directory: Path, command: list[str], kind: str, running: Warm
) -> None:
    warm = running if kind == "warm" else None
    plain = outcome(directory, command, [], warm)
    written = directory / "written"
    text = written.read_text() if written.exists() else ""
    written.unlink(missing_ok=True)
    assert outcome(directory, command, ["-m", "lockstep", "run"], warm) == plain
    assert (written.read_text() if written.exists() else "") == text


def test_without_an_entry_for_the_script(directory: Path) -> None:
    flag = "-P" if sys.version_info >= (3, 11) else "-I"
    code = f"import sys; sys.path.insert(0, {str(SRC)!r}); from lockstep.cli import main; main()"
    _, out, _ = outcome(
        directory, ["run", "-c", "print(__import__('sys').path[0])"], [flag, "-c", code]
    )
    assert out == f"{SRC}\n"


def test_a_script_from_stdin(directory: Path) -> None:
    code, _, error = outcome(directory, ["-"], ["-m", "lockstep", "run"])
    assert code == 1
    assert "NameError: name 'typed' is not defined" in error  # what stdin has


def test_ctrl_c_ends_it_by_the_signal(directory: Path) -> None:
    code, out, error = outcome(directory, ["interrupt.py"], ["-m", "lockstep", "run"])
    assert (code, out) == (-signal.SIGINT, "bye\n")
    assert error.splitlines()[-1] == "KeyboardInterrupt"
    assert "lockstep" not in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name a script"),
        (["-m"], "-m needs a module"),
        (["--fast", "x.py"], "--fast is no option of lockstep run"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: list[str], words: str) -> None:
    code, out, error = outcome(tmp_path, ["run", *arguments], ["-m", "lockstep"])
    assert (code, out) == (2, "")
    assert error.startswith("usage: lockstep run")
    assert words in error


def test_help(tmp_path: Path) -> None:
    code, out, _ = outcome(tmp_path, ["run", "--help"], ["-m", "lockstep"])
    assert code == 0
    assert "lockstep run train.py" in out
