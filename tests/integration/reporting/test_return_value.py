"""``Result.return_value``: what rank 0's function returned, and what is kept of it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep import train
from lockstep.errors import LockstepError, StorageError
from lockstep.run_layout import RETURN_FILE
from lockstep.train import Result
from tests.integration.runs import failure, fit, run_script, trainer


class Model:
    def __init__(self, weight: float) -> None:
        self.weight = weight


def plain() -> dict[str, Any]:
    rank = train.get_context().get_world_rank()
    return {"rank": rank, "pair": (1, 2.5), "array": np.arange(3)}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_value_of_rank_zero(workers: int) -> None:
    result = fit(plain, workers=workers)
    for each in (result, Result.from_path(result.path), pickle.loads(pickle.dumps(result))):
        value = each.return_value
        assert (value["rank"], value["pair"]) == (0, (1, 2.5))
        assert value["array"].tolist() == [0, 1, 2]


def test_without_a_value_there_is_no_file() -> None:
    result = fit(lambda: None, workers=1)
    assert result.return_value is None
    assert not (result.log_dir / RETURN_FILE).exists()


def test_an_object_is_in_the_result_of_fit_only(tmp_path: Path) -> None:
    result = fit(lambda: Model(0.5), workers=1)
    assert result.return_value.weight == 0.5
    assert not list(result.log_dir.rglob("return*"))
    done = run_script(
        tmp_path,
        f"""
        from lockstep.train import Result
        try:
            Result.from_path({result.path!r}).return_value
        except RuntimeError as error:
            print(error)
        """,
    )
    assert "Model, which is not plain data: only the result of fit()" in done.stdout


def test_a_value_that_cannot_be_sent_does_not_fail_the_run() -> None:
    result = fit(threading.Lock, workers=1)
    assert result.state == "finished"
    with pytest.raises(LockstepError, match=r"returned a _thread\.lock, which cannot be pickled"):
        result.return_value  # noqa: B018


def test_a_run_that_does_not_finish_has_none() -> None:
    def function() -> int:
        if train.get_context().get_world_rank() == 1:
            raise ValueError("no")
        return 5

    error = failure(function)
    assert error.result is not None
    assert error.result.return_value is None


def test_the_value_is_the_last_attempts() -> None:
    def function() -> int:
        attempt = train.get_context().get_attempt()
        train.report({})
        if attempt == 1 and train.get_context().get_world_rank() == 1:
            raise ValueError("no")
        return attempt

    result = trainer(function, max_failures=1).fit()
    assert result.return_value == 2


def test_a_missing_or_damaged_file_is_named() -> None:
    result = fit(plain, workers=1)
    file = result.log_dir / RETURN_FILE
    file.write_bytes(b"nonsense")
    with pytest.raises(StorageError, match=RETURN_FILE):
        Result.from_path(result.path).return_value  # noqa: B018
    file.unlink()
    with pytest.raises(StorageError, match=f"{RETURN_FILE} is gone"):
        Result.from_path(result.path).return_value  # noqa: B018
