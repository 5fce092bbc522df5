"""Searchers that drive other libraries: conformance, spaces, first points, restores."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.testing.searchers import SearcherConformance
from lockstep.tune.search import Searcher, create_searcher
from lockstep.tune.search.bayesopt import BayesOptSearch
from lockstep.tune.search.hyperopt import HyperOptSearch
from lockstep.tune.search.library import LibrarySearcher, Parameter
from lockstep.tune.search.nevergrad import NevergradSearch


class TestHyperOpt(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return HyperOptSearch(random_state_seed=3, n_initial_points=5)


class TestBayesOpt(SearcherConformance):
    # Few parameters and few fits: each takes a tenth of a second.
    space: Mapping[str, Any] = {"x": tune.uniform(-4, 4), "kind": tune.choice(["a", "b"])}

    def make_searcher(self) -> Searcher:
        return BayesOptSearch(random_state=3, random_search_steps=21)


class TestNevergrad(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return NevergradSearch("OnePlusOne", seed=3)


class TestNevergradSwarm(SearcherConformance):
    def make_searcher(self) -> Searcher:
        return NevergradSearch("PSO", {"budget": 60}, seed=3)


MAKERS: list[Callable[..., LibrarySearcher]] = [
    lambda **options: HyperOptSearch(random_state_seed=1, n_initial_points=8, **options),
    lambda **options: BayesOptSearch(random_state=1, random_search_steps=8, **options),
    lambda **options: NevergradSearch("OnePlusOne", seed=1, **options),
]
by_library = pytest.mark.parametrize("make", MAKERS, ids=["hyperopt", "bayesopt", "nevergrad"])

SPACE: dict[str, Any] = {
    "uniform": tune.uniform(-1, 1),
    "log": tune.loguniform(1e-4, 1),
    "quantised": tune.quniform(0, 1, 0.25),
    "whole": tune.randint(1, 4),
    "steps": tune.qrandint(1, 10, 3),
    "logsteps": tune.qlograndint(4, 64, 4),
    "normal": tune.randn(5, 2),
    "nested": tune.choice([{"kind": "a", "y": tune.uniform(2, 3)}, {"kind": "b"}]),
}


@by_library
def test_every_domain(make: Callable[..., LibrarySearcher]) -> None:
    searcher = make()
    assert searcher.set_search_properties("loss", "min", SPACE)
    for number in range(8):
        config = searcher.suggest(str(number))
        assert isinstance(config, dict)
        for name, domain in SPACE.items():
            if name != "nested":
                assert domain.is_valid(config[name]), (name, config[name])
        assert config["quantised"] in (0, 0.25, 0.5, 0.75, 1)
        assert config["whole"] in (1, 2, 3)
        assert config["steps"] in (3, 6, 9)
        assert config["logsteps"] % 4 == 0
        assert config["nested"] == {"kind": "b"} or 2 <= config["nested"]["y"] <= 3


@by_library
def test_the_search_learns(make: Callable[..., LibrarySearcher]) -> None:
    searcher = make()
    searcher.set_search_properties("score", "max", {"x": tune.uniform(0, 100)})
    found = []
    trials = 12 if isinstance(searcher, BayesOptSearch) else 30  # a fit takes its time
    for number in range(trials):
        config = searcher.suggest(str(number))
        assert isinstance(config, dict)
        found.append(abs(config["x"] - 37))
        searcher.on_trial_complete(str(number), {"score": -(found[-1] ** 2)})
    assert min(found[-trials // 3 :]) < 5


@by_library
def test_points_come_first(make: Callable[..., LibrarySearcher]) -> None:
    point = {"x": 0.5, "kind": "b"}
    searcher = make(points_to_evaluate=[point, {"kind": "a"}])
    searcher.set_search_properties(
        "loss", "min", {"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])}
    )
    assert searcher.suggest("0") == point
    second = searcher.suggest("1")
    assert isinstance(second, dict)
    assert second["kind"] == "a"
    searcher.on_trial_complete("0", {"loss": 1.0})
    assert isinstance(searcher.suggest("2"), dict)
    wrong = make(points_to_evaluate=[{"x": 7}])
    with pytest.raises(ValueError, match="'x'=7, which Float"):
        wrong.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)})
    unknown = make(points_to_evaluate=[{"y": 7}])
    with pytest.raises(ValueError, match="'y', which is not in the space"):
        unknown.set_search_properties("loss", "min", {"x": tune.uniform(0, 1)})


@by_library
def test_spaces_that_cannot_be_searched(make: Callable[..., LibrarySearcher]) -> None:
    with pytest.raises(ValueError, match="grid_search at 'inner/x'"):
        make().set_search_properties("loss", "min", {"inner": {"x": tune.grid_search([1])}})
    with pytest.raises(ValueError, match="nothing to choose"):
        make().set_search_properties("loss", "min", {"x": 1})
    with pytest.raises(ValueError, match="nothing to optimise"):
        make().set_search_properties(None, None, {"x": tune.uniform(0, 1)})


def trial(config: dict[str, Any]) -> None:
    tune.report({"loss": (config["x"] - 1) ** 2})


def test_a_search_and_its_restore(tmp_path: Path) -> None:
    space = {"x": tune.uniform(-4, 4)}
    searcher = HyperOptSearch(random_state_seed=1, n_initial_points=3)
    config = tune.TuneConfig(
        metric="loss", mode="min", search_alg=searcher, num_samples=4, max_concurrent_trials=1
    )
    run_config = tune.RunConfig(storage_path=tmp_path, name="e", verbose=0)
    grid = tune.Tuner(trial, param_space=space, tune_config=config, run_config=run_config).fit()
    configs = [result.config["x"] for result in grid]
    assert len(set(configs)) == 4
    more = tune.TuneConfig(
        metric="loss", mode="min", search_alg=searcher, num_samples=6, max_concurrent_trials=1
    )
    again = tune.Tuner.restore(tmp_path / "e", tune_config=more).fit()
    assert [result.config["x"] for result in again][:4] == configs
    assert len(again) == 6


def test_a_space_of_its_own() -> None:
    searcher = BayesOptSearch({"x": (0, 20), "y": tune.uniform(5, 6)}, metric="loss", mode="min")
    assert not searcher.set_search_properties(None, None, {"constant": 1})
    config = searcher.suggest("0")
    assert isinstance(config, dict)
    assert 0 <= config["x"] <= 20
    assert 5 <= config["y"] <= 6


def test_shares_of_values() -> None:
    for name, domain in SPACE.items():
        if name == "nested":
            continue
        parameter = Parameter(name, domain)
        for share in (0.01, 0.3, 0.5, 0.99):
            value = parameter.at(share)
            assert parameter.at(parameter.share_of(value)) == pytest.approx(value)


def test_searchers_by_name() -> None:
    assert isinstance(create_searcher("hyperopt"), HyperOptSearch)
    assert isinstance(create_searcher("bayesopt", random_search_steps=2), BayesOptSearch)
    assert isinstance(create_searcher("nevergrad", optimizer="PSO"), NevergradSearch)
    with pytest.raises(ValueError, match="unknown; expected one of 'random', 'optuna'"):
        create_searcher("guess")
    with pytest.raises(ValueError, match="optimizer='Nothing'"):
        NevergradSearch("Nothing")


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [
        ("hyperopt", "HyperOptSearch", "hyperopt"),
        ("bayesopt", "BayesOptSearch", "bayes_opt"),
        ("nevergrad", "NevergradSearch", "nevergrad"),
    ],
)
def test_a_library_that_is_not_installed(module: str, name: str, package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from lockstep.tune.search.{module} import {name}\n"
        f"try: {name}()\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"pip install 'lockstep-train[{module}]'" in done.stdout, done.stderr


def test_a_space_of_hyperopt() -> None:
    from hyperopt import hp

    space = {
        "x": hp.uniform("x", -1, 1),
        "lr": hp.loguniform("lr", -9, -1),
        "n": hp.randint("n", 5),
        "size": hp.uniformint("size", 2, 4),
        "step": hp.quniform("step", 0, 10, 5),
        "kind": hp.choice("kind", ["a", {"b": hp.uniform("b", 5, 6)}]),
        "constant": 3,
    }
    searcher = HyperOptSearch(space, metric="loss", mode="min", random_state_seed=1)
    assert not searcher.set_search_properties(None, None, {})
    for number in range(12):
        config = searcher.suggest(str(number))
        assert isinstance(config, dict)
        assert -1 <= config["x"] <= 1
        assert 1e-4 < config["lr"] < 0.37
        assert config["n"] in range(5)
        assert config["size"] in (2, 3, 4)
        assert config["step"] in (0, 5, 10)
        assert config["kind"] == "a" or 5 <= config["kind"]["b"] <= 6
        assert config["constant"] == 3
    with pytest.raises(ValueError, match="cannot read HyperOpt's 'lognormal'"):
        HyperOptSearch({"x": hp.lognormal("x", 0, 1)}, metric="loss", mode="min")
