"""Modules and names of Ray Tune that do not exist here."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from lockstep import tune


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("lockstep.tune.suggest.optuna", "OptunaSearch", "lockstep.tune.search"),
        ("lockstep.tune.schedulers", "ResourceChangingScheduler", "num_workers"),
        ("lockstep.tune", "register_env", "RLlib"),
        ("lockstep.tune.utils.log", "set_verbosity", "verbose"),
    ],
)
def test_importing_a_missing_name_names_the_replacement(
    module: str, name: str, advice: str
) -> None:
    with pytest.raises(ImportError, match=f"does not exist: .*{advice}"):
        exec(f"from {module} import {name}")


def test_other_names_are_missing_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'lockstep\.tune\.nothing'"):
        importlib.import_module("lockstep.tune.nothing")
    assert not hasattr(tune, "register_env")


def test_no_import_hook_is_installed() -> None:
    code = "import sys; before = list(sys.meta_path); import lockstep.tune; "
    done = subprocess.run([sys.executable, "-c", code + "assert sys.meta_path == before"])
    assert done.returncode == 0
