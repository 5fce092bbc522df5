"""Search spaces: what the domains draw, and how a nested space becomes one config."""

from __future__ import annotations

import math
import random
from collections import Counter, OrderedDict
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import numpy as np
import pytest

from lockstep import tune
from lockstep.tune.search import BasicVariantGenerator
from lockstep.tune.search.sample import Domain
from lockstep.tune.search.space import (
    Space,
    contains,
    evaluated_params,
    experiment_tag,
    has_unresolved,
    merge,
)


def configs(space: dict[str, Any], num_samples: int = 1, **options: Any) -> list[dict[str, Any]]:
    options.setdefault("random_state", 7)
    searcher = BasicVariantGenerator(**options)
    assert searcher.set_search_properties(None, None, space, num_samples=num_samples)
    total = searcher.num_trials(num_samples)
    assert total is not None
    found = []
    for number in range(total):
        config = searcher.suggest(str(number))
        assert isinstance(config, dict)
        found.append(config)
    assert searcher.suggest("one more") == "FINISHED"
    return found


def draws(domain: Domain, count: int = 2000) -> list[Any]:
    rng = random.Random(1)
    return [domain.sample(random_state=rng) for _ in range(count)]


def test_uniform_fills_its_range_evenly() -> None:
    values = draws(tune.uniform(-2, 6))
    assert all(-2 <= value <= 6 for value in values)
    assert fmean(values) == pytest.approx(2, abs=0.2)
    assert min(values) < -1.9
    assert max(values) > 5.9


def test_quniform_draws_multiples_with_both_ends() -> None:
    values = draws(tune.quniform(0.1, 0.5, 0.1))
    assert set(values) == {0.1, 0.2, 0.3, 0.4, 0.5}
    counts = Counter(values)
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_loguniform_is_even_in_its_logarithm() -> None:
    values = draws(tune.loguniform(1e-5, 1e-1))
    assert all(1e-5 <= value <= 1e-1 for value in values)
    assert sum(value < 1e-3 for value in values) == pytest.approx(1000, abs=100)


def test_qloguniform_draws_multiples() -> None:
    values = draws(tune.qloguniform(0.5, 50, 0.5))
    assert all(0.5 <= value <= 50 and value * 2 == int(value * 2) for value in values)
    assert sum(value <= 5 for value in values) == pytest.approx(1000, abs=150)


def test_randn_has_its_mean_and_deviation() -> None:
    values = draws(tune.randn(10, 2))
    assert fmean(values) == pytest.approx(10, abs=0.2)
    assert pstdev(values) == pytest.approx(2, abs=0.2)
    assert all(value * 4 == int(value * 4) for value in draws(tune.qrandn(10, 2, 0.25)))


def test_randint_leaves_out_its_upper_end() -> None:
    assert set(draws(tune.randint(2, 5))) == {2, 3, 4}
    assert set(draws(tune.lograndint(1, 4))) == {1, 2, 3}


def test_quantised_integers_include_their_upper_end() -> None:
    assert set(draws(tune.qrandint(2, 8, 2))) == {2, 4, 6, 8}
    assert set(draws(tune.qrandint(1, 10, 3))) == {3, 6, 9}
    assert set(draws(tune.qlograndint(1, 10, 3))) == {3, 6, 9}
    values = draws(tune.qlograndint(4, 64, 4))
    assert all(value % 4 == 0 and 4 <= value <= 64 for value in values)
    assert {4, 64} <= set(values)
    assert all(type(value) is int for value in values)


def test_lograndint_is_even_in_its_logarithm() -> None:
    values = draws(tune.lograndint(1, 10_001))
    assert sum(value < 100 for value in values) == pytest.approx(1000, abs=100)


def test_choice_draws_each_as_often() -> None:
    counts = Counter(draws(tune.choice(["a", "b", "c"])))
    assert set(counts) == {"a", "b", "c"}
    assert max(counts.values()) < 1.3 * min(counts.values())


