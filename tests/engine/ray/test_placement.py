"""Where workers are placed on a Ray cluster, and what is said when they cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep import train, tune
from lockstep.config import RunConfig, ScalingConfig
from lockstep.engine import Engine, GroupSpec
from lockstep.errors import InsufficientResourcesError, TrainingFailedError
from lockstep.train import DataParallelTrainer
from tests.engine.driving import driven
from tests.engine.ray.conftest import ENTRIES, ExtraNode

pytestmark = [pytest.mark.environment("ray"), pytest.mark.timeout(180)]


def where(config: dict[str, Any]) -> None:
    context = train.get_context()
    train.report({"node": context.get_node_rank(), "local": context.get_local_rank()})


def places(tmp_path: Path, workers: int, **scaling: Any) -> list[tuple[int, int]]:
    """Rank → its node's number, and its own there."""
    seen: list[list[dict[str, Any]]] = []

    class Look(train.UserCallback):
        def after_report(self, run_context: Any, metrics: Any, checkpoint: Any) -> None:
            seen.append(metrics)

    DataParallelTrainer(
        where,
        train_loop_config={},
        scaling_config=ScalingConfig(num_workers=workers, **scaling),
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=[Look()]),
    ).fit()
    return [(one["node"], one["local"]) for one in seen[0]]


@pytest.mark.parametrize(
    ("strategy", "found"),
    [
        ("STRICT_PACK", [(0, 0), (0, 1)]),
        ("STRICT_SPREAD", [(0, 0), (1, 0)]),
    ],
)
def test_placement_strategies(tmp_path: Path, strategy: str, found: list[tuple[int, int]]) -> None:
    assert places(tmp_path, 2, placement_strategy=strategy) == found


def test_what_never_fits_says_what_the_cluster_has(engine: Engine) -> None:
    for asked, why in (
        ({"placement_strategy": "STRICT_SPREAD"}, "placement_strategy='STRICT_SPREAD'"),
        ({"resources": {"accelerator_type:H100": 0.001}}, "0 accelerator_type:H100"),
        ({"label_selectors": ({"zone": "a"},)}, "label_selector={'zone': 'a'}"),
    ):
        with pytest.raises(InsufficientResourcesError) as raised:
            engine.check(GroupSpec(3, "", b"", **asked))
        assert why in str(raised.value)
        assert "2 node(s)" in str(raised.value)


def test_a_group_waits_for_a_node_that_comes(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, add_node: Callable[[], ExtraNode]
) -> None:
    monkeypatch.setenv("LOCKSTEP_CLUSTER_WAIT_S", "600")
    spec: dict[str, Any] = {"preload": (ENTRIES,), "label_selectors": ({"extra": "yes"},)}
    assert engine.check(GroupSpec(1, "", b"", **spec)) == []
    with driven(engine, f"{ENTRIES}:who", 1, **spec) as run:
        run.until(lambda: bool(run.notices))
        assert "need nodes that the Ray cluster does not have now" in run.notices[0]
        assert "label_selector={'extra': 'yes'}" in run.notices[0]
        add_node()
        assert run.until_ended() == [0]


def test_groups_that_start_at_once_check_their_routes(engine: Any) -> None:
    engine._routes.clear()
    codes: list[list[int | None]] = []

    def start() -> None:
        spread: dict[str, Any] = {"preload": (ENTRIES,), "placement_strategy": "STRICT_SPREAD"}
        with driven(engine, f"{ENTRIES}:who", 2, **spread) as run:
            codes.append(run.until_ended())

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [[0, 0], [0, 0]]
    assert engine._routes


def test_storage_that_is_not_shared_names_the_node(tmp_path: Path) -> None:
    """A path that means something else in every process stands for a disk that is not shared."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        trainer = DataParallelTrainer(
            where,
            train_loop_config={},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=f"/proc/self/fd/{folder}/runs", verbose=0),
        )
        with pytest.raises(TrainingFailedError) as raised:
            trainer.fit()
    finally:
        os.close(folder)
    assert "does not see the run's directory" in str(raised.value)
    assert "on node " in str(raised.value)


def test_trials_share_the_cluster(tmp_path: Path) -> None:
    def node(config: dict[str, Any]) -> dict[str, Any]:
        return {"x": config["x"], "node": train.get_context().get_node_rank()}

    results = tune.Tuner(
        node,
        param_space={"x": tune.grid_search(list(range(8)))},
        run_config=RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert sorted(result.metrics["x"] for result in results) == list(range(8))


RUNTIME_ENV = """
import sys, lockstep
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig
sent = {"working_dir": ".", "env_vars": {"HELLO": "you"}}
lockstep.init(engine="ray", address=sys.argv[1], runtime_env=sent)
def function():
    import os
    import carried
    from lockstep import train
    train.report({"text": carried.TEXT + os.environ["HELLO"]})
result = DataParallelTrainer(
    function, run_config=RunConfig(storage_path=sys.argv[2], verbose=0)
).fit()
print(result.metrics["text"], flush=True)
"""


def test_a_working_directory_travels(cluster: str, tmp_path: Path) -> None:
    here = tmp_path / "script"
    here.mkdir()
    (here / "carried.py").write_text("TEXT = 'hello '\n")
    (here / "main.py").write_text(RUNTIME_ENV)
    done = subprocess.run(
        [sys.executable, "main.py", cluster, str(tmp_path / "runs")],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=120,
    )
    # Ray may print of a node that another test has killed.
    assert done.stdout.split()[-2:] == ["hello", "you"], done.stderr


JOB = """
import os, sys
from lockstep import train
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig

def function():
    train.report({"value": int(os.environ["VALUE_OF_THE_JOB"])})

result = DataParallelTrainer(
    function,
    scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
    run_config=RunConfig(storage_path=sys.argv[1], verbose=0),
).fit()
print("value", result.metrics["value"])
"""


def test_from_inside_a_job(cluster: str, tmp_path: Path) -> None:
    """``ray job submit`` starts a script with these variables, on a node of the cluster."""
    job = {"runtime_env": {"env_vars": {"VALUE_OF_THE_JOB": "7"}}}
    variables = {"RAY_ADDRESS": cluster, "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path)],
        env={**os.environ, **variables, "LOCKSTEP_ENGINE": "ray"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "value 7" in done.stdout.splitlines(), done.stderr
