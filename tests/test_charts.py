"""The charts of the benchmarks page are those of the newest results."""

from __future__ import annotations

import pytest

from scripts import charts
from tests.repository import ROOT

PAGE = """# How long?

| what | lockstep | against | theirs | ratio | reach |
| --- | --- | --- | --- | --- | --- |
| a fit() | 46.6 ms | torchrun | 0.47 s | 10× | ✓ |
|  |  | Ray Train | 8.09 s | 174× | ✓ |
|  |  | Accelerate | – (took over 120 s and was ended) | – | ? |
| alone | 1 s |  |  |  |  |
"""


def test_the_pictures_are_of_the_newest_results() -> None:
    old = [
        file.name
        for file, text in charts.charts().items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]
    assert not old, "run python scripts/charts.py"


def test_the_page_shows_every_chart() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert all(f"(images/{file.name})" in page for file in charts.charts())


def test_a_table_becomes_groups_of_bars() -> None:
    assert charts.groups_of(PAGE) == [
        ("a fit()", [("lockstep", "46.6 ms"), ("torchrun", "0.47 s"), ("Ray Train", "8.09 s")])
    ]
    assert charts.size_of("46.6 ms") == pytest.approx(0.0466)
    assert charts.size_of("5,433 /s") == 5433
    assert "174" not in charts.chart_of(PAGE)