def test_several_samples_and_every_kind_of_random_state() -> None:
    domain = tune.uniform(0, 1)
    assert len(domain.sample(size=3)) == 3
    assert domain.sample(random_state=5) == domain.sample(random_state=5)
    for make in (lambda: np.random.default_rng(5), lambda: np.random.RandomState(5)):
        assert domain.sample(random_state=make()) == domain.sample(random_state=make())
    with pytest.raises(TypeError, match="random_state='x'"):
        domain.sample(random_state="x")


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: tune.uniform(1, 1), ValueError, r"uniform\(lower=1, upper=1\).*below"),
        (lambda: tune.uniform("0", 1), TypeError, r"uniform\(lower='0'\)"),  # type: ignore[arg-type]
        (lambda: tune.uniform(0, math.inf), TypeError, "finite"),
        (lambda: tune.uniform(True, 2), TypeError, "lower=True"),
        (lambda: tune.loguniform(0, 1), ValueError, r"loguniform\(lower=0\).*above 0"),
        (lambda: tune.loguniform(1, 2, base=1), ValueError, "base=1"),
        (lambda: tune.quniform(0, 1, 0), ValueError, "q=0"),
        (lambda: tune.quniform(0, 1, 0.3), ValueError, "upper must be a multiple of q"),
        (lambda: tune.qloguniform(1, 2, -1), ValueError, "q=-1"),
        (lambda: tune.randint(0, 1.5), TypeError, "integer"),  # type: ignore[arg-type]
        (lambda: tune.randint(3, 3), ValueError, "below upper"),
        (lambda: tune.qrandint(4, 5, 3), ValueError, "no multiple of q"),
        (lambda: tune.lograndint(0, 4), ValueError, "lower=0"),
        (lambda: tune.randn(0, 0), ValueError, "sd=0"),
        (lambda: tune.qrandn(0, 1, 0), ValueError, "q=0"),
        (lambda: tune.choice([]), ValueError, "nothing to choose"),
        (lambda: tune.choice("abc"), TypeError, "'abc'"),
        (lambda: tune.grid_search([]), ValueError, "nothing to choose"),
        (lambda: tune.grid_search(3), TypeError, "values=3"),  # type: ignore[arg-type]
        (lambda: tune.sample_from(3), TypeError, r"sample_from\(3\)"),  # type: ignore[arg-type]
        (lambda: tune.sample_from(lambda: 3), TypeError, "one argument"),  # type: ignore[arg-type, misc]
        (lambda: Space(3), TypeError, "param_space=3"),  # type: ignore[arg-type]
        (lambda: Space({"a": {"grid_search": []}}), ValueError, "no values"),
        (
            lambda: Space({"a": tune.choice([tune.grid_search([1, 2])])}),
            ValueError,
            "a: a grid_search inside a choice",
        ),
    ],
)
def test_what_makes_no_sense_is_rejected_at_once(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_first_key_of_a_grid_varies_fastest() -> None:
    space = {"b": tune.grid_search([1, 2, 3]), "a": {"c": tune.grid_search(["x", "y"])}}
    assert [(c["b"], c["a"]["c"]) for c in configs(space)] == [
        (1, "x"),
        (2, "x"),
        (3, "x"),
        (1, "y"),
        (2, "y"),
        (3, "y"),
    ]


def test_num_samples_repeats_the_grid() -> None:
    space = {"a": tune.grid_search([1, 2]), "x": tune.uniform(0, 1)}
    found = configs(space, num_samples=3)
    assert [c["a"] for c in found] == [1, 2, 1, 2, 1, 2]
    assert len({c["x"] for c in found}) == 6


def test_the_page_s_grid() -> None:
    space = {"train_loop_config": {"input": tune.grid_search([1, 2, 3]), "num_epochs": 2}}
    found = configs(space, num_samples=5)
    assert len(found) == 15
    assert [c["train_loop_config"]["input"] for c in found[:3]] == [1, 2, 3]
    assert all(c["train_loop_config"]["num_epochs"] == 2 for c in found)


def test_one_random_draw_for_each_pass_through_a_grid() -> None:
    space = {"a": tune.grid_search([1, 2]), "x": tune.uniform(0, 1)}
    found = configs(space, num_samples=2, constant_grid_search=True)
    assert found[0]["x"] == found[1]["x"] != found[2]["x"] == found[3]["x"]


def test_grids_inside_a_grid_are_counted() -> None:
    space = {
        "model": tune.grid_search(
            [{"kind": "tree", "depth": tune.grid_search([2, 4])}, {"kind": "linear"}]
        ),
        "single": tune.grid_search([9]),
    }
    assert [c["model"] for c in configs(space)] == [
        {"kind": "tree", "depth": 2},
        {"kind": "tree", "depth": 4},
        {"kind": "linear"},
    ]
    assert all(c["single"] == 9 for c in configs(space))


def test_domains_anywhere() -> None:
    marker = object()
    space = {
        "deep": {"list": [1, (tune.choice(["p"]), {"x": tune.randint(0, 1)})]},
        "marker": marker,
    }
    (config,) = configs(space)
    assert config == {"deep": {"list": [1, ("p", {"x": 0})]}, "marker": marker}
    assert not has_unresolved(config)
    assert has_unresolved(space)


class Pair(NamedTuple):
    left: Any
    right: Any


def test_containers_of_other_kinds() -> None:
    space = {
        "ordered": OrderedDict(x=tune.randint(0, 1)),
        "pair": Pair(tune.grid_search([1, 2]), tune.randint(3, 4)),
    }
    assert configs(space) == [
        {"ordered": {"x": 0}, "pair": Pair(1, 3)},
        {"ordered": {"x": 0}, "pair": Pair(2, 3)},
    ]
    assert isinstance(configs(space)[0]["pair"], Pair)


def test_a_choice_of_spaces_draws_only_what_it_chose() -> None:
    space = {
        "opt": tune.choice(
            [{"name": "sgd", "momentum": tune.uniform(0.8, 1)}, {"name": "adam", "b": [0.9]}]
        )
    }
    found = configs(space, num_samples=20)
    by_name = {c["opt"]["name"]: c["opt"] for c in found}
    assert set(by_name) == {"sgd", "adam"}
    assert 0.8 <= by_name["sgd"]["momentum"] <= 1
    assert by_name["adam"] == {"name": "adam", "b": [0.9]}


def test_sample_from_sees_every_other_value() -> None:
    space = {
        "third": tune.sample_from(lambda spec: spec.config.second + 1),
        "second": tune.sample_from(lambda spec: spec.config["first"] * 10),
        "first": tune.grid_search([1, 2]),
        "nested": {"list": [tune.randint(5, 6)]},
        "short": tune.sample_from(lambda spec: spec["nested"]["list"][0]),
        "keys": tune.sample_from(lambda spec: sorted(spec.config)),
    }
    first, second = configs(space)
    assert (first["second"], first["third"]) == (10, 11)
    assert (second["second"], second["third"]) == (20, 21)
    assert first["short"] == first["nested"]["list"][0] == 5
    assert first["keys"] == ["first", "keys", "nested", "second", "short", "third"]


def test_sample_from_may_return_a_domain() -> None:
    space = {"n": tune.randint(3, 4), "x": tune.sample_from(lambda s: tune.randint(s.n, s.n + 1))}
    assert configs(space) == [{"n": 3, "x": 3}]


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {
                "a": tune.sample_from(lambda spec: spec.config.b),
                "b": tune.sample_from(lambda spec: spec.config.a),
            },
            "wait for each other .*a → b → a",
        ),
        ({"a": tune.sample_from(lambda spec: tune.grid_search([1]))}, "a: .*grid"),
    ],
)
def test_functions_that_cannot_be_resolved(space: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configs(space)


def test_an_unknown_name_in_a_function() -> None:
    with pytest.raises(AttributeError, match="has no 'lr'; it has 'a', 'rate'"):
        configs({"a": tune.sample_from(lambda spec: spec.config.lr), "rate": 1})


def test_a_seed_makes_it_reproducible() -> None:
    space = {"x": tune.uniform(0, 1), "y": tune.choice(range(100))}
    assert configs(space, 5, random_state=1) == configs(space, 5, random_state=1)
    assert configs(space, 5, random_state=1) != configs(space, 5, random_state=2)
    generator = configs(space, 5, random_state=np.random.default_rng(1))
    assert generator == configs(space, 5, random_state=np.random.default_rng(1))
    random.seed(3)
    first = configs(space, 5, random_state=None)
    random.seed(3)
    assert configs(space, 5, random_state=None) == first


def test_a_new_hyperparameter_does_not_change_the_others() -> None:
    space = {"x": tune.uniform(0, 1)}
    more = {"new": tune.uniform(0, 1), **space}
    assert [c["x"] for c in configs(more, 4)] == [c["x"] for c in configs(space, 4)]


def test_points_to_evaluate_come_first_and_count() -> None:
    space = {
        "a": tune.grid_search([1, 2]),
        "x": tune.uniform(0, 1),
        "inner": {"y": tune.choice(["p", {"q": tune.randint(0, 9)}]), "z": 5},
    }
    points = [{"x": 0.5, "a": 2}, {"inner": {"y": {"q": 3}}}]
    found = configs(space, num_samples=3, points_to_evaluate=points)
    assert len(found) == 1 + 2 + 2
    assert (found[0]["x"], found[0]["a"]) == (0.5, 2)
    assert [c["a"] for c in found[1:3]] == [1, 2]
    assert found[1]["inner"] == {"y": {"q": 3}, "z": 5}
    assert len({c["x"] for c in found}) == 5


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"x": 2}, "'x'=2, which Float.*does not contain"),
        ({"b": 1}, "'b'=1, which is not in param_space"),
        ({"inner": {"c": 1}}, "'inner/c'=1"),
    ],
)
def test_points_outside_the_space(point: dict[str, Any], message: str) -> None:
    space = {"x": tune.uniform(0, 1), "a": tune.grid_search([1, 2]), "inner": {"y": 1}}
    with pytest.raises(ValueError, match=message):
        configs(space, points_to_evaluate=[point])


