"""A model in shards (FSDP), its checkpoint written by all workers, and more workers later. Offline.

Two workers train and save half a model each; three workers resume from there with a third each.
"""

import tempfile

import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from lockstep import train
from lockstep.train import Checkpoint, ScalingConfig
from lockstep.train.torch import TorchTrainer, prepare_model


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 1))
    model = prepare_model(model, parallel_strategy="fsdp")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    epoch = torch.tensor(0)

    checkpoint = train.get_checkpoint()
    if checkpoint is not None:
        weights, moments = get_state_dict(model, optimizer)
        with checkpoint.as_directory() as directory:
            dcp.load(
                {"model": weights, "optimizer": moments, "epoch": epoch}, checkpoint_id=directory
            )
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)

    x = torch.randn(64, 8)
    y = x.square().sum(1, keepdim=True)
    while epoch < config["until"]:
        for _ in range(20):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        epoch += 1
        weights, moments = get_state_dict(model, optimizer)
        with tempfile.TemporaryDirectory() as directory:
            dcp.save(
                {"model": weights, "optimizer": moments, "epoch": epoch}, checkpoint_id=directory
            )
            shard = sum(parameter.to_local().numel() for parameter in model.parameters())
            train.report(
                {"epoch": epoch.item(), "loss": loss.item(), "parameters_here": shard},
                checkpoint=Checkpoint.from_directory(directory),  # every rank its own files
            )


if __name__ == "__main__":
    checkpoint = None
    for workers, until in ((2, 2), (3, 4)):
        result = TorchTrainer(
            train_func,
            train_loop_config={"until": until},
            scaling_config=ScalingConfig(num_workers=workers),
            resume_from_checkpoint=checkpoint,
        ).fit()
        checkpoint = result.checkpoint
        shards = [metrics["parameters_here"] for metrics in result.metrics_by_rank]
        epochs = result.metrics_dataframe["epoch"].tolist()
        losses = [f"{loss:.1f}" for loss in result.metrics_dataframe["loss"]]
        print(f"{workers} workers: shards {shards}, epochs {epochs}, losses {', '.join(losses)}")
    print("files:", *sorted(checkpoint.files()))
