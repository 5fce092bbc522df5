"""Train a digit classifier on two workers. Data: the 1,797 digits that ship with scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lockstep import train
from lockstep.train import CheckpointConfig, RunConfig, ScalingConfig
from lockstep.train.torch import TorchTrainer, prepare_data_loader, prepare_model


def train_func(config: dict) -> None:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    training = TensorDataset(images[:1500], labels[:1500])
    loader = prepare_data_loader(DataLoader(training, batch_size=32, shuffle=True))
    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=config["lr"])
    loss_of = nn.CrossEntropyLoss()
    state = train.State(model=model, optimizer=optimizer, epoch=0)
    state.restore()  # after a failure: continue where the run was

    for epoch in range(state.epoch, config["epochs"]):
        loader.set_epoch(epoch)
        total = 0.0
        for x, y in loader:
            loss = loss_of(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        with torch.no_grad():
            accuracy = (model(images[1500:]).argmax(1) == labels[1500:]).float().mean().item()
        metrics = {"epoch": epoch, "loss": total / len(loader), "accuracy": accuracy}
        state.epoch = epoch + 1
        train.report(metrics, checkpoint=state, reduce={"loss": "mean"})


if __name__ == "__main__":
    best_two = CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
    result = TorchTrainer(
        train_func,
        train_loop_config={"lr": 0.003, "epochs": 15},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(checkpoint_config=best_two),
    ).fit()
    print(result.metrics_dataframe[["epoch", "loss", "accuracy"]].tail(3).to_string(index=False))
    print(f"accuracy:   {result.metrics['accuracy']:.3f}")
    print(f"checkpoint: {result.checkpoint.path}")
    print(f"run:        {result.path}")
