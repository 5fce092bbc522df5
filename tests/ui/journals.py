"""Run directories written as a driver writes them, of any size, without running anything."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lockstep.journal import Journal
from lockstep.run_layout import JOURNAL_FILE, run_directory

STARTED = 1_750_000_000.0


def run_header(name: str = "made", **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "trial_id": "abcde_00000",
        "experiment_id": "e" * 32,
        "experiment_tag": "0",
        "experiment_name": name,
        "trainer": "TorchTrainer",
        "config": {"train_loop_config": {"lr": 0.1}},
        "checkpoint_config": {"num_to_keep": None},
        "time": STARTED,
        "directory": "/nowhere",
        **more,
    }


def report(index: int, metrics: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "index": index,
        "attempt": 1,
        "attempt_index": index,
        "iteration": index,
        "time": STARTED + index,
        "time_this_iter": 1.0,
        "time_since_start": float(index),
        "worker_time": int(STARTED),
        "worker_time_this_iter": 1.0,
        "checkpoint": None,
        "ranks": metrics,
        "busy": [1.0] * len(metrics),
        **more,
    }


def workers(count: int) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "pid": 4_194_305 + rank, "hostname": "node", "node_ip": "", "started": 1}
        for rank in range(count)
    ]


class MadeRun:
    """A run's directory with a journal that can grow."""

    def __init__(self, root: Path, name: str = "made", *, ranks: int = 1, **header: Any) -> None:
        self.path = root / name / run_directory("TorchTrainer", "abcde_00000", "0", STARTED)
        self.path.mkdir(parents=True)
        self.id = f"0:{name}/{self.path.name}"
        self.ranks = ranks
        self.rows = 0
        self.event("run", **run_header(name, **header))
        self.event(
            "attempt", attempt=1, workers=workers(ranks), warmup_time=0.5, iteration=0, time=STARTED
        )

    def event(self, event: str, **fields: Any) -> None:
        with (self.path / JOURNAL_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n")

    def report(self, metrics: dict[str, Any], **more: Any) -> None:
        self.rows += 1
        self.event("report", **report(self.rows, [metrics] * self.ranks, **more))

    def rows_of(self, values: list[float]) -> None:
        """Many rows at once."""
        lines = []
        for value in values:
            self.rows += 1
            row = {"event": "report", **report(self.rows, [{"loss": value}] * self.ranks)}
            lines.append(json.dumps(row, separators=(",", ":")))
        with (self.path / JOURNAL_FILE).open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def end(self, state: str = "finished", **more: Any) -> None:
        self.event("end", state=state, time=STARTED + self.rows + 1, **more)


def made_experiment(root: Path, trials: int, name: str = "search", reports: int = 3) -> Path:
    """An experiment's directory with its trials' runs."""
    place = root / name
    place.mkdir(parents=True)
    lines: list[dict[str, Any]] = [
        {
            "event": "experiment",
            "version": 1,
            "name": name,
            "experiment_id": "f" * 32,
            "metric": "loss",
            "mode": "min",
            "num_trials": trials,
            "time": STARTED,
        }
    ]
    for number in range(trials):
        trial_id = f"abcde_{number:05d}"
        directory = f"objective_{trial_id}_{number}_2025-06-15_12-00-00"
        config = {"lr": 10 ** -(1 + number % 5), "width": 16 * (1 + number % 7), "seed": 1}
        about = {"trial_id": trial_id, "index": number, "time": STARTED + number}
        lines.append(
            {
                "event": "trial",
                **about,
                "config": config,
                "experiment_tag": str(number),
                "directory": directory,
            }
        )
        lines.append({"event": "status", **about, "status": "RUNNING"})
        by = {"by": "scheduler"} if number % 3 == 0 else {}
        lines.append({"event": "status", **about, "status": "TERMINATED", **by})
        _trial_run(place / directory, name, trial_id, config, reports)
    lines.append({"event": "end", "state": "finished", "time": STARTED + trials})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (place / "experiment.jsonl").write_text(text)
    return place


def _trial_run(path: Path, name: str, trial_id: str, config: dict[str, Any], reports: int) -> None:
    path.mkdir()
    header = run_header(name, trial_id=trial_id, config=config, trial={"index": 0})
    lines = [
        {"event": "run", **header},
        {"event": "attempt", "attempt": 1, "workers": workers(1), "iteration": 0, "time": STARTED},
    ]
    for index in range(1, reports + 1):
        loss = config["lr"] * 10 + config["width"] / 100 + 1 / index
        lines.append({"event": "report", **report(index, [{"loss": loss}])})
    lines.append({"event": "end", "state": "finished", "time": STARTED + reports})
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    (path / JOURNAL_FILE).write_text(text)


def held(run: MadeRun) -> Journal:
    """The journal with its lock, as a driver has it: the run is running."""
    return Journal(str(run.path / JOURNAL_FILE))


def now() -> float:
    return time.time()
