"""Trials are forked with the libraries that the driver has loaded."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from lockstep import tune
from lockstep.train import RunConfig
from lockstep.tune.execution import launch


def trial(config: dict[str, Any]) -> None:
    loaded = [name for name in ("wave", "no_such_library") if name in sys.modules]
    tune.report({"loaded": ",".join(loaded)})


def test_a_trial_has_the_libraries_of_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    import wave

    assert wave
    assert "no_such_library" not in sys.modules
    monkeypatch.setattr(launch, "_LIBRARIES", ("wave", "no_such_library"))
    (result,) = tune.Tuner(trial, run_config=RunConfig(verbose=0)).fit()
    assert result.metrics["loaded"] == "wave"


def test_parts_of_a_library_and_what_an_optimizer_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "torch",
        "sklearn",
        "sklearn.linear_model",
        "sklearn._config",
        "sklearn.linear_model.x",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, sys)
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    monkeypatch.setattr(launch, "_LIBRARIES", ("pandas", "sklearn", "torch"))
    found = launch._libraries_in_use()
    assert found[:2] == ("sklearn", "torch")
    assert "sklearn.linear_model" in found
    assert not {"sklearn._config", "sklearn.linear_model.x"} & set(found)
    assert found[-1] == "torch._dynamo"
