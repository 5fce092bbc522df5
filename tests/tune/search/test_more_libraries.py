"""AxSearch, ZOOptSearch, TuneBOHB and HEBOSearch on the real libraries, where these are there."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from lockstep import tune
from lockstep.testing.searchers import SearcherConformance
from lockstep.tune.schedulers import HyperBandForBOHB
from lockstep.tune.search import Searcher, create_searcher

SMALL: dict[str, Any] = {"x": tune.uniform(-4, 4), "kind": tune.choice(["a", "b"])}
CLASSES = {
    "ax": ("AxSearch", "ax", {"seed": 3}),
    "zoopt": ("ZOOptSearch", "zoopt", {"seed": 3}),
    "bohb": ("TuneBOHB", "hpbandster", {"seed": 3}),
    "hebo": ("HEBOSearch", "hebo", {"random_state_seed": 3}),
}


def make(name: str, **options: Any) -> Any:
    class_name, package, seeded = CLASSES[name]
    pytest.importorskip(package)
    module = importlib.import_module(f"lockstep.tune.search.{name}")
    return getattr(module, class_name)(**{**seeded, **options})


class TestZOOpt(SearcherConformance):
    def make_searcher(self) -> Searcher:
        searcher: Searcher = make("zoopt", budget=40)
        return searcher


class TestBOHB(SearcherConformance):
    def make_searcher(self) -> Searcher:
        searcher: Searcher = make("bohb", bohb_config={"num_samples": 8})
        return searcher


class TestHEBO(SearcherConformance):
    # Without Gaussian processes: a fit takes seconds.
    space: Mapping[str, Any] = SMALL

    def make_searcher(self) -> Searcher:
        searcher: Searcher = make("hebo", rand_sample=30)
        return searcher


class TestAx(SearcherConformance):
    # Without Gaussian processes: a fit takes seconds.
    space: Mapping[str, Any] = SMALL

    def make_searcher(self) -> Searcher:
        searcher: Searcher = make("ax", initialization_budget=30)
        return searcher


@pytest.mark.parametrize("name", ["zoopt", "bohb"])
def test_the_search_learns(name: str) -> None:
    searcher = make(name)
    searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 100)}, num_samples=60)
    found = []
    for number in range(60):
        config = searcher.suggest(str(number))
        assert isinstance(config, dict)
        found.append(abs(config["x"] - 37))
        result = {"score": -(found[-1] ** 2), "training_iteration": 1}
        searcher.on_trial_result(str(number), result)
        searcher.on_trial_complete(str(number), result)
    assert min(found[-20:]) < 5


@pytest.mark.parametrize("name", list(CLASSES))
def test_points_come_first_and_count(name: str) -> None:
    point = {"x": 0.5, "kind": "b"}
    searcher = make(name, points_to_evaluate=[point])
    assert searcher.set_search_properties("loss", "min", SMALL, num_samples=4)
    assert searcher.suggest("0") == point
    searcher.on_trial_complete("0", {"loss": 1.0, "training_iteration": 1})
    for number in range(1, 4):
        config = searcher.suggest(str(number))
        assert config is not None
        assert SMALL["x"].is_valid(config["x"])
        searcher.on_trial_complete(str(number), {"loss": 1.0, "training_iteration": 1})


def test_a_process_of_ax_learns_and_is_recalled() -> None:
    pasts: list[list[dict[str, Any]]] = []
    for restored in (False, True):
        searcher = make("ax", initialization_budget=4)
        searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 100)})
        past: list[dict[str, Any]] = []
        for number in range(6):
            if restored and number < 5:
                config = pasts[0][number]
                searcher.recall(str(number), config)
            else:
                config = searcher.suggest(str(number))
            past.append(config)
            searcher.on_trial_complete(str(number), {"score": -((config["x"] - 37) ** 2)})
        pasts.append(past)
    assert pasts[0] == pasts[1]
    assert min(abs(config["x"] - 37) for config in pasts[0]) < 20


def test_constraints_of_ax() -> None:
    searcher = make(
        "ax", parameter_constraints=["a + b <= 1.0"], outcome_constraints=["memory <= 2.0"]
    )
    searcher.set_search_properties(
        "loss", "min", {"a": tune.uniform(0, 1), "b": tune.uniform(0, 1)}
    )
    for number in range(3):
        config = searcher.suggest(str(number))
        assert config["a"] + config["b"] <= 1 + 1e-6
        searcher.on_trial_complete(str(number), {"loss": config["a"], "memory": 1.0})


def test_a_space_of_ax() -> None:
    searcher = make(
        "ax",
        space=[
            {"name": "x", "type": "range", "bounds": [1.0, 2.0]},
            {"name": "n", "type": "range", "bounds": [1, 3]},
            {"name": "kind", "type": "choice", "values": ["p", "q"]},
            {"name": "constant", "type": "fixed", "value": 4},
        ],
        metric="a/loss",
        mode="min",
    )
    assert not searcher.set_search_properties(None, None, {})
    config = searcher.suggest("0")
    assert 1 <= config["x"] <= 2
    assert config["n"] in (1, 2, 3)
    assert config["kind"] in ("p", "q")
    assert config["constant"] == 4
    searcher.on_trial_complete("0", {"a": {"loss": 1.0}})
    assert isinstance(searcher.suggest("1"), dict)


def test_a_space_of_configspace() -> None:
    spaces = pytest.importorskip("ConfigSpace")
    space = spaces.ConfigurationSpace(
        {"x": (0.0, 1.0), "n": (1, 3), "kind": ["p", "q"], "constant": 4}
    )
    searcher = make("bohb", space=space, metric="loss", mode="min")
    assert not searcher.set_search_properties(None, None, {})
    config = searcher.suggest("0")
    assert 0 <= config["x"] <= 1
    assert config["n"] in (1, 2, 3)
    assert config["kind"] in ("p", "q")
    assert config["constant"] == 4


def test_bohb_learns_from_every_trial_that_reached_a_milestone() -> None:
    searcher = make("bohb")
    searcher.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)})
    for name in ("long", "short"):
        searcher.suggest(name)
        searcher.on_trial_result(name, {"loss": 1.0, "training_iteration": 1})
    searcher.on_trial_result("long", {"loss": 0.5, "training_iteration": 2})
    searcher.on_trial_complete("short", {"loss": 1.0, "training_iteration": 1})
    assert {budget: len(found) for budget, found in searcher._model.losses.items()} == {1: 2}


def test_bohb_with_its_scheduler() -> None:
    pytest.importorskip("hpbandster")

    def function(config: dict[str, Any]) -> None:
        for step in range(4):
            checkpoint = tune.Checkpoint.from_dict({"step": step})
            tune.report({"loss": (config["x"] - 1) ** 2 + 1 / (step + 1)}, checkpoint=checkpoint)

    grid = tune.Tuner(
        function,
        param_space={"x": tune.uniform(-4, 4)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            search_alg=create_searcher("bohb", seed=1),
            scheduler=HyperBandForBOHB(max_t=4, reduction_factor=2),
            num_samples=6,
        ),
        run_config=tune.RunConfig(verbose=0),
    ).fit()
    assert not grid.errors
    iterations = [result.metrics["training_iteration"] for result in grid]
    assert len(iterations) == 6
    assert min(iterations) < 4 <= max(iterations)


@pytest.mark.parametrize("name", ["ax", "zoopt", "bohb"])
def test_a_library_that_is_not_installed(name: str) -> None:
    class_name, package, _ = CLASSES[name]
    code = (
        f"import sys; sys.modules[{package!r}] = None; sys.modules['ConfigSpace'] = None\n"
        f"from lockstep.tune.search.{name} import {class_name}\n"
        f"try: {class_name}()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install 'lockstep-train[{name}]'" in done.stdout, done.stderr


def test_without_hebo_its_searcher_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hebo.optimizers.hebo", None)
    with pytest.raises(ImportError, match=r"pip install 'HEBO>=0\.3\.5' 'pymoo>=0\.6,<0\.6\.2'"):
        create_searcher("hebo")
