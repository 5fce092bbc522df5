"""What does a report cost with every tracker on, and what do the trackers' own calls cost?"""

from __future__ import annotations

import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import common
from common import Against, Bench, Measurement, Reach

FILE = "tracking.py"
LIBRARIES = ("comet_ml", "mlflow", "tensorboardX", "wandb")
WORK_S = 0.01
"""How long a step computes nothing, between two reports."""
READY_S = 60.0
QUIET = {
    "COMET_DISABLE_AUTO_LOGGING": "1",
    "DO_NOT_TRACK": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}


# Programs.


def steps(config: dict[str, Any]) -> None:
    """Rounds of steps with a report each, once the trackers are there, then back to back."""
    from lockstep import train

    rank = train.get_context().get_world_rank()
    if config["trackers"]:
        _wait_for_trackers(config, train.get_context().get_trial_dir())
    for number in range(config["rounds"] + 1):
        blocked = []
        for i in range(config["count"]):
            time.sleep(WORK_S)
            start = time.perf_counter()
            train.report({"loss": 1.0 / (i + 1), "accuracy": 0.5, "epoch": i})
            blocked.append(time.perf_counter() - start)
        if rank == 0 and number:
            common.emit(config["out"], blocked=sorted(blocked)[len(blocked) // 2])
    for number in range(config["rounds"] + 1):
        start = time.perf_counter()
        for i in range(config["count"]):
            train.report({"loss": 1.0 / (i + 1), "accuracy": 0.5, "epoch": i})
        if rank == 0 and number:
            common.emit(config["out"], rate=config["count"] / (time.perf_counter() - start))


def _wait_for_trackers(config: dict[str, Any], run_directory: str) -> None:
    work = Path(config["work"])
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        mlflow = list(work.glob("mlruns/*/*/params"))
        wandb = list(work.glob("wandb/offline-run-*/*.wandb"))
        events = list(Path(run_directory).glob("events.out.tfevents*"))
        if mlflow and wandb and events and (work / "comet").exists():
            return
        time.sleep(0.1)
    raise TimeoutError("the trackers have not started")


def play_lockstep(config: dict[str, Any]) -> None:
    from lockstep.trackers import (
        CometLoggerCallback,
        MLflowLoggerCallback,
        TBXLoggerCallback,
        WandbLoggerCallback,
    )

    callbacks = []
    if config["trackers"]:
        work = config["work"]
        os.makedirs(f"{work}/comet", exist_ok=True)
        callbacks = [
            MLflowLoggerCallback(f"file:{work}/mlruns"),
            WandbLoggerCallback(mode="offline", dir=work),
            CometLoggerCallback(online=False, offline_directory=f"{work}/comet"),
            TBXLoggerCallback(),
        ]
    common.lockstep_fit(steps, config, callbacks=callbacks, verbose=0)


def play_by_hand(config: dict[str, Any]) -> None:
    """The libraries' own calls in the loop, in one process, with nothing around them."""
    import comet_ml
    import mlflow
    import tensorboardX
    import wandb

    work = config["work"]
    mlflow.set_tracking_uri(f"file:{work}/mlruns")
    mlflow.start_run()
    run = wandb.init(mode="offline", dir=work)
    experiment = comet_ml.OfflineExperiment(
        offline_directory=f"{work}/comet", log_env_details=False, display_summary_level=0
    )
    writer = tensorboardX.SummaryWriter(f"{work}/tensorboard")
    for number in range(config["rounds"] + 1):
        blocked = []
        for i in range(config["count"]):
            time.sleep(WORK_S)
            metrics = {"loss": 1.0 / (i + 1), "accuracy": 0.5, "epoch": i}
            start = time.perf_counter()
            mlflow.log_metrics(metrics, step=i)
            run.log(metrics)
            experiment.log_metrics(metrics, step=i)
            for name, value in metrics.items():
                writer.add_scalar(name, value, i)
            blocked.append(time.perf_counter() - start)
        if number:
            common.emit(config["out"], blocked=sorted(blocked)[len(blocked) // 2])
    writer.close()
    experiment.end()
    run.finish()
    mlflow.end_run()


# Measuring.


def measure(bench: Bench) -> list[Measurement]:
    """The time a step is blocked, with all trackers, with none, and by hand."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        bench.say(f"not installed: {', '.join(missing)}")
        return []
    rounds = bench.times(5, 1)
    tracked: list[dict[str, Any]] = []
    alone: list[dict[str, Any]] = []
    for _ in range(bench.times(3, 1)):
        bench.say("  without trackers, then with all of them")
        alone += _records(bench, "lockstep", trackers=False, rounds=rounds)
        tracked += _records(bench, "lockstep", trackers=True, rounds=rounds)

    def by_hand() -> list[float]:
        return _figures(_records(bench, "by_hand", rounds=rounds), "blocked")

    return [
        Measurement(
            "report() every 10 ms with MLflow, W&B, Comet and TensorBoard on",
            "s",
            _figures(tracked, "blocked"),
            against=[
                Against("no tracker", _figures(alone, "blocked"), Reach(0.5, "at most twice that")),
                bench.peer("the libraries' own calls", by_hand, Reach(1.0, "less than those")),
            ],
        ),
        Measurement(
            "report() back to back with all of them on",
            "/s",
            _figures(tracked, "rate"),
            against=[Against("no tracker", _figures(alone, "rate"))],
        ),
    ]


def _records(bench: Bench, role: str, **config: Any) -> list[dict[str, Any]]:
    return bench.run(FILE, role, count=200, env=QUIET, **config)[2]


def _figures(records: list[dict[str, Any]], key: str) -> list[float]:
    return [record[key] for record in records if key in record]


if __name__ == "__main__":
    common.play({"lockstep": play_lockstep, "by_hand": play_by_hand})
