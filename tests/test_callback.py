"""The callback classes and the frozen values they are given."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from lockstep.callback import Callback, LoggerCallback, RunContext, TrialSnapshot, UserCallback
from lockstep.checkpoint import Checkpoint
from lockstep.config import RunConfig, ScalingConfig

CHECKPOINT = Checkpoint("/results/run/checkpoint_000000")


def make_trial(**changes: Any) -> TrialSnapshot:
    values: dict[str, Any] = {
        "trial_id": "4913f_00000",
        "trainable_name": "TorchTrainer",
        "path": "/results/run",
        **changes,
    }
    return TrialSnapshot(**values)


class Recorder(LoggerCallback):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def log_trial_start(self, trial: TrialSnapshot) -> None:
        self.calls.append(("start", trial))

    def log_trial_restore(self, trial: TrialSnapshot) -> None:
        self.calls.append(("restore", trial))

    def log_trial_result(
        self, iteration: int, trial: TrialSnapshot, result: dict[str, Any]
    ) -> None:
        self.calls.append(("result", iteration, trial, result))

    def log_trial_save(self, trial: TrialSnapshot) -> None:
        self.calls.append(("save", trial))

    def log_trial_end(self, trial: TrialSnapshot, failed: bool = False) -> None:
        self.calls.append(("end", trial, failed))


def test_logger_hooks_follow_the_trial_hooks() -> None:
    trial = make_trial()
    common: dict[str, Any] = {"iteration": 3, "trials": [trial], "trial": trial, "more": 1}
    recorder = Recorder()
    recorder.setup(stop=None, num_samples=1, total_num_samples=1)
    recorder.on_trial_start(**common)
    recorder.on_trial_restore(**common)
    recorder.on_trial_result(**common, result={"loss": 1.0})
    recorder.on_checkpoint(**common, checkpoint=CHECKPOINT)
    recorder.on_trial_complete(**common)
    recorder.on_trial_error(**common)
    recorder.on_experiment_end(trials=[trial])
    assert recorder.calls == [
        ("start", trial),
        ("restore", trial),
        ("result", 3, trial, {"loss": 1.0}),
        ("save", trial),
        ("end", trial, False),
        ("end", trial, True),
    ]


@pytest.mark.parametrize("callback", [Callback(), LoggerCallback()])
def test_every_hook_may_be_left_out(callback: Callback) -> None:
    trial = make_trial()
    common: dict[str, Any] = {"iteration": 1, "trials": [trial], "trial": trial}
    callback.setup()
    callback.on_trial_start(**common)
    callback.on_trial_restore(**common)
    callback.on_trial_result(**common, result={})
    callback.on_trial_save(**common)
    callback.on_checkpoint(**common, checkpoint=CHECKPOINT)
    callback.on_trial_complete(**common)
    callback.on_trial_error(**common)
    callback.on_experiment_end([trial])
    callback.set_state({})
    assert callback.get_state() is None


def test_user_callback_hooks_may_be_left_out() -> None:
    context = RunContext(RunConfig(), "4913f_00000", "/results/run", "x", None, ScalingConfig())
    callback = UserCallback()
    callback.after_report(context, [{"loss": 1}], None)
    callback.after_exception(context, {0: ValueError("x")})


def test_a_trial_names_itself_and_its_directory() -> None:
    trial = make_trial(status="RUNNING")
    assert str(trial) == "TorchTrainer_4913f_00000"
    assert "RUNNING" in repr(trial)
    assert trial.path == trial.local_path == trial.logdir == "/results/run"


def test_a_trial_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_trial().status = "ERROR"  # type: ignore[misc]


def test_snapshots_of_one_trial_are_one_key() -> None:
    early, late = make_trial(), make_trial(status="TERMINATED", last_result={"loss": 1})
    assert {early: "run"}[late] == "run"
    assert early != make_trial(trial_id="4913f_00001")
    assert early != "TorchTrainer_4913f_00000"


def test_a_trial_survives_pickling() -> None:
    trial = make_trial(config={"lr": 0.1}, last_result={"loss": 1.0})
    copy = pickle.loads(pickle.dumps(trial))
    assert copy == trial
    assert (copy.config, copy.last_result) == ({"lr": 0.1}, {"loss": 1.0})


def test_a_callback_shows_only_what_users_implement() -> None:
    hooks = {name for name in dir(Callback) if not name.startswith("_")}
    assert hooks == {
        "get_state",
        "on_checkpoint",
        "on_experiment_end",
        "on_step_begin",
        "on_step_end",
        "on_trial_complete",
        "on_trial_error",
        "on_trial_recover",
        "on_trial_restore",
        "on_trial_result",
        "on_trial_save",
        "on_trial_start",
        "set_state",
        "setup",
    }
    logger_hooks = {name for name in dir(LoggerCallback) if not name.startswith("_")}
    assert {name for name in logger_hooks - hooks if not name.startswith("log_trial_")} == set()
