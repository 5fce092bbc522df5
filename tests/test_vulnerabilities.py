"""The script that asks the package index for known vulnerabilities, against an index of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.repository import ROOT

SCRIPT = ROOT / "scripts" / "vulnerabilities.py"
PROJECT = """
[project]
name = "mine"
dependencies = ["cloudpickle>=3.0", "numpy[x]>=1; python_version > '3'", "not-installed"]
optional-dependencies = {more = ["pyarrow", "mine[other]"]}
"""

pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="needs tomllib")


@contextmanager
def an_index(answers: dict[str, object]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = answers.get(self.path.split("/")[2])
            self.send_response(404 if known is None else 200)
            self.end_headers()
            if known is not None:
                self.wfile.write(json.dumps({"vulnerabilities": known}).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def run(tmp_path: Path, index: str) -> tuple[int, list[str]]:
    project = tmp_path / "pyproject.toml"
    project.write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--index", index, "--project", str(project)],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_what_is_vulnerable_is_named(tmp_path: Path) -> None:
    known = [
        {"id": "PYSEC-1", "aliases": ["CVE-2"], "fixed_in": ["99.0"], "withdrawn": None},
        {"id": "PYSEC-3", "aliases": [], "fixed_in": [], "withdrawn": "2020"},
    ]
    with an_index({"cloudpickle": known, "numpy": []}) as index:
        code, lines = run(tmp_path, index)
    assert code == 1
    assert lines == [
        f"cloudpickle {version('cloudpickle')}: PYSEC-1, CVE-2; fixed in 99.0",
        f"vulnerabilities: 1 in 2 dependencies that {index} knows",
    ]


def test_nothing_known_is_well(tmp_path: Path) -> None:
    with an_index({"cloudpickle": [], "numpy": [], "pyarrow": []}) as index:
        assert run(tmp_path, index) == (
            0,
            [f"vulnerabilities: 0 in 3 dependencies that {index} knows"],
        )


def test_an_index_without_answers_is_said_so(tmp_path: Path) -> None:
    with an_index({}) as index:
        code, lines = run(tmp_path, index)
    assert (code, len(lines)) == (0, 1)
    assert "not checked, because http" in lines[0]
    # Nobody listens there any more.
    code, lines = run(tmp_path, index)
    assert (code, len(lines)) == (0, 1)
    assert "not checked, because http" in lines[0]
