"""A script that uses Ray's own Core under ``lockstep run``: on the engine ``ray``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.repository import SRC

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]


def test_tasks_actors_and_a_trainer_in_one_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        textwrap.dedent(
            """
            import ray
            from ray.train import RunConfig, ScalingConfig
            from ray.train.data_parallel_trainer import DataParallelTrainer

            ray.init("local", num_cpus=3)
            early = ray.put(5)

            @ray.remote
            def double(x):
                return 2 * x

            @ray.remote
            class Counter:
                def __init__(self):
                    self.n = 0

                def add(self, k):
                    self.n += k
                    return self.n

            counter = Counter.remote()
            print(ray.get(double.remote(early)), ray.get([double.remote(1), early]))
            print(ray.get(counter.add.remote(4)), ray.cluster_resources()["CPU"])
            ready, others = ray.wait([double.remote(1), double.remote(2)], num_returns=2)
            print(len(ready), others, ray.get(ray.put(7)))

            from ray.util.queue import Queue
            print(Queue.__module__)

            def function():
                from ray import train
                train.report({"workers": train.get_context().get_world_size()})

            ray.kill(counter)
            trainer = DataParallelTrainer(
                function,
                scaling_config=ScalingConfig(num_workers=2),
                run_config=RunConfig(verbose=0),
            )
            print(trainer.fit().metrics["workers"])
            ray.shutdown()
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "lockstep", "run", "script.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(SRC),
            "LOCKSTEP_STORAGE": str(tmp_path / "results"),
            "LOCKSTEP_WARM": "0",
        },
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "raylet" not in line]
    assert lines == ["10 [2, 5]", "4 3.0", "2 [] 7", "ray.util.queue", "2"]
