"""OptunaSearch: spaces in Optuna's terms, samplers, objectives, and what it learns from."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from lockstep import tune
from lockstep.tune.search import ConcurrencyLimiter, Repeater, Searcher, create_searcher
from lockstep.tune.search.optuna import OptunaSearch

EVERYTHING = {
    "uniform": tune.uniform(-1, 1),
    "quniform": tune.quniform(0, 1, 0.25),
    "loguniform": tune.loguniform(1e-5, 1e-1),
    "qloguniform": tune.qloguniform(0.5, 32, 0.5),
    "randn": tune.randn(10, 2),
    "qrandn": tune.qrandn(10, 2, 0.5),
    "randint": tune.randint(0, 3),
    "qrandint": tune.qrandint(2, 8, 2),
    "lograndint": tune.lograndint(1, 100),
    "qlograndint": tune.qlograndint(4, 64, 4),
    "choice": tune.choice(["a", "b"]),
    "objects": tune.choice([(1, 2), (3, 4)]),
    "tree": tune.choice([{"kind": "x", "k": tune.uniform(0, 1)}, {"kind": "y", "k": 5}]),
    "inner": {"list": [tune.randint(0, 2), "constant"]},
    "double": tune.sample_from(lambda spec: spec.config.uniform * 2),
}


def begin(search: Searcher, space: Any, metric: Any = "loss", mode: Any = "min") -> bool:
    return search.set_search_properties(metric, mode, space, num_samples=100)


def minimise(search: Searcher, score: Any, trials: int, key: str = "loss") -> list[dict[str, Any]]:
    found = []
    for number in range(trials):
        config = search.suggest(str(number))
        assert isinstance(config, dict)
        found.append(config)
        search.on_trial_complete(str(number), {key: score(config)})
    return found


def test_every_domain() -> None:
    search = OptunaSearch(seed=1)
    assert begin(search, EVERYTHING)
    found = minimise(search, lambda config: config["uniform"] ** 2, 40)
    for config in found:
        assert set(config) == set(EVERYTHING)
        assert -1 <= config["uniform"] <= 1
        assert config["double"] == config["uniform"] * 2
        assert config["quniform"] in (0, 0.25, 0.5, 0.75, 1)
        assert 1e-5 <= config["loguniform"] <= 1e-1
        assert 0.5 <= config["qloguniform"] <= 32
        assert config["qloguniform"] * 2 == int(config["qloguniform"] * 2)
        assert config["qrandn"] * 2 == int(config["qrandn"] * 2)
        assert config["randint"] in (0, 1, 2)
        assert config["qrandint"] in (2, 4, 6, 8)
        assert 1 <= config["lograndint"] <= 99
        assert config["qlograndint"] in range(4, 65, 4)
        assert config["choice"] in ("a", "b")
        assert config["objects"] in ((1, 2), (3, 4))
        tree = config["tree"]
        assert tree == {"kind": "y", "k": 5} or (tree["kind"] == "x" and 0 <= tree["k"] <= 1)
        assert config["inner"]["list"][1] == "constant"
    assert {config["tree"]["kind"] for config in found} == {"x", "y"}


def test_normal_numbers_have_their_mean_and_deviation() -> None:
    search = OptunaSearch(sampler=optuna.samplers.RandomSampler(seed=1))
    begin(search, {"x": tune.randn(10, 2)})
    found = [config["x"] for config in minimise(search, lambda config: 0.0, 300)]
    assert fmean(found) == pytest.approx(10, abs=0.4)
    assert pstdev(found) == pytest.approx(2, abs=0.3)


def test_it_learns() -> None:
    space = {"x": tune.uniform(-10, 10), "y": tune.choice(["good", "bad"])}

    def score(config: dict[str, Any]) -> float:
        return float((config["x"] - 3) ** 2 + 50 * (config["y"] == "bad"))

    search = OptunaSearch(seed=0)
    begin(search, space)
    found = minimise(search, score, 60)
    late = sorted(map(score, found[-20:]))
    early = sorted(map(score, found[:20]))
    assert late[10] < early[10] / 5


def test_it_learns_to_maximise() -> None:
    search = OptunaSearch(seed=0)
    begin(search, {"x": tune.uniform(-10, 10)}, "gain", "max")
    found = minimise(search, lambda c: -abs(c["x"] - 3), 50, "gain")
    assert sum(abs(c["x"] - 3) for c in found[-10:]) / 10 < 2


def test_nested_metrics() -> None:
    search = OptunaSearch(seed=0)
    begin(search, {"x": tune.uniform(0, 1)}, "eval/loss")
    config = search.suggest("a")
    assert isinstance(config, dict)
    search.on_trial_complete("a", {"eval": {"loss": 0.25}})
    assert search.study.best_value == 0.25


@pytest.mark.parametrize("name", ["RandomSampler", "NSGAIISampler", "CmaEsSampler"])
def test_any_sampler(name: str) -> None:
    search = OptunaSearch(sampler=getattr(optuna.samplers, name)(seed=1))
    begin(search, {"x": tune.uniform(0, 1), "y": tune.loguniform(1, 10)})
    found = minimise(search, lambda c: c["x"] + c["y"], 20)
    assert len({c["x"] for c in found}) == 20


@pytest.mark.slow
def test_a_gaussian_process() -> None:
    search = OptunaSearch(sampler=optuna.samplers.GPSampler(seed=1, n_startup_trials=4))
    begin(search, {"x": tune.uniform(-5, 5)})
    found = minimise(search, lambda c: (c["x"] - 2) ** 2, 10)
    assert min(abs(c["x"] - 2) for c in found) < 0.3


def test_several_objectives() -> None:
    search = OptunaSearch(metric=["loss", "size"], mode=["min", "min"], seed=1)
    begin(search, {"x": tune.uniform(0, 1)}, None, None)
    for number in range(20):
        config = search.suggest(str(number))
        assert isinstance(config, dict)
        result = {"loss": config["x"], "size": 1 - config["x"]}
        search.on_trial_complete(str(number), result)
    assert len(search.study.best_trials) == 20
    assert [d.name for d in search.study.directions] == ["MINIMIZE", "MINIMIZE"]
    one_mode = OptunaSearch(metric=["a", "b"], mode="max", seed=1)
    begin(one_mode, {"x": tune.uniform(0, 1)}, None, None)
    assert [d.name for d in one_mode.study.directions] == ["MAXIMIZE", "MAXIMIZE"]


def test_a_space_of_optuna_distributions() -> None:
    space = {
        "a": FloatDistribution(6, 8),
        "inner": {"n": IntDistribution(1, 3), "constant": "c"},
        "kind": CategoricalDistribution(("p", "q")),
    }
    search = OptunaSearch(space, metric="loss", mode="min", seed=1)
    assert not begin(search, {}, None, None)
    for config in minimise(search, lambda c: c["a"], 10):
        assert 6 <= config["a"] <= 8
        assert config["inner"]["n"] in (1, 2, 3)
        assert config["inner"]["constant"] == "c"
        assert config["kind"] in ("p", "q")


def test_a_space_that_is_defined_by_running_it() -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        if trial.suggest_categorical("kind", ["deep", "wide"]) == "deep":
            trial.suggest_int("shape/layers", 2, 9)
        return {"shape/width": 64}

    search = OptunaSearch(space, seed=1)
    assert not begin(search, {"epochs": 3})
    found = minimise(search, lambda c: c["shape"].get("layers", 0), 20)
    assert all(("layers" in c["shape"]) == (c["kind"] == "deep") for c in found)
    assert {c["kind"] for c in found} == {"deep", "wide"}
    assert all(c["shape"]["width"] == 64 for c in found)


def test_a_function_that_returns_something_else() -> None:
    search = OptunaSearch(lambda trial: 3)  # type: ignore[arg-type, return-value]
    begin(search, {})
    with pytest.raises(TypeError, match="returned 3"):
        search.suggest("a")


def test_points_to_evaluate_come_first() -> None:
    points: list[dict[str, Any]] = [
        {"x": 0.5, "tree": {"kind": "x", "k": 0.25}, "objects": (3, 4)},
        {"qloguniform": 8.0, "qlograndint": 16, "randn": 11.0},
    ]
    space = {
        "x": tune.uniform(0, 1),
        **{k: EVERYTHING[k] for k in ("tree", "objects", "qloguniform", "qlograndint", "randn")},
    }
    search = OptunaSearch(points_to_evaluate=points, seed=1)
    begin(search, space)
    first, second, third = (search.suggest(name) for name in "abc")
    assert isinstance(first, dict)
    assert isinstance(second, dict)
    assert isinstance(third, dict)
    assert {key: first[key] for key in points[0]} == points[0]
    assert second["qloguniform"] == 8.0
    assert second["qlograndint"] == 16
    assert second["randn"] == pytest.approx(11)
    assert third["x"] not in (first["x"], second["x"])


def test_points_that_are_known_are_not_run() -> None:
    points = [{"x": 0.1}, {"x": 0.9}]
    search = OptunaSearch(points_to_evaluate=points, evaluated_rewards=[0.2, 0.5], seed=1)
    begin(search, {"x": tune.uniform(0, 1)})
    assert search.study.best_params == {"x": 0.1}
    config = search.suggest("a")
    assert isinstance(config, dict)
    assert config["x"] not in (0.1, 0.9)


def test_trials_without_a_number_teach_nothing() -> None:
    search = OptunaSearch(seed=1)
    begin(search, {"x": tune.uniform(0, 1)})
    for number, result in enumerate([None, {"loss": math.nan}, {"other": 1}, {"loss": "high"}]):
        search.suggest(str(number))
        search.on_trial_complete(str(number), result)
    states = [trial.state.name for trial in search.study.get_trials(deepcopy=False)]
    assert states == ["FAIL"] * 4


def test_a_study_kept_in_a_file_is_not_doubled(tmp_path: Path) -> None:
    def make() -> OptunaSearch:
        storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
        search = OptunaSearch(seed=1, storage=storage, study_name="mine")
        begin(search, {"x": tune.uniform(0, 1)})
        return search

    first = make()
    config = first.suggest("a")
    assert isinstance(config, dict)
    again = make()
    again.recall("a", config)
    again.on_trial_complete("a", {"loss": 0.5})
    (trial,) = optuna.load_study(study_name="mine", storage=again.study._storage).trials
    assert trial.value == 0.5
    assert trial.params == config


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: OptunaSearch(sampler=3), TypeError, "sampler=3"),
        (
            lambda: OptunaSearch(sampler=optuna.samplers.RandomSampler(), seed=1),
            ValueError,
            "give the seed to the sampler",
        ),
        (lambda: OptunaSearch(seed="x"), TypeError, "seed='x'"),  # type: ignore[arg-type]
        (lambda: OptunaSearch(space=3), TypeError, "space=3"),  # type: ignore[arg-type]
        (lambda: OptunaSearch(space={}), ValueError, "nothing to choose"),
        (lambda: OptunaSearch(mode="best"), ValueError, "mode='best'"),  # type: ignore[arg-type]
        (lambda: OptunaSearch(metric=""), ValueError, "metric=''"),
        (
            lambda: OptunaSearch(metric=["a", "b"], mode=["min"]),
            ValueError,
            "one mode for each metric",
        ),
        (
            lambda: OptunaSearch(points_to_evaluate=[{}], evaluated_rewards=[1, 2]),
            ValueError,
            r"2 value\(s\) for 1 point\(s\)",
        ),
        (
            lambda: begin(OptunaSearch(), {"a": tune.grid_search([1])}),
            ValueError,
            "grid_search at 'a'",
        ),
        (lambda: begin(OptunaSearch(), {"a": 1}), ValueError, "no domain"),
        (lambda: begin(OptunaSearch(), {"a": tune.uniform(0, 1)}, None), ValueError, "metric=None"),
        (
            lambda: begin(OptunaSearch(points_to_evaluate=[{"b": 1}]), {"a": tune.uniform(0, 1)}),
            ValueError,
            "'b'",
        ),
        (
            lambda: begin(OptunaSearch(points_to_evaluate=[{"a": 7}]), {"a": tune.uniform(0, 1)}),
            ValueError,
            "'a'=7 is not within",
        ),
        (lambda: OptunaSearch().suggest("a"), RuntimeError, "no space"),
        (lambda: create_searcher("guess"), ValueError, "'guess'"),
        (lambda: ConcurrencyLimiter(3, 1), TypeError, "searcher=3"),  # type: ignore[arg-type]
        (lambda: ConcurrencyLimiter(OptunaSearch(), 0), ValueError, "max_concurrent=0"),
        (lambda: Repeater(OptunaSearch(), repeat=0), ValueError, "repeat=0"),
    ],
)
def test_what_makes_no_sense_is_rejected_at_once(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_without_optuna() -> None:
    script = (
        "import sys; sys.modules['optuna'] = None\n"
        "from lockstep.tune.search.optuna import OptunaSearch\n"
        "OptunaSearch()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "pip install 'lockstep-train[optuna]'" in done.stderr.splitlines()[-1]


def test_searchers_by_name() -> None:
    assert isinstance(create_searcher("optuna", seed=1), OptunaSearch)
    assert isinstance(create_searcher("random"), tune.search.BasicVariantGenerator)


class Counting(Searcher):
    """Suggests 0, 1, 2, … and keeps the completed trials."""

    def __init__(self) -> None:
        super().__init__("loss", "min")
        self.count = 0
        self.completed: list[tuple[str, Any, bool]] = []

    def suggest(self, trial_id: str) -> Any:
        self.count += 1
        return {"n": self.count - 1} if self.count <= 4 else self.FINISHED

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        self.completed.append((trial_id, result, error))


def test_a_limiter_makes_room_when_a_trial_ends() -> None:
    search = ConcurrencyLimiter(Counting(), max_concurrent=2)
    assert [search.suggest(name) for name in "abc"] == [{"n": 0}, {"n": 1}, None]
    search.on_trial_complete("a", {"loss": 1})
    assert search.suggest("c") == {"n": 2}
    assert search.metric == "loss"


def test_a_batch_waits_for_all_of_it() -> None:
    inner = Counting()
    search = ConcurrencyLimiter(inner, max_concurrent=2, batch=True)
    search.suggest("a"), search.suggest("b")
    search.on_trial_complete("b", {"loss": 2})
    assert search.suggest("c") is None
    assert inner.completed == []
    search.on_trial_complete("a", None, error=True)
    assert inner.completed == [("a", None, True), ("b", {"loss": 2}, False)]
    assert search.suggest("c") == {"n": 2}


def test_a_repeater_tells_the_average() -> None:
    inner = Counting()
    search = Repeater(inner, repeat=3)
    found = [search.suggest(name) for name in "abcd"]
    assert found[:3] == [{"n": 0, "__trial_index__": i} for i in range(3)]
    assert found[3] == {"n": 1, "__trial_index__": 0}
    search.on_trial_complete("a", {"loss": 1.0})
    search.on_trial_complete("b", None, error=True)
    assert inner.completed == []
    search.on_trial_complete("c", {"loss": 2.0})
    assert inner.completed == [("a", {"loss": 1.5}, False)]
    assert search.num_trials(10) == 9
    assert Repeater(Counting(), 2, set_index=False).suggest("a") == {"n": 0}


def test_a_repeater_whose_trials_all_fail() -> None:
    inner = Counting()
    search = Repeater(inner, repeat=2)
    for name in "ab":
        search.suggest(name)
        search.on_trial_complete(name, None, error=True)
    assert inner.completed == [("a", None, True)]