def test_points_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match="expected a list"):
        BasicVariantGenerator(points_to_evaluate={"x": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="3"):
        BasicVariantGenerator(points_to_evaluate=[3])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="max_concurrent=-1"):
        BasicVariantGenerator(max_concurrent=-1)


def test_max_concurrent_waits_for_trials_to_end() -> None:
    searcher = BasicVariantGenerator(max_concurrent=2)
    searcher.set_search_properties(None, None, {"x": tune.uniform(0, 1)}, num_samples=5)
    assert isinstance(searcher.suggest("a"), dict)
    assert isinstance(searcher.suggest("b"), dict)
    assert searcher.suggest("c") is None
    searcher.on_trial_complete("a")
    assert isinstance(searcher.suggest("c"), dict)


def test_without_an_end() -> None:
    searcher = BasicVariantGenerator()
    searcher.set_search_properties(None, None, {"a": tune.grid_search([1, 2])}, num_samples=-1)
    assert searcher.num_trials(-1) is None
    found = [searcher.suggest(str(n)) for n in range(5)]
    assert [c["a"] for c in found if isinstance(c, dict)] == [1, 2, 1, 2, 1]


def test_a_large_grid_costs_nothing() -> None:
    space = {f"k{n}": tune.grid_search(list(range(10))) for n in range(12)}
    searcher = BasicVariantGenerator()
    searcher.set_search_properties(None, None, space, num_samples=1)
    assert searcher.num_trials(1) == 10**12
    assert Space(space).resolve(123, 0, 0)["k2"] == 1


