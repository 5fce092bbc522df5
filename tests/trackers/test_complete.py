"""``progress.csv`` and ``result.json`` have every row of the journal after a restore."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyarrow import fs

from lockstep import train, tune
from tests.integration.runs import failure, run_script

FILES = ("progress.csv", "result.json")


def train_func(config: dict[str, Any]) -> None:
    for step in range(config["until"]):
        train.report({"step": step, "text": 'two\n"lines"', **({"late": 1} if step > 2 else {})})
    if config["fail"]:
        raise ValueError("no")


def cut(directory: Path, rows: int) -> dict[str, list[str]]:
    """Leave ``rows`` rows and half of the next one, as a killed driver may; returns all lines."""
    before = {}
    for name in FILES:
        path = directory / name
        text = path.read_bytes().decode()
        parts = text.split("\r\n" if name.endswith("csv") else "\n")
        before[name] = parts
        kept = rows + (1 if name.endswith("csv") else 0)
        end = "\r\n" if name.endswith("csv") else "\n"
        path.write_bytes("".join(part + end for part in parts[:kept]).encode() + b'7,"ha')
    return before


def steps(directory: Path) -> tuple[list[int], list[int]]:
    table = list(pd.read_csv(directory / "progress.csv")["step"])
    lines = (directory / "result.json").read_text().splitlines()
    return table, [json.loads(line)["step"] for line in lines]


@pytest.mark.parametrize("rows", [0, 2, 5])
def test_a_restored_run_completes_its_files(rows: int, tmp_path: Path) -> None:
    error = failure(
        train_func, workers=1, config={"until": 5, "fail": True}, storage_path=str(tmp_path)
    )
    assert error.result is not None
    run = Path(error.result.path)
    before = cut(run, rows)
    again = train.DataParallelTrainer.restore(
        run, train_loop_config={"until": 2, "fail": False}
    ).fit()
    assert steps(run) == ([0, 1, 2, 3, 4, 0, 1],) * 2
    assert list(again.metrics_dataframe["step"]) == [0, 1, 2, 3, 4, 0, 1]
    if rows == 2:  # the same bytes as the driver would have written; the config is the new one
        text = (run / "progress.csv").read_bytes().decode().split("\r\n")
        assert text[:6] == before["progress.csv"][:6]


def test_a_restored_run_on_remote_storage(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "storage_path": "runs",
        "storage_filesystem": fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()),
    }
    error = failure(train_func, workers=1, config={"until": 5, "fail": True}, **options)
    assert error.result is not None
    run = tmp_path / error.result.path
    cut(run, 3)
    train.DataParallelTrainer.restore(
        error.result.path,
        options["storage_filesystem"],
        train_loop_config={"until": 1, "fail": False},
    ).fit()
    assert steps(run) == ([0, 1, 2, 3, 4, 0],) * 2


def test_a_restored_experiment_completes_the_files_of_its_trials(tmp_path: Path) -> None:
    space = {"until": tune.grid_search([3, 4]), "fail": False}
    run_config = train.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    grid = tune.Tuner(train_func, param_space=space, run_config=run_config).fit()
    for result in grid:
        cut(Path(result.path), 1)
    again = tune.Tuner.restore(tmp_path / "e").fit()
    assert [steps(Path(result.path)) for result in again] == [
        ([0, 1, 2],) * 2,
        ([0, 1, 2, 3],) * 2,
    ]


def test_a_killed_driver(tmp_path: Path) -> None:
    """With real timing: the rows that the driver had not written are there after a restore."""
    done = run_script(
        tmp_path,
        """
        import os
        from lockstep import train

        def function():
            for step in range(200):
                train.report({"step": step})
            os.kill(os.getppid(), 0)
            os.kill(int(os.environ["DRIVER"]), 9)
            train.report({"step": 200})

        os.environ["DRIVER"] = str(os.getpid())
        train.DataParallelTrainer(
            function,
            scaling_config=train.ScalingConfig(num_workers=1),
            run_config=train.RunConfig(name="k", storage_path="runs", verbose=0),
        ).fit()
        """,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    result = train.Result.from_path(tmp_path / "runs" / "k")
    assert len(result.metrics_dataframe) >= 200
    train.DataParallelTrainer.restore(
        result.path, train_loop_per_worker=lambda: train.report({"step": -1})
    ).fit()
    table, lines = steps(Path(result.path))
    assert table == lines == [*result.metrics_dataframe["step"], -1]
