"""enable_reproducibility: runs are repeatable, and restore the settings."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstep import train
from lockstep.train.torch import enable_reproducibility, prepare_data_loader, prepare_model
from tests.train.torch.ranks import fit


class Noise(Dataset[torch.Tensor]):
    """Rows that the worker process of a loader draws at random, in three ways."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(1).item()])


def noisy(config: dict[str, Any]) -> None:
    if config["seed"] is not None:
        enable_reproducibility(config["seed"])
    model = prepare_model(torch.nn.Linear(4, 1))
    torch.rand(config.get("drawn", 1))
    loader = prepare_data_loader(DataLoader(Noise(), shuffle=True, num_workers=config["processes"]))
    rows = [batch.tolist() for _ in range(2) for batch in loader]
    weight = next(model.parameters()).detach().tolist()
    train.report({"rows": rows, "weight": weight, "drawn": [random.random(), np.random.rand()]})


def run(**config: Any) -> list[Any]:
    ranks = fit(noisy, 2, {"seed": 0, "processes": 1, **config}).metrics_by_rank
    return [[rank["rows"], rank["weight"], rank["drawn"]] for rank in ranks]


@pytest.mark.parametrize("processes", [0, 1])
def test_two_runs_are_the_same(processes: int) -> None:
    first, second = run(processes=processes), run(processes=processes)
    assert first == second
    if processes:
        drawn = [[row[0][1:] for row in rank[0]] for rank in first]
        assert drawn[0] != drawn[1], "but the ranks draw differently"
        assert len({tuple(row) for row in drawn[0]}) == 4


def test_another_seed_is_another_run() -> None:
    assert run(seed=0)[0][0] != run(seed=1)[0][0]


def test_what_else_was_drawn_does_not_change_the_data() -> None:
    assert run(drawn=1)[1][0] == run(drawn=5)[1][0]


def test_torch_gets_the_settings() -> None:
    def function() -> None:
        import os

        enable_reproducibility()
        train.report(
            {
                "deterministic": torch.are_deterministic_algorithms_enabled(),
                "benchmark": torch.backends.cudnn.benchmark,
                "cublas": os.environ["CUBLAS_WORKSPACE_CONFIG"],
                "seed": torch.initial_seed(),
            }
        )

    # In this process: its settings are restored (also the variable, which every test checks).
    assert fit(function, 0).reported_metrics == {
        "deterministic": True,
        "benchmark": False,
        "cublas": ":4096:8",
        "seed": 0,
    }
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


@pytest.mark.parametrize("seed", ["1", 1.5, None, True, 2**62])
def test_what_is_no_seed_is_named(seed: Any) -> None:
    with pytest.raises(ValueError, match=rf"seed={seed!r}\): expected an integer below 2"):
        enable_reproducibility(seed)


def test_a_worker_init_fn_is_kept() -> None:
    def function() -> None:
        def init(worker: int) -> None:
            random.seed(5)

        enable_reproducibility()
        loader = DataLoader(Noise(), num_workers=1, worker_init_fn=init)
        rows = [batch.tolist() for batch in prepare_data_loader(loader)]
        train.report({"first": rows[0][0][1]})

    expected = torch.tensor(random.Random(5).random()).item()
    assert fit(function, 1).metrics["first"] == expected
