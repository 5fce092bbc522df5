"""A restore has to search what the experiment searched: the differences are named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lockstep import tune
from lockstep.tune.experiment.subject import changed_constants, check_same_space, describe_space


class Thing:
    """A value that JSON cannot hold."""


SPACE: dict[str, Any] = {
    "lr": tune.loguniform(1e-4, 0.1),
    "model": {"layers": tune.choice([2, 4]), "act": tune.grid_search([abs, Thing]), "bias": True},
    "n": tune.qrandint(2, 8, 2),
    "f": tune.sample_from(lambda config: 1),
    "m": tune.lograndint(1, 100),
    "noise": tune.randn(),
    "data": "/data",
    "thing": Thing(),
    "pair": (tune.uniform(0, 1), 3),
    "empty": {},
}


def test_a_space_as_text() -> None:
    found = describe_space(SPACE)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "searched": {
            "lr": "loguniform(0.0001, 0.1)",
            "model/layers": "choice([2, 4])",
            "model/act": "grid_search([abs, Thing])",
            "n": "qrandint(2, 8, 2)",
            "f": "sample_from(…)",
            "m": "lograndint(1, 100)",
            "noise": "randn(0, 1)",
            "pair": "[uniform(0, 1), 3]",
        },
        "constants": {"model/bias": "True", "data": "'/data'", "thing": "Thing", "empty": "{}"},
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": tune.loguniform(1e-4, 1)}, "'lr' was loguniform(0.0001, 0.1) and is loguniform("),
        ({"lr": 0.1}, "'lr' was loguniform(0.0001, 0.1) and is 0.1"),
        ({"data": tune.choice(["a"])}, "'data' was '/data' and is choice(['a'])"),
        ({"wd": 0.5}, "'wd' is new"),
        ({"model": {"layers": tune.choice([2, 4]), "bias": True}}, "'model/act' was grid_search("),
        ({"model": 3}, "'model/layers' was choice([2, 4]) and is missing"),
    ],
)
def test_a_difference_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^restore: param_space is not the one") as raised:
        check_same_space("restore", {"space": describe_space(SPACE)}, {**SPACE, **changes})
    assert message in str(raised.value)


def test_constants_may_change() -> None:
    past, now = {"space": describe_space(SPACE)}, {**SPACE, "data": "/new", "thing": Thing()}
    check_same_space("restore", past, now)
    (told,) = changed_constants(past, now)
    assert told.startswith("param_space['data'] was '/data' and is '/new': the trials that exist")


def test_a_space_is_described_without_secrets() -> None:
    found = describe_space({"data": tune.choice(["s3://key:secret@bucket/a", "s3://bucket/b"])})
    assert found["searched"] == {"data": "choice(['s3://bucket/a', 's3://bucket/b'])"}