def test_the_tag_names_what_was_chosen() -> None:
    space = {
        "width": tune.grid_search([8]),
        "opt": {"lr": tune.loguniform(1e-6, 1), "kind": tune.choice(["a b/c"])},
        "constant": 3,
        "list": [tune.uniform(0, 1), 4],
    }
    config = {
        "width": 8,
        "opt": {"lr": 0.25, "kind": "a b/c"},
        "constant": 3,
        "list": [0.5, 4],
    }
    assert experiment_tag(7, space, config) == "7_0=0.5000,kind=a_b_c,lr=0.2500,width=8"
    assert evaluated_params(space, config) == {
        "width": 8,
        "opt/lr": 0.25,
        "opt/kind": "a b/c",
        "list/0": 0.5,
    }
    small = {**config, "opt": {"lr": 1.5e-5, "kind": "x"}}
    assert "lr=1.5e-05" in experiment_tag(7, space, small)
    assert experiment_tag(2, {"a": 1}, {"a": 1}) == "2"
    assert experiment_tag(2, {}, {"found": True}) == "2_found=True"


def test_tags_of_values_that_have_no_equality() -> None:
    array = np.zeros(3)
    assert experiment_tag(0, {"a": array, "x": tune.uniform(0, 1)}, {"a": array, "x": 0.5}) == (
        "0_x=0.5000"
    )
    assert len(experiment_tag(0, {}, {"text": "x" * 500})) < 60


def test_merge_and_contains() -> None:
    assert merge({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "e": 4}) == {
        "a": {"b": 9, "c": 2},
        "d": 3,
        "e": 4,
    }
    assert contains(
        {"a": tune.uniform(0, 1), "b": [2, tune.choice(["ab"])]},
        {
            "a": 0.5,
            "b": [2, "ab"],
        },
    )
    assert not contains(tune.randint(0, 3), 3)
    assert not contains(tune.uniform(0, 1), True)
