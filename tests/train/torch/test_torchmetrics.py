"""TorchMetrics over the process group of a run: the two examples of the user guide."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from lockstep import train
from lockstep.train.torch import prepare_model
from tests.train.torch.ranks import fit, forked_with

torchmetrics = pytest.importorskip("torchmetrics")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _torchmetrics_in_workers() -> Iterator[None]:
    with forked_with("torchmetrics"):
        yield


def test_a_module_metric_counts_every_rank() -> None:
    def function() -> None:
        metric = torchmetrics.MeanMetric()
        metric(float(train.world_rank()))
        metric(float(train.world_rank()))
        train.report({"mean": metric.compute().item()})

    assert [rank["mean"] for rank in fit(function, 3).metrics_by_rank] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("with_checkpoints", [True, False])
def test_metrics_of_a_training_run(with_checkpoints: bool) -> None:
    def function(config: dict[str, bool]) -> None:
        torch.manual_seed(train.world_rank())
        inputs, targets = torch.randn(40, 4), torch.rand(40, 1) + 1
        model = prepare_model(nn.Linear(4, 1))
        loss_of = nn.MSELoss()
        percentage = torchmetrics.MeanAbsolutePercentageError()
        mean = torchmetrics.MeanMetric()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for _ in range(3):
            model.train()
            loss = loss_of(model(inputs[:20]), targets[:20])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.eval()
            with torch.no_grad():
                predictions = model(inputs[20:])
                valid_loss = loss_of(predictions, targets[20:])
            percentage(predictions, targets[20:])
            mean(valid_loss)
            metrics = {
                "valid_loss": valid_loss.item(),
                "mean_valid_loss_collected": mean.compute().item(),
                "mape_collected": percentage.compute().item(),
            }
            percentage.reset()
            mean.reset()
            if not config["with_checkpoints"]:
                train.report(metrics)
                continue
            with tempfile.TemporaryDirectory() as directory:
                torch.save(model.state_dict(), os.path.join(directory, "model.pt"))
                checkpoint = train.Checkpoint.from_directory(directory)
                train.report(metrics, checkpoint=checkpoint)

    result = fit(function, 2, {"with_checkpoints": with_checkpoints})
    ranks = result.metrics_by_rank
    losses = [rank["valid_loss"] for rank in ranks]
    assert losses[0] != losses[1]
    for rank in ranks:
        assert rank["mean_valid_loss_collected"] == pytest.approx(sum(losses) / 2)
    assert ranks[0]["mape_collected"] == ranks[1]["mape_collected"]
    assert result.metrics["valid_loss"] == losses[0]
    assert len(result.metrics_dataframe) == 3
    assert (result.checkpoint is not None) == with_checkpoints


def test_a_function_of_torchmetrics() -> None:
    """The user guide's example, with the arguments of newer versions of TorchMetrics."""

    def function(config: dict[str, bool]) -> None:
        predictions = torch.randn(10, 5).softmax(dim=-1)
        target = torch.randint(5, (10,))
        accuracy = torchmetrics.functional.accuracy(
            predictions, target, task="multiclass", num_classes=5
        ).item()
        train.report({"accuracy": accuracy})

    result = fit(function, 2)
    assert 0 <= result.metrics["accuracy"] <= 1
