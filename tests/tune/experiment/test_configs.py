"""Configs go into the journal as JSON and come back as they were."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from lockstep import tune
from lockstep.train import ScalingConfig
from lockstep.tune.experiment.configs import decode_config, encode_config


class Model:
    """Something JSON cannot hold."""


SMALL, LARGE = Model(), Model()


@pytest.mark.parametrize(
    ("config", "space"),
    [
        ({"a": 1, "b": [1.5, None, True], "c": {"d": "x"}}, {}),
        ({"t": (1, (2, 3)), 4: "key", "$odd": 1}, {}),
        ({"f": math.sqrt}, {"f": tune.choice([math.floor, math.sqrt])}),
        ({"m": LARGE}, {"m": tune.grid_search([SMALL, LARGE])}),
        ({"m": SMALL, "n": {"m": LARGE}}, {"m": SMALL, "n": {"m": LARGE}}),
        (
            {"n": {"m": LARGE, "k": 2}},
            {"n": tune.grid_search([{"m": SMALL}, {"m": LARGE, "k": 2}])},
        ),
        ({"s": ScalingConfig(2)}, {"s": tune.grid_search([ScalingConfig(1), ScalingConfig(2)])}),
        ({"l": [SMALL, 2]}, {"l": [SMALL, tune.randint(1, 4)]}),
    ],
)
def test_there_and_back(config: Any, space: Any) -> None:
    text = json.dumps(encode_config(config, space))
    assert decode_config(json.loads(text), space) == config


def test_numbers_of_numpy_are_numbers() -> None:
    import numpy as np

    encoded = json.loads(json.dumps(encode_config({"a": np.float32(0.5), "b": np.arange(2)}, {})))
    assert decode_config(encoded, {}) == {"a": 0.5, "b": [0, 1]}


def test_what_is_lost_is_named() -> None:
    encoded = encode_config({"a": {"b": Model()}}, {"a": tune.sample_from(lambda spec: Model())})
    with pytest.raises(ValueError, match="'a/b' cannot be restored"):
        decode_config(encoded, {})
    encoded = encode_config({"m": LARGE}, {"m": tune.choice([SMALL, LARGE])})
    with pytest.raises(ValueError, match="not in param_space any more"):
        decode_config(encoded, {"m": tune.choice([SMALL])})
