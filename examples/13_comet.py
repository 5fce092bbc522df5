"""Log to Comet, offline: from the training function and by callback, into archives to upload later.

With a key (`comet login`, or `lockstep.init(runtime_env={"env_vars": {"COMET_API_KEY": …}})`) leave
out `online=False`.
"""

import json
import tempfile
import zipfile
from pathlib import Path

from lockstep import train
from lockstep.air.integrations.comet import CometLoggerCallback, setup_comet
from lockstep.train import DataParallelTrainer, RunConfig, ScalingConfig


def train_func(config: dict) -> None:
    # Rank 0 gets Comet's experiment, ended when this function ends; the others a silent stand-in.
    experiment = setup_comet(config, online=False, offline_directory=config["directory"])
    for epoch in range(3):
        loss = config["lr"] / (epoch + 1)
        experiment.log_metric("loss", loss, step=epoch)
        train.report({"loss": loss})


def show(directory: Path) -> None:
    for path in directory.glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("messages.json").decode().splitlines()
        messages = [json.loads(line) for line in lines]
        metrics = [m["payload"]["metric"] for m in messages if m["type"] == "metric_msg"]
        others = [m["payload"] for m in messages if m["type"] == "log_other"]
        losses = {m["step"]: m["metricValue"] for m in metrics if m["metricName"] == "loss"}
        (status,) = (other["value"] for other in others if other["key"] == "status")
        print(f"{directory.name}: {status}, loss {losses}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        callback = CometLoggerCallback(
            online=False, offline_directory=f"{shared}/callback", tags=["example"]
        )
        DataParallelTrainer(
            train_func,
            train_loop_config={"lr": 0.6, "directory": f"{shared}/function"},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(callbacks=[callback]),
        ).fit()
        show(Path(shared, "callback"))
        show(Path(shared, "function"))
    print("to upload: comet upload DIRECTORY/*.zip")
