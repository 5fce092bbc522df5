"""What is bound to a trainable: arguments and resources."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from lockstep import tune
from lockstep.config import RunConfig, ScalingConfig
from lockstep.tune.parameters import PlacementGroupFactory, resources_of
from tests.tune.trainables import Counter, Greedy


def train(config: dict[str, Any], data: list[int], scale: int = 1) -> None:
    tune.report({"total": sum(data) * scale * config["x"]})


def test_arguments_reach_the_function(tmp_path: Path) -> None:
    bound = tune.with_parameters(train, data=[1, 2, 3])
    grid = tune.Tuner(
        tune.with_parameters(bound, scale=10),
        param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(storage_path=tmp_path, verbose=0),
    ).fit()
    assert sorted(result.metrics["total"] for result in grid) == [60, 120]
    assert all(result.config in ({"x": 1}, {"x": 2}) for result in grid)


class Counted:
    """Counts how often it is pickled."""

    pickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        type(self).pickled += 1
        return Counted, ()


def test_arguments_are_pickled_once() -> None:
    bound = tune.with_parameters(train, data=Counted())
    sent = [cloudpickle.dumps(bound) for _ in range(3)]
    assert Counted.pickled == 1
    again = pickle.loads(sent[0])
    cloudpickle.dumps(again)
    assert Counted.pickled == 1
    assert isinstance(again.parameters[0].values["data"], Counted)


def test_names_stay() -> None:
    assert tune.with_parameters(train, data=[1]).__name__ == "train"
    assert tune.with_resources(Counter, {"cpu": 1}).__name__ == "Counter"


@pytest.mark.parametrize(
    ("resources", "amounts"),
    [
        ({"cpu": 2, "gpu": 1}, {"CPU": 2, "GPU": 1}),
        ({"CPU": 0.5}, {"CPU": 0.5}),
        ({"gpu": 0.5}, {"GPU": 0.5}),
        (lambda config: {"cpu": config["x"]}, {"CPU": 3}),
        (ScalingConfig(num_workers=2, resources_per_worker={"CPU": 3}), {"CPU": 6}),
        (ScalingConfig(num_workers=2, use_gpu=True), {"CPU": 2, "GPU": 2}),
        (PlacementGroupFactory([{"CPU": 1}, {"CPU": 2, "GPU": 1}]), {"CPU": 3, "GPU": 1}),
        (lambda config: PlacementGroupFactory([{"CPU": config["x"]}]), {"CPU": 3}),
    ],
)
def test_resources_of_a_trial(resources: Any, amounts: dict[str, float]) -> None:
    for trainable in (train, Counter):
        assert resources_of(tune.with_resources(trainable, resources), {"x": 3}) == amounts
    both = tune.with_resources(tune.with_parameters(Counter, offset=1), resources)
    assert resources_of(both, {"x": 3}) == amounts
    assert both({"x": 1}).total == 1


def test_resources_that_were_not_given() -> None:
    assert resources_of(train, {}) == {"CPU": 1}
    assert resources_of(Counter, {}) == {"CPU": 1}
    assert resources_of(Greedy, {"cpus": 5}) == {"CPU": 5}
    assert resources_of(tune.with_resources(Greedy, {"cpu": 1}), {}) == {"CPU": 1}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: tune.with_parameters(train, other=1), TypeError, "other"),
        (lambda: tune.with_parameters(Counter, other=1), TypeError, r"Counter\.setup"),
        (lambda: tune.with_parameters(3, a=1), TypeError, r"with_parameters\(3\)"),
        (lambda: tune.with_parameters(dict, a=1), TypeError, "expected a training function"),
        (lambda: tune.with_resources(3, {"cpu": 1}), TypeError, r"with_resources\(3\)"),
        (lambda: tune.with_resources(train, {"cpu": -1}), ValueError, "'cpu': -1"),
        (lambda: tune.with_resources(train, {"gpu": 1.5}), ValueError, "expected an integer"),
        (lambda: tune.with_resources(train, {"cpu": "2"}), TypeError, "'cpu': '2'"),  # type: ignore[dict-item]
        (lambda: tune.with_resources(train, 3), TypeError, "expected a dict"),  # type: ignore[arg-type]
        (lambda: PlacementGroupFactory([]), ValueError, "expected a list"),
        (lambda: PlacementGroupFactory([{"CPU": 1}], "LOOSE"), ValueError, "'LOOSE'"),
    ],
)
def test_what_makes_no_sense_is_rejected_at_once(
    make: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
