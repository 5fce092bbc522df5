"""Every code block of every page runs, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts import doc_code
from tests.repository import ROOT, SRC

# Pages whose framework has an environment of its own.
ELSEWHERE = {
    "docs/how-to/tensorflow.md": pytest.mark.environment("tensorflow"),
    "docs/how-to/horovod.md": pytest.mark.environment("horovod"),
}
PAGES = [
    page
    for page in (
        *sorted(ROOT.glob("*.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
        ROOT / "benchmarks" / "README.md",
    )
    if doc_code.blocks_of(page.read_text(encoding="utf-8"))
]


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=ELSEWHERE.get(named(page), ()), id=named(page)) for page in PAGES],
)
def test_the_code_of_a_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SRC))
    monkeypatch.setenv("LOCKSTEP_STORAGE", str(tmp_path / "results"))
    doc_code.check(page)


def page_of(tmp_path: Path, text: str) -> Path:
    page = tmp_path / "page.md"
    page.write_text(text)
    return page


def test_output_that_differs_is_named(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```python\nprint(1 + 1)\n```\n\n```output\n3\n```\n")
    with pytest.raises(doc_code.PageError, match=r"page.md:6: the page shows:\n3\nbut .*:\n2"):
        doc_code.check(page)


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    page = page_of(tmp_path, "Text.\n\n```python\nmissing\n```\n")
    with pytest.raises(doc_code.PageError, match=r"page.md:4: .*\nNameError: name 'missing'"):
        doc_code.check(page)


def test_an_error_that_is_shown_is_compared(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```python\n1 / 0\n```\n```output\nZeroDivisionError: …\n```\n")
    doc_code.check(page)


def test_renewed_output_holds(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```python\nprint('a\\nb')\n```\n```output\nc\n```\nEnd.\n")
    doc_code.renew(page)
    assert page.read_text().endswith("```output\na\nb\n```\nEnd.\n")
    doc_code.check(page)


def test_blocks_share_a_page_and_dots_stand_for_lines(tmp_path: Path) -> None:
    doc_code.check(
        page_of(
            tmp_path,
            "<!-- run\nn = 9\n-->\n```python\nfor i in range(n):\n    print(i)\n```\n"
            "```output\n0\n…\n8\n```\n",
        )
    )


def test_a_slow_start_is_no_difference(tmp_path: Path) -> None:
    code = """
from lockstep.train.driver.events import ExplainHang
from lockstep.train.driver.notes import hang_note
hang = ExplainHang(missing=(0,), waiting=(), returned=(), number=1, seconds=31.0, starting=True)
print(hang_note(hang), "[lockstep] " + hang_note(hang._replace(missing=(0, 1))), "one", sep="\\n")
"""
    doc_code.check(page_of(tmp_path, f"```python{code}```\n```output\none\n```\n"))


def test_a_block_that_is_not_run_says_why(tmp_path: Path) -> None:
    page_text = "*Not run by the tests: it needs a GPU.*\n\n```python\nmissing\n```\n"
    doc_code.check(page_of(tmp_path, page_text))


def test_install_commands_name_extras_that_exist(tmp_path: Path) -> None:
    page = page_of(tmp_path, "```console\n$ pip install 'lockstep-train[torch,nothing]'\n```\n")
    with pytest.raises(doc_code.PageError, match="no extra 'nothing'"):
        doc_code.check(page)


def test_docstrings_have_no_code_that_nothing_runs() -> None:
    """A prompt in a docstring would be code that no test runs: examples belong on pages."""
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in SRC.rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if re.match(r"\s*>>> ", line)
    ]
    assert not found
