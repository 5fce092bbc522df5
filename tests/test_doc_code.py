"""Every code block of every page runs, and prints what the page shows."""

from __future__ import annotations

import ast
import contextlib
import re
import textwrap
from pathlib import Path

import pytest

from scripts import doc_code
from tests.repository import ROOT, SRC

# Pages whose framework has an environment of its own.
ELSEWHERE = {
    "docs/how-to/tensorflow.md": pytest.mark.environment("tensorflow"),
    "docs/how-to/horovod.md": pytest.mark.environment("horovod"),
}
EVERY_PAGE = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks" / "README.md",
    ROOT / "examples" / "README.md",
]
PAGES = [page for page in EVERY_PAGE if doc_code.blocks_of(page.read_text(encoding="utf-8"))]


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


def test_an_output_that_nothing_printed_is_named(tmp_path: Path) -> None:
    for before in ("", "*Not run by the tests: no GPU.*\n\n```python\nmissing\n```\n"):
        page = page_of(tmp_path, before + "```output\n1\n```\n")
        with pytest.raises(doc_code.PageError, match="nothing is compared"):
            doc_code.check(page)


@pytest.mark.parametrize("page", EVERY_PAGE, ids=named)
def test_no_code_of_a_page_escapes(page: Path) -> None:
    """Code and output are in blocks that run, or say why they do not."""
    text = page.read_text(encoding="utf-8")
    assert not doc_code.loose_code(text), "lines of code that nothing runs"


def test_code_that_escapes_is_found() -> None:
    for text in (
        "Do:\n\n    pip install x\n",
        "Do:\n\n```\n$ lockstep ls\n```\n",
        "See:\n\n```text\n[lockstep] finished\n```\n",
    ):
        assert len(doc_code.loose_code(text)) == 1
    said = "*Not run by the tests: no.*\n\n```\n$ lockstep ls\n```\n"
    assert not doc_code.loose_code(said)
    for text in (
        "- a list\n\n    with a second paragraph\n",
        "```text\nruns/\n    digits/\n```\n",
        "```python\ndef f():\n\n    return 1\n```\n",
    ):
        assert not doc_code.loose_code(text)


def test_blocks_are_counted(tmp_path: Path) -> None:
    text = "```python\n1\n```\n\n*Not run by the tests: it\nneeds a GPU.*\n\n```console\n$ x\n```\n"
    shown = doc_code.count(page_of(tmp_path, text))
    assert shown == "page.md: 1 run, 1 not run\n  line 9, console: it needs a GPU."


# Docstrings with code. The test says what the code takes for granted, and runs it.


def docstring_code() -> dict[str, str]:
    """Code in docstrings, by ``module:name``: indented blocks that are Python."""
    found = {}
    for file in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            for block in re.findall(
                r"\n\n((?:(?: {4,}[^\n]*)?\n)+)", f"\n{ast.get_docstring(node) or ''}\n\n"
            ):
                code = textwrap.dedent(block).strip("\n")
                with contextlib.suppress(SyntaxError):
                    if code and ast.parse(code.replace("…", "...")).body:
                        name = file.relative_to(SRC).with_suffix("").as_posix()
                        found[f"{name}:{getattr(node, 'name', '')}"] = code
    return found


def test_the_code_of_docstrings(tmp_path: Path) -> None:
    import torch

    from lockstep import testing, train
    from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

    blocks = docstring_code()

    def train_func() -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exec(code, {"train": train, "model": model, "optimizer": optimizer, "loss": 0.5})

    code = blocks.pop("lockstep/train/state:State")
    result = DataParallelTrainer(
        train_func,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert len(result.metrics_dataframe) == 10
    assert result.checkpoint is not None
    assert result.checkpoint.to_dict()["epoch"] == 10

    suites = {"engines": "Engine", "schedulers": "Scheduler", "searchers": "Searcher"}
    for module, noun in {**suites, "trainers": "Trainer"}.items():
        suite = getattr(testing, f"{noun}Conformance")
        names = {suite.__name__: suite, "pytest": pytest, f"My{noun}": DataParallelTrainer}
        exec(blocks.pop(f"lockstep/testing/{module}:"), names)
        assert issubclass(names[f"TestMy{noun}"], suite)
    assert not blocks, "code in a docstring that no test runs: run it here, or put it on a page"
