"""Pages and settings that no other test reads: links lead somewhere, decisions are listed."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lockstep.cli.program import COMMANDS
from tests.repository import ROOT

TEXTS = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".cfg", ".ipynb", ".sh"}

PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
        ROOT / "benchmarks" / "README.md",
        ROOT / "examples" / "README.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)
DECISIONS = ROOT / "docs" / "decisions"
YAML_FILES = sorted(
    [ROOT / ".pre-commit-config.yaml", *(ROOT / ".github").rglob("*.yml")],
)

LINK = re.compile(r"\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def links_of(page: Path) -> list[str]:
    found: list[str] = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    return [link for link in found if "://" not in link]


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    broken = []
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


def test_links_are_found() -> None:
    assert "docs/tutorial.md" in links_of(ROOT / "README.md")
    assert "where-a-run-is" in anchors_of(ROOT / "docs" / "reference" / "results.md")


def test_every_page_is_in_a_table_of_contents() -> None:
    indexes = [ROOT / "docs" / "index.md", ROOT / "docs" / "benchmarks.md"]
    indexes += (ROOT / "docs").glob("*/index.md")
    listed = set(" ".join(page.read_text(encoding="utf-8") for page in indexes).split())
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent != DECISIONS]
    missing = [
        named(page)
        for page in pages
        if page.name != "index.md" and not {page.stem, f"/docs/{page.stem}"} & listed
    ]
    assert not missing, "add it to the index of its folder"


def test_every_decision_is_in_the_index_once() -> None:
    pages = sorted(path.name for path in DECISIONS.glob("[0-9]*.md"))
    listed = [link for link in links_of(DECISIONS / "README.md") if link[0].isdigit()]
    assert listed == pages
    numbers = [name.partition("-")[0] for name in pages]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("page", sorted(DECISIONS.glob("[0-9]*.md")), ids=named)
def test_a_decision_has_every_part(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert "\n**Status:** " in text
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "Measured or tried"]


@pytest.mark.parametrize("file", YAML_FILES, ids=named)
def test_yaml_parses(file: Path) -> None:
    # Comes with several development tools; it has no type information of its own.
    yaml = importlib.import_module("yaml")
    assert isinstance(yaml.safe_load(file.read_text(encoding="utf-8")), dict)


def test_there_are_yaml_files() -> None:
    assert "ci.yml" in {file.name for file in YAML_FILES}


def test_no_make_target_is_taken_for_a_file() -> None:
    """With a directory ``dist/``, ``make dist`` did nothing."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert phony is not None
    targets = re.findall(r"^([a-z][a-z-]*):(?!=)", text, re.MULTILINE)
    assert "dist" in targets
    assert [target for target in targets if target not in phony[1].split()] == []


OTHER_PROJECT = re.compile(
    r"pip install[^\n]*?['\"\s]lockstep(\[|['\"\s.,;]|$)|(?<![\w-])lockstep\\?\[[a-z{]"
)


def test_install_commands_name_our_distribution() -> None:
    """``lockstep`` on the package index is another project: ours is ``lockstep-train``."""
    folders = ("src", "docs", "examples", "benchmarks", "environments", "scripts", "tests")
    found = (f for folder in folders for f in (ROOT / folder).rglob("*") if f.suffix in TEXTS)
    files = [f for f in found if ".egg-info" not in f.parent.name]  # built, maybe long ago
    files += [f for f in ROOT.iterdir() if f.suffix in TEXTS]
    assert len(files) > 300
    wrong = [
        f"{file.relative_to(ROOT)}: {found.group()}"
        for file in files
        if file != Path(__file__)
        for found in OTHER_PROJECT.finditer(file.read_text())
    ]
    assert not wrong, "say lockstep-train, as in pip install 'lockstep-train[torch]'"


def test_the_other_spelling_is_recognised() -> None:
    for text in (
        "pip install 'lockstep[torch]'",
        "pip install lockstep",
        "the extra lockstep[ray]",
    ):
        assert OTHER_PROJECT.search(text), text
    for text in (
        "pip install 'lockstep-train[torch]'",
        'pip install -e ".[torch]"',
        "in lockstep.",
    ):
        assert not OTHER_PROJECT.search(text), text


def test_every_command_is_documented() -> None:
    """Each has a row on its page, and what it prints with ``--json`` is in ``AGENTS.md``."""
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    agents = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    for command in COMMANDS:
        assert re.search(rf"^\| \[?`{command.name}`", page, re.MULTILINE), command.name
        row = re.search(rf"^\| `{command.name}[ `]", agents, re.MULTILINE)
        assert row or not command.has_json, command.name


def test_every_extra_is_documented() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    part = settings.partition("[project.optional-dependencies]")[2].partition("\n# For people")[0]
    extras = re.findall(r"^(\w+) = \[", part, re.MULTILINE)
    assert "torch" in extras
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = "".join(line for line in page.splitlines() if line.startswith("| `"))
    assert [extra for extra in extras if f"`{extra}`" not in rows] == []


def test_every_guarantee_names_tests_that_exist() -> None:
    promises = [
        line
        for line in (ROOT / "docs" / "guarantees.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(promises) > 15
    for line in promises:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", line)
        assert named, f"no test holds this promise: {line}"
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"
