"""Preloaded libraries change nothing until a script imports them."""

from __future__ import annotations

import atexit
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.warm.preloaded import Preloaded
from lockstep.warm.program_text import variables_set_by
from tests.repository import SRC
from tests.warm.warm_runs import LIMIT_S, Warm

CHANGER = """
import atexit, builtins, codecs, logging, os, sys, threading, warnings
warnings.filterwarnings("ignore", "of the changer")
warnings.filterwarnings("ignore", "at the end", append=True)
warnings.formatwarning = lambda *args, **kwargs: "formatted by the changer\\n"
sys.excepthook = lambda kind, error, trace: print("shown by the changer:", error)
threading.excepthook = lambda arguments: None
os.environ["MADE_BY_CHANGER"] = "1"
os.environ.setdefault("DEFAULT_OF_CHANGER", "1")
builtins.of_changer = 1
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None
sys.meta_path.append(Finder)
sys.path.append("/of/changer")
logging.getLogger().addHandler(logging.NullHandler())
log = logging.getLogger("changer")
log.setLevel(logging.ERROR)
log.addHandler(logging.NullHandler())
log.propagate = False
logging.getLogger().setLevel(logging.INFO)
logging.getLogger("of.another").setLevel(logging.ERROR)  # the library's own doing, not of.another's
logging.getLogger("of.another").addFilter(print)
atexit.register(print, "changer ends")
def search(name):
    return codecs.lookup("ascii") if name == "of_changer" else None
codecs.register(search)
"""
STATE = """
def state():
    import atexit, builtins, codecs, logging, os, sys, threading, warnings
    # Not before the import: a logger that is there is another case.
    log = logging.getLogger("changer" if "changer" in sys.modules else "nobody")
    handlers = [type(one).__name__ for one in log.handlers]
    other, user = logging.getLogger("of.another"), logging.getLogger("changer_s.user")
    try:
        codec = codecs.lookup("of_changer").name
    except LookupError:
        codec = None
    return {
        "modules": [name in sys.modules for name in ("changer", "user_of_changer", "unused")],
        "filters": [str(one) for one in warnings.filters],
        "format": warnings.formatwarning.__name__,
        "hooks": [getattr(h, "__name__", "") for h in (sys.excepthook, threading.excepthook)],
        "variables": {name: value for name, value in os.environ.items() if "CHANGER" in name},
        "builtins": hasattr(builtins, "of_changer"),
        "finders": [one.__name__ for one in sys.meta_path if isinstance(one, type)],
        "path": sys.path,
        "root": sorted(type(one).__name__ for one in logging.root.handlers),
        # Without those of pytest, which come and go.
        "log": [log.level, [name for name in handlers if "Capture" not in name], log.propagate],
        "other": [other.level, len(other.filters)],
        "level": [logging.root.level, user.isEnabledFor(logging.INFO)],
        "exits": atexit._ncallbacks(),
        "codec": codec,
    }
"""
SCRIPT = (
    STATE
    + """
import json, logging.config, sys
logging.config.dictConfig({"version": 1})  # disables every logger there is
found = [state()]
import user_of_changer
found.append(state())
found.append([user_of_changer.changer.__spec__.name, user_of_changer.changer.log.disabled])
print(json.dumps(found), flush=True)
raise ValueError("mine")
"""
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with libraries, and a script's own modules."""
    directory = tmp_path_factory.mktemp("preloaded")
    libraries = directory / "site-packages"
    libraries.mkdir()
    (libraries / "parts").mkdir()
    (libraries / "parts" / "__init__.py").write_text("PLACE = 'library'\n")
    (libraries / "parts" / "part.py").write_text("PLACE = 'library'\n")
    (libraries / "user_of_parts.py").write_text("from parts import part\n")
    for name, text in {
        "changer": CHANGER,
        "user_of_changer": "import changer\n",
        "unused": "",
        "reader": "import os\nHOME = os.environ.get('READER_HOME')\n",
        "looker": "import os\nFOUND = os.path.exists('lookerrc')\n",
        "looker_too": "import looker\n",
        "printer": "print('hello')\n",
        "signaller": "import signal\nsignal.signal(signal.SIGUSR1, print)\n",
        "dice": "import random\nDICE = random.Random()\nLOADED = random.Random(1)\n",
        "opener": "from io import open as io_open\n",
    }.items():
        (libraries / f"{name}.py").write_text(text)
    (directory / "script.py").write_text(SCRIPT)
    (directory / "config.py").write_text("import os\nos.environ['READER_HOME'] = '/own'\n")
    return directory


@pytest.fixture(scope="module")
def taught(place: Path) -> Iterator[Warm]:
    """A server that has imported them."""
    variables = {"PYTHONPATH": f"{SRC}:{place / 'site-packages'}", "READER_HOME": "/first"}
    warm = Warm(place / "runtime", **variables, LARGE="x" * 100_000)
    names = "user_of_changer, unused, reader, looker_too, printer, signaller"
    names += ", parts, parts.part, user_of_parts, dice, opener"
    done = warm.run("-c", f"import {names}")
    assert done.stdout == "hello\nchanger ends\n", done.stderr
    warm.wait_until(warm.status)
    yield warm
    warm.stop()


def both(warm: Warm, *program: str, cwd: Path) -> tuple[str, str]:
    """What a fresh process prints, and a warm one."""
    fresh = subprocess.run(
        [sys.executable, *program],
        env=warm.environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    done = warm.run("-v", *program, cwd=cwd)
    first, _, rest = done.stderr.partition("\n")
    assert first.startswith("lockstep run: warm start"), done.stderr
    assert (done.returncode, rest) == (fresh.returncode, fresh.stderr)
    return fresh.stdout, done.stdout


def test_a_library_changes_the_process_when_it_is_imported(taught: Warm, place: Path) -> None:
    fresh, warm = both(taught, "script.py", cwd=place)
    expected, lines = fresh.splitlines(), warm.splitlines()
    assert lines[1:] == expected[1:] == ["shown by the changer: mine", "changer ends"]
    before, after, more = json.loads(lines[0])
    assert [before, after, more] == json.loads(expected[0])
    assert before["modules"] == [False, False, False]
    assert after["modules"] == [True, True, False]


def test_a_script_that_imports_none_ends_as_usual(taught: Warm, place: Path) -> None:
    fresh, warm = both(taught, "-c", "raise ValueError('shown as usual')", cwd=place)
    assert fresh == warm == ""


def test_to_ask_whether_a_library_is_there_is_not_to_import_it(taught: Warm, place: Path) -> None:
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec('changer')\n"
        "print(found.origin, found.has_location, 'changer' in sys.modules)\n"
        "import changer, importlib\n"
        "importlib.reload(changer)\n"
        "print(changer.__spec__.loader.__class__, sys.modules['changer'] is changer)\n"
    )
    fresh, warm = both(taught, "-c", code, cwd=place)
    assert warm == fresh


def test_a_path_that_the_script_adds_comes_first(taught: Warm, place: Path, tmp_path: Path) -> None:
    (tmp_path / "unused.py").write_text("VALUE = 'own'\n")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import unused; print(unused.VALUE)"
    fresh, warm = both(taught, "-c", code, cwd=place)
    assert warm == fresh == "own\n"


def test_a_package_of_the_script_s_own_has_its_own_parts(
    taught: Warm, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("PLACE = 'own'\n")
    (tmp_path / "parts" / "part.py").write_text("PLACE = 'own'\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import parts, parts.part; print(parts.PLACE, parts.part.PLACE)"
    )
    fresh, warm = both(taught, "-c", code, cwd=place)
    assert warm == fresh == "own own\n"


def test_a_module_that_the_script_puts_in_place_stays(taught: Warm, place: Path) -> None:
    code = (
        "import sys, types\n"
        "sys.modules['changer'] = stub = types.ModuleType('changer')\n"
        "import user_of_changer, changer; print(changer is stub)"
    )
    done = taught.run("-v", "-c", code, cwd=place)
    assert done.stdout.splitlines()[0] == "True", done.stderr


def test_what_a_library_imports_by_name_is_there_with_it(taught: Warm, place: Path) -> None:
    code = "import sys, user_of_parts; print('parts.part' in sys.modules)"
    fresh, warm = both(taught, "-c", code, cwd=place)
    assert warm == fresh == "True\n"


def test_generators_of_libraries_differ_between_scripts(taught: Warm, place: Path) -> None:
    code = "import dice; print(dice.DICE.random(), dice.LOADED.random())"
    first, second = (taught.run("-c", code, cwd=place).stdout.split() for _ in range(2))
    assert first[0] != second[0]
    assert first[1] == second[1]  # it has a seed


def test_a_library_that_has_kept_open(taught: Warm, place: Path) -> None:
    code = "import opener; print(opener.io_open(file='script.py').readline())"
    fresh, warm = both(taught, "-c", code, cwd=place)
    assert warm == fresh


def test_a_file_that_the_script_leaves_open_is_written(taught: Warm, place: Path) -> None:
    """Also where a function of the script makes its module a cycle."""
    code = "def kept():\n    return file\n\nfile = open('left.txt', 'w')\nfile.write('all of it')\n"
    (place / "left.py").write_text(code)
    done = taught.run("-v", "left.py", cwd=place)
    assert "warm start" in done.stderr
    assert (place / "left.txt").read_text() == "all of it"


def test_processes_send_objects_of_the_script_s_classes(taught: Warm, place: Path) -> None:
    (place / "pool.py").write_text(
        "import multiprocessing\n\n"
        "class Found:\n    def __init__(self, value):\n        self.value = value\n\n"
        "def find(value):\n    return Found(value)\n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        (found,) = pool.map(find, [3])\n"
        "    print(isinstance(found, Found), found.value)\n"
    )
    fresh, warm = both(taught, "pool.py", cwd=place)
    assert warm == fresh == "True 3\n"


def test_what_a_new_process_would_do_otherwise_is_not_imported_ahead(taught: Warm) -> None:
    assert taught.status()[0]["unsafe"] == {
        "looker": "it looks for 'lookerrc' in the working directory",
        "looker_too": "it looks for 'lookerrc' in the working directory",
        "printer": "it changes what is printed",
        "signaller": "it changes signal handlers",
    }


def test_a_variable_that_the_script_sets(taught: Warm, place: Path) -> None:
    """The text of the script shows it; or the import does, and the script is remembered."""
    code = "import os; os.environ['READER_HOME'] = '/own'; import reader; print(reader.HOME)"
    done = taught.run("-v", "-c", code, cwd=place)
    assert done.stdout == "/own\n"
    assert "the program sets READER_HOME, which libraries read" in done.stderr
    hidden = place / "sets.py"
    hidden.write_text("import config, reader; print(reader.HOME)")
    done = taught.run("sets.py", cwd=place)
    assert "has set READER_HOME, but reader was preloaded" in done.stderr
    done = taught.run("-v", "sets.py", cwd=place)
    assert done.stdout == "/own\n"
    assert "the program sets READER_HOME before it imports a library" in done.stderr


def test_a_client_that_does_not_know_what_is_read_starts_cold(taught: Warm, place: Path) -> None:
    (known,) = taught.runtime.glob("lockstep/*/variables")
    content = known.read_bytes()
    environment = {**taught.environment, "READER_HOME": ""}
    del environment["READER_HOME"]
    code = "import reader; print(reader.HOME)"
    try:
        known.unlink()  # as before the server has learnt the library
        done = taught.run("-v", "-c", code, cwd=place, env=environment)
        assert done.stdout == "None\n"
        assert "ordinary start" in done.stderr
    finally:
        known.write_bytes(content)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("os.environ['A'] = '1'", {"A"}),
        ("os.environ['A'] += '1'", {"A"}),
        ("from os import environ\nenviron[b'A'] = b'1'", {"A"}),
        ("del os.environ['A']", {"A"}),
        ("os.environ.setdefault('A', '1'); os.environ.pop('B', None)", {"A", "B"}),
        ("os.environ.update({'A': '1'}, B='2')", {"A", "B"}),
        ("os.putenv('A', '1')", {"A"}),
        ("print(os.environ['A'], os.environ.get('B'))", set()),
        ("os.environ[name] = 'x'", set()),
        ("os.environ['A' =", set()),
    ],
)
def test_the_variables_that_a_program_sets(text: str, names: set[str]) -> None:
    assert variables_set_by(text.encode()) == names


