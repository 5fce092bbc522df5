"""The decorators of old Tune scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep import tune
from lockstep.tune.integration.mlflow import mlflow_mixin
from lockstep.tune.integration.wandb import wandb_mixin
from tests.trackers.installed import need

need("mlflow", "wandb")


def test_a_decorated_function_has_a_run_of_the_tracker(tmp_path: Path) -> None:
    uri = f"file:{tmp_path}/mlruns"

    @wandb_mixin
    @mlflow_mixin
    def train(config: dict[str, Any]) -> dict[str, Any]:
        import mlflow
        import wandb

        mlflow.log_metric("loss", 1.0)
        assert wandb.run is not None
        wandb.log({"loss": 1.0})
        return {"loss": config["x"]}

    space = {
        "x": 3,
        "mlflow": {
            "tracking_uri": uri,
            "experiment_name": "old",
            "create_experiment_if_not_exists": True,
        },
        "wandb": {"project": "old", "mode": "offline", "dir": str(tmp_path)},
    }
    analysis = tune.run(train, config=space, verbose=0)
    assert analysis.trials[0].last_result["loss"] == 3
    assert list(tmp_path.glob("wandb/offline-run-*"))
    (run,) = tmp_path.glob("mlruns/*/*/metrics/loss")
    assert " 1.0 " in run.read_text()
    assert (run.parents[1] / "params" / "x").read_text() == "3"


@pytest.mark.parametrize("mixin", [mlflow_mixin, wandb_mixin])
def test_a_class_calls_setup_itself(mixin: Any) -> None:
    with pytest.raises(TypeError, match=r"call setup_\w+\(\) in its setup"):
        mixin(tune.Trainable)
