"""The archives of a release: the same bytes from the same commit, and what they say of licences."""

from __future__ import annotations

import importlib.metadata
import io
import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest

import lockstep
from scripts import dist
from tests.repository import ROOT


def archive(names: list[str], moment: int, owner: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.uname = len(name), moment, owner
            tar.addfile(entry, io.BytesIO(name.encode()))
    return packed.getvalue()


def test_an_archive_has_the_same_bytes_whoever_packed_it_and_when() -> None:
    one = dist._same_bytes(archive(["p/a", "p/b"], 1, "ada"), 1_700_000_000)
    two = dist._same_bytes(archive(["p/b", "p/a"], 2, "eve"), 1_700_000_000)
    assert one == two
    with tarfile.open(fileobj=io.BytesIO(one)) as tar:
        assert tar.getnames() == ["p/a", "p/b"]
        assert tar.extractfile("p/b").read() == b"p/b"  # type: ignore[union-attr]


def test_a_build_that_differs_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = [b"one", b"one", b"another"]

    def build(target: Path, commit: str = "HEAD") -> list[Path]:
        (target / "a.whl").write_bytes(content.pop(0))
        return [target / "a.whl"]

    monkeypatch.setattr(dist, "build", build)
    built = dist.build(tmp_path)
    dist.check_same(built)
    assert "the same bytes" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"a\.whl has other bytes when it is built again"):
        dist.check_same(built)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "lockstep_train-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(
            "lockstep_train-1.0.dist-info/METADATA",
            "Name: lockstep-train\nVersion: 1.0\nLicense-Expression: Apache-2.0\n"
            "Requires-Dist: rich>=13\nRequires-Dist: torch; extra == 'torch'\n",
        )
    return path


def test_the_sbom_has_what_is_required_and_no_extra(wheel: Path) -> None:
    document = json.loads(dist.sbom(wheel))
    names = {component["name"] for component in document["components"]}
    assert {"rich", "Pygments"} <= names
    assert "torch" not in names
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/lockstep-train@1.0"


def test_the_lowest_versions_are_those_of_the_requirements(wheel: Path) -> None:
    assert dist.lowest(wheel) == ["rich==13"]


def test_a_python_may_have_a_higher_lowest_version(tmp_path: Path) -> None:
    path = tmp_path / "one-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(
            "one-1.0.dist-info/METADATA",
            "Requires-Dist: numpy>=1.26\n"
            "Requires-Dist: numpy>=2.1; python_version >= '3.0'\n"
            "Requires-Dist: numpy>=9.9; python_version >= '4.0'\n",
        )
    assert dist.lowest(path) == ["numpy==2.1"]
    assert dist.lowest(path, "4.1") == ["numpy==9.9"]


def test_every_requirement_states_a_licence(wheel: Path) -> None:
    text = dist.licences(wheel)
    assert f"| rich | {importlib.metadata.version('rich')} | MIT License |" in text
    assert "not stated" not in text


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    found = re.search(r"^version: (.+)$", text, re.MULTILINE)
    assert found is not None
    assert found.group(1) == lockstep.__version__
