"""Every tracker follows a run from start to end, through retries and restores."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep import train
from lockstep.errors import TrainingInterrupted, TrainingPreempted
from lockstep.train import Checkpoint, DataParallelTrainer, TrainingFailedError
from tests.integration.runs import trainer
from tests.trackers.installed import need
from tests.trackers.views import Tracker, View, all_trackers

need("comet_ml", "mlflow", "tensorboardX", "wandb")

# The first test that needs it waits until the MLflow server has set up its database.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def trackers(
    tmp_path: Path, mlflow_server: str, libraries: None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Tracker]:
    monkeypatch.chdir(tmp_path)
    return all_trackers(tmp_path, mlflow_server)


def count(config: dict[str, Any]) -> None:
    """Reports up to ``total``, saving the even ones; ``at`` a step, ``trouble`` happens."""
    context = train.get_context()
    known = train.load_checkpoint()
    for step in range(known["step"] + 1 if known else 1, config["total"] + 1):
        saved = Checkpoint.from_dict({"step": step}) if step % 2 == 0 else None
        train.log({"detail": 1 / step}, step=100 * step)
        train.report({"loss": 1 / step, "word": "no number"}, checkpoint=saved)
        if step == config.get("at") and context.get_attempt() == 1:
            config["trouble"](config)


def fail(config: dict[str, Any]) -> None:
    raise ValueError("this attempt fails")


def send(config: dict[str, Any]) -> None:
    """Send a signal to the driver, then report until it has arrived."""
    if train.get_context().get_world_rank() == 0:
        os.kill(config["driver"], config["signal"])
    while True:
        train.report({"loss": 0.0})


def begin(trackers: dict[str, Tracker], save: bool = False, **options: Any) -> DataParallelTrainer:
    callbacks = [tracker.make(save) for tracker in trackers.values()]
    max_failures = options.pop("max_failures", 0)
    return trainer(
        count,
        config={"total": 5, "lr": 0.25, "name": "a b", **options},
        callbacks=callbacks,
        max_failures=max_failures,
        name="lifecycle",
    )


def views(trackers: dict[str, Tracker], path: str) -> Iterator[tuple[str, View]]:
    for name, tracker in trackers.items():
        yield name, tracker.read(path)


def losses(*steps: int) -> list[tuple[int, Any]]:
    return [(step, pytest.approx(1 / step)) for step in steps]


def steps(view: View) -> list[int]:
    return sorted({step for step, _ in view.losses})


def test_a_run_that_finishes(trackers: dict[str, Tracker]) -> None:
    result = begin(trackers).fit()
    for name, view in views(trackers, result.path):
        assert view.losses == losses(1, 2, 3, 4, 5), name
        assert view.logged == [(100 * step, value) for step, value in losses(1, 2, 3, 4, 5)], name
        assert view.status == "finished", name
        assert view.parameters["train_loop_config/lr"] == "0.25", name
        assert view.parameters["train_loop_config/name"] == "a b", name
        assert view.checkpoints == [], name
        assert len(view.ids) == 1, name


def test_checkpoints_are_uploaded_on_request(trackers: dict[str, Tracker]) -> None:
    result = begin(trackers, save=True).fit()
    files = [
        "checkpoint_000000/.lockstep_checkpoint.json",
        "checkpoint_000000/dict_checkpoint.bin",
        "checkpoint_000001/.lockstep_checkpoint.json",
        "checkpoint_000001/dict_checkpoint.bin",
    ]
    trial_id = result.metrics["trial_id"]
    uploaded = {
        "mlflow server": ["checkpoint_000000", "checkpoint_000001"],
        "mlflow files": ["checkpoint_000000", "checkpoint_000001"],
        "wandb": [f"checkpoint_{trial_id}"] * 2,
        "comet": files,
        "tensorboard": [],
    }
    for name, view in views(trackers, result.path):
        assert view.checkpoints == uploaded[name], name


def test_a_retry_resumes_the_same_run(trackers: dict[str, Tracker]) -> None:
    result = begin(trackers, at=3, trouble=fail, max_failures=1).fit()
    for name, view in views(trackers, result.path):
        assert len(view.ids) == 1, name
        # Iteration 3 was reported twice; TensorBoard shows the later one, W&B and Comet both.
        assert steps(view) == [1, 2, 3, 4, 5], name
        assert len(view.losses) == {"tensorboard": 5, "wandb": 6, "comet": 6}.get(
            name, len(view.losses)
        )
        assert view.status == "finished", name


def test_a_failed_run_is_marked_and_a_restore_resumes_it(trackers: dict[str, Tracker]) -> None:
    with pytest.raises(TrainingFailedError) as raised:
        begin(trackers, at=3, trouble=fail).fit()
    assert raised.value.result is not None
    path = raised.value.result.path
    before = dict(views(trackers, path))
    for name, view in before.items():
        assert view.status == "failed", name
        assert view.losses == losses(1, 2, 3), name
    DataParallelTrainer.restore(path).fit()
    for name, view in views(trackers, path):
        # TensorBoard reads the first end it finds.
        assert view.status == ("failed" if name == "tensorboard" else "finished"), name
        assert set(view.ids) == set(before[name].ids), name
        assert steps(view) == [1, 2, 3, 4, 5], name


@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, TrainingInterrupted), (signal.SIGTERM, TrainingPreempted)],
)
def test_a_run_that_is_stopped_is_neither_finished_nor_failed(
    trackers: dict[str, Tracker], number: int, error: type[BaseException]
) -> None:
    with pytest.raises(error) as raised:
        begin(trackers, at=2, trouble=send, signal=number, driver=os.getpid()).fit()
    for name, view in views(trackers, raised.value.result.path):  # type: ignore[attr-defined]
        assert view.status == "stopped", name
        assert view.losses[:2] == losses(1, 2), name