@pytest.fixture
def clean(place: Path) -> Iterator[Preloaded]:
    """Libraries that this process has preloaded; afterwards it has never seen them."""
    found = set(sys.modules)
    meta_path, path, directory = list(sys.meta_path), list(sys.path), os.getcwd()
    filters, handlers = list(warnings.filters), list(logging.root.handlers)
    level = logging.root.level
    logging.root.setLevel(logging.WARNING)
    sys.path.append(str(place / "site-packages"))
    preloaded = Preloaded()
    try:
        with preloaded.recording():
            for name in ("user_of_changer", "reader", "looker_too"):
                preloaded.load(name)
        yield preloaded
    finally:
        preloaded._before.restore()
        atexit.unregister(print)
        for name in sys.modules.keys() - found:
            del sys.modules[name]
        sys.meta_path[:], sys.path[:] = meta_path, path
        warnings.filters[:] = filters  # type: ignore[index]
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        for name in ("changer", "changer_s.user", "of.another"):
            logging.root.manager.loggerDict.pop(name, None)
        assert os.getcwd() == directory


def test_it_is_hidden_in_the_server_and_there_when_it_is_imported(clean: Preloaded) -> None:
    names: dict[str, object] = {}
    exec(STATE, names)
    state = names["state"]
    assert callable(state)
    assert {"READER_HOME", "DEFAULT_OF_CHANGER"} <= clean.reads
    assert clean.variables == {"MADE_BY_CHANGER": "1", "DEFAULT_OF_CHANGER": "1"}
    assert clean.problems.keys() == {"looker", "looker_too"}, clean.problems
    imported = {**state(), "exits": atexit._ncallbacks() + 1}
    clean.hide()
    hidden = state()
    assert hidden["modules"] == [False, False, False]
    log = logging.getLogger("changer")
    assert (log.level, log.handlers, log.propagate) == (logging.NOTSET, [], True)
    assert hidden["other"] == [logging.NOTSET, 0]
    assert hidden["level"] == [logging.WARNING, False]
    assert hidden["variables"] == {}
    assert {"changer", "user_of_changer", "reader"} <= clean.modules.keys()
    told: list[tuple[str, str]] = []
    clean.expose(dict(os.environ), list(sys.path), lambda *what: told.append(what))
    os.environ["READER_HOME"] = "/own"
    try:
        import user_of_changer  # type: ignore[import-not-found]

        assert state() == imported
        assert told == []
        assert user_of_changer.changer is sys.modules["changer"]
        assert "reader" not in sys.modules
        import reader  # type: ignore[import-not-found]

        assert told == [("READER_HOME", "reader")]
        assert reader.HOME is None
    finally:
        del os.environ["READER_HOME"]
