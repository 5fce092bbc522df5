"""The page that says what of Ray's surface there is, and the numbers behind it."""

from __future__ import annotations

import pytest

from lockstep.porting.names import Missing
from scripts import compatibility
from scripts.compatibility import Measured, measure, page, takes, versions


def test_the_page_is_what_the_script_writes() -> None:
    assert compatibility.PAGE.read_text(encoding="utf-8") == page(), "run make compat"


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    return {version: measure(version) for version in versions()}


def test_every_version_is_there(measured: dict[str, Measured]) -> None:
    assert list(measured) == ["2.0.0", "2.7.0", "2.44.0", "2.60.0"]
    for found in measured.values():
        assert sum(found.names.values()) > 300
        assert sum(found.arguments.values()) > 700


def test_nine_of_ten_arguments_are_accepted(measured: dict[str, Measured]) -> None:
    for version, found in measured.items():
        for part in ("Train", "AIR", "Tune", "Data", "Core"):
            share = found.arguments_there[part] / found.arguments[part]
            assert share > 0.9, (version, part)


def test_what_is_removed_is_noticed() -> None:
    def function(there: int) -> None: ...

    assert takes(function, "there")
    assert not takes(function, "gone")
    with pytest.raises(Missing):
        compatibility.resolve("ray.train.TorchTrainer.no_such_method")
    assert compatibility.resolve("ray.train.torch.TorchTrainer.fit")
