from __future__ import annotations

import json
from pathlib import Path

import pytest

from lockstep.cli import main

SOURCE = "import ray\n\nray.init()  # once\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "train.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text("x = 1\n")
    for hidden in (".git", "env", "__pycache__"):
        (tmp_path / hidden).mkdir()
        (tmp_path / hidden / "library.py").write_text(SOURCE)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    return tmp_path


def test_nothing_is_written_unless_asked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", str(project)]) == 0
    assert (project / "inner" / "train.py").read_text() == SOURCE
    out = capsys.readouterr().out
    assert out == (
        f"{project}/inner/train.py: would change (--write changes it, --diff shows it), 2 line(s)\n"
    )


def test_a_directory_is_written_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["port", "--write", "--diff", str(project)]) == 0
    assert (project / "inner" / "train.py").read_text() == (
        "import lockstep\n\nlockstep.init()  # once\n"
    )
    assert (project / "env" / "library.py").read_text() == SOURCE
    assert "-ray.init()  # once\n+lockstep.init()  # once\n" in capsys.readouterr().out
    assert main(["port", "--write", str(project)]) == 0
    assert capsys.readouterr().out == "Nothing to port: no file uses ray.\n"


def test_what_could_not_be_mapped(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = project / "other.py"
    file.write_text("import ray\nfrom ray import serve\n\nray.init()\n")
    assert main(["port", "--json", str(file)]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["changed"]
    assert found["remarks"] == [{"line": 2, "name": "ray.serve", "reason": "lockstep has no serve"}]
    assert main(["port", str(file)]) == 1
    assert capsys.readouterr().err == f"{file}:2: ray.serve: lockstep has no serve\n"


def test_a_file_that_is_no_python_is_left_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project / "other.py"
    file.write_text("import ray as\n")
    assert main(["port", "--write", str(project)]) == 1
    assert f"lockstep port: {file}, line 1: " in capsys.readouterr().err
    assert (project / "inner" / "train.py").read_text().startswith("import lockstep")
    assert main(["port", str(project / "missing.py")]) == 1
    assert "No such file" in capsys.readouterr().err
