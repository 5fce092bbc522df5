"""Small datasets for tests, and their rows."""

from __future__ import annotations

from typing import Any

import lockstep.data
from lockstep.data import Dataset


def blocks(n: int, count: int = 4) -> Dataset:
    return lockstep.data.range(n, override_num_blocks=count)


def column(dataset: Dataset, name: str = "id") -> list[Any]:
    return [row[name] for row in dataset.take_all()]
