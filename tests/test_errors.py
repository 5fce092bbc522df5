"""Every exception survives pickling, with what it carries."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lockstep import errors, train
from lockstep.errors import TrainingInterrupted, TrainingPreempted, WorkerDiedError
from tests.integration.runs import failure, fit


@pytest.mark.parametrize("name", errors.__all__)
def test_type_and_message(name: str) -> None:
    kind = getattr(errors, name)
    again = pickle.loads(pickle.dumps(kind("what happened")))
    assert type(again) is kind
    assert str(again) == "what happened"


def test_an_exit_code() -> None:
    again = pickle.loads(pickle.dumps(WorkerDiedError("rank 0 was killed by signal 9", -9)))
    assert again.exitcode == -9


@pytest.mark.parametrize("kind", [TrainingInterrupted, TrainingPreempted])
def test_the_result_of_what_was_stopped(
    kind: type[TrainingInterrupted | TrainingPreempted], tmp_path: Path
) -> None:
    result = fit(lambda: train.report({"a": 1}), workers=1, storage_path=tmp_path)
    again = pickle.loads(pickle.dumps(kind("stopped", result)))
    assert again.result.path == result.path
    assert again.result.metrics == result.metrics


def test_a_failed_run_with_an_exception_that_pickle_cannot_do(tmp_path: Path) -> None:
    class LocalError(Exception):
        pass

    def train_func() -> None:
        raise LocalError("here")

    error = failure(train_func, workers=1, storage_path=tmp_path)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert type(again.__cause__) is LocalError
    assert again.worker_failures == {0: again.__cause__}
    assert again.result is not None
    assert again.result.path.startswith(str(tmp_path))
