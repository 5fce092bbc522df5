"""A Ray cluster whose head is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.driving import lives, wait_until

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]

# A cluster of its own: the head's end is the cluster's. Ray ends the driver after 20 s, not 60.
SCRIPT = """
import os, signal, sys, time
import lockstep
from ray.cluster_utils import Cluster
from lockstep.train import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, UserCallback

node = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args=node)
lockstep.init(engine="ray", address=cluster.address)

def function():
    from lockstep import train
    for step in range(10_000):
        train.report({"step": step, "pid": os.getpid()}, checkpoint=Checkpoint.from_dict({"a": 1}))
        time.sleep(0.1)

class Kill(UserCallback):
    def after_report(self, run_context, metrics, checkpoint):
        if metrics[0]["step"] == 2:
            print("worker", metrics[0]["pid"], flush=True)
            head = cluster.head_node.all_processes["gcs_server"][0].process
            os.kill(head.pid, signal.SIGKILL)

DataParallelTrainer(
    function, run_config=RunConfig(storage_path=sys.argv[1], name="run", callbacks=[Kill()])
).fit()
"""


def test_a_lost_head_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    variables = {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "20"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            output, _ = driver.communicate(timeout=120)
        finally:
            driver.kill()
    assert driver.returncode != 0
    assert "does not answer. The workers continue, but Ray ends this process" in output
    worker = next(
        int(line.split()[1]) for line in output.splitlines() if line.startswith("worker ")
    )
    wait_until(lambda: not lives(worker))
    (run,) = tmp_path.glob("run/*/journal.jsonl")
    assert '"checkpoint"' in run.read_text()  # what was committed can be restored
