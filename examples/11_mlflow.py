"""Log a run to MLflow both ways: with a callback in the driver, and in the training function."""

import os
import tempfile

from lockstep.air import RunConfig, ScalingConfig, session
from lockstep.air.integrations.mlflow import MLflowLoggerCallback, setup_mlflow
from lockstep.train.torch import TorchTrainer
from lockstep.tune.logger import TBXLoggerCallback

# Newer MLflow recommends a database, such as sqlite:///mlflow.db.
os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")


def train_func(config: dict) -> None:
    # Rank 0 gets MLflow with an active run, the same one after a restart; the others a stand-in.
    mlflow = setup_mlflow(
        config,
        tracking_uri=config["tracking_uri"],
        experiment_name="from_the_function",
        create_experiment_if_not_exists=True,
    )
    for epoch in range(config["num_epochs"]):
        mlflow.log_metrics({"loss": 1 / (epoch + 1)}, step=epoch)
        session.report({"epoch": epoch, "loss": 1 / (epoch + 1)})


def show(tracking_uri: str, experiment: str) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    for run in client.search_runs([found.experiment_id]):
        history = client.get_metric_history(run.info.run_id, "loss")
        losses = {metric.step: round(metric.value, 2) for metric in history}
        print(f"{experiment}: {run.info.status}, params {sorted(run.data.params)}, loss {losses}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as shared:
        tracking_uri = f"file:{shared}/mlruns"  # or http://…, where an MLflow server runs
        result = TorchTrainer(
            train_func,
            train_loop_config={"num_epochs": 3, "tracking_uri": tracking_uri},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                callbacks=[
                    MLflowLoggerCallback(tracking_uri, experiment_name="train_experiment"),
                    TBXLoggerCallback(),
                ]
            ),
        ).fit()
        show(tracking_uri, "train_experiment")
        show(tracking_uri, "from_the_function")
    print("tensorboard --logdir", result.log_dir.parent)
