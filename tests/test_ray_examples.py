"""The script that runs the examples of an installed Ray: what it finds, and how it judges."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from scripts import ray_examples
from scripts.ray_examples import Case, Outcome

MODULE = '''
"""A module."""

class Shown:
    """Has both kinds.

    >>> 1 + 1
    2
    >>> open("s3://bucket")  # doctest: +SKIP

    .. testcode::
        :hide:

        import ray
        print("a")

    .. testoutput::

        a
    """

    def _private(self):
        """>>> 1"""

def skipped():
    """>>> 1  # doctest: +SKIP"""
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package that looks like Ray's."""
    files = {
        "data/shown.py": MODULE,
        "data/_internal/hidden.py": MODULE,
        "tune/examples/script.py": "import ray\nif __name__ == '__main__':\n    print(1)\n",
        "_version.py": 'version = "9.9.9"\n',
    }
    for name, text in files.items():
        file = tmp_path / "ray" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "ray"


def test_what_is_found(package: Path) -> None:
    found = list(ray_examples.cases(package, ("data", "tune")))
    assert [(case.name, case.kind) for case in found] == [
        ("ray.data.shown.Shown", "testcode"),
        ("ray.data.shown.Shown", "doctest"),
        ("ray.tune.examples.script", "script"),
    ]
    code = ray_examples._code("testcode", found[0].text)
    assert code == 'import ray\nprint("a")'
    assert ray_examples._code("doctest", found[1].text) == "1 + 1\n"
    assert "testcode" not in found[1].text


@pytest.mark.parametrize(
    ("out", "errors", "exitcode", "outcome"),
    [
        ("a\n{mark}\n", "", 0, ("passed", "")),
        ("b\n{mark}\n", "", 0, ("failed", "prints something else")),
        ("", "Traceback\nValueError: no\n", 1, ("failed", "ValueError: no")),
        (
            "",
            "NameError: name 'os' is not defined",
            1,
            ("left out", "the docstring is not complete"),
        ),
        ("", "ModuleNotFoundError: No module named 'torchft'", 1, ("left out", "needs torchft")),
    ],
)
def test_how_a_script_is_judged(
    tmp_path: Path, out: str, errors: str, exitcode: int, outcome: tuple[str, str]
) -> None:
    case = Case("ray.data.shown", "ray.data.shown", "testcode", "")
    out = out.format(mark=ray_examples._MARK)
    found = ray_examples._judged(case, out, errors, exitcode, tmp_path / "none", [("a", "")])
    assert (found.state, found.reason) == outcome


def test_what_is_not_run(tmp_path: Path) -> None:
    def reason(name: str, code: str) -> str:
        text = f".. testcode::\n\n{textwrap.indent(code, '    ')}"
        return ray_examples.run(Case(name, name, "testcode", text), tmp_path / "no").reason

    assert reason("ray.data.x", "ray.data.read_csv('s3://bucket/x')") == "needs the network"
    assert reason("ray.data.x", "@ray.remote\ndef f(): ...") == "needs Ray Core"
    assert reason("ray.data.llm.x", "pass") == "lockstep leaves it out on purpose"
    assert not (tmp_path / "no").exists()


def test_a_run_renews_its_part(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "results.json"
    results.write_text('{"version": "1", "parts": {"tune": {"passed": 1}}}')
    monkeypatch.setattr(ray_examples, "RESULTS", results)
    outcomes = [
        Outcome("ray.data.a", "passed"),
        Outcome("ray.data.b", "failed", "prints something else: ds.show()"),
        Outcome("ray.data.c", "failed", "ImportError: no name (/home/me/x.py)"),
        Outcome("ray.data.d", "left out", "needs jax"),
    ]
    ray_examples._save(package, ("data",), outcomes)
    assert json.loads(results.read_text()) == {
        "version": "9.9.9",
        "parts": {
            "tune": {"passed": 1},
            "data": {
                "passed": 1,
                "left_out": {"needs jax": 1},
                "failed": {
                    "ray.data.b": "prints something else",
                    "ray.data.c": "ImportError: no name",
                },
            },
        },
    }
