"""Objects kept for a restore: each by itself, with an error that names the argument and the fix."""

from __future__ import annotations

import re
import threading

import pytest

from lockstep.config import RunConfig
from lockstep.train.record.kept_objects import KeptObjects, pickle_each, pickle_run_config

OWNER = "restore('/runs/a'): the run's"


def test_an_object_that_cannot_be_pickled_is_an_error_or_left_out() -> None:
    objects = {"lock": threading.Lock(), "size": 3}
    with pytest.raises(TypeError, match="lock"):
        pickle_each(objects, None)
    kept = pickle_each(objects, None, skip_unpicklable=True)
    assert list(kept) == ["size"]
    assert KeptObjects({}, OWNER, ()).load(kept["size"], "size") == 3


def test_a_run_config_is_kept_without_its_storage() -> None:
    pickled = pickle_run_config(RunConfig(name="a", storage_path="/runs", verbose=0), None)
    loaded = KeptObjects(pickled, OWNER, ()).load_run_config()
    assert (loaded.name, loaded.storage_path, list(loaded.callbacks)) == ("a", None, [])


@pytest.mark.parametrize(
    ("argument", "fix"),
    [("datasets", "give datasets=… to restore()."), ("metadata", "make what it needs importable.")],
)
def test_an_object_that_cannot_be_loaded_names_the_argument_and_the_fix(
    argument: str, fix: str
) -> None:
    kept = KeptObjects({}, OWNER, ("datasets",))
    with pytest.raises(ValueError, match=re.escape(f"{OWNER} {argument} cannot be")) as raised:
        kept.load(b"not a pickle", argument)
    assert str(raised.value).endswith(fix)
