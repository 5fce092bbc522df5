"""Search the hyperparameters of a digit classifier: 12 trials, two at a time, and the best.

Each trial is a run of its own, with a directory, a checkpoint and a Result. The search can be
interrupted at any time: ``Tuner.restore(path).fit()`` resumes the unfinished trials.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from lockstep import tune
from lockstep.train import Checkpoint, CheckpointConfig, RunConfig
from lockstep.tune import TuneConfig, Tuner


def trial(config: dict, images: torch.Tensor, labels: torch.Tensor) -> None:
    torch.manual_seed(0)
    width = config["width"]
    model = nn.Sequential(nn.Linear(64, width), config["activation"](), nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(8):
        for batch in torch.randperm(1500).split(64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
        state = Checkpoint.from_dict({"model": model.state_dict()})
        tune.report({"loss": loss.item(), "accuracy": accuracy}, checkpoint=state)


if __name__ == "__main__":
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    tuner = Tuner(
        tune.with_parameters(trial, images=images, labels=labels),  # sent once, not in the config
        param_space={
            "lr": tune.loguniform(1e-4, 1e-1),
            "width": tune.choice([16, 32, 64]),
            "activation": tune.grid_search([nn.ReLU, nn.Tanh]),
        },
        tune_config=TuneConfig(metric="accuracy", mode="max", num_samples=6),
        run_config=RunConfig(
            name="digits",
            stop={"accuracy": 0.97},
            checkpoint_config=CheckpointConfig(num_to_keep=1),
        ),
    )
    grid = tuner.fit()
    best = grid.get_best_result()
    columns = ["config/lr", "config/width", "config/activation", "training_iteration", "accuracy"]
    print(grid.get_dataframe().sort_values("accuracy")[columns].to_string(index=False))
    print(f"trials:   {len(grid)}, failed: {grid.num_errors}")
    print(f"accuracy: {best.metrics['accuracy']:.3f} with {best.config}")
    weights = best.checkpoint.to_dict()["model"]
    print(f"weights:  {sum(tensor.numel() for tensor in weights.values())}")

    again = Tuner.restore(grid.experiment_path).fit()  # all trials are finished: nothing runs
    print(f"restored: {again.num_terminated} trials")
