"""Looking at a dataset, and keeping it in memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.data.datasets import blocks, column


def test_show_and_repr(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = blocks(3)
    dataset.show(2)
    assert capsys.readouterr().out == "{'id': 0}\n{'id': 1}\n"
    assert repr(dataset) == "Dataset(rows=3, columns=[id])"
    assert repr(dataset.map(lambda row: row)) == "Dataset(not read yet)"


def test_materialize() -> None:
    calls = []

    def note(row: dict[str, Any]) -> dict[str, Any]:
        calls.append(row)
        return row

    kept = blocks(5).map(note).materialize()
    assert len(calls) == 5
    assert column(kept) == column(kept) == list(range(5))
    assert len(calls) == 5


def test_what_is_left_to_frame_libraries() -> None:
    with pytest.raises(AttributeError, match=r"no groupby\(\): do that in a frame library"):
        getattr(blocks(3), "groupby")  # noqa: B009
    with pytest.raises(AttributeError, match="A dataset has no 'nope'"):
        getattr(blocks(3), "nope")  # noqa: B009
