"""Plots of a real experiment."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.config import RunConfig
from lockstep.tune.plots import (
    plot_history,
    plot_importance,
    plot_learning_curves,
    plot_parallel_coordinates,
)
from lockstep.tune.search import BasicVariantGenerator


def train(config: dict[str, Any]) -> None:
    if config["kind"] == "broken":
        raise RuntimeError("raised on purpose")
    tune.report({"loss": (math.log10(config["lr"]) + 3) ** 2 + 0.01 * config["inner"]["width"]})


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tune.ResultGrid:
    return tune.Tuner(
        train,
        param_space={
            "lr": tune.loguniform(1e-5, 1e-1),
            "inner": {"width": tune.randint(1, 9)},
            "kind": tune.grid_search(["a", "b", "broken"]),
            "constant": 3,
        },
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=8,
            search_alg=BasicVariantGenerator(random_state=1),
        ),
        run_config=RunConfig(storage_path=tmp_path_factory.mktemp("plots"), verbose=0),
    ).fit()


def test_the_history_shows_the_best_until_then(grid: tune.ResultGrid) -> None:
    trials, best = plot_history(grid).data
    assert len(trials.x) == 16
    assert grid.num_errors == 8
    assert set(trials.x) == {n for n in range(24) if n % 3 != 2}
    assert list(best.y) == [min(trials.y[: n + 1]) for n in range(16)]
    assert "lr: " in trials.text[0]
    worst = plot_history(grid, "loss", "max").data[1]
    assert worst.y[-1] == max(trials.y)


def test_parallel_coordinates(grid: tune.ResultGrid) -> None:
    (lines,) = plot_parallel_coordinates(grid).data
    labels = [dimension.label for dimension in lines.dimensions]
    assert labels == ["lr", "inner/width", "kind", "loss"]
    rate, _, kind, loss = lines.dimensions
    assert all(-5 <= value <= -1 for value in rate.values)
    assert list(kind.ticktext) == ["a", "b"]
    assert list(lines.line.color) == list(loss.values)
    (chosen,) = grid.plot_parallel_coordinates(params=["inner/width"]).data
    assert [dimension.label for dimension in chosen.dimensions] == ["inner/width", "loss"]


def test_importance_names_what_decides(grid: tune.ResultGrid) -> None:
    (bars,) = plot_importance(grid).data
    shares = dict(zip(bars.y, bars.x, strict=True))
    assert set(shares) == {"lr", "inner/width", "kind"}
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=lambda name: shares[name]) == "lr"
    assert bars.y[-1] == "lr"


def test_learning_curves(tmp_path: Path) -> None:
    def learn(config: dict[str, Any]) -> None:
        for step in range(config["steps"]):
            tune.report({"loss": config["loss"] / (step + 1), "deep": {"acc": float("nan")}})

    grid = tune.Tuner(
        learn,
        param_space={"loss": tune.grid_search([2.0, 8.0, 4.0]), "steps": 2},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    figure = plot_learning_curves(grid)
    curves = {curve.name: (list(curve.x), list(curve.y)) for curve in figure.data}
    assert curves == {
        "trial 1": ([1, 2], [8.0, 4.0]),
        "trial 2": ([1, 2], [4.0, 2.0]),
        "trial 0 (best)": ([1, 2], [2.0, 1.0]),
    }
    assert "loss: 2.0" in figure.data[-1].text
    top = grid.plot_learning_curves(mode="max", top=2)
    assert [curve.name for curve in top.data] == ["trial 2", "trial 1 (best)"]
    with pytest.raises(ValueError, match=r"plot_learning_curves\(top=0\)"):
        plot_learning_curves(grid, top=0)
    with pytest.raises(ValueError, match="none of 3 trial"):
        plot_learning_curves(grid, "deep/acc", "max")


def test_the_grid_s_own_methods(grid: tune.ResultGrid) -> None:
    assert grid.plot_history() == plot_history(grid)
    assert grid.plot_importance(["lr", "kind"]) == plot_importance(grid, ["lr", "kind"])


def test_importance_without_scikit_learn(grid: tune.ResultGrid) -> None:
    script = (
        "import sys; sys.modules['sklearn.ensemble'] = None\n"
        "from lockstep.tune import Tuner\n"
        f"grid = Tuner.restore({grid.experiment_path!r}).get_results()\n"
        "print(grid.plot_importance().data[0].y[-1])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["lr"], done.stderr


def test_what_makes_no_sense_is_rejected(grid: tune.ResultGrid) -> None:
    with pytest.raises(ValueError, match="metric='none'"):
        plot_history(grid, "none", "min")
    with pytest.raises(ValueError, match=r"'depth'.*'lr'"):
        plot_parallel_coordinates(grid, ["depth"])
    with pytest.raises(TypeError, match="params='lr'"):
        plot_importance(grid, "lr")
    with pytest.raises(TypeError, match="ResultGrid"):
        plot_history(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["plotly", "optuna"])
def test_without_the_extra(module: str) -> None:
    script = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from lockstep.tune import plots\n"
        "plots._import_plotly('plot_history')\n"
        "plots._importances(None, [], 'min')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'lockstep-train[plots]'" in done.stderr.splitlines()[-1]
